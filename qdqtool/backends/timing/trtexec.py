"""Times an engine with trtexec: GPU compute time by CUDA events, as trtexec itself reports it."""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path

from qdqtool.backends.flags import Flag
from qdqtool.backends.plan import EnginePlan
from qdqtool.backends.releases import spell
from qdqtool.backends.timing.traces import LayerTime, compute_times, layer_times
from qdqtool.backends.trtexec.program import Program
from qdqtool.errors import BuildError
from qdqtool.io import child

_WISHES = ("useCudaGraph", "noDataTransfers", "useSpinWait")
"""What releases before 11 must be asked for so that their times compare with those of 11, where it is the default."""
_FINE = frozenset({"iterations", "duration", "warmUp", "exportTimes", "loadEngine"})
"""Flags that the measurement itself says."""
_TAIL = 100_000
"""Last lines of a run of trtexec that are kept."""


class TrtexecClock:
    """One engine, run by trtexec afresh in every round; `log` is what the last run said."""

    def __init__(self, program: Program, plan: EnginePlan, flags: tuple[Flag, ...], timeout_s: float) -> None:
        program.check(flags)
        self._program = program
        self._plan = plan
        self._flags = tuple(flag for flag in flags if flag.name not in _FINE)
        self._timeout_s = timeout_s
        self._warm_up_ms = 0.0
        self.log: tuple[str, ...] = ()
        self.name = plan.path.name
        self.measures = f"GPU compute time by trtexec {spell(program.release)}, without transfers"

    def warm_up(self, milliseconds: float) -> None:
        """Remember it: trtexec warms up in every round."""
        self._warm_up_ms = milliseconds

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Milliseconds of each inference of one run of trtexec.

        Raises:
            BuildError: trtexec failed; its last words are in the message.
        """
        with tempfile.TemporaryDirectory(prefix="qdqtool-time-") as folder:
            times = Path(folder) / "times.json"
            counts = [
                Flag(name="warmUp", value=f"{self._warm_up_ms:.0f}"),
                Flag(name="duration", value="0"),
                Flag(name="iterations", value=str(iterations)),
                Flag(name="exportTimes", value=str(times)),
            ]
            self._run([*counts, *self._wishes()])
            # trtexec ends its last batch of runs: it may have a few more times than asked for.
            return compute_times(times)[:iterations]

    def profile(self) -> tuple[LayerTime, ...]:
        """Time of each layer, from a run of its own: profiling makes the whole slower than the sum of its parts.

        Raises:
            BuildError: trtexec failed.
        """
        with tempfile.TemporaryDirectory(prefix="qdqtool-time-") as folder:
            path = Path(folder) / "profile.json"
            self._run([Flag(name="exportProfile", value=str(path)), Flag(name="dumpProfile")])
            return layer_times(path)

    def _wishes(self) -> list[Flag]:
        given = {flag.name for flag in self._flags}
        return [Flag(name=name) for name in _WISHES if name in self._program.flags and name not in given]

    def _run(self, more: list[Flag]) -> None:
        command = [str(self._program.path), f"--loadEngine={self._plan.path.absolute()}"]
        words: deque[str] = deque(maxlen=_TAIL)
        ended = child.run(
            [*command, *map(str, more), *map(str, self._flags)],
            on_line=lambda line: words.append(line.decode("utf-8", "replace").rstrip()),
            timeout_s=self._timeout_s,
        )
        self.log = tuple(words)
        if ended.timed_out:
            raise BuildError(
                f"trtexec was stopped after {self._timeout_s:g} s", fix="give it more time (--timeout)",
                where=str(self._plan.path),
            )  # fmt: skip
        if ended.code != 0:
            complaint = next(
                (word for word in words if "[E]" in word), words[-1] if words else "it said nothing"
            )
            raise BuildError(
                f"trtexec ended with code {ended.code}: {complaint[:300]}",
                fix="rebuild the engine with this release and on this GPU",
                where=str(self._plan.path),
            )
