"""Causes of failed builds in the builder and on the machine."""

from __future__ import annotations

from qdqtool.core.causes import OWN_BUILD, Cause, Wording
from qdqtool.core.wording import Command, Setting
from qdqtool.trt.causes.classes import CONVERT, DECIDE_IF, LINT, LLM_RELEASE, RELEASE

_EXCLUDED = Setting("place.exclude", "[NODE]")
_FREE = (
    "close other programs on the GPU or build for smaller shapes; a workspace limit below the free memory makes the builder choose "
    "smaller kernels (trtexec --memPoolSize=workspace:1024, in MiB)"
)
_CALIBRATION_BUFFER = (
    "CUDA failed in a calibration batch: an address or a size that get_batch returns is wrong, or the memory was freed or belongs to "
    "another CUDA context; a kernel that crashed before is possible too"
)
_GIVE_BUFFERS = (
    "let get_batch return one device address per input, of a whole batch in the input's type and shape, and keep that memory; or calibrate outside "
    f"of the builder: {Command('run', ('MODEL', '--samples', 'DATA'))} writes Q/DQ"
)

MACHINE = (
    Cause(
        name="no-gpu",
        area="driver",
        pattern=r"no builder can be created|Builder creation failed|[Rr]untime creation failed|CUDA initialization failure|no CUDA-capable device",
        meaning="TensorRT finds no usable GPU, or the GPU's driver is too old for it",
        fix="run on a machine with an NVIDIA GPU, or use --builder rtx, which needs no GPU; see qdqtool doctor",
        fault="machine",
    ),
    Cause(
        name="cuda-start",
        area="driver",
        pattern=r"initializeCommonContext",
        meaning="CUDA, cuDNN or cuBLAS did not start: driver and libraries do not fit each other, another program holds the GPU's memory, or this user may not use the GPU",
        fix=f"compare the versions ({Command('doctor')}; Jetson: install what belongs to this JetPack), free memory on the GPU, and try it as root (Jetson: the user "
        "belongs to the group video)",
        fault="machine",
        releases="3 to 7",
    ),
    Cause(
        name="gpu-of-jetson",
        area="driver",
        pattern=r"Target GPU SM (?:53|62|72|87) is not supported by this TensorRT",
        meaning="this package of TensorRT has no kernels for the GPU of a Jetson: the packages from PyPI and for servers (SBSA) do not contain them",
        fix="use the TensorRT that belongs to JetPack (apt install tensorrt, or an l4t-tensorrt container), and remove the tensorrt package that pip installed",
        fault="machine",
        releases="10 and newer",
    ),
    Cause(
        name="gpu-too-new",
        area="driver",
        pattern=r"Target GPU SM \d+ is not supported by this TensorRT|Unsupported SM\b(?! version for FP8)|SM version not supported"
        r"|nvrtc: error: invalid value for --gpu-architecture",
        meaning="this release of TensorRT has no kernels for this GPU",
        fix="install a release that supports the GPU: newer for a new GPU, older for an old one",
    ),
    Cause(
        name="jetson-unknown",
        area="driver",
        pattern=r"Unknown embedded device detected",
        meaning="this TensorRT does not know the module or its memory size: it is older than the module, or does not belong to the installed JetPack",
        fix="install the TensorRT of the JetPack for this module (apt install tensorrt), in a container too",
        fault="machine",
    ),
    Cause(
        name="jetson-memory",
        area="memory",
        pattern=r"NvMapMemAlloc\w*.{0,40}error 12|NVML_SUCCESS == r",
        meaning="the Jetson has no free memory of this size, or its memory is fragmented; CPU and GPU share the memory",
        fix="close other programs and the desktop, or reboot, and try again; a smaller workspace (trtexec --memPoolSize=workspace:1024) or smaller shapes; swap helps the "
        "CPU only",
        fault="machine",
    ),
    Cause(
        name="no-nvml",
        area="driver",
        pattern=r"[Ff]ailed to initialize NVML|Driver/library version mismatch|could not select device driver",
        meaning="the program does not reach the GPU's driver: the container was started without GPUs, or the driver was updated without a reboot",
        fix="start the container with --gpus all (Jetson: --runtime nvidia); run nvidia-smi on the host, and reboot if it fails; could not select device driver: install the NVIDIA Container Toolkit and restart Docker",
        fault="machine",
        rank="general",
    ),
    Cause(
        name="mixed-libraries",
        area="host",
        pattern=r"^(?!.*(?:GStreamer-WARNING|gst-plugin-scanner)).*(?:undefined symbol: \w|version `\w+' not found|symbol lookup error|DLL load failed)",
        meaning="a library calls a function that another loaded library does not have: libraries of different releases are mixed (TensorRT, CUDA, PyTorch, or a plug-in compiled for others)",
        fix="install all libraries of one release (all libnvinfer*, and the PyTorch for which the extension was compiled), remove the others from LD_LIBRARY_PATH, or compile "
        "the plug-in or extension again",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="builder-library",
        area="driver",
        pattern=r"validateCaskKLibSize|createCaskKernelLibrary|builder_resource|Unable to load library: \S*nvinfer",
        meaning="TensorRT cannot use one of its libraries (nvinfer_builder_resource with the kernels, nvinfer_lean): it is missing, incomplete, or of another release",
        fix="install TensorRT again, so that all its libraries are of one release, and remove older ones from LD_LIBRARY_PATH (Windows: PATH)",
        fault="machine",
        releases="8.6 and newer",
    ),
    Cause(
        name="timing-model",
        area="kernel",
        pattern=r"\bKTM\b|/ktm/|\w+TimingModel\.cpp|doesn't have base shader",
        meaning="the builder's model for estimating kernel times does not fit this GPU: a fault of this TensorRT release",
        fix="let the builder measure: --builderOptimizationLevel=3 or higher (the estimates belong to lower levels), or leave the option out; or build with another release",
        releases="10",
    ),
    Cause(
        name="cannot-write",
        area="file",
        pattern=r"Saving engine .{0,40}failed|Cannot open .{0,60}for writ|Permission denied|Read-only file system",
        meaning="the program may not write or read a file: the folder is missing or belongs to another user, or the disk is read-only",
        fix="choose another folder, or change its owner (a container writes as root)",
        rank="general",
        fault="machine",
    ),
    Cause(
        name="disk-full",
        area="file",
        pattern=r"No space left on device",
        meaning="the disk is full",
        fix="free some space and build again",
    ),
    Cause(
        name="cudnn",
        area="driver",
        pattern=r"(?i)cudnn error|cudnn_status_|cublas_status_|\bcu(?:dnn|blas)(?:lt)? (?:failure|\()|could not initialize cu(?:dnn|blas)",
        meaning="cuDNN or cuBLAS refuses a call of TensorRT, a plug-in or the program: often another version of the library was loaded, or the GPU has "
        "no free memory left for it",
        fix="install the versions of CUDA, cuDNN and cuBLAS that this TensorRT was built against (its log warns 'was linked against'), and free memory on the GPU; "
        "a build can exclude the failing library (trtexec --tacticSources=-CUBLAS_LT)",
        releases="5 to 10",
    ),
    Cause(
        name="calibration-buffer",
        area="calibration",
        pattern=r"calibrator\.(?:cpp|cu)\b.*(?:Cuda|invalid argument|illegal memory|context->execute)|cuCalibrator::",
        meaning=_CALIBRATION_BUFFER,
        fix=_GIVE_BUFFERS,
        releases="5 to 10",
    ),
    Cause(
        name="kernel-crash",
        area="gpu",
        pattern=r"an illegal memory access|unspecified launch failure|misaligned address",
        meaning="a kernel crashed on the GPU; all later CUDA calls report the error again, so the failing call may be an earlier one",
        fix="in a build: if tactics were skipped for lack of memory, first set another workspace limit (trtexec --memPoolSize=workspace:1024); update TensorRT and the driver, or exclude tactics (trtexec --tacticSources)"
        ". In a program that runs an engine: run the engine "
        "alone (trtexec --loadEngine=FILE); if it runs, check the sizes and addresses of the program's buffers",
        rank="general",
        variants=(Wording(step="calibration", meaning=_CALIBRATION_BUFFER, fix=_GIVE_BUFFERS),),
    ),
)
"""Causes about the GPU, the driver and the machine."""

