"""Turns results into an exit code, by the limits in the recipe."""

from __future__ import annotations

from qdqtool.cli.screen import stderr
from qdqtool.core.comparison import Comparison, exceeds
from qdqtool.core.findings import Finding, NodeVerdict, Severity
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import VERDICTS, Report, is_judged
from qdqtool.core.wording import count_noun
from qdqtool.errors import ThresholdExceeded, UsageError


def exit_code(report: Report, recipe: Recipe) -> int:
    """Return 1 if `audit.fail_on`, `compare.max_drop` or a limit of `accuracy` is exceeded, else 0."""
    limit = recipe.audit.fail_on
    missed = (
        _check_answer(report.verdict, limit) if limit in VERDICTS else findings_missed(report.findings, limit)
    )
    missed += list_unrealised(report.verdicts) if recipe.audit.fail_on_unrealised else []
    limits = [limit for limit in (recipe.compare.max_drop, recipe.accuracy.max_drop) if limit is not None]
    missed += accuracy_missed(report.comparison, min(limits, default=None))
    return print_missed([*missed, *_noise_missed(report.comparison, recipe.accuracy.min_sqnr)])


def _check_answer(answer: str, limit: str) -> list[str]:
    """Return the message if the verdict of the run is `limit` or worse."""
    return [f"the verdict is {answer}"] if is_judged(answer, limit) else []


def _noise_missed(comparison: Comparison | None, limit: float | None) -> list[str]:
    """Return the message if the SQNR of the scored output is below `limit` in dB."""
    level = comparison.sqnr if comparison else None
    if limit is None or level is None or level.sqnr_db >= limit:
        return []
    return [f"{level.output} keeps {level.sqnr_db:.2f} dB, required: {limit:g}"]


def list_unrealised(verdicts: tuple[NodeVerdict, ...]) -> list[str]:
    """Return the message if nodes do not run in the requested format."""
    missed = [verdict for verdict in verdicts if not verdict.is_as_asked]
    if not missed:
        return []
    first = missed[0]
    return [
        f"{count_noun(len(missed), 'node does', 'nodes do')} not run as asked, first {first.node}: {first.asked} asked, {first.realised} realised"
    ]


def print_missed(missed: list[str]) -> int:
    """Print the messages about exceeded limits on standard error; return 1 if there are any, else 0."""
    for line in missed:
        stderr().print(f"threshold exceeded: {line}", style="bold red")
    return ThresholdExceeded.exit_code if missed else 0


def accuracy_missed(comparison: Comparison | None, limit: float | None) -> list[str]:
    """Return the message if the first task metric fell by more than `limit` points."""
    task = comparison.task[0] if comparison and comparison.task else None
    if limit is None or task is None:
        return []
    drop = task.reference - task.candidate
    return [f"{task.metric} fell by {drop:.2f} points, allowed: {limit:g}"] if exceeds(drop, limit) else []


def check_limit(limit: str, *, judged: bool = False) -> None:
    """Refuse an unknown --fail-on before any work starts.

    Args:
        limit: the limit as typed.
        judged: whether the command gives a verdict, so that its words are limits, too.

    Raises:
        UsageError: `limit` is not a severity, and no verdict.
    """
    words = [*(severity.value for severity in reversed(Severity)), *(VERDICTS[1:] if judged else ())]
    if limit not in {*words, "never"}:
        raise UsageError(
            f"{limit!r} is not a severity{' or a verdict' if judged else ''}",
            fix=f"choose {', '.join(words)} or never",
            where="--fail-on",
        )


def findings_missed(findings: tuple[Finding, ...], limit: str) -> list[str]:
    """Return the message if findings are at least as severe as `limit`: error, warning, info or never.

    Raises:
        UsageError: `limit` is another word.
    """
    check_limit(limit)
    if limit == "never":
        return []
    count = sum(finding.severity.rank >= Severity(limit).rank for finding in findings)
    return [f"{count_noun(count, 'finding')} at or above {limit!r}"] if count else []
