"""Autotuning in a log: the candidate kernels of every layer, with the fastest and the chosen one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.pattern import tactic_id
from qdqtool.buildlog.prefilter import Place
from qdqtool.core.buildlog import LayerTuning, MyelinTuning, TacticRow, Tuning

# --- layers ----------------------------------------------------------------------------------------------------------

_REFORMAT = "Optimizer Reformat"
_OPERATION = "\0operation "
"""Prefix of announcements of operations inside a Myelin region. Log messages never contain a NUL."""
_ENDLESS = 1e30
"""Milliseconds that count as infinite: a kernel that fails is printed with an infinite time."""


class _Row:
    """The autotuning of one layer while the log is read."""

    __slots__ = ("best", "candidates", "fastest", "formats", "line", "ms", "runner", "seconds")

    def __init__(self, line: int) -> None:
        self.line = line
        self.formats = 0
        self.candidates = 0
        self.seconds: float | None = None
        self.best: float | None = None
        self.fastest = ""
        self.runner = ""
        self.ms: dict[str, float] = {}

    def take(self, tactic: str, ms: float | None, runner: str, seconds: float | None) -> None:
        self.formats += 1
        if seconds is not None:
            self.seconds = (self.seconds or 0.0) + seconds
        if ms is None:
            return
        if self.best is None or ms < self.best:
            self.best, self.fastest, self.runner = ms, tactic, runner
        if ms < self.ms.get(tactic, ms + 1):
            self.ms[tactic] = ms

    def took(self, chosen: str) -> float | None:
        """Return the time of a tactic in ms; None if it was not timed, or was never the fastest."""
        if chosen in self.ms or not chosen:
            return self.ms.get(chosen)
        return next((ms for tactic, ms in self.ms.items() if _spelt(tactic) == chosen), None)


class _Op:
    """One operation of a Myelin region during autotuning."""

    __slots__ = ("candidates", "fastest", "fastest_ms", "kernel", "line", "name", "selected", "selected_ms")

    def __init__(self, line: int, name: str) -> None:
        self.line = line
        self.name = name
        self.candidates = 0
        self.fastest = ""
        self.fastest_ms: float | None = None
        self.kernel = ""
        self.selected = ""
        self.selected_ms: float | None = None


class TuningCollector:
    """Summarizes autotuning per layer. All candidates for reformatting share one row.

    Args:
        place: knows how many kernels were timed for whom, and which layer was announced last.
        begins: called with the line where the first layer has been tuned.
    """

    def __init__(self, place: Place, begins: Callable[[int], None]) -> None:
        self._place = place
        self._begins = begins
        self._rows: dict[str, _Row] = {}
        self._known: dict[str, tuple[_Row, str]] = {}
        self._reformats: _Row | None = None
        self._ops: list[_Op] = []
        self._region = ""
        self._begun = False
        self._cache: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._rows) + len(self._known) + len(self._ops)

    def handlers(self) -> dict[str, Handler]:
        return {
            "timed": self._record_kernel_time,
            "fastest": self._fastest,
            "myelin-op": self._myelin_op,
            "subgraph-compiled": self._record_compilation,
            "myelin-row": self._myelin_row,
            "myelin-selected": self._myelin_selected,
            "timing-cache-gone": self._cache_gone,
        }

    @property
    def now(self) -> tuple[str, float | None]:
        """The layer being tuned, and its fastest kernel so far in milliseconds."""
        layer, _ = read_announcement(self._place.announced())
        row = self._rows.get(layer)
        return layer, row.best if row else None

    def finish(self, chosen: dict[str, str]) -> Tuning:
        """Return the results of autotuning; `chosen` has the tactic id of each layer in the engine."""
        self.close()
        rows = [self._value(layer, row, _spelt(chosen.get(layer, ""))) for layer, row in self._rows.items()]
        rows.sort(key=lambda row: (-(row.seconds or 0.0), -row.candidates, row.line))
        entries, hits = self._cache or (None, None)
        return Tuning(
            layers=tuple(rows),
            reformats=self._value("(reformatting)", self._reformats, "") if self._reformats else None,
            myelin=tuple(_operation(op) for op in self._ops),
            cache_entries=entries,
            cache_hits=hits,
        )

    @staticmethod
    def _value(layer: str, row: _Row, chosen: str) -> LayerTuning:
        return LayerTuning(
            layer=layer,
            formats=row.formats,
            candidates=row.candidates,
            seconds=None if row.seconds is None else round(row.seconds, 6),
            fastest_ms=row.best,
            fastest=_spelt(row.fastest),
            runner=row.runner,
            chosen=chosen,
            chosen_ms=row.took(chosen),
            line=row.line,
        )

    def _record_kernel_time(self, line: int, layer: str, seconds: str, tactic: str, ms: str) -> None:
        self.close()
        try:
            spent, took = float(seconds), float(ms)
        except ValueError:
            return
        row = self._known.get(layer)
        if row is None:
            row = self._meet(line, layer, *_layer_and_runner(layer))
        self._take(line, row, tactic, took if took < _ENDLESS else None, spent)

    def _fastest(self, line: int, tactic: str, ms: float | None) -> None:
        self.close()
        announcement = self._place.announced()
        row = self._known.get(announcement)
        if row is None:
            layer, runner = read_announcement(announcement)
            if not layer:
                return
            row = self._meet(line, announcement, layer, runner)
        self._take(line, row, tactic, ms, None)

    def _meet(self, line: int, words: str, layer: str, runner: str) -> tuple[_Row, str]:
        """Return the row of results for the layer that a log line announces, with the layer's runner."""
        if layer.startswith(_REFORMAT):
            row = self._reformats = self._reformats or _Row(line)
        else:
            row = self._rows.setdefault(layer, _Row(line))
        entry = self._known[words] = (row, runner.partition("[")[0])
        return entry

    def _take(
        self, line: int, entry: tuple[_Row, str], tactic: str, ms: float | None, seconds: float | None
    ) -> None:
        row, runner = entry
        if row is not self._reformats and not self._begun:
            self._begun = True
            self._begins(line)
        row.take(tactic, ms, runner, seconds)

    def _myelin_op(self, line: int, op: str) -> None:
        before = self._place.announced()
        if not before.startswith(_OPERATION):
            self._region = before
        self._place.announce(f"{_OPERATION}{len(self._ops)}", line)
        self._ops.append(_Op(line, op.partition("(key:")[0].partition(": [ONNX")[0].removesuffix(":")))

    def _record_compilation(self, line: int, *_fields: object) -> None:
        """Record that the builder times kernels for a whole Myelin region after its operations."""
        if self._region:
            self._place.announce(self._region, line)
            self._region = ""

    def _myelin_row(self, _line: int, *fields: object) -> None:
        _, ms, _, _, kernel, tactic, _ = fields
        if self._ops and not self._ops[-1].fastest:
            op = self._ops[-1]
            op.fastest, op.kernel = str(tactic), str(kernel)
            op.fastest_ms = ms if isinstance(ms, float) else None

    def _myelin_selected(self, _line: int, tactic: str, ms: float | None) -> None:
        if self._ops:
            self._ops[-1].selected, self._ops[-1].selected_ms = _spelt(tactic), ms

    def close(self) -> None:
        """Assign the kernels that were timed so far to the announced layers and operations."""
        for announcement, line, count in self._place.tuned():
            if announcement.startswith(_OPERATION):
                number = int(announcement.removeprefix(_OPERATION))
                if number < len(self._ops):
                    self._ops[number].candidates += count
                continue
            row = self._known.get(announcement)
            if row is None:
                layer, runner = read_announcement(announcement)
                row = self._meet(line, announcement, layer, runner) if layer else None
            if row is not None:
                row[0].candidates += count

    def _cache_gone(self, _line: int, entries: int, hits: int) -> None:
        self._cache = (entries, hits)


