"""From chosen tactics to a serialized engine: kernels, placement on GPU or DLA, generation, loading."""

from qdqtool.buildlog.sentence import Family, Section, row, says

PLUGIN = Family(
    sentences=(
        says(
            "placement-heading",
            "--------------- Layers running on {device:word}:{layers?}",
            "--------------- Layers running on GPU:",
            "--------------- Layers running on DLA: {conv1,relu1},",
        ),
        says("engine-loaded", "Loaded engine size: {mib:int} MB", "Loaded engine size: 597 MB"),
        says(
            "lazy-loading-off",
            "CUDA lazy loading is not enabled. {advice}",
            "CUDA lazy loading is not enabled. Enabling it can significantly reduce device memory usage.",
        ),
        says(
            "dla-heading",
            "---------- Layers Running on DLA ----------",
            "---------- Layers Running on DLA ----------",
        ),
        says(
            "gpu-heading",
            "---------- Layers Running on GPU ----------",
            "---------- Layers Running on GPU ----------",
        ),
        says(
            "on-gpu",
            "[GpuLayer] {layer}",
            "[GpuLayer] COPY: /conv/QuantizeLinear",
            "[GpuLayer] Conv_1 + Relu_2",
        ),
        says("on-dla", "[DlaLayer] {layer}", "[DlaLayer] {ForeignNode[Conv_1...Relu_9]}"),
        says(
            "io-detected",
            "Detected {inputs:int} inputs and {outputs:int} output network tensors.",
            "Detected 1 inputs and 1 output network tensors.",
        ),
        says(
            "finalized",
            "Finalize: {layer>} Set kernel index: {index:int}",
            "Finalize: Conv_1 + Relu_2 Set kernel index: 13",
            light="all",
        ),
        says(
            "kernels-total",
            "Total number of generated kernels selected for the engine: {kernels:int}",
            "Total number of generated kernels selected for the engine: 11",
        ),
        says("kernel", "Kernel: {index:int} {kind}", "Kernel: 0 CASK_STATIC", light="all"),
        says(
            "engine-generated",
            "Engine generation completed in {seconds:num} seconds.",
            "Engine generation completed in 6.96604 seconds.",
        ),
        says("engine-built", "Engine built in {seconds:num} sec.", "Engine built in 184.708 sec."),
        says(
            "engine-added", "Adding {engines:int} engine(s) to plan file.", "Adding 1 engine(s) to plan file."
        ),
        says(
            "engine-weights-added",
            "Adding {engines:int} engine weights(s) to plan file.",
            "Adding 1 engine weights(s) to plan file.",
        ),
        says("engine-loaded", "Loaded engine size: {mib:int} MiB", "Loaded engine size: 186 MiB"),
        says(
            "engine-loaded-from",
            "Engine loaded in {seconds:num} sec.",
            "Engine loaded in 0.00519 sec.",
        ),
        says(
            "engine-created-size",
            "Created engine with size: {size}",
            "Created engine with size: 12.5 MiB",
        ),
        says(
            "engine-deserialization",
            "Deserialization required {us:int} microseconds.",
            "Deserialization required 20415 microseconds.",
        ),
        says(
            "engine-deserialized",
            "Engine deserialized in {seconds:num} sec.",
            "Engine deserialized in 0.0260023 sec.",
        ),
        says("plugins-loading", "Loading standard plugins", "Loading standard plugins"),
        says(
            "plugin-registered",
            "Registered plugin creator - {plugin} version {version}",
            "Registered plugin creator - ::GridAnchor_TRT version 1",
        ),
        says(
            "plugin-known",
            "Plugin creator already registered - {plugin} version {version}",
            "Plugin creator already registered - ::GridAnchor_TRT version 1",
            light="all",
        ),
        says(
            "library-trying",
            "Trying to load shared library {path}",
            "Trying to load shared library libnvinfer_builder_resource_sm90.so.10.16.2",
        ),
        says(
            "library-loaded",
            "Loaded shared library {path}",
            "Loaded shared library libnvinfer_builder_resource_sm90.so.10.16.2",
        ),
        says("lazy-loading", "CUDA lazy loading is enabled.", "CUDA lazy loading is enabled."),
    ),
    sections=(
        Section(
            opens="placement-heading",
            rows=(row("placement-layers", r"(?P<layers>\S.*)", "conv1 + relu1 + pool1, conv2 + relu2"),),
        ),
    ),
)
