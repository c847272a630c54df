"""Lines of other programs around the builder: scripts, harnesses, profilers, shells.

Builders print every message behind a prefix. Where a log has prefixes, a line without one that no sentence knows is
not the builder's; it is recognised by the way programs print (a rule, a progress bar, a value, a row of a table, plain
words) and counted apart from what was read. In a log that was pasted without its prefixes nothing is foreign.
"""

from qdqtool.buildlog.pattern import PatternSet, row

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"

PLUGIN = PatternSet(
    foreign=(
        row(
            "array",
            r"(?P<values>[\[(\s]*[-+]?(?:\d|\.\d|nan|inf)[\d\s.,+\-einfa\[\])(]*|[\[\]\s]+|[\[\s]*\.\.\.[,\s]*)",
            "[[20. 21. 22. 23. 24.]",
            "-4.23278809e-02  9.20891762e-05 -7.19604492e-02",
            "...",
        ),
        row(
            "plugin-call",
            r"(?P<object>0x[0-9a-f]{4,16}|(?=\[[a-z]\w+\][A-Z]))\[~?(?P<call>[A-Za-z]\w{2,60})\](?P<rest>.*)",
            "0x52bd43c0[getCapabilityInterface]",
            "[enqueue]Try INT8 kernel",
        ),
        row(
            "prompt",
            r"(?:\w[\w@.-]{0,60}:\S{0,80})?[$#] (?P<command>\w.*)",
            "$ uname -a",
            "# Jetson environment raw log",
        ),
        row(
            "help",
            r"(?P<flag>-{1,2}[A-Za-z][\w-]{0,50}(?:[= ]?(?:<[^>]{0,60}>|\[[^\]]{0,60}\]|[A-Za-z\"'\[|,.:\]]{1,60}))?)\s{2,}(?P<text>\S.*)",
            "--int8                             Enable int8 precision, in addition to fp32 (default = disabled)",
        ),
        row(
            "rule",
            r"(?P<mark>[=#*_~+`-])[ =#*_~+|`-]{1,500}(?P<title>[^ =#*_~+|`-].{0,200})?",
            "================================================",
            "============================== End   [case_normal]",
            "#--------------------------------------------------------------------",
            "===== cuDNN packages =====",
        ),
        row(
            "progress",
            r"\[(?P<step>\d{1,6}/\d{1,6})\] \[(?P<bar>[=> .#]*)(?P<percent>\d{1,3})%[=> .#]*\] ?(?P<what>.*)",
            "[1/1] [==18%                       ] BuildAndRun.nsys-rep",
            "[1/1] [0%                          ] BuildAndRun.nsys-rep",
        ),
        row(
            "logged",
            r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\S{0,6}:? (?P<level>[A-Z])\w* (?P<place>\S{1,120})\] (?P<text>.*)",
            "2024-06-22 20:52:14.362243: T identity.cpp:246] initialize",
        ),
        row(
            "harness",
            r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (?P<place>[\w.]{1,60}:\d{1,6}) {1,4}(?P<level>[A-Z]{4,8})\] (?P<text>.*)",
            "[2021-03-11 17:33:28,730 main.py:694 INFO] Detected System ID: A100-SXM-80GBx8",
        ),
        row(
            "tagged",
            r"\[(?P<tag>[A-Za-z][\w .:-]{1,40})\]:? (?P<text>\S.*)",
            "[YOLO26] Loading TensorRT engine yoloe-26x-seg.engine ...",
            "[TensorRT-Cookbook] Version: 1.0.0",
        ),
        row(
            "values",
            r"(?P<head>[^=]{0,120}?)(?P<pairs>\b[A-Za-z]\w{0,30}= ?\S{1,60}(?:\s{1,40}\S{1,60}){0,40})",
            "frame  120/478  cov=0.0%  conf=0.000  t=101ms",
            "generated_at=2026-05-13T12:03:56+09:00",
        ),
        row(
            "value",
            r"(?P<key>[\w*+(][\w .,()/\[\]%#*'+-]{0,80}?)\s*(?::|->)\s*(?P<value>\S.*)",
            "gpu_batch_size : 48",
            "50.00 percentile latency (ns)   : 55025616",
            "Input ->DataType.FLOAT, (-1, 1, 28, 28), (1, 1, 28, 28), x",
        ),
        row("key", r"(?P<key>[\w*+(][\w .,()/\[\]%#*'+-]{0,80}):", "Output Tensors:"),
        row(
            "cells",
            r"(?P<first>\S[^|]{0,200})\|(?P<rest>[^|]{0,300}(?:\|[^|]{0,300}){0,30})",
            "x                                   |(1, 4)|(1, 4)|(1, 4)|",
        ),
        row(
            "numbers",
            rf"(?P<label>\S.{{0,100}}?)(?P<numbers>(?:\s{{2,}}{_NUMBER}[%a-zA-Z]{{0,3}}){{2,20}})",
            "inference_time_ms                133.000   123.860   173.100",
        ),
        row(
            "columns",
            r"(?P<first>\S{1,80}(?: \S{1,40}){0,6})(?P<rest>(?:\s{2,}\S{1,80}(?: \S{1,40}){0,6}){2,20})",
            "Metric                              Mean       Min       Max",
        ),
        row("word", r"(?P<word>[\w./@:-]{1,120}|[{}\[\]();,]{1,20})", "inputT0", "Finish", "}"),
        row(
            "prose",
            r"(?!.*0x[0-9a-f]{8})(?P<text>\S{1,300}(?:\s{1,200}\S{1,300}){1,200})",
            "Multiple input shapes can be provided via comma-separated key-value pairs, and each input",
        ),
    )
)
