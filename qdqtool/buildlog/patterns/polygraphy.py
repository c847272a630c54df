"""Polygraphy's own lines: runners, inputs and outputs, statistics and histograms of comparisons."""

from qdqtool.buildlog.sentence import Family, row, says

PLUGIN = Family(
    sentences=(
        row(
            "histogram-row",
            r"\((?P<low>[-+\d.e]+|-?inf)\s*, (?P<high>[-+\d.e]+|-?inf)\s*\) \|\s*(?P<count>\d+) \|\s*(?P<bar>#*)",
            "(-0.5, -0.4) |          0 |",
            "(0.748, 0.855) |        261 | ####",
        ),
        row(
            "histogram-columns",
            r"Bin Range\s+\|  Num Elems \| (?P<title>Visualization)",
            "Bin Range    |  Num Elems | Visualization",
        ),
        row(
            "heading",
            r"---- (?P<title>[\w() ,/.-]+?) ----",
            "---- Histogram ----",
            "---- Inference Input(s) ----",
        ),
        says(
            "statistics",
            "{what} | Stats: mean={mean}, std-dev={deviation}, {rest}",
            "Absolute Difference | Stats: mean=0, std-dev=0, var=0, median=0, min=0 at (0,), max=0 at (0,), "
            "avg-magnitude=0",
        ),
        says(
            "statistics",
            "{what}: Stats: mean={mean}, std-dev={deviation}, {rest}",
            "onnxrt-runner: y | Stats: mean=0.1, std-dev=0.2, var=0, median=0, min=0 at (0,), max=0 at (0,), "
            "avg-magnitude=0",
        ),
        says(
            "tolerance-kept",
            "PASSED | Difference is within tolerance ({limits})",
            "PASSED | Difference is within tolerance (rel=0.001, abs=0.001)",
        ),
        says(
            "tolerance-missed",
            "FAILED | Difference exceeds tolerance ({limits})",
            "FAILED | Difference exceeds tolerance (rel=1e-05, abs=1e-05)",
        ),
        says(
            "module-loaded",
            "Loaded Module: {module:word} | Version: {version:word} | Path: {path}",
            "Loaded Module: numpy | Version: 1.25.1 | Path: ['/usr/lib/python3/dist-packages/numpy']",
        ),
        row(
            "runner",
            r"(?P<runner>[\w-]+-runner-N\d+-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d)\s*(?:\| (?P<message>.+))?:?",
            "trt-runner-N0-08/24/23-07:55:00",
            "trt-runner-N0-08/24/23-07:55:00     | Activating and starting inference",
        ),
        row(
            "tensor-described",
            r"\{?(?P<tensor>\S+) \[(?:dtype=(?P<dtype>\w+), )?shape=(?P<shape>[^\]]*)\][,}]{0,2}",
            "{x [dtype=float32, shape=(4, 1, 28, 28)]}",
        ),
        row("extensions", r"Loaded extension modules: (?P<modules>\[.*\])", "Loaded extension modules: []"),
        row("data-loader", r"(?P<what>Loading inputs from data loader)", "Loading inputs from data loader"),
        row(
            "seed", r"Generating data using numpy seed: (?P<seed>\d+)", "Generating data using numpy seed: 1"
        ),
        says(
            "histogram-missing",
            "Could not generate histogram. Note: Error was: {error}",
            "Could not generate histogram. Note: Error was: autodetected range of [inf, inf] is not finite",
        ),
    )
)
