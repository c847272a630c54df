"""The steps of a trial: those of a run, without parts that only a reader of its report needs.

Where noise arises inside the network and what the samples are like takes as long as the comparison itself, and all trials are
compared with the same float outputs. The run folders of what nothing beats are whole runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from qdqtool.accuracy.side_by_side import Remembered
from qdqtool.core.comparison import Comparison
from qdqtool.core.kinds import ACCURACY, REPORT
from qdqtool.core.protocols import Runner
from qdqtool.pipeline import steps
from qdqtool.pipeline.context import RunContext
from qdqtool.pipeline.report import read_material
from qdqtool.pipeline.runner import LINE, RunStep
from qdqtool.report.assemble import assemble

_ROOM: Final = 128 << 20
"""Bytes for float outputs that stay in memory."""


class FloatOutputs:
    """The outputs of the float model for the evaluation samples of all trials."""

    def __init__(self) -> None:
        self._known: dict[frozenset[str], Remembered] = {}

    def compared(self, work: RunContext) -> Comparison:
        """Measure how much a trial's outputs differ from the float outputs."""
        try:
            return steps.compare_outputs(work, self._opened)
        finally:
            # beside a calibration its weights would be in the way
            for one in self._known.values():
                one.close()

    def _opened(self, open_it: Callable[[], Runner], returned: frozenset[str]) -> Runner:
        known = self._known.get(returned)
        if known is None:
            known = self._known[returned] = Remembered(open_it, _ROOM)
        else:
            known.reopen(open_it)  # the files of trials before are gone
        return known


def trial_line(outputs: FloatOutputs) -> tuple[RunStep, ...]:
    """Return the steps of a trial, which take the float model's outputs from `outputs`."""
    changed: dict[str, Callable[[RunContext], steps.Measured]] = {
        "compare": partial(_compare, outputs),
        "report": _report,
    }
    line = [step for step in LINE if step.name != "data"]
    return tuple(
        replace(
            step,
            act=changed.get(step.name, step.act),
            reads=tuple(name for name in step.reads if name != "data.json"),
            writes=tuple(name for name in step.writes if name != "report.html"),
        )
        for step in line
    )


def _compare(outputs: FloatOutputs, work: RunContext) -> steps.Measured:
    comparison = outputs.compared(work)
    ACCURACY.write(work.path("accuracy.json"), comparison)
    return {"samples": float(comparison.samples)}


def _report(work: RunContext) -> steps.Measured:
    REPORT.write(work.path("report.json"), assemble(read_material(work.folder.path)))
    return {}
