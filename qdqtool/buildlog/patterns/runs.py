"""Message patterns about runs: begin and end, options, and lines of other programs.

# runs

Start and end of a run: trtexec's banner, Polygraphy's command lines, shell prompts.

# options

Requested options: trtexec's echo of model, build, system, inference and reporting options, and the device.

# polygraphy

Polygraphy's own lines: its configuration, runners, data, comparisons with their statistics and histograms.

# foreign

Lines of other programs around the builder: scripts, harnesses, profilers, shells.

Builders print every message after a prefix. If a log has prefixes, a line without prefix and without a known sentence
is not from the builder. It is recognised by the usual output of programs (a rule, a progress bar, a value, a row of a
table, plain words), and counted separately. In a log that was pasted without its prefixes, no line counts as foreign.
"""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

_OPTION = message(
    "option",
    "{key}: {value}",
    "Memory Pools: workspace: 1024 MiB, dlaSRAM: default, dlaLocalDRAM: default, dlaGlobalDRAM: default",
    "Input build shape: x=1x3x224x224+4x3x224x224+16x3x224x224",
    "Selected Device: NVIDIA GeForce RTX 3090",
)
_EMPTY = row("option-unset", r"(?P<key>[^:]{1,80}):", "Output:", "Plugins:", "setPluginsToSerialize:")
_TIGHT = row(
    "option-tight", r"(?P<key>Dump refittable layers):(?P<value>\w+)", "Dump refittable layers:Disabled"
)
_NOTE = message(
    "options-note",
    "Note: {text}",
    "Note: The application clock rates do not reflect the actual clock rates that the GPU is currently running at.",
)
_DEVICE_HEAD = message("available-devices", "Available Devices:{devices?}", "Available Devices: ")
_DEVICE = row(
    "available-device",
    r'Device (?P<index>\d+): "(?P<name>[^"]*)" UUID: (?P<uuid>\S+)',
    'Device 0: "NVIDIA H100 PCIe" UUID: GPU-31e9692b-62b7-2d62-f0b1-f4195b568ac7',
)
_FILE = row("option-file", r"(?P<key>\S{1,300})<-(?P<value>\S.*)", "x<-x.input.1.1.28.28.fp32.raw")
_ROWS = (_DEVICE, _NOTE, _DEVICE_HEAD, _OPTION, _EMPTY, _TIGHT, _FILE)


_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"


PLUGIN = {
    "runs": PatternSet(
        patterns=(
            message(
                "run-begins",
                "&&&& RUNNING {program} # {command}",
                "&&&& RUNNING TensorRT.trtexec [TensorRT v8201] # trtexec --workspace=2048 --onnx=a.onnx",
                "&&&& RUNNING TensorRT.trtexec # trtexec --onnx=a.onnx --fp16",
                "&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --onnx=a.onnx",
            ),
            message("run-passed", "&&&& PASSED {program}", "&&&& PASSED TensorRT.trtexec"),
            message("run-failed", "&&&& FAILED {program}", "&&&& FAILED TensorRT.trtexec"),
            message(
                "run-waived", "&&&& WAIVED {program}", "&&&& WAIVED TensorRT.trtexec # trtexec --useDLACore=0"
            ),
            message(
                "polygraphy-begins",
                "RUNNING | Command: {command}",
                "RUNNING | Command: /usr/bin/polygraphy run model.onnx --trt",
            ),
            message(
                "polygraphy-passed",
                "PASSED | Runtime: {seconds}s | Command: {command}",
                "PASSED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
            ),
            message(
                "polygraphy-failed",
                "FAILED | Runtime: {seconds}s | Command: {command}",
                "FAILED | Runtime: 4.873s | Command: /usr/bin/polygraphy run model.onnx --trt",
            ),
            message(
                "tensorrt-llm-said",
                "[TRT-LLM] [{severity:word}] {text}",
                "[TRT-LLM] [I] Set paged_kv_cache to True.",
            ),
            message(
                "version",
                "TensorRT version: {version}",
                "TensorRT version: 8.6.1",
            ),
        )
    ),
    "options": PatternSet(
        patterns=(
            message(
                "section-options", "=== {title} Options ===", "=== Build Options ===", "=== Model Options ==="
            ),
            message("section-device", "=== Device Information ===", "=== Device Information ==="),
            message(
                "section-joined",
                "=== {title} ==={option}: {value?}",
                "=== Device Information ===Device: 0",
            ),
        ),
        sections=(
            LogSection(opens="section-options", rows=_ROWS),
            LogSection(opens="section-device", rows=_ROWS),
            LogSection(opens="section-joined", rows=_ROWS),
        ),
    ),
    "polygraphy": PatternSet(
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
            message(
                "configuring", "Building engine with configuration:", "Building engine with configuration:"
            ),
            message(
                "engine-finished",
                "Finished engine building in {seconds:num} seconds",
                "Finished engine building in 16.696 seconds",
            ),
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
    ),
    "foreign": PatternSet(
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
    ),
}
