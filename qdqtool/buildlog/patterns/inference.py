"""Running the engine: bindings, warm-up, trace averages, performance summary."""

from qdqtool.buildlog.sentence import Family, Section, row, says

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

_EXPLAINED = (
    ("Total Host Walltime", "host walltime", "from when the first query (after warmups) is enqueued."),
    ("GPU Compute Time", "GPU latency", "to execute the kernels for a query."),
    ("Total GPU Compute Time", "summation of", "the GPU Compute Time of all the queries."),
    (
        "Throughput",
        "observed throughput",
        "computed by dividing the number of queries by the Total Host Walltime.",
    ),
    ("Enqueue Time", "host latency", "to enqueue a query."),
    ("H2D Latency", "latency", "for host-to-device data transfers for input tensors of a single query."),
    ("D2H Latency", "latency", "for device-to-host data transfers for output tensors of a single query."),
    ("Latency", "summation of", "H2D Latency, GPU Compute Time, and D2H Latency."),
    ("Host Latency", "summation of", "H2D Latency, GPU Compute Time, and D2H Latency."),
    (
        "End-to-End Host Latency",
        "duration",
        "from when the H2D of a query is called to when the D2H is completed.",
    ),
)
"""What trtexec prints of its own metrics: the metric, the first words, the rest."""

