"""Message patterns about the engine: its layers, memory, inference and layer times.

# engine

From chosen tactics to a serialized engine: kernels, placement on GPU or DLA, generation, loading.

# layers

Parts of the engine: layer records in the text of every generation, bindings, device placement.

# memory

Memory of the builder and of the engine.

# inference

Running the engine: bindings, warm-up, trace averages, performance summary.

# profile

Per-layer profiles: trtexec's table, the arrays of `--exportProfile`, IProfiler of the Python samples.
"""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

_NAME = row("layer-name-only", r"(?P<layer>[^\s\[=&].*)", "Conv_1 + Relu_2")
_BINDING = row("binding", r"(?P<tensor>\S{1,300})", "images", "output0")

_IO = row(
    "io-tensor",
    r"Name: (?P<tensor>.+?), IOMode: (?P<mode>\w{1,20}), (?P<rest>.*)",
    "Name: input, IOMode: Input, DataType: Float, Dimensions: [1,3,224,224], Location: Device, ProfileInfo: [ ]",
)
_FACT = row("engine-fact", r"(?P<key>[A-Z][\w -]{1,60}): (?P<value>.*)", "Multi-Device: Disabled")


_METRIC = row(
    "metric-times",
    r"(?P<metric>(?:End-to-End Host |Host |H2D |D2H )?Latency|Enqueue Time|GPU Compute Time|GPU Compute|H2D|D2H): "
    r"(?P<times>min[ =:].*)",
    "GPU Compute Time: min = 1.1 ms, max = 2.9 ms, mean = 1.2 ms, median = 1.15 ms, percentile(99%) = 2.5 ms",
)

_DUMP = (
    row("dumped-tensor", r"(?P<tensor>\S.{0,300}): \((?P<dims>[\dx]*)\)", "z: (1)", "output0: (1x16x3x3)"),
    row("dumped-values", r"(?P<values>[-+\d][\d\s.e+\-naif]*)", "0 0.343867 0.280038"),
)

_N = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


