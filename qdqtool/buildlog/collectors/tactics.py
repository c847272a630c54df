"""Every kernel that autotuning tried: for which layer and formats, how long it took, and what became of it.

*************** Autotuning format combination: Int8(64,1:4,8) -> Float(36,36,6,1) ***************
--------------- Timing Runner: Conv_0 (CaskConvolution[0x80000009])
Tactic Name: sm80_xmma_fprop Tactic: 0x0000000000000007 Time: 0.25        8.6 and newer
Conv_0 Set Tactic Name: sm80_xmma_fprop Tactic: 0x0000000000000007       before: the kernel is named first,
Tactic: 0x0000000000000007 Time: 0.25                                     and timed in the next line
Fastest Tactic: 0x0000000000000007 Time: 0.25
>>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: 0x0000000000000007
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.pattern import tactic_id
from qdqtool.buildlog.place import Place
from qdqtool.core.buildlog import TacticRow

_RULES = " *"


@dataclass(slots=True)
class _Tactic:
    line: int
    layer: str
    runner: str
    formats: str
    tactic: str
    kernel: str
    ms: float | None
    workspace: int | None
    verdict: str


class TacticsCollector:
    """Keeps every candidate in the order of the log.

    Args:
        place: knows which layer was announced last.
        layer_and_runner: takes an announcement apart into layer and runner.
    """

    def __init__(self, place: Place, layer_and_runner: Callable[[str], tuple[str, str]]) -> None:
        self._place = place
        self._layer_and_runner = layer_and_runner
        self._rows: list[_Tactic] = []
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
            "kernel-set": self._named,
            "tactic": lambda line, tactic, ms: self._timed(line, tactic, self._kernels.get(tactic, ""), ms),
            "tactic-named": lambda line, kernel, tactic, ms: self._timed(line, tactic, kernel, ms),
            "fastest": lambda _line, tactic, _ms: self._mark(tactic, "fastest"),
            "timed": lambda _line, _layer, _seconds, tactic, _ms: self._mark(tactic, "fastest"),
            "chosen": lambda _line, _runner, tactic: self._mark(tactic, "chosen"),
            "tactic-too-slow": lambda line, tactic: self._add(
                line, tactic, verdict="too slow in a first run"
            ),
            "only-option": lambda line, tactic: self._add(line, tactic, verdict="the only option, not timed"),
            "no-tactics": self._without,
            "tactic-out-of-memory": self._refused,
            "myelin-op": self._myelin,
            "subgraph-compiled": self._compiled,
            "myelin-row": self._myelin_row,
            "myelin-selected": lambda _line, tactic, _ms: self._mark(tactic, "chosen"),
        }

    def finish(self) -> tuple[TacticRow, ...]:
        """All candidates."""
        return tuple(
            TacticRow(
                line=row.line,
                layer=row.layer,
                runner=row.runner,
                formats=row.formats,
                tactic=row.tactic,
                kernel=row.kernel,
                ms=row.ms,
                workspace=row.workspace,
                verdict=row.verdict,
            )
            for row in self._rows
        )

    def _new_formats(self, _line: int, formats: str) -> None:
        self._formats = formats.strip(_RULES)
        self._kernels.clear()
        self._op = ""
        self._since_formats = len(self._rows)

    def _named(self, _line: int, _layer: str, kernel: str, tactic: str) -> None:
        self._kernels[_spelt(tactic.partition(" ")[0])] = kernel

    def _timed(self, line: int, tactic: str, kernel: str, ms: float | None) -> None:
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
            _Tactic(
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
        """The last candidate of these formats with that id became the fastest of its kernels, or the chosen one."""
        spelt = _spelt(tactic)
        for row in reversed(self._rows[self._since_formats :]):
            if row.tactic == spelt:
                row.verdict = verdict
                return

    def _without(self, line: int, runner: str) -> None:
        self._add(line, "", verdict=f"{runner} has no kernel for these formats")

    def _refused(self, line: int, _number: str, needed: int, tactic: str) -> None:
        self._add(line, tactic, workspace=needed, verdict="refused: needs more workspace than allowed")

    def _myelin(self, _line: int, op: str) -> None:
        self._op = op.partition("(key:")[0].partition(": [ONNX")[0].removesuffix(":")
        self._since_formats = len(self._rows)

    def _compiled(self, _line: int, *_fields: object) -> None:
        self._op = ""

    def _myelin_row(self, line: int, *fields: object) -> None:
        _, ms, _, _, kernel, tactic, _ = fields
        self._timed(line, str(tactic), str(kernel), ms if isinstance(ms, float) else None)


def _spelt(tactic: str) -> str:
    known = tactic_id(tactic)
    return known if isinstance(known, str) else tactic