PLUGIN = Family(
    sentences=(
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
        says("throughput", "throughput: {qps:num} qps", "throughput: 318.785 qps"),
        says("walltime", "walltime: {seconds:num} s", "walltime: 3.00516 s"),
        says("gpu-total", "total compute time: {seconds:num} s", "total compute time: 2.92575 s"),
        says(
            "profile-shape-set",
            "Set shape of input tensor {tensor} for optimization profile {profile:int} to: MIN={low} OPT={opt} MAX={high}",
            "Set shape of input tensor x for optimization profile 0 to: MIN=1x1x28x28 OPT=4x1x28x28 MAX=16x1x28x28",
        ),
        says(
            "shape-set",
            "Set shape of input tensor {tensor} to: {dims}",
            "Set shape of input tensor x to: 1x1x28x28",
        ),
        says(
            "shape-missing",
            "Shape missing for input with dynamic shape: {tensor}Automatically setting shape to: {dims}",
            "Shape missing for input with dynamic shape: xAutomatically setting shape to: 1x1x28x28",
        ),
        says(
            "context-created",
            "Created execution context with device memory size: {mib:num} MiB",
            "Created execution context with device memory size: 3.44238 MiB",
        ),
        says(
            "inference-skipped",
            "Skipped inference phase since {reason}",
            "Skipped inference phase since --skipInference is added.",
        ),
        says("trace-omitted", "... Omitting {lines:int} lines", "... Omitting 38190 lines"),
        says(
            "not-timed",
            "The e2e network timing is not reported since {reason}",
            "The e2e network timing is not reported since it is inaccurate due to the extra synchronizations when the profiler is enabled.",
        ),
        says(
            "not-timed-advice",
            "To show e2e network timing report, {advice}",
            "To show e2e network timing report, add --separateProfileRun to profile layer timing in a separate run.",
        ),
        says(
            "advice-flag",
            "Add {flag:word} flag to {purpose}",
            "Add --noDataTransfers flag to disable data transfers.",
        ),
        says(
            "advice-flag-unused",
            "If not already in use, {advice}",
            "If not already in use, locking GPU clock frequency or adding --useSpinWait may improve the stability.",
        ),
        says(
            "names-only",
            "The profiling verbosity was set to {verbosity} when the engine was built, {rest}",
            "The profiling verbosity was set to ProfilingVerbosity::kLAYER_NAMES_ONLY when the engine was built, so only "
            "the layer names will be returned. Rebuild the engine with ProfilingVerbosity::kDETAILED.",
        ),
        says("raw-dump", "Dumping I/O Bindings to RAW Files:", "Dumping I/O Bindings to RAW Files:"),
        says(
            "raw-file",
            "Writing file for {direction:word} binding {tensor} (with datatype {dtype} and dimensions {dims}) to {path}",
            "Writing file for input binding x (with datatype fp32 and dimensions 1.1.28.28) to x.input.1.1.28.28.fp32.raw",
        ),
        says("outputs-heading", "Output Tensors:", "Output Tensors:"),
        says("inputs-heading", "Input Tensors:", "Input Tensors:"),
        says(
            "values-random",
            "Using random values for {direction:word} {tensor}",
            "Using random values for input x",
        ),
        says(
            "values-loaded",
            "Using values loaded from {file} for {direction:word} {tensor}",
            "Using values loaded from x.raw for input x",
        ),
        says(
            "binding-created",
            "Created {direction:word} binding for {tensor} with dimensions {dims}",
            "Created input binding for images with dimensions 1x3x640x960",
        ),
        says(
            "binding-created",
            "{direction:word} binding for {tensor} with dimensions {dims} is created.",
            "Input binding for x with dimensions 4x3x224x224 is created.",
        ),
        says(
            "shapes-overridden",
            "Dynamic dimensions required for input: {tensor}, but no shapes were provided. "
            "Automatically overriding shape to: {dims}",
            "Dynamic dimensions required for input: x, but no shapes were provided. Automatically overriding shape "
            "to: 1x3x224x224",
        ),
        says(
            "persistent-cache",
            "Setting persistentCacheLimit to {bytes:int} bytes.",
            "Setting persistentCacheLimit to 0 bytes.",
        ),
        says("enqueue-version", "Using enqueueV{n:int}.", "Using enqueueV3."),
        says("inference-begins", "Starting inference", "Starting inference"),
        says("inference-begins", "Starting inference threads", "Starting inference threads"),
        says(
            "warmup",
            "Warmup completed {queries:int} queries over {ms:num} ms",
            "Warmup completed 185 queries over 200 ms",
        ),
        says(
            "traced",
            "Timing trace has {queries:int} queries over {seconds:num} s",
            "Timing trace has 2523 queries over 3.00267 s",
        ),
        says("section-trace", "=== Trace details ===", "=== Trace details ==="),
        says("trace-heading", "Trace averages of {runs:int} runs:", "Trace averages of 10 runs:"),
        says(
            "trace-average",
            "Average on {runs:int} runs - GPU latency: {gpu:num} ms - {rest}",
            "Average on 10 runs - GPU latency: 0.153 ms - Host latency: 0.16 ms (end to end 0.27 ms, enqueue 0.05 ms)",
            light="all",
        ),
        says("section-performance", "=== Performance summary ===", "=== Performance summary ==="),
        says("throughput", "Throughput: {qps:num} qps", "Throughput: 840.251 qps"),
        _METRIC,
        says("walltime", "Total Host Walltime: {seconds:num} s", "Total Host Walltime: 3.00267 s"),
        says("gpu-total", "Total GPU Compute Time: {seconds:num} s", "Total GPU Compute Time: 2.94 s"),
        says(
            "unstable",
            "* GPU compute time is unstable, with coefficient of variance = {percent:num}%.",
            "* GPU compute time is unstable, with coefficient of variance = 18.1606%.",
        ),
        says(
            "throughput-bound",
            "* Throughput may be bound by {what} rather than {other}.",
            "* Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized.",
        ),
        says(
            "explanations-elsewhere",
            "Explanations of the performance metrics are printed in the verbose logs.",
            "Explanations of the performance metrics are printed in the verbose logs.",
        ),
        says(
            "section-explanations",
            "=== Explanations of the performance metrics ===",
            "=== Explanations of the performance metrics ===",
        ),
        *(
            says("metric-explained", f"{metric}: the {words} {{text}}", f"{metric}: the {words} {text}")
            for metric, words, text in _EXPLAINED
        ),
    ),
    sections=(
        Section(opens="explanations-elsewhere", rows=_DUMP),
        Section(opens="outputs-heading", first=True, rows=_DUMP),
        Section(opens="inputs-heading", first=True, rows=_DUMP),
    ),
)