def _operation(op: _Op) -> MyelinTuning:
    return MyelinTuning(
        op=op.name,
        candidates=op.candidates,
        fastest_ms=op.fastest_ms,
        fastest=op.fastest,
        kernel=op.kernel,
        selected=op.selected,
        selected_ms=op.selected_ms,
        line=op.line,
    )


def read_announcement(message: str) -> tuple[str, str]:
    """Return layer and runner of the log line `--------------- Timing Runner: layer (runner)`."""
    return _layer_and_runner(message.partition("Timing Runner: ")[2].rstrip())


def _layer_and_runner(words: str) -> tuple[str, str]:
    """Return layer and runner of `layer (runner)` in a log line."""
    layer, _, runner = words.removesuffix(")").rpartition(" (")
    return layer or words, runner


def _spelt(tactic: str) -> str:
    """Return a tactic id as hexadecimal text."""
    normalized = tactic_id(tactic)
    return normalized if isinstance(normalized, str) else tactic


# --- tactics ---------------------------------------------------------------------------------------------------------
# Every kernel that autotuning tried: its layer, formats, time and outcome.
#
# *************** Autotuning format combination: Int8(64,1:4,8) -> Float(36,36,6,1) ***************
# --------------- Timing Runner: Conv_0 (CaskConvolution[0x80000009])
# Tactic Name: sm80_xmma_fprop Tactic: 0x0000000000000007 Time: 0.25        8.6 and newer
# Conv_0 Set Tactic Name: sm80_xmma_fprop Tactic: 0x0000000000000007       before: the kernel is named first,
# Tactic: 0x0000000000000007 Time: 0.25                                     and timed in the next line
# Fastest Tactic: 0x0000000000000007 Time: 0.25
# >>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: 0x0000000000000007

