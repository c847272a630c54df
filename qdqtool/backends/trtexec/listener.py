"""Listens to trtexec while it builds: what it complains of, how far it is, for which GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from qdqtool.backends.building.refusals import Mistake
from qdqtool.core.build import BuildProgress, OnProgress

_PREFIX = re.compile(
    r"^(?:\[[\d/:\-. ]+\] )?(?:\[TRT\] )?\[(?P<severity>[VIWEF])\] (?:\[TRT\] )?(?P<message>.*)"
)
_CAPABILITY = re.compile(r"Compute Capability: (\d+)\.(\d+)")
_FAILING = re.compile(r"While parsing node number (?P<number>\d+) \[(?P<op>\w+)")
_NAME = re.compile(r'(?:^|\] |: )(?:Node )?name: "?(?P<name>[^"]*)"?\s*$')
_REASON = re.compile(r"ERROR: \S+:\d+ In function \w+:\s*(?P<rest>.*)")
_CODE = re.compile(r"^\[(?P<code>\d+)\] (?P<text>.*)")
_UNSUPPORTED = "8"
"""The parser's error code kUNSUPPORTED_NODE."""
_LAYERS = re.compile(r"After .*: (\d+) layers")
_STEPS = (
    ("parsing", re.compile(r"Start parsing network model|Parsing node:")),
    ("optimizing", re.compile(r"Applying generic optimizations|Original: \d+ layers")),
    ("timing kernels", re.compile(r"Computing costs for")),
    ("finishing", re.compile(r"Engine generation completed|Total Activation Memory")),
)
# A build may repeat one error for every tactic; two hundred tell what is wrong.
_MOST = 200


@dataclass(slots=True)
class Listener:
    """What was heard so far.

    Attributes:
        errors: each different error message once, without prefix.
        warnings: each different warning once, without prefix.
        mistakes: the ONNX parser's complaints.
        sm: compute capability of the GPU times ten.
        passed: whether trtexec said that it did well.
    """

    on_progress: OnProgress | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    sm: int | None = None
    passed: bool = False
    _op: str = ""
    _node: str = ""
    _expects_reason: bool = False
    _layers: int | None = None
    _timed: int = 0
    _phase: str = ""

    def hear(self, line: str) -> None:
        """Take in one line."""
        found = _PREFIX.match(line)
        severity, message = (found["severity"], found["message"].rstrip()) if found else ("", line.rstrip())
        if severity in {"E", "F"}:
            _keep(self.errors, message)
        elif severity == "W":
            _keep(self.warnings, message)
        elif line.startswith("&&&& PASSED"):
            self.passed = True
        self._hear_parser(message)
        if severity in {"", "I"} and (device := _CAPABILITY.search(message)):
            self.sm = 10 * int(device[1]) + int(device[2])
        self._hear_progress(message)

    def _hear_parser(self, message: str) -> None:
        if failing := _FAILING.search(message):
            self._op, self._node = failing["op"], f"number {failing['number']}"
        elif self._op and (name := _NAME.search(message)):
            self._node = name["name"]
        elif self._op and (reason := _REASON.search(message)):
            self._expects_reason = True
            message = reason["rest"]
        if self._expects_reason and (code := _CODE.match(message.strip())):
            kind = "UNSUPPORTED_NODE" if code["code"] == _UNSUPPORTED else ""
            if len(self.mistakes) < _MOST:
                self.mistakes.append(Mistake(code=kind, node=self._node, op=self._op, text=code["text"]))
            self._op, self._expects_reason = "", False

    def _hear_progress(self, message: str) -> None:
        if layers := _LAYERS.search(message):
            self._layers = int(layers[1])
        for phase, pattern in _STEPS:
            if not pattern.search(message):
                continue
            self._timed += phase == "timing kernels"
            if self.on_progress is not None and (phase != self._phase or phase == "timing kernels"):
                counted = phase == "timing kernels"
                total = max(self._layers or 0, self._timed) if counted else None
                self.on_progress(BuildProgress(phase=phase, done=self._timed if counted else 0, total=total))
            self._phase = phase


def _keep(messages: list[str], message: str) -> None:
    if len(messages) < _MOST and message not in messages:
        messages.append(message)
