"""From chosen tactics to a serialized engine: kernels, placement on GPU or DLA, generation, loading."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

PLUGIN = PatternSet(
    patterns=(
        message(
            "placement-heading",
            "--------------- Layers running on {device:word}:{layers?}",
            "--------------- Layers running on GPU:",
            "--------------- Layers running on DLA: {conv1,relu1},",
        ),
        message("engine-loaded", "Loaded engine size: {mib:int} MB", "Loaded engine size: 597 MB"),
        message(
            "on-gpu",
            "[GpuLayer] {layer}",
            "[GpuLayer] COPY: /conv/QuantizeLinear",
            "[GpuLayer] Conv_1 + Relu_2",
        ),
        message("on-dla", "[DlaLayer] {layer}", "[DlaLayer] {ForeignNode[Conv_1...Relu_9]}"),
        message(
            "engine-generated",
            "Engine generation completed in {seconds:num} seconds.",
            "Engine generation completed in 6.96604 seconds.",
        ),
        message("engine-built", "Engine built in {seconds:num} sec.", "Engine built in 184.708 sec."),
        message(
            "engine-added", "Adding {engines:int} engine(s) to plan file.", "Adding 1 engine(s) to plan file."
        ),
        message("engine-loaded", "Loaded engine size: {mib:int} MiB", "Loaded engine size: 186 MiB"),
        message(
            "engine-deserialized",
            "Engine deserialized in {seconds:num} sec.",
            "Engine deserialized in 0.0260023 sec.",
        ),
        message(
            "plugin-registered",
            "Registered plugin creator - {plugin} version {version}",
            "Registered plugin creator - ::GridAnchor_TRT version 1",
        ),
        message(
            "library-trying",
            "Trying to load shared library {path}",
            "Trying to load shared library libnvinfer_builder_resource_sm90.so.10.16.2",
        ),
        message(
            "library-loaded",
            "Loaded shared library {path}",
            "Loaded shared library libnvinfer_builder_resource_sm90.so.10.16.2",
        ),
    ),
    sections=(
        LogSection(
            opens="placement-heading",
            rows=(row("placement-layers", r"(?P<layers>\S.*)", "conv1 + relu1 + pool1, conv2 + relu2"),),
        ),
    ),
)