_RULES = " *"


class TacticsCollector:
    """Keeps every kernel that autotuning tried, in the order of the log.

    Args:
        place: knows which layer was announced last.
        layer_and_runner: takes an announcement apart into layer and runner.
    """

    def __init__(self, place: Place, layer_and_runner: Callable[[str], tuple[str, str]]) -> None:
        self._place = place
        self._layer_and_runner = layer_and_runner
        self._rows: list[TacticRow] = []
        self._formats = ""
        self._kernels: dict[str, str] = {}
        self._op = ""
        self._since_formats = 0

    def __len__(self) -> int:
        return len(self._rows)

    def handlers(self) -> dict[str, Handler]:
        return {
            "formats-tried": self._new_formats,
            "reformat-tried": self._new_formats,
            "kernel-set": self._name_kernel,
            "tactic": lambda line, tactic, ms: self._record_kernel_time(
                line, tactic, self._kernels.get(tactic, ""), ms
            ),
            "tactic-named": lambda line, kernel, tactic, ms: self._record_kernel_time(
                line, tactic, kernel, ms
            ),
            "fastest": lambda _line, tactic, _ms: self._mark(tactic, "fastest"),
            "timed": lambda _line, _layer, _seconds, tactic, _ms: self._mark(tactic, "fastest"),
            "chosen": lambda _line, _runner, tactic: self._mark(tactic, "chosen"),
            "tactic-too-slow": lambda line, tactic: self._add(
                line, tactic, verdict="too slow in a first measurement"
            ),
            "only-option": lambda line, tactic: self._add(line, tactic, verdict="the only kernel, not timed"),
            "no-tactics": self._without,
            "tactic-out-of-memory": self._record_refusal,
            "myelin-op": self._myelin,
            "subgraph-compiled": self._record_compilation,
            "myelin-row": self._myelin_row,
            "myelin-selected": lambda _line, tactic, _ms: self._mark(tactic, "chosen"),
        }

    def finish(self) -> tuple[TacticRow, ...]:
        """Return all kernels that the builder tried."""
        return tuple(self._rows)

    def _new_formats(self, _line: int, formats: str) -> None:
        self._formats = formats.strip(_RULES)
        self._kernels.clear()
        self._op = ""
        self._since_formats = len(self._rows)

    def _name_kernel(self, _line: int, _layer: str, kernel: str, tactic: str) -> None:
        self._kernels[_spelt(tactic.partition(" ")[0])] = kernel

    def _record_kernel_time(self, line: int, tactic: str, kernel: str, ms: float | None) -> None:
        self._add(line, tactic, kernel=kernel, ms=ms, verdict="timed" if ms is not None else "failed")

    def _add(
        self,
        line: int,
        tactic: str,
        *,
        kernel: str = "",
        ms: float | None = None,
        workspace: int | None = None,
        verdict: str,
    ) -> None:
        layer, runner = (self._op, "Myelin") if self._op else self._layer_and_runner(self._place.announced())
        self._rows.append(
            TacticRow(
                line=line,
                layer=layer,
                runner=runner.partition("[")[0],
                formats=self._formats,
                tactic=_spelt(tactic),
                kernel=kernel,
                ms=ms,
                workspace=workspace,
                verdict=verdict,
            )
        )

    def _mark(self, tactic: str, verdict: str) -> None:
        """Mark the last kernel with this tactic id as the fastest or the chosen one."""
        spelt = _spelt(tactic)
        for index in reversed(range(self._since_formats, len(self._rows))):
            if self._rows[index].tactic == spelt:
                self._rows[index] = replace(self._rows[index], verdict=verdict)
                return

    def _without(self, line: int, runner: str) -> None:
        self._add(line, "", verdict=f"{runner} has no kernel for these formats")

    def _record_refusal(self, line: int, _number: str, needed: int, tactic: str) -> None:
        self._add(
            line, tactic, workspace=needed, verdict="refused: the kernel needs more workspace than allowed"
        )

    def _myelin(self, _line: int, op: str) -> None:
        self._op = op.partition("(key:")[0].partition(": [ONNX")[0].removesuffix(":")
        self._since_formats = len(self._rows)

    def _record_compilation(self, _line: int, *_fields: object) -> None:
        self._op = ""

    def _myelin_row(self, line: int, *fields: object) -> None:
        _, ms, _, _, kernel, tactic, _ = fields
        self._record_kernel_time(line, str(tactic), str(kernel), ms if isinstance(ms, float) else None)
