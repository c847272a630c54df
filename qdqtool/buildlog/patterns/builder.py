"""The builder of TensorRT 8.6 to 11 talking of itself: backends, subgraphs, cached results, streams, limits."""

from qdqtool.buildlog.sentence import Family, row, says

PLUGIN = Family(
    sentences=(
        says(
            "streams-split",
            "[MS] Multi stream splitting completed in {seconds:num} seconds.",
            "[MS] Multi stream splitting completed in 0.000965225 seconds.",
        ),
        says(
            "strategy-chosen",
            "Chose this engine with backend strategy {strategy:int} since its estimated inference time ({ms:num}) is {rest}",
            "Chose this engine with backend strategy 3 since its estimated inference time (0.310688) is faster than the "
            "previous engine.",
        ),
        says(
            "sparse-eligible",
            "(Sparsity) Layers eligible for sparse math: {layers}",
            "(Sparsity) Layers eligible for sparse math: Conv_1, Conv_2",
        ),
        says(
            "sparse-chosen",
            "(Sparsity) TRT inference plan picked sparse implementation for layers:{layers?}",
            "(Sparsity) TRT inference plan picked sparse implementation for layers:",
        ),
        says(
            "flag-deprecated",
            "{flag:word} flag has been deprecated by {other:word} flag.",
            "--workspace flag has been deprecated by --memPoolSize flag.",
        ),
        says(
            "option-value-deprecated",
            "{option:word} has been deprecated by {other}.",
            "--profilingVerbosity=verbose has been deprecated by --profilingVerbosity=detailed.",
        ),
        says(
            "cache-unreadable",
            "Could not read timing cache from: {path>}. A new timing cache will be generated and written.",
            "Could not read timing cache from: ./timing.cache. A new timing cache will be generated and written.",
        ),
        says("pad-without-effect", "Found no-op pad in node: {node}", "Found no-op pad in node: Pad_2408"),
        says(
            "jit-typed",
            "In JIT build, strongly typed is enabled by default.",
            "In JIT build, strongly typed is enabled by default.",
        ),
        says(
            "implicit-batch",
            "hasImplicitBatchDimension is deprecated and {rest}",
            "hasImplicitBatchDimension is deprecated and always return false.",
        ),
        says("dla-memory", "DLA Memory Consumption Summary:", "DLA Memory Consumption Summary:"),
        says(
            "dla-offloaded",
            "Number of DLA node candidates offloaded : {offloaded:int} out of {nodes:int}",
            "Number of DLA node candidates offloaded : 0 out of 1",
        ),
        says(
            "dla-memory-total",
            "Total memory required by accepted candidates : {sizes}",
            "Total memory required by accepted candidates : Managed SRAM = 0 MiB, Local DRAM = 0 MiB",
        ),
        says(
            "profile-unset",
            "Could not set default profile {profile:int} for execution context. {rest}",
            "Could not set default profile 0 for execution context. Profile index must be set explicitly.",
        ),
        says(
            "streams-used", "[MS] Number of streams used is {streams:int}", "[MS] Number of streams used is 3"
        ),
        says("events-used", "[MS] Number of events used is {events:int}", "[MS] Number of events used is 2"),
        says("cache-loaded", "Loaded {size:int} timing cache entries.", "Loaded 1 timing cache entries."),
        says(
            "cache-loaded-bytes",
            "Loaded {size:int} bytes of {what}",
            "Loaded 27 bytes of code generator cache.",
        ),
        says(
            "strategy-used",
            "Use backend strategy {strategy:int} with estimated inference time ({ms:num}) as the initial choice.",
            "Use backend strategy 4 with estimated inference time (0.224256) as the initial choice.",
        ),
        says(
            "strategy-skipped",
            "Skip backend strategy {strategy:int}since its estimated inference time ({ms:num}) is not faster than {rest}",
            "Skip backend strategy 3since its estimated inference time (0.260096) is not faster than the previous engine.",
        ),
        says(
            "non-conforming",
            "For layer {layer>} a non-conforming implementation was chosen than was requested i.e. {rest}",
            "For layer Conv__25 + Relu a non-conforming implementation was chosen than was requested i.e. requested layer "
            "computation precision and output precision types are ignored.",
        ),
        says(
            "selector-advice",
            "It is suggested to disable layer timing cache while using AlgorithmSelector. {rest}",
            "It is suggested to disable layer timing cache while using AlgorithmSelector. Please refer to the developer guide.",
        ),
        says(
            "int8-configured",
            "Configuring builder for Int8 Mode completed in {seconds:num} seconds.",
            "Configuring builder for Int8 Mode completed in 0.000879426 seconds.",
        ),
        says("file-locked", "File locked in {seconds:num} seconds.", "File locked in 4.649e-06 seconds."),
        says(
            "file-unlocked", "File unlocked in {seconds:num} seconds.", "File unlocked in 5.961e-06 seconds."
        ),
        says(
            "file-unlocking",
            "Trying to remove exclusive file lock {path}",
            "Trying to remove exclusive file lock ./timing.cache.lock",
        ),
        says(
            "broadcast",
            "{node}: broadcasting {input} to make tensors conform, {dims}",
            "MatMul_0: broadcasting input1 to make tensors conform, dims(input0)=[1,3][NONE] dims(input1)=[1,1][NONE].",
        ),
        says(
            "transposed",
            "Transposing the dimensions of {nodes} and setting {others} to identity shuffle.",
            "Transposing the dimensions of Add-6 and constant32t and setting Transpose-6 and Transpose-7 to identity shuffle.",
            light="all",
        ),
        says(
            "input-unused",
            "[RemoveDeadLayers] Input Tensor {tensor} is unused or used only at compile-time, but is not being removed.",
            "[RemoveDeadLayers] Input Tensor x is unused or used only at compile-time, but is not being removed.",
        ),
        says(
            "flag-unset",
            "Unset previous flag because {reason}",
            "Unset previous flag because kREFIT, kREFIT_INDIVIDUAL and kREFIT_IDENTICAL are mutually exclusive.",
        ),
        says(
            "backend-build",
            "Compiler backend is used during engine build.",
            "Compiler backend is used during engine build.",
        ),
        says(
            "backend-execution",
            "Compiler backend is used during engine execution.",
            "Compiler backend is used during engine execution.",
        ),
        says(
            "subgraph-compiled",
            "Subgraph compilation completed in {seconds:num} seconds.",
            "Subgraph compilation completed in 7.922 seconds.",
        ),
        says(
            "fp8-level",
            "Enabling FP8 fusions at optimization level {level:int}",
            "Enabling FP8 fusions at optimization level 5",
        ),
        says(
            "tactic-limit",
            "Set number of tactics to {tactics:int} at optimization level {level:int}",
            "Set number of tactics to 300 at optimization level 5",
        ),
        says(
            "workspace-set",
            "Setting workspace to {bytes:int}enables more tactics for profiling",
            "Setting workspace to 200704enables more tactics for profiling",
        ),
        says(
            "runner-skipped",
            "Skipping {runner:word}: No valid tactics for {layer}",
            "Skipping CaskFlattenConvolution: No valid tactics for node_conv2d + node_relu",
        ),
        says(
            "cached-result",
            "{layer} got cached result: {runner}, tactic {tactic}",
            "Optimizer Reformat(relu -> <out>) [Float(1,9) -> Float(1:4,9)] got cached result: Reformat, tactic 0x0",
        ),
        says(
            "tactic-skipped",
            "Tactic: {tactic:hex} skipped. Scratch requested: {requested:int}, available: {available:int}",
            "Tactic: 4 skipped. Scratch requested: 7527202816, available: 1073741824",
            light="all",
        ),
        says(
            "mma-unrecognized",
            "Unrecognized MMA instruction source format or shape: {kernel}",
            "Unrecognized MMA instruction source format or shape: sm50_xmma_cublas_gemvx_f32f32",
            light="all",
        ),
        says("memory-scratch", "Max Scratch Memory: {bytes}", "Max Scratch Memory: 935424 bytes"),
        says("scratch-runner", "- Runner scratch: {bytes:int} bytes", "- Runner scratch: 1186304 bytes"),
        row(
            "blocks-listed",
            r"(?P<which>Pre-optimized|Optimized) block assignment\.",
            "Pre-optimized block assignment.",
            "Optimized block assignment.",
        ),
        says(
            "streams-off",
            "[MS] Multi stream is disabled as {reason}",
            "[MS] Multi stream is disabled as cannot find an opportunity to leverage it",
        ),
        says(
            "kernel-weights",
            "Kernel weights are not set yet. {advice}",
            "Kernel weights are not set yet. Kernel weights must be set using setInput(1, kernel_tensor) API call.",
            light="all",
        ),
        says(
            "convergence-mode",
            "Compiler backend convergence mode enabled",
            "Compiler backend convergence mode enabled",
        ),
        says(
            "myelin-preferred",
            "InternalBuildFlags::kENABLE_INTERNAL_MYELIN_TESTING is enabled, or {reasons}",
            "InternalBuildFlags::kENABLE_INTERNAL_MYELIN_TESTING is enabled, or BackendStrategy is to prefer Myelin, or "
            "weight streaming is enabled, so all ops are sent to Myelin",
        ),
        says(
            "targets",
            "Number of target compute capabilities: {targets:int}",
            "Number of target compute capabilities: 1",
        ),
        says(
            "streams-off",
            "[MS] Multi stream is disabled because {reason}",
            "[MS] Multi stream is disabled because the stream assignment failed.",
        ),
        says(
            "streams-running",
            "[MS] Running engine with multi stream info",
            "[MS] Running engine with multi stream info",
        ),
        says("streams-aux", "[MS] Number of aux streams is {streams:int}", "[MS] Number of aux streams is 2"),
        says(
            "streams-workers",
            "[MS] Number of total worker streams is {streams:int}",
            "[MS] Number of total worker streams is 3",
        ),
        says(
            "streams-main",
            "[MS] The main stream provided by {who} is the first worker stream",
            "[MS] The main stream provided by execute/enqueue calls is the first worker stream",
        ),
        says(
            "cache-serialized",
            "Serialized {size:int} {what}",
            "Serialized 27 bytes of code generator cache.",
            "Serialized 170 timing cache entries",
        ),
        says(
            "cache-serializing",
            "Serializing timing cache. UUID = {uuid}, commit ID = {commit}",
            "Serializing timing cache. UUID = GPU-31e9692b-62b7, commit ID = 438e29f1479be350",
        ),
        says(
            "file-lock",
            "Trying to set exclusive file lock {path}",
            "Trying to set exclusive file lock model.TimingCache.lock",
        ),
        says(
            "cache-unreadable",
            "Could not read cache from: {path>}. A new cache will be generated and written.",
            "Could not read cache from: model.TimingCache. A new cache will be generated and written.",
        ),
        says(
            "cache-saved",
            "Saved {bytes:int} bytes of timing cache to {path}",
            "Saved 107579 bytes of timing cache to model.TimingCache",
        ),
        says(
            "workspace-advice",
            "Try increasing the workspace size with {call}.",
            "Try increasing the workspace size with IBuilderConfig::setMemoryPoolLimit.",
        ),
        says(
            "workspace-advice",
            "Example of equivalent trtexec option: {call}",
            "Example of equivalent trtexec option: --memPoolSize=workspace:16384",
        ),
        says(
            "tactic-out-of-memory",
            "UNSUPPORTED_STATE: Skipping tactic {tactic} due to insufficient memory on requested size of {bytes:int} "
            "detected for tactic {id}.",
            "UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested size of 2688 detected for "
            "tactic 0x0000000000000000.",
        ),
        says(
            "profile-sharing",
            "profileSharing0806 is on by default in TensorRT 10.0. {rest}",
            "profileSharing0806 is on by default in TensorRT 10.0. This flag is deprecated and has no effect.",
        ),
        says(
            "plugin-initializing",
            "Initializing plugin at: {call}",
            "Initializing plugin at: allocateResources",
        ),
        says(
            "registry-found",
            "Global registry found {plugin} creator.",
            "Global registry found AddScalar creator.",
        ),
        says(
            "registry-missed",
            "Local registry did not find {plugin} creator. {rest}",
            "Local registry did not find AddScalar creator. Will try parent registry if enabled.",
        ),
        says(
            "logger-differs",
            "The logger passed into {call} differs from one already provided for an existing {rest}",
            "The logger passed into createInferBuilder differs from one already provided for an existing builder, "
            "runtime, or refitter.",
        ),
        says("gather-axis", "Using Gather axis: {axis:int}", "Using Gather axis: 4", light="all"),
    )
)