ENGINE = (
    Cause(
        name="engine-with-metadata",
        area="engine",
        pattern=r"incompatible serialization version \(\d{1,5} != 1953657958\)",
        meaning="the file contains more than an engine: it begins with other data, like the engines that Ultralytics exports (a length of 4 bytes, and metadata of "
        "this length as JSON); the first number is that length",
        fix="load the file with Ultralytics, or remove these bytes: tail -c +$((LENGTH + 5)) FILE > ENGINE, with the first number as LENGTH",
    ),
    Cause(
        name="engine-empty",
        area="engine",
        pattern=r"deserialize with an empty memory buffer|Plan file is empty|Engine blob is empty|[Aa]ttempting to deserialize an? (?:empty|null)|serialized_?[Ee]ngine.{0,20}(?:is empty|nullptr)",
        meaning="the program gave TensorRT no bytes as an engine: the file is empty or was not found, or the build that should have made it failed",
        fix="check the path and the size of the engine file; if the same program builds the engine, read the error of that build",
    ),
    Cause(
        name="other-version",
        area="engine",
        pattern=r"engine plan file is not compatible with this version|expected size of serialized engine|[Ss]erializ\w+.*\bversion|[Vv]ersion tag does not match"
        r"|expecting library version|remaining_buffer_size|magicTag|built with another version|Expected length \(\d+\) != real length \(\d+\)"
        r"|Serialization Error in \w+: ?\d+ ?\((?:Type|Magic|Version)",
        meaning="the engine was built by another release of TensorRT, or the file is not an engine",
        fix="build the engine again with the release that runs it; an engine that Ultralytics exported begins with metadata, and only Ultralytics loads it",
    ),
    Cause(
        name="other-device",
        area="engine",
        pattern=r"generated on an incompatible device|expecting compute \d|built (?:with|for) (?:a )?different GPU architecture|built for SM \d|No compatible device was found for instantiating",
        meaning="the engine was built for another GPU architecture",
        fix="build the engine on the GPU that runs it, or for several GPUs with --hardwareCompatibilityLevel=ampere+",
    ),
    Cause(
        name="plugin-twice",
        area="engine",
        pattern=r"[Cc]annot register the library as plugin creator",
        meaning="the engine carries a library of plug-ins that the program has loaded already; the engine itself is not at fault",
        fix="load the library once: run the engine without --dynamicPlugins or --staticPlugins, or build it without --setPluginsToSerialize",
        releases="8.6 and newer",
    ),
    Cause(
        name="lean-runtime",
        area="engine",
        pattern=r"getEngineHostCodeAllowed\(\) is false",
        meaning="the engine is version compatible and carries host code, which this program does not allow",
        fix="allow host code (setEngineHostCodeAllowed), build with --excludeLeanRuntime, or without --versionCompatible",
        releases="8.6 and newer",
    ),
    Cause(
        name="not-refittable",
        area="refit",
        pattern=r"cannot be refitted|Failed to create a refitter|no such role for this layer|does not use\) this layer",
        meaning="these weights cannot be replaced in this engine: it was built without refitting, the builder fused them, or they have other names",
        fix="build with --refit (kREFIT), and list the names that the refitter accepts",
    ),
)
"""Causes about engines that cannot be loaded or changed."""