PLUGIN = {
    "engine": PatternSet(
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
                "engine-added",
                "Adding {engines:int} engine(s) to plan file.",
                "Adding 1 engine(s) to plan file.",
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
    ),
    "layers": PatternSet(
        patterns=(
            message("layers-heading", "Engine Layer Information:", "Engine Layer Information:"),
            message("layers-detailed", "Layers:", "Layers:"),
            message("bindings-heading", "Bindings:", "Bindings:"),
            message("engine-metadata", "Engine Metadata:", "Engine Metadata:"),
            message("io-heading", "I/O Tensors:", "I/O Tensors:"),
            message(
                "layer",
                "Layer({kind}): {name>}, Tactic: {rest}",
                "Layer(CaskConvolution): A + B, Tactic: 7144526460361122478, in[Half(1,256,180,180)] -> out[Half(1,9)]",
                "Layer(Reformat): q, Tactic: 0x00000000000003ea, x (Float[1,3,640,960]) -> q_out (Int8[1,3,640,960])",
            ),
            message(
                "layer-record",
                "Name: {name}, LayerType: {rest}",
                "Name: MaxPool_2, LayerType: CaskPooling, Inputs: [ { Name: x, Location: Device, Dimensions: [1,64,9,9], "
                "Format/Datatype: Thirty-two wide channel vectorized row major Int8 format }], Outputs: []",
            ),
        ),
        sections=(
            LogSection(opens="layers-heading", rows=()),
            LogSection(opens="layers-detailed", rows=(_NAME,), bare=True),
            LogSection(opens="bindings-heading", rows=(_BINDING,), bare=True),
            LogSection(opens="io-heading", rows=(_IO,), bare=True),
            LogSection(opens="engine-metadata", rows=(_FACT,), bare=True),
        ),
    ),
    "memory": PatternSet(
        patterns=(
            message(
                "memory-peak-building",
                "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: {cpu:int} MiB",
                "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 4322 MiB",
            ),
            message(
                "memory-change",
                "[MemUsageChange] {what}: CPU {cpu:int}, GPU {gpu:int}, now: CPU {cpu_now:int}, GPU {gpu_now:int} (MiB)",
                "[MemUsageChange] Init cuBLAS/cuBLASLt: CPU +248, GPU +102, now: CPU 437, GPU 725 (MiB)",
            ),
            message(
                "memory-peak",
                "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU {cpu:int} MiB, GPU {gpu:int} MiB",
                "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 25 MiB, GPU 98 MiB",
            ),
            message(
                "memory-host", "Total Host Persistent Memory: {bytes}", "Total Host Persistent Memory: 86272"
            ),
            message(
                "memory-device",
                "Total Device Persistent Memory: {bytes}",
                "Total Device Persistent Memory: 75776 bytes",
            ),
            message(
                "memory-scratch",
                "Total Scratch Memory: {bytes}",
                "Total Scratch Memory: 4608",
                "Total Scratch Memory: 0 bytes",
            ),
            message(
                "memory-activation",
                "Total Activation Memory: {bytes}",
                "Total Activation Memory: 22118400",
                "Total Activation Memory: 512 bytes",
            ),
            message(
                "memory-weights", "Total Weights Memory: {bytes}", "Total Weights Memory: 12846592 bytes"
            ),
        )
    ),
    "inference": PatternSet(
        patterns=(
            row(
                "metric-heading",
                r"(?P<metric>(?:End-to-End |End-to-End Host )?(?:Host Latency|Latency)|Enqueue Time|GPU Compute)",
                "Host Latency",
                "GPU Compute",
            ),
            row(
                "metric-value",
                r"(?P<which>min|max|mean|median): (?P<ms>[\d.e+-]{1,24}) ms(?P<rest> \(end to end .*\))?",
                "min: 3.05505 ms (end to end 3.06653 ms)",
                "median: 3.05493 ms",
            ),
            row(
                "metric-percentile",
                r"percentile: (?P<ms>[\d.e+-]{1,24}) ms at (?P<percent>[\d.]{1,8})%(?P<rest> \(end to end .*\))?",
                "percentile: 3.4563 ms at 99% (end to end 3.47168 ms at 99%)",
            ),
            message("throughput", "throughput: {qps:num} qps", "throughput: 318.785 qps"),
            message("walltime", "walltime: {seconds:num} s", "walltime: 3.00516 s"),
            message("gpu-total", "total compute time: {seconds:num} s", "total compute time: 2.92575 s"),
            message("outputs-heading", "Output Tensors:", "Output Tensors:"),
            message("inputs-heading", "Input Tensors:", "Input Tensors:"),
            message("inference-begins", "Starting inference", "Starting inference"),
            message("inference-begins", "Starting inference threads", "Starting inference threads"),
            message(
                "traced",
                "Timing trace has {queries:int} queries over {seconds:num} s",
                "Timing trace has 2523 queries over 3.00267 s",
            ),
            message("throughput", "Throughput: {qps:num} qps", "Throughput: 840.251 qps"),
            _METRIC,
            message("walltime", "Total Host Walltime: {seconds:num} s", "Total Host Walltime: 3.00267 s"),
            message("gpu-total", "Total GPU Compute Time: {seconds:num} s", "Total GPU Compute Time: 2.94 s"),
            message(
                "unstable",
                "* GPU compute time is unstable, with coefficient of variance = {percent:num}%.",
                "* GPU compute time is unstable, with coefficient of variance = 18.1606%.",
            ),
            message(
                "explanations-elsewhere",
                "Explanations of the performance metrics are printed in the verbose logs.",
                "Explanations of the performance metrics are printed in the verbose logs.",
            ),
        ),
        sections=(
            LogSection(opens="explanations-elsewhere", rows=_DUMP),
            LogSection(opens="outputs-heading", first=True, rows=_DUMP),
            LogSection(opens="inputs-heading", first=True, rows=_DUMP),
        ),
    ),
    "profile": PatternSet(
        patterns=(
            row(
                "profile-columns",
                r"(?P<columns>Layer\s+Time ?\(ms\).*|Time ?\(ms\)\s+Avg\. ?(?:Time )?\(ms\).*Layer)",
                "Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %",
                "Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer",
            ),
            row(
                "profile-count",
                r'\[?\s*\{ ?"count" ?: ?(?P<count>\d+) ?\}',
                '[ { "count" : 625 }',
                '{ "count" : 625 }',
            ),
            message(
                "profile-record",
                ', {{ "name" : "{layer>}", "timeMs" : {numbers}',
                ', { "name" : "Conv_0 + PWN(Clip_3)", "timeMs" : 41.4232, "averageMs" : 0.0662771, "percentage" : 1.36062 }',
            ),
        ),
        sections=(
            LogSection(
                opens="profile-columns",
                first=True,
                rows=(
                    row(
                        "profile-row",
                        # Two blanks end the name; otherwise each blank of a long gap would be tried as the end.
                        rf"(?P<layer>\S(?:.(?<!\s\s))*?)\s{{2,}}(?P<numbers>{_N}(?:\s+{_N}){{2,3}}%?)",
                        "Conv_10 + Relu_11      34.63           0.0254             0.0256      1.6",
                    ),
                    row(
                        "profile-row-first",
                        rf"(?P<numbers>{_N}(?:\s+{_N}){{2,3}})\s+(?P<layer>\S.*)",
                        "34.63           0.0254             0.0256      1.6   Conv_10 + Relu_11",
                    ),
                ),
            ),
        ),
    ),
}
