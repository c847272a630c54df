"""Times engines with trtexec; reads and writes its files of times, profiles and raw tensors."""

from __future__ import annotations

import json
import re
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.backends.flags import Flag
from qdqtool.backends.plan import EnginePlan, run_failure, spell
from qdqtool.backends.trtexec.program import Program
from qdqtool.errors import BuildError, InputFileError, UsageError
from qdqtool.io import child
from qdqtool.io.json_files import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- clock -----------------------------------------------------------------------------------------------------------
# Times an engine with trtexec: GPU compute time by CUDA events, as trtexec itself reports it.

_WISHES = ("useCudaGraph", "noDataTransfers", "useSpinWait")
"""Defaults of 11 that older releases need as flags, so that times are comparable."""
_FINE = frozenset({"iterations", "duration", "warmUp", "exportTimes", "loadEngine"})
"""Flags that the measurement itself sets."""
_TAIL = 100_000
"""Number of lines of trtexec's output that are kept, from the end."""


class TrtexecClock:
    """Times an engine by starting trtexec in every round; `log` is the output of the last run."""

    def __init__(
        self, program: Program, plan: EnginePlan, name: str, flags: tuple[Flag, ...], timeout_s: float
    ) -> None:
        clash = [str(flag) for flag in flags if flag.name in _FINE]
        if clash:
            raise UsageError(
                f"{', '.join(clash)} is set by the measurement",
                fix="remove it from --flags; the options --iterations, --rounds, --warm-up and --save set it",
            )
        program.check(flags)
        self._program = program
        self._plan = plan
        self._flags = flags
        self._timeout_s = timeout_s
        self._warm_up_ms = 0.0
        self.log: tuple[str, ...] = ()
        self.name = name
        self.measures = f"GPU compute time by trtexec {spell(program.release)}, without transfers"

    def warm_up(self, milliseconds: float) -> None:
        """Store the warm-up time for the runs of trtexec, each of which warms up first."""
        self._warm_up_ms = milliseconds

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Measure the milliseconds of each inference in one run of trtexec.

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
            # trtexec finishes its last batch of runs, so there may be a few more times than requested.
            return compute_times(times)[:iterations]

    def profile(self) -> tuple[LayerTime, ...]:
        """Measure the time of each layer in a separate run, because profiling makes the inference slower.

        Raises:
            BuildError: trtexec failed.
        """
        with tempfile.TemporaryDirectory(prefix="qdqtool-time-") as folder:
            path = Path(folder) / "profile.json"
            self._run([Flag(name="exportProfile", value=str(path)), Flag(name="dumpProfile")])
            return layer_times(path)

    def _wishes(self) -> list[Flag]:
        present = {flag.name for flag in self._flags}
        return [Flag(name=name) for name in _WISHES if name in self._program.flags and name not in present]

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
                f"trtexec was stopped after {self._timeout_s:g} s", fix="raise --timeout",
                where=str(self._plan.path),
            )  # fmt: skip
        if ended.code != 0:
            complaint = next(
                (word for word in words if "[E]" in word), words[-1] if words else "it printed nothing"
            )
            raise run_failure(ended.code, complaint[:300], self._plan.path, "trtexec")


# --- times and profiles ----------------------------------------------------------------------------------------------
# Reads trtexec's files of times and profiles, and writes such files for other tools.
#
# Times (--exportTimes): a list of objects with startComputeMs, endComputeMs, computeMs, latencyMs and more. Profile
# (--exportProfile): a list that starts with {"count": n}, then name, timeMs, averageMs, medianMs and percentage per
# layer; 8.2 has no medianMs.


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """Time of one engine layer in milliseconds, average and median over the runs."""

    name: str
    average: float
    median: float


def compute_times(path: Path) -> tuple[float, ...]:
    """Read the GPU compute time of each inference from a file of times, in milliseconds.

    Raises:
        InputFileError: the file is not of this kind.
    """
    rows = _rows(path)
    times = [row.get("computeMs") for row in rows]
    if not times or not all(isinstance(time, (int, float)) and time >= 0 for time in times):
        raise InputFileError(
            "the file holds no compute times",
            fix="export the times with trtexec --exportTimes",
            where=str(path),
        )
    return tuple(float(time) for time in times if isinstance(time, (int, float)))


def layer_times(path: Path) -> tuple[LayerTime, ...]:
    """Read the times of the layers from a profile.

    Raises:
        InputFileError: the file is not of this kind.
    """
    layers = []
    for row in _rows(path):
        name, average = row.get("name"), row.get("averageMs")
        if isinstance(name, str) and isinstance(average, (int, float)):
            middle = row.get("medianMs", average)
            layers.append(LayerTime(name=name, average=float(average), median=float(middle)))
    if not layers:
        raise InputFileError(
            "the file holds no layer times",
            fix="export the layer times with trtexec --exportProfile",
            where=str(path),
        )
    return tuple(layers)


def spell_times(times: Sequence[float]) -> str:
    """Format compute times in the form of trtexec's file of times, without transfers."""
    rows, start = [], 0.0
    for time in times:
        end = start + time
        rows.append(
            {
                "startEnqMs": start,
                "endEnqMs": start,
                "startH2dMs": start,
                "endH2dMs": start,
                "startComputeMs": start,
                "endComputeMs": end,
                "startD2hMs": end,
                "endD2hMs": end,
                "h2dMs": 0,
                "computeMs": time,
                "d2hMs": 0,
                "latencyMs": time,
            }
        )
        start = end
    return "[\n  " + "\n, ".join(json.dumps(row) for row in rows) + "\n]\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise InputFileError(
            "the file is not a JSON list of objects", fix="export the times with trtexec", where=str(path)
        )
    return content


# --- raw tensors -----------------------------------------------------------------------------------------------------
# Names of raw tensor files as trtexec writes them: `name.output.1.3.224.224.Float.raw`.

_WORDS = {
    "float32": "Float",
    "float16": "Half",
    "int8": "Int8",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "bool": "Bool",
}


def raw_name(tensor: str, role: str, array: NDArray[Any]) -> str:
    """Return the file name for the bytes of a tensor; characters that file names cannot contain become `_`."""
    plain = re.sub(r"[^\w.-]", "_", tensor)
    dims = ".".join(map(str, array.shape))
    word = _WORDS.get(array.dtype.name, array.dtype.name)
    return ".".join(part for part in (plain, role, dims, word, "raw") if part)