RUNNING = (
    Cause(
        name="static-shape",
        area="running",
        pattern=r"Static dimension mismatch while setting input shape|engine was built with static shapes for input|Input shapes are inconsistent with the model",
        meaning="the shape of an input differs from the fixed shape in this engine",
        fix="pass the expected shape, or build an engine for this shape. With onnxruntime the engine may come from its cache, from a model with the "
        "same graph name: empty the cache folder, or set trt_engine_cache_prefix",
    ),
    Cause(
        name="outside-profile",
        area="running",
        pattern=r"satisfyProfile|profileM(?:ax|in)Dims|trt failed to set (?:the )?(?:binding dimension|input shape)|model expected the shape of dimension|failed to find any Optimization Profile|[Ff]or input: .{0,80}failed to set shape to|does not satisfy any optimization profile|No valid profile found|exceed min ~ max range|TRT runtime input shape of \S+ is invalid",
        meaning="the shape of an input is outside the range (minimum to maximum) for which the engine was built",
        fix="compare the shapes of the program with those of the build, and build again with --minShapes and --maxShapes that include them "
        "(TensorRT-LLM: --max_batch_size, --max_input_len, --max_seq_len)",
    ),
    Cause(
        name="no-address",
        area="running",
        pattern=r"bindings\[x\] != nullptr|profileObliviousBindings|nullBindingOK|mOutputAllocators|allInputDimensionsSpecified|all(?:Shape)?InputsSpecified",
        meaning="the program started the engine before every input had a shape and every input and output a buffer; this includes outputs that were added for debugging",
        fix="for all tensors of the engine (num_io_tensors), and call set_input_shape and set_tensor_address for each before execution; outputs whose size "
        "depends on data need an output allocator",
        releases="5 and newer",
    ),
    Cause(
        name="no-context",
        area="memory",
        pattern=r"[Uu]nable to create execution context",
        meaning="the engine was loaded, but its execution context could not be created: usually the GPU has too little free memory for the tensors of the engine",
        fix="free memory on the GPU; build for smaller shapes (--maxShapes); read the error of CUDA before this line",
        rank="general",
    ),
    Cause(
        name="reshape-volume",
        area="shape",
        pattern=r"reshape changes volume|reshaping failed for tensor|volume of (?:the )?input .{0,40}does not match .{0,20}reshape",
        meaning="a Reshape gets another number of values than its target shape has: a size (often the batch) is fixed in the export, or an input has another size than at the export",
        fix="build for the sizes of the export, or export the model with these axes dynamic, so that the Reshape does not contain them as constants",
    ),
    Cause(
        name="graph-capture",
        area="running",
        pattern=r"when stream is capturing|capturing blocking stream|cudaErrorStreamCapture|CUDA graph capture on the stream has failed",
        meaning="the program records a CUDA graph, and a call during the recording is not allowed: an engine allocates and initializes in its first run and after a change of shapes, "
        "it may have operations that cannot be recorded, or another thread uses the default stream",
        fix="run the engine once with the final shapes and synchronize the stream before the recording; if it still fails, run without a graph (trtexec: without "
        '--useCudaGraph); PyTorch with several threads: torch.cuda.graph(..., capture_error_mode="thread_local")',
    ),
    Cause(
        name="freed-late",
        area="running",
        pattern=r"deallocate::\d+\] Error Code 1: Cuda Runtime \(invalid argument\)",
        meaning="TensorRT frees memory that belongs to another CUDA context, or whose CUDA context has ended: the program ends its objects in the wrong order",
        fix="delete the execution context, then the engine, then the runtime, before the CUDA context ends; keep them and their buffers in one scope, and use one CUDA context",
        rank="general",
    ),
    Cause(
        name="context-shared",
        area="running",
        pattern=r"Called with an already loaded binary graph|invalid MyelinAllocator",
        meaning="an execution context was used while it was busy, for example by two threads",
        fix="give each thread its own execution context and stream; contexts may share one engine",
        releases="8.5 and newer",
    ),
    Cause(
        name="other-context",
        area="running",
        pattern=r"invalid resource handle|cudaErrorInvalidResourceHandle|context is destroyed|no currently active context|Cuda Error in \w+: 33\b",
        meaning="a stream, an event or a library handle belongs to another CUDA context: the engine is used in another thread than the thread that created it, or two libraries (PyCUDA, PyTorch) have separate contexts"
        "",
        fix="create and run the execution context in one thread and one CUDA context: push the context in that thread, or let PyCUDA use the primary context of PyTorch "
        "(pycuda.autoprimaryctx)",
    ),
    Cause(
        name="engine-crash",
        area="running",
        pattern=r"(?:enqueue\w*|execute\w*)\b.{0,200}CUDA error 7\d\d|CUDA error 7\d\d launching|Final synchronize failed"
        r"|[rR]unner\.cpp::(?:\w*::)?execute\w*::\d+|\(Cask \w+ execution\)",
        meaning="a kernel of the engine failed at run time: a buffer is too small, freed or on another device, or the kernel itself is wrong",
        fix="run the engine alone (trtexec --loadEngine=FILE): if it runs, check sizes, addresses and stream of the program's buffers; if not, "
        "build with another release, and report it to NVIDIA; a program with PyTorch, PyCUDA or threads: keep the engine in one CUDA context (start PyTorch's first: torch.cuda.init())",
    ),
)
"""Causes about engines that fail when they run."""

