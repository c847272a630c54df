"""Running the engine: bindings, warm-up, trace averages, performance summary."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

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

PLUGIN = PatternSet(
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
)
