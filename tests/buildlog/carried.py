"""Logs as other programs write them down: the builder's lines behind twenty other prefixes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

_NATIVE = re.compile(
    r"\s*\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4})-(?P<clock>\d\d:\d\d:\d\d)\] ?(?:\[TRT\] ?)?"
    r"\[(?P<severity>[VIWE])\] ?(?:\[TRT\] ?)?(?P<body>\S.*)"
    r"|(?:\[TRT\] ?)?\[(?P<severity2>[VIWE])\] ?(?:\[TRT\] ?)?(?P<body2>\S.*)"
)
_WORDS = {"V": "VERBOSE", "I": "INFO", "W": "WARNING", "E": "ERROR"}
_LEVELS = {"V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR"}


class _Message:
    """A builder's line taken apart."""

    def __init__(self, found: re.Match[str]) -> None:
        self.dated = found["clock"] is not None
        self.severity = found["severity"] or found["severity2"]
        self.body = found["body"] or found["body2"]
        self.clock = found["clock"] or ""
        self.day = f"{found['year']}-{found['month']}-{found['day']}" if self.dated else ""
        self.time = f"{self.day} {self.clock}"
        self.word, self.level = _WORDS[self.severity], _LEVELS[self.severity]


LOGGERS: dict[str, Callable[[_Message], str]] = {
    "onnxruntime": lambda m: (
        f"{m.time}.123456789 [{m.severity}:onnxruntime:TensorrtLogger, tensorrt_execution_provider.h:87 log] "
        f"[{m.time} {m.word:>7}] {m.body}"
    ),
    "spdlog": lambda m: f"[{m.time}.123] [trt] [{m.level.lower()}] {m.body}",
    "Python logging": lambda m: f"{m.time},123 - TRT - {m.level} - {m.body}",
    "Python logging with a place": lambda m: f"{m.time},123 {m.level:<8} [trt.py:{len(m.body)}] {m.body}",
    "TensorRT-LLM in Python": lambda m: (
        f"[{m.day[5:7]}/{m.day[8:]}/{m.day[:4]}-{m.clock}] [TRT-LLM] [{m.severity}] {m.body}"
    ),
    "loguru": lambda m: f"{m.time}.123 | {m.level:<8} | build:main:{len(m.body)} - {m.body}",
    "JSON lines of a logger": lambda m: json.dumps(
        {"level": m.level.lower(), "time": f"{m.time}.123", "msg": m.body}
    ),
}
"""Loggers that print the time and the severity of each message."""

TIMELESS: dict[str, Callable[[_Message], str]] = {
    "torch_tensorrt in C++": lambda m: f"{m.level}: [Torch-TensorRT TensorRT Conversion Context] - {m.body}",
    "torch_tensorrt in Python": lambda m: f"{m.level}:torch_tensorrt [TensorRT Conversion Context]:{m.body}",
    "TensorRT-LLM in C++": lambda m: f"[TensorRT-LLM][{m.word}] {m.body}",
    "ROS 2": lambda m: f"[{m.level}] [1704923572.123456789] [detector.trt]: {m.body}",
    "glog": lambda m: (
        f"{'I' if m.severity == 'V' else m.severity}0110 21:52:52.123456 {len(m.body)} trt_logger.cc:49] {m.body}"
    ),
    "Triton with quotes": lambda m: (
        f"{'I' if m.severity == 'V' else m.severity}0110 21:52:52.123456 1 logging.cc:49] "
        f'"{m.body.replace(chr(34), chr(92) + chr(34))}"'
    ),
}
"""Loggers that print no date that could be read."""


CONTAINERS: dict[str, Callable[[str], str]] = {
    "docker with time stamps": lambda line: f"2024-05-01T10:00:00.123456789Z {line}",
    "Kubernetes": lambda line: f"2024-05-01T10:00:00.123456789Z stdout F {line}",
    "kubectl --prefix": lambda line: f"[pod/builder-7d9c/trt] {line}",
    "docker compose": lambda line: f"builder-1  | {line}",
    "docker's JSON": lambda line: json.dumps(
        {"log": line + "\n", "stream": "stderr", "time": "2024-05-01T10:00:00.123456789Z"}
    ),
    "systemd": lambda line: f"Jan 02 15:04:05 orin trtexec[123]: {line}",
    "Jenkins": lambda line: f"[2024-05-01T10:00:00.123Z] {line}",
    "GitHub Actions": lambda line: f"2024-05-01T10:00:00.1234567Z {line}",
    "mpirun": lambda line: f"[1,0]<stdout>:{line}",
    "torchrun": lambda line: f"[rank0]: {line}",
    "srun": lambda line: f"0: {line}",
    "Ray": lambda line: f"(Builder pid=4711, ip=10.0.0.1) {line}",
    "OpenTelemetry": lambda line: json.dumps(
        {"observedTimestamp": "2024-05-01T10:00:00Z", "severityText": "", "body": line}
    ),
    "dmesg": lambda line: f"[{len(line):5d}.123456] {line}",
    "a container around a launcher": lambda line: f"2024-05-01T10:00:00.123456789Z [1,0]<stdout>:{line}",
}
"""What wraps each line, whatever it says."""


def _row(cells: list[str], **form: Any) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="", **form).writerow([cell.rstrip("\r") for cell in cells])
    return out.getvalue()


def logged(text: str, write: Callable[[_Message], str]) -> str:
    """The same log from another logger; lines that no logger wrote stay as they are."""
    lines, dated = [], (LOGGERS | MORE_LOGGERS).values()
    for line in text.split("\n"):
        found = _NATIVE.fullmatch(line.rstrip("\r"))
        lines.append(write(_Message(found)) if found and (found["clock"] or write not in dated) else line)
    return "\n".join(lines)