KERNELS = (
    Cause(
        name="infinite-factor",
        area="format",
        pattern=r"identifier \"(?:inff?|INFINITY|nanf?)\" is undefined",
        meaning="the source of a kernel that the builder generated contains an infinity, which does not compile: the reciprocal of a scale of zero (INT8 calibration, "
        "Q/DQ), or an infinite constant of the model (a mask of -inf)",
        fix=f"{Command('cache', ('lint', 'CACHE', '--model', 'MODEL'))} names scales of zero in a calibration cache, {LINT} those of a model with Q/DQ; replace "
        "infinite constants by finite ones (-65504 for FP16)",
    ),
    Cause(
        name="nvrtc",
        area="myelin",
        pattern=r"NVRTC [Cc]ompilation fail|nvrtc_compile\.cpp|nvrtc compilation failed|(?m:^(?!\S+\.(?:cuh?|cc|c?pp|h)\()\w[\w.]*\(\d+\): (?:catastrophic )?error: )",
        meaning="the builder could not compile a kernel that it generated (NVRTC compilation failure)",
        fix="this is a fault of the builder on this GPU; a larger workspace does not help: build with another release of TensorRT, and report it to NVIDIA. "
        "If only the model with Q/DQ fails, keep nodes of the named part float until it builds (in an attention: begin with the Q/DQ after the Softmax)",
        releases="8.5 and newer",
    ),
    Cause(
        name="workspace-short",
        area="memory",
        pattern=r"due to insufficient workspace|requires workspace memory greater than|sufficient workspace memory|Scratch requested: \d+, available"
        r"|implementation for node .*(?:insufficient workspace|increas\w+ the workspace)",
        meaning="no kernel for this node fits into the workspace",
        fix="raise the workspace limit, in MiB: --flags=--memPoolSize=workspace:8192",
    ),
    Cause(
        name="device-memory",
        area="memory",
        pattern=r"Tactic Device request: \d+\s*MB,? Available|Device memory is insufficient to use tactic",
        meaning="kernels were skipped because the GPU had less free memory than they need",
        fix=_FREE,
        effect="warns",
    ),
    Cause(
        name="tactic-memory",
        area="memory",
        pattern=r"due to insuff?icient memory on requested size",
        meaning="a kernel was skipped because its memory was not available, in the workspace limit or on the GPU",
        fix="raise the workspace limit (trtexec --memPoolSize=workspace:8192, in MiB: 10.x reads MiB at the end as bytes), or free memory",
        effect="warns",
    ),
    Cause(
        name="impossible-size",
        area="memory",
        pattern=r"(?:amount of memory|[Rr]equested size was|size of) \(?\d{18,}",
        meaning="the builder asked for an impossible amount of memory: a size is negative or overflowed, so the machine has enough memory. A dimension is unknown (-1), "
        "or a plug-in reports a wrong size",
        fix="give every input a fixed shape or a profile (--minShapes, --optShapes, --maxShapes); check the output shapes and getWorkspaceSize of "
        "plug-ins; or build with a newer release",
    ),
    Cause(
        name="host-memory",
        area="memory",
        pattern=r"bad_alloc|bad allocation",
        meaning="the program got no memory from the machine (not the GPU): too little is free, or the requested size is impossible, as after reading a "
        "calibration cache of another form",
        fix="watch the memory of the machine during the build (free -h); if enough is free, build without the calibration cache (--calib), and inspect the cache: "
        f"{Command('cache', ('show', 'CACHE'))}",
    ),
    Cause(
        name="out-of-memory",
        area="memory",
        pattern=r"out of memory|OutOfMemory|insufficient memory|Requested amount of (?:GPU )?memory",
        meaning="the builder ran out of memory",
        fix="free memory, or build for smaller shapes",
    ),
    Cause(
        name="memory-mapping",
        area="memory",
        pattern=r"resizePhysical::\d+\] Error Code \d+: Cuda Driver \(",
        meaning="the driver did not map memory of the GPU for TensorRT: usually too little is free",
        fix=_FREE,
        rank="general",
        releases="8.4 and newer",
    ),
    Cause(
        name="timing-cache",
        area="file",
        pattern=r"[Tt]iming cache will not be used|[Ii]nvalid timing cache|timing cache .{0,60}?(?:not compatible|incompatible|mismatch)|[Tt]iming cache header mismatch|ITimingCache\b.{0,80}mismatch",
        meaning="the timing cache was written by another release or for another GPU, or is damaged: the builder works without the timing cache, and takes longer",
        fix="delete the timing cache; this warning does not make a build fail",
        effect="warns",
    ),
    Cause(
        name="timing-cache-kernel",
        area="kernel",
        pattern=r"getCaskHandle",
        meaning="the builder looks for a kernel that this release does not have for this GPU: usually a timing cache of another GPU or release names it",
        fix="build without the timing cache, or delete it; the builder writes a new one",
        rank="general",
    ),
    Cause(
        name="int8-node-formats",
        area="kernel",
        pattern=r"incorrectly marked as an int8 node|!candidateChoices\.empty\(\)|!n\d*->cost\.empty\(\)",
        meaning="nothing at a node with Q/DQ can run: the operator or plug-in has no INT8 kernel there, or its Q and DQ are in the wrong place",
        fix=f"{LINT} names such pairs; remove the Q/DQ of the node ({Command('repair', ('MODEL', '--float', 'NODE', '--out', 'repaired.onnx'))}); an INT8 plug-in takes Q before it and DQ "
        "after it, and accepts INT8 with linear layout (supportsFormatCombination); newer releases accept more",
        releases="8 to 10",
    ),
    Cause(
        name="outputs-marked",
        area="myelin",
        pattern=r"ShapeHostToDeviceCopy \d+\] requires",
        meaning="a shape inside the network became an output, which the builder does not support: usually all tensors were marked as outputs for debugging",
        fix="mark only the tensors to compare (polygraphy --trt-outputs NAME instead of mark all): marked tensors also stop fusions",
    ),
    Cause(
        name="no-runner",
        area="kernel",
        pattern=r"has no runners that implement it",
        meaning="this release has no kernel for a node of this kind on this GPU, in any precision",
        fix="build with a newer release, especially if the GPU is newer than the release; if no release has a kernel, end the model before the node, and "
        "compute the rest outside the engine",
    ),
    Cause(
        name="turing-float",
        area="kernel",
        pattern=r"Turing \(SM75\): FP32 GEMM is not supported",
        meaning="a float MatMul is FP32, and SM75 has no kernel for it",
        fix=f"{Setting('insert.types', 'fp16')}",
        releases="RTX",
    ),
    Cause(
        name="myelin-check",
        area="myelin",
        pattern=r"MyelinCheckException|No Myelin Error exists|Error Code \d+: Myelin|resulted in null program|D?CHECK\(.*\) failed",
        meaning="an internal check of the builder's compiler (Myelin) failed",
        fix=f"{LINT} finds some of these in a model with Q/DQ; otherwise {RELEASE}",
    ),
    Cause(
        name="myelin-error",
        area="myelin",
        pattern=r"due to Myelin error: ",
        meaning="the builder's compiler (Myelin) cannot compile this part of the network",
        fix=f"fold constants and fix the shapes that the text names (polygraphy surgeon sanitize --fold-constants); otherwise {RELEASE}",
        effect="warns",
    ),
    Cause(
        name="no-operation-kernel",
        area="myelin",
        pattern=r"no tactics to implement operation",
        meaning="the compiler of regions (Myelin) has no kernel for one operation in the types that the text names",
        fix=f"use another type for this part, such as FP16 or FP32 instead of BF16 ({CONVERT}), or remove the Q/DQ of this node; or build with another release",
        releases="8.6 and newer",
    ),
    Cause(
        name="no-kernel",
        area="kernel",
        pattern=r"[Cc]ould not find any implementation|[Nn]o implementation (?:of|for)|[Nn]o tactics? available",
        meaning="no kernel for this node remains: no kernel has the requested precision, or all kernels with this precision failed or had too little memory",
        fix="INT8 with a calibrator or a cache: allow FP16 too (--fp16), which gives this node more kernels; a model that is quantized here: "
        f"{_EXCLUDED} keeps the node float; if that does not help, or the model is float: build with another release of TensorRT",
        variants=(
            Wording(
                layer=r"_TRT\b|\bPLUGIN_V\d|[Pp]lugin",
                meaning="the builder cannot run this plug-in: the plug-in accepts none of the types and layouts of its neighbours, needs more memory than is free, or was compiled for another release"
                "",
                fix="compile the plug-in for this release of TensorRT; change the plug-in so that it accepts FP32 and linear layout (supportsFormatCombination); free memory "
                "on the GPU, or raise the workspace limit",
            ),
            Wording(
                program="tensorrt-llm",
                fix="give the build the plug-ins that this quantization needs (--gemm_plugin auto, --gpt_attention_plugin auto), and free the memory of "
                f"the GPU; {LLM_RELEASE}",
            ),
            Wording(program=OWN_BUILD, fix=f"{_EXCLUDED} keeps the node float"),
            Wording(
                types=r"^(?!.*(?:INT|FP)[48])",
                meaning="no kernel for this node runs in the types of this build",
                fix=f"raise the workspace limit, in MiB (--memPoolSize=workspace:8192); {RELEASE}",
            ),
            Wording(
                types=r"^(?!.*FP16).*INT8",
                fix="allow FP16 too (--fp16), so that this node has another type than INT8 and FP32; a newer release of TensorRT may have a kernel",
            ),
        ),
        rank="general",
        before=(
            "nvrtc",
            "infer-type",
            "no-operation-kernel",
            "int8-meets-float",
            "myelin-check",
            "myelin-error",
            "types-differ",
            "workspace-short",
            "device-memory",
            "tactic-memory",
            "out-of-memory",
        ),
    ),
    Cause(
        name="myelin",
        area="myelin",
        pattern=r"[mM]yelin",
        meaning="the builder's compiler (Myelin) reports an error",
        fix=f"{LINT} finds some of these in a model with Q/DQ; otherwise {RELEASE}",
        variants=(
            Wording(
                layer=r"(?<![A-Za-z])(?:If|Loop)(?![a-z])",
                fix=f"this part has an If or a Loop; {DECIDE_IF}; or {RELEASE}",
            ),
        ),
        rank="general",
    ),
)
"""Causes about kernels and memory."""
