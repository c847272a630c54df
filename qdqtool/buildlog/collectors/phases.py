"""Where the time of a build went: durations the log states, and differences of its time stamps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.prefix import seconds_of
from qdqtool.core.buildlog import Phase

_STATED = {
    "parsing-took": "parsing",
    "construction-took": "graph construction",
    "optimization-took": "graph optimization",
    "construction-and-optimization-took": "graph construction and optimization",
    "calibration-ends": "calibration",
    "selection-took": "formats and tactics selection",
    "engine-generated": "engine generation",
    "engine-built": "engine build",
    "engine-deserialized": "engine deserialization",
}
_MARKS = {
    "parsing-begins": "parsing",
    "onnx-file": "parsing",
    "network-input": "parsing",
    "layers-original": "graph optimization",
    # What follows is tuning, or where cuBLAS and cuDNN are loaded first, that: see `_loads`.
    "optimization-took": "autotuning",
    "construction-and-optimization-took": "autotuning",
    "calibration-begins": "calibration",
    "calibration-begins-batch": "calibration",
    "timing-cache-local": "autotuning",
    "timing-cache-global": "autotuning",
    "profile-number": "autotuning",
    "selection-took": "engine generation",
    "engine-generated": "loading",
    "inference-begins": "inference",
}
_LIBRARIES = ("Init cuBLAS", "Init cuDNN")
_LOADING = "library initialization"
# Phases of one run; a log of many runs in one process has some twenty in each.
_MOST = 200


class PhasesCollector:
    """Keeps stated durations, and the time stamp at which each phase begins.

    Args:
        now: the time stamp of the line being handled, "" if it has none.
    """

    def __init__(self, now: Callable[[], str]) -> None:
        self._now = now
        self._stated: list[Phase] = []
        self._marks: list[tuple[str, int, float]] = []
        self._tunes = False
        self.current = ""

    def handlers(self) -> dict[str, Handler]:
        return {
            **{name: self._state(phase) for name, phase in _STATED.items() if name not in _MARKS},
            **{name: self._mark(phase) for name, phase in _MARKS.items() if name not in _STATED},
            **{name: self._both(_STATED[name], _MARKS[name]) for name in _STATED if name in _MARKS},
            "memory-change": self._loads,
        }

    def _loads(self, _line: int, what: str, *_fields: object) -> None:
        """A library was loaded: 8 s of a build on Orin, 26 s of another, counted as graph optimization before."""
        if not what.startswith(_LIBRARIES):
            return
        if self.current == "autotuning" and not self._tunes and self._marks:
            _, begun, begin = self._marks[-1]
            self._marks[-1] = (_LOADING, begun, begin)
            self.current = _LOADING

    def begins(self, line: int) -> None:
        """The first layer is being tuned."""
        self._tunes = True
        self._mark("autotuning")(line)

    def finish(self, last_stamp: str) -> tuple[Phase, ...]:
        """Stated durations in order, then the phases measured by time stamps."""
        end = seconds_of(last_stamp)
        marks = self._marks + ([("", 0, end)] if end is not None else [])
        measured = [
            Phase(name=name, line=line, seconds=after - begin, stated=False)
            for (name, line, begin), (_, _, after) in pairwise(marks)
            if after >= begin
        ]
        return (*self._stated, *measured)

    def _state(self, phase: str) -> Handler:
        def handle(line: int, seconds: float | None) -> None:
            if seconds is not None and len(self._stated) < _MOST:
                self._stated.append(Phase(name=phase, line=line, seconds=seconds, stated=True))

        return handle

    def _mark(self, phase: str) -> Handler:
        def handle(line: int, *_fields: object) -> None:
            if self.current == phase:
                return
            self.current = phase
            begin = seconds_of(self._now())
            if begin is not None and len(self._marks) < _MOST:
                self._marks.append((phase, line, begin))

        return handle

    def _both(self, stated: str, mark: str) -> Handler:
        state, begin = self._state(stated), self._mark(mark)

        def handle(line: int, seconds: float | None) -> None:
            state(line, seconds)
            begin(line)

        return handle
