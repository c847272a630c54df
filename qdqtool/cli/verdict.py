"""Turns results into an exit code by the limits of the recipe."""

from __future__ import annotations

from qdqtool.cli.screen import stderr
from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Severity
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Report
from qdqtool.errors import LimitMissed


def exit_code(report: Report, recipe: Recipe) -> int:
    """0, or 1 when a finding is at least as severe as `audit.fail_on` or accuracy fell by more than `compare.max_drop`."""
    return tell([*_findings(report, recipe), *accuracy_missed(report.comparison, recipe.compare.max_drop)])


def tell(missed: list[str]) -> int:
    """Say on standard error which limits were missed; 1 where there are any, else 0."""
    for line in missed:
        stderr().print(f"limit missed: {line}", style="bold red", markup=False, highlight=False)
    return LimitMissed.exit_code if missed else 0


def accuracy_missed(comparison: Comparison | None, limit: float | None) -> list[str]:
    """What to say when the first task metric fell by more than `limit` points."""
    task = comparison.task[0] if comparison and comparison.task else None
    if limit is None or task is None:
        return []
    drop = task.reference - task.candidate
    return [f"{task.metric} fell by {drop:.2f} points, allowed are {limit:g}"] if drop > limit else []


def _findings(report: Report, recipe: Recipe) -> list[str]:
    if recipe.audit.fail_on == "never":
        return []
    limit = Severity(recipe.audit.fail_on).rank
    count = sum(finding.severity.rank >= limit for finding in report.findings)
    return [f"{count} findings at or above {recipe.audit.fail_on!r}"] if count else []
