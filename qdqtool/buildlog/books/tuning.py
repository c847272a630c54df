"""Autotuning: kernels tried, the fastest and the chosen of every layer."""

from __future__ import annotations

from collections.abc import Callable

from qdqtool.buildlog.grammar import Hear
from qdqtool.buildlog.sentence import tactic_id
from qdqtool.core.buildlog import LayerTuning, MyelinTuning, Tuning

_REFORMAT = "Optimizer Reformat("
_ENDLESS = 1e30
"""Milliseconds; a kernel that fails is printed with an infinite time."""


class _Row:
    """One layer while it is tuned."""

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

    def take(
        self, candidates: int, tactic: str, ms: float | None, runner: str, seconds: float | None
    ) -> None:
        self.formats += 1
        self.candidates += candidates
        if seconds is not None:
            self.seconds = (self.seconds or 0.0) + seconds
        if ms is None:
            return
        if self.best is None or ms < self.best:
            self.best, self.fastest, self.runner = ms, tactic, runner
        if ms < self.ms.get(tactic, ms + 1):
            self.ms[tactic] = ms


class _Op:
    """One operation of a Myelin region while it is tuned."""

    __slots__ = ("fastest", "fastest_ms", "kernel", "line", "mark", "name", "selected", "selected_ms")

    def __init__(self, line: int, name: str, mark: int) -> None:
        self.line = line
        self.name = name
        self.mark = mark
        self.fastest = ""
        self.fastest_ms: float | None = None
        self.kernel = ""
        self.selected = ""
        self.selected_ms: float | None = None


class TuningBook:
    """Sums up autotuning per layer; reformatting candidates are one row together.

    Args:
        candidates: how many timed kernels the log has shown so far.
        begins: called with the line where the first layer is tuned.
    """

    def __init__(self, candidates: Callable[[], int], begins: Callable[[int], None]) -> None:
        self._candidates = candidates
        self._begins = begins
        self._rows: dict[str, _Row] = {}
        self._reformats: _Row | None = None
        self._layer = ""
        self._runner = ""
        self._mark = 0
        self._myelin: list[MyelinTuning] = []
        self._op: _Op | None = None
        self._cache: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._rows) + len(self._myelin)

    def ears(self) -> dict[str, Hear]:
        return {
            "timing": self._timing,
            "timed": self._timed,
            "fastest": self._fastest,
            "myelin-op": self._myelin_op,
            "myelin-row": self._myelin_row,
            "myelin-selected": self._myelin_selected,
            "timing-cache-gone": self._cache_gone,
        }

    @property
    def now(self) -> tuple[str, float | None]:
        """The layer being tuned, and its fastest kernel so far in milliseconds."""
        row = self._rows.get(self._layer)
        return self._layer, row.best if row else None

    def finish(self, chosen: dict[str, str]) -> Tuning:
        """All of autotuning; `chosen` is layer -> tactic id of the finished engine, as it is spelt."""
        self._end_op()
        rows = [self._value(layer, row, _spelt(chosen.get(layer, ""))) for layer, row in self._rows.items()]
        rows.sort(key=lambda row: (-(row.seconds or 0.0), -row.candidates, row.line))
        entries, hits = self._cache or (None, None)
        return Tuning(
            layers=tuple(rows),
            reformats=self._value("(reformatting)", self._reformats, "") if self._reformats else None,
            myelin=tuple(self._myelin),
            cache_entries=entries,
            cache_hits=hits,
        )

    @staticmethod
    def _value(layer: str, row: _Row, chosen: str) -> LayerTuning:
        times = {_spelt(tactic): ms for tactic, ms in row.ms.items()}
        return LayerTuning(
            layer=layer,
            formats=row.formats,
            candidates=row.candidates,
            seconds=None if row.seconds is None else round(row.seconds, 6),
            fastest_ms=row.best,
            fastest=_spelt(row.fastest),
            runner=row.runner,
            chosen=chosen,
            chosen_ms=times.get(chosen),
            line=row.line,
        )

    def _timing(self, line: int, layer: str, runner: str) -> None:
        self._layer, self._runner = layer, runner
        self._mark = self._candidates()
        if layer not in self._rows and not layer.startswith(_REFORMAT):
            if not self._rows:
                self._begins(line)
            self._rows[layer] = _Row(line)

    def _timed(self, line: int, layer: str, seconds: str, tactic: str, ms: str) -> None:
        if not layer.startswith(self._layer) or not self._layer:
            name, _, runner = layer.removesuffix(")").rpartition(" (")
            self._timing(line, name or layer, runner)
        try:
            spent, took = float(seconds), float(ms)
        except ValueError:
            return
        self._take(line, tactic, took if took < _ENDLESS else None, spent)

    def _fastest(self, line: int, tactic: str, ms: float | None) -> None:
        if self._layer:
            self._take(line, tactic, ms, None)

    def _take(self, line: int, tactic: str, ms: float | None, seconds: float | None) -> None:
        if self._op is not None:
            self._end_op()
        row = self._rows.get(self._layer)
        if row is None:
            row = self._reformats = self._reformats or _Row(line)
        seen = self._candidates()
        row.take(seen - self._mark, tactic, ms, self._runner.partition("[")[0], seconds)
        self._mark = seen

    def _myelin_op(self, line: int, op: str) -> None:
        self._end_op()
        name = op.partition("(key:")[0].partition(": [ONNX")[0]
        self._op = _Op(line, name, self._candidates())

    def _myelin_row(self, _line: int, *fields: object) -> None:
        _, ms, _, _, kernel, tactic, _ = fields
        if self._op is not None and not self._op.fastest:
            self._op.fastest, self._op.kernel = str(tactic), str(kernel)
            self._op.fastest_ms = ms if isinstance(ms, float) else None

    def _myelin_selected(self, _line: int, tactic: str, ms: float | None) -> None:
        if self._op is not None:
            self._op.selected, self._op.selected_ms = _spelt(tactic), ms

    def _end_op(self) -> None:
        op, self._op = self._op, None
        if op is None:
            return
        self._myelin.append(
            MyelinTuning(
                op=op.name,
                candidates=self._candidates() - op.mark,
                fastest_ms=op.fastest_ms,
                fastest=op.fastest,
                kernel=op.kernel,
                selected=op.selected,
                selected_ms=op.selected_ms,
                line=op.line,
            )
        )

    def _cache_gone(self, _line: int, entries: int, hits: int) -> None:
        self._cache = (entries, hits)


def _spelt(tactic: str) -> str:
    """A tactic id in its one spelling."""
    known = tactic_id(tactic)
    return known if isinstance(known, str) else tactic
