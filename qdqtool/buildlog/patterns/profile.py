"""Per-layer profiles: trtexec's table, the arrays of `--exportProfile`, IProfiler of the Python samples."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

_N = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"

PLUGIN = PatternSet(
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
                    # Two blanks end the name: without that, each blank of a long gap would be tried as its end.
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
)