COPIED: dict[str, Callable[[str], str]] = {
    "cat -n": lambda line: f"{len(line):6d}\t{line}",
    "a quotation": lambda line: f"> {line}",
    "CloudWatch export": lambda line: f"1704923572123,{json.dumps(line, ensure_ascii=False)}",
    "grep -n": lambda line: f"build.log:{len(line)}:{line}",
}
"""What people paste: known only where most lines are a builder's, because their marks say nothing."""

MORE_LOGGERS: dict[str, Callable[[_Message], str]] = {
    "TensorFlow": lambda m: (
        f"{m.time}.123456: {'I' if m.severity == 'V' else m.severity} "
        f"tensorflow/compiler/tf2tensorrt/utils/trt_logger.cc:42] DefaultLogger {m.body}"
    ),
}
MORE_TIMELESS: dict[str, Callable[[_Message], str]] = {
    "torch_tensorrt's converter": lambda m: (
        f"{m.level}:torch_tensorrt.dynamo.conversion._TRTInterpreter:{m.body}"
    ),
    "pytest": lambda m: f"{m.level:<8} trt:build.py:{len(m.body)} {m.body}",
    "logcat": lambda m: f"05-01 10:00:00.123  1234  5678 {m.severity} TensorRT: {m.body}",
    "gst-nvinfer": lambda m: (
        f"0:00:03.139530214  1234 0xaaaae5c0 {m.level:<7} nvinfer gstnvinfer.cpp:680:gst_nvinfer_logger:<primary_gie> "
        f"NvDsInferContext[UID 1]: {m.body}"
    ),
}
MORE_CONTAINERS: dict[str, Callable[[str], str]] = {
    "ros2 launch": lambda line: f"[lidar_centerpoint_node-1] {line}",
    "srun of the twelfth": lambda line: f"12: {line}",
    "Buildkite": lambda line: f"\x1b_bk;t=1714557600123\x07{line}",
    "logcli around docker's JSON": lambda line: json.dumps(
        {
            "labels": {"app": "trt"},
            "line": json.dumps({"log": line + "\n"}),
            "timestamp": "2024-05-01T10:00:00Z",
        }
    ),
    "Elasticsearch": lambda line: json.dumps(
        {"_index": "logs", "_source": {"@timestamp": "2024-05-01T10:00:00Z", "message": line}}
    ),
    "streams of Loki": lambda line: json.dumps(
        {"stream": {"app": "trt"}, "values": [["1704923572123000000", line]]}
    ),
    "Kibana's CSV": lambda line: _row(["Nov 22, 2026 @ 10:00:00.123", "host-1", line], quoting=csv.QUOTE_ALL),
    "CSV with few quotes": lambda line: _row(["2024-05-01T10:00:00.123Z", "a b", line, "stderr"]),
    "CSV with semicolons": lambda line: _row([line, "2024-05-01T10:00:00.123Z"], delimiter=";"),
}
"""Carriers that the reader met after it had learned the others, and some of which it did not know."""


def _indented(text: str) -> tuple[str, str]:
    lines = text.split("\n")[:-1]
    records = [
        f'  {{\n    "line": {json.dumps(line)},\n    "timestamp": "1704923572123000000"\n  }}'
        for line in lines
    ]
    return "[\n" + ",\n".join(records) + "\n]\n", "\n\n" + "\n\n\n\n".join(lines) + "\n"


def _in_one_line(text: str) -> tuple[str, str]:
    pairs = [["1704923572123000000", line] for line in text.split("\n")[:-1]]
    answer = {"status": "success", "data": {"result": [{"stream": {"app": "trt"}, "values": pairs}]}}
    return json.dumps(answer), text


def _with_names(text: str) -> tuple[str, str]:
    rows = [_row(["a", line], quoting=csv.QUOTE_ALL) for line in text.split("\n")[:-1]]
    return "\n".join(["host.name,message", *rows]) + "\n", "\n" + text


def _newest_first(text: str) -> tuple[str, str]:
    lines = [
        f"2024-05-01T10:{at // 60 % 60:02d}:{at % 60:02d}.{at:09d}Z {_OWN_TIME.sub('', line)}"
        for at, line in enumerate(text.split("\n")[:-1])
    ]
    return "\n".join(reversed(lines)) + "\n", "\n".join(lines) + "\n"


_OWN_TIME = re.compile(r"^\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ?")
EXPORTS: dict[str, Callable[[str], tuple[str, str]]] = {
    "Grafana's download": _indented,
    "an answer of Loki": _in_one_line,
    "CSV with names of columns": _with_names,
    "the newest first": _newest_first,
}
"""Whole files of collectors: what they make of a log, and the same lines where they stand then."""

NAMES = (*LOGGERS, *TIMELESS, *CONTAINERS)
"""All carriers but the last."""
MORE = (*MORE_LOGGERS, *MORE_TIMELESS, *MORE_CONTAINERS)


def rewritten(text: str, name: str) -> str:
    """The same log as this carrier brings it."""
    if name in CONTAINERS:
        return contained(text, CONTAINERS[name])
    if name in MORE_CONTAINERS:
        return contained(text, MORE_CONTAINERS[name])
    return logged(text, (LOGGERS | TIMELESS | MORE_LOGGERS | MORE_TIMELESS)[name])


def contained(text: str, wrap: Callable[[str], str]) -> str:
    """The same log out of a container."""
    return "\n".join(wrap(line) if line else line for line in text.split("\n"))
