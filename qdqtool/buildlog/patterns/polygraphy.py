"""Polygraphy's own lines: its configuration, runners, data, comparisons with their statistics and histograms."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

PLUGIN = PatternSet(
    patterns=(
        message(
            "module-loaded",
            "Loaded Module: {module} | Version: {version} | Path: {path}",
            "Loaded Module: numpy | Version: 1.25.1 | Path: ['/usr/lib/python3/dist-packages/numpy']",
            "Loaded Module: numpy              | Version: 1.22.3 | Path: ['/usr/local/lib/python3.8/dist-packages/numpy']",
        ),
        message(
            "tactics-inspected",
            "Loading tactic replay file from {path}",
            "Loading tactic replay file from model.tactic",
        ),
        message("bad-tactics", "Found potentially bad tactics:", "Found potentially bad tactics:"),
        message("configuring", "Building engine with configuration:", "Building engine with configuration:"),
        message(
            "profiles-heading",
            "Configuring with profiles:{list?}",
            "Configuring with profiles:[",
            "Configuring with profiles: [Profile().add('x', min=[1], opt=[1], max=[1])]",
        ),
    ),
    sections=(
        LogSection(
            opens="polygraphy-begins",
            rows=(row("model-file", r"Model: (?P<path>.+)", "Model: model.onnx"),),
        ),
        LogSection(
            opens="tactics-inspected",
            rows=(
                row("tactic-layer", r"Layer: (?P<layer>.+)", "Layer: Conv-1 + ReLU-2"),
                row(
                    "tactic-algorithm",
                    r"Algorithm: \(Implementation: (?P<implementation>-?\d{1,20}), Tactic: (?P<tactic>-?\d{1,20})\) "
                    r"\| Inputs: (?P<inputs>.+) \| Outputs: (?P<outputs>.+)",
                    "Algorithm: (Implementation: -2147483616, Tactic: 6226177) | Inputs: (('TensorFormat.LINEAR', "
                    "'DataType.FLOAT'),) | Outputs: (('TensorFormat.LINEAR', 'DataType.FLOAT'),)",
                ),
            ),
        ),
        LogSection(
            opens="bad-tactics",
            rows=(
                row("bad-tactics-layer", r"Layer: (?P<layer>.+)", "Layer: layer0"),
                row(
                    "bad-tactics-algorithms",
                    r"Algorithms: (?P<algorithms>.+)",
                    "Algorithms: [\"(Implementation: 0, Tactic: 2) | Inputs: (('TensorFormat.LINEAR', 'DataType.FLOAT'),)\"]",
                ),
            ),
        ),
        LogSection(
            opens="configuring",
            rows=(
                row(
                    "configuration",
                    r"(?P<key>[A-Z][\w ]{1,40}?)\s*\| (?P<value>.*)",
                    "Profiling Verbosity    | ProfilingVerbosity.DETAILED",
                ),
                row("configuration-more", r"(?P<value>\[.*\]|.*\])", "[FP16, DISABLE_TIMING_CACHE]"),
            ),
        ),
        LogSection(
            opens="profiles-heading",
            rows=(
                row("profile-heading", r"(?P<title>Profile \d+):", "Profile 0:"),
                row(
                    "profile-shapes",
                    r"[{ ]*(?P<tensor>\S+) \[min=(?P<low>[^=]{0,2000}), opt=(?P<opt>[^=]{0,2000}), max=(?P<high>[^=]{0,2000})\][}, ]{0,9}",
                    "{x [min=[1, 1, 28, 28], opt=[4, 1, 28, 28], max=[16, 1, 28, 28]]}",
                ),
                row("profiles-end", r"(?P<mark>\])", "]"),
            ),
        ),
    ),
)
