"""The --fix of the audit command: its options, its progress, its table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from qdqtool.core.fixes import FixReport, Metrics, Trial

_ROOM = 140
"""Columns from which a terminal has room for a table of four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the user typed.

    Attributes:
        subject: run folder or Q/DQ model.
        out: new run folder, or None.
        samples: where samples come from, or None.
        labels: class indices of the samples, or None.
        max_drop: how far accuracy may fall.
        budget: engines built at most.
        seconds: time after which nothing more is tried, or None.
        cache: folder of finished builds to share, or None.
        changes: changes of the recipe as "key=value".
        sm: architectures to build for, as "86,89"; "" takes those of the recipe.
        ignore: codes or names of checks to leave out.
    """

    subject: Path
    out: Path | None
    samples: str | None
    labels: str | None
    max_drop: float
    budget: int
    seconds: float | None
    cache: Path | None
    changes: tuple[str, ...]
    sm: str
    ignore: tuple[str, ...]


def mend(wish: Wish, fail_on: str, *, as_json: bool) -> int:
    """Try the fixes, print the table, and return the exit code."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import Bars
    from qdqtool.cli.screen import stderr
    from qdqtool.cli.verdict import findings_missed, tell
    from qdqtool.core.kinds import FIXES
    from qdqtool.pipeline.autofix.run import FixRequest, fix, is_unfinished, recipe_of
    from qdqtool.pipeline.autofix.search import Bounds

    typed = [f"build.sm=[{wish.sm}]"] if wish.sm else []
    typed += [f"audit.ignore=[{','.join(wish.ignore)}]"] if wish.ignore else []
    method = recipe_of(wish.subject)
    out = wish.out or wish.subject.with_name(f"{wish.subject.name.removesuffix('.onnx')}-fixed")
    order = FixRequest(
        subject=wish.subject,
        out=out,
        recipe=load_recipe(None if method is None else str(method), [*wish.changes, *typed]),
        samples="" if wish.samples == "none" else wish.samples or "random:8",
        labels=wish.labels,
        bounds=Bounds(builds=wish.budget, seconds=wish.seconds, max_drop=wish.max_drop),
        cache=wish.cache,
    )
    if is_unfinished(out):
        stderr().print(
            f"goes on in {out}, where an earlier search was stopped", markup=False, highlight=False
        )
    with Bars() as bars:
        report, findings = fix(order, lambda done, total: bars.show("build", done, total))
    stderr().print(f"wrote {out}", markup=False, highlight=False)
    if as_json:
        sys.stdout.write(FIXES.dump(report))
    else:
        _show(report)
    return tell(findings_missed(findings, fail_on))


def _show(report: FixReport) -> None:
    from qdqtool.cli.screen import stdout, tables

    if stdout().is_terminal and stdout().width < _ROOM:
        lines: list[str] = [line for trial in report.trials for line in _told(trial)]
    else:
        lines = []
        if report.trials:
            tables().print(_table(report))
    lines += (
        "" if report.trials else "nothing to fix",
        f"before: {_measured(report.before, report.metric)}",
        f"after:  {_measured(report.after, report.metric)}",
        f"{report.builds} of {report.budget} builds used",
        *(f"note: {note}" for note in report.notes),
    )
    for line in filter(None, lines):
        stdout().print(line, markup=False, highlight=False)


def _told(trial: Trial) -> Iterator[str]:
    """A trial in lines, for a terminal too narrow for the table."""
    yield f"{trial.outcome.value}: {trial.subject}"
    if trial.edit:
        yield f"    edit: {trial.edit}"
    yield f"    why: {trial.why}"


def _table(report: FixReport) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("outcome", "finding", "edit", "why"):
        table.add_column(title, overflow="fold")
    for trial in report.trials:
        table.add_row(*map(escape, (trial.outcome.value, trial.subject, trial.edit or "-", trial.why)))
    return table


def _measured(standing: Metrics, metric: str) -> str:
    size = "unknown" if standing.activation_bytes is None else f"{standing.activation_bytes:,}"
    accuracy = "" if standing.accuracy is None else f", {metric} {standing.accuracy:.4g}"
    return (
        f"{standing.int8} of {standing.compute} compute nodes INT8, {standing.kernels} kernels, "
        f"{standing.conversions} of them conversions, {size} activation bytes{accuracy}"
    )
