"""The verdict of a run: is the engine as asked, is it accurate, and is it worth it (faster than FP16)?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from qdqtool.core.advice import settings_in
from qdqtool.core.comparison import (
    Assumption,
    Comparison,
    TaskAccuracy,
    compute_allowance,
    decisive,
    exceeds,
    loss,
    sqnr,
)
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.report import Fallback, Reply, RunVerdict, Summary, Worth, verdict_of
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun, list_names
from qdqtool.report import words

_DATA: Final = ("DAT", "CAL")
_FIGURES: Final = "DAT107"
"""Code of the finding about accuracy figures, which is ignored here because the figures are read directly."""
CLEAN_DECIBELS: Final = 20.0
"""SQNR in dB from which outputs count as accurate without a task metric: the noise power is a hundredth of
the signal power. This is a choice that no measurement supports; tasks differ.
"""
_FEWEST: Final = 8
"""Number of samples below which outputs say little about other samples."""
_NAMED: Final = 3
_UNSEEN: Final = DType.UNKNOWN.value
_LABELLED: Final = frozenset({"top1", "top5"})
_MORE: Final = Command("run", ("--eval-samples", "MORE_DATA"))
_OTHER_SAMPLES: Final = Command("run", ("--samples", "MORE_DATA"))
_DOUBTS: Final = {
    **dict.fromkeys(("DAT101", "DAT109", "DAT110", "DAT111"), _OTHER_SAMPLES),
    "DAT102": _MORE,
}
"""Options of a run that settle a doubt about samples, by the code of the finding."""
_RECIPE: Final = re.compile(r"--recipe ([\w-]+)")
_LABELS: Final = Command("run", ("--labels", "LABELS"))
_DEVICE: Final = Command("run", ("--builder", "trtexec"))
"""Command for a machine with classic TensorRT and a GPU, on which a run times both engines in turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The accuracy losses that the user allows; None without a limit.

    Attributes:
        max_drop: points of the first task metric.
        min_sqnr: dB of the outputs.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The results of a run from which its verdict is judged.

    Attributes:
        summary: figures of the engine.
        fallbacks: compute nodes that are not quantized, or not as asked.
        findings: of the engine, the ranges and the data.
        comparison: float against quantized; None without a comparison.
        worth: times against FP16; None if unknown.
        assumptions: assumptions about inputs.
        limits: limits of the user.
        typed: the command that made the run; None if no command was typed.
    """

    summary: Summary
    fallbacks: tuple[Fallback, ...] = ()
    findings: tuple[Finding, ...] = ()
    comparison: Comparison | None = None
    worth: Worth | None = None
    assumptions: tuple[Assumption, ...] = ()
    limits: Limits = NO_LIMITS
    typed: Command | None = None


def judge(case: Case) -> RunVerdict:
    """Return the verdict of a run."""
    answers = (as_asked(case), accurate(case), worth(case))
    # accuracy first, because a fast engine with wrong results is useless
    unknown = [answers[number] for number in (1, 0, 2) if answers[number].state == "unknown"]
    settle = next((answer.settle for answer in unknown if answer.settle), None)
    if settle is not None and settle.name == "run" and settle.arguments[0].startswith("--"):
        typed = case.typed or Command("run", (case.summary.model, "--samples", "DATA"))
        settle = typed.replacing(settle.arguments)
    return verdict_of(*answers, settle=settle)


def as_asked(case: Case) -> Reply:
    """Answer whether the compute nodes run in the requested formats. Without a quantized node, the answer is never "yes"."""
    summary = case.summary
    total = summary.nodes_total
    if total is None:
        return _kernels(summary)
    if not total:
        return Reply(state="no", evidence="the main graph has no compute node that could be quantized")
    floats = sum(summary.realised.get(word, 0) for word in ("float", "unknown"))
    missed = [entry for entry in case.fallbacks if entry.requested]
    lost = len(missed)
    nodes = count_noun(total, "compute node")
    if floats >= total and not summary.nodes_int8:
        requested = f"; {lost} asked for" if lost else ""
        return Reply(state="no", evidence=f"none of {nodes} is quantized{requested}")
    runs = words.formats(
        {word: count for word, count in summary.realised.items() if word not in {"float", "unknown"}}
        or {"int8": summary.nodes_int8 or 0}
    )
    text = f"{runs} of {nodes}"
    different = [entry.node for entry in missed if entry.precision != _UNSEEN]
    if different:
        where = f"{len(different)} not in the requested format: {list_names(different, _NAMED)}"
        return Reply(state="no", evidence=f"{text}; {where}")
    if missed:
        where = list_names([entry.node for entry in missed], _NAMED)
        return Reply(
            state="unknown", evidence=f"{text}; the engine does not show the type of {lost}: {where}"
        )
    if not set(summary.requested) - {"float"}:
        return Reply(state="unknown", evidence=f"{text}; the requested formats are unknown")
    floating = f", {floats} float by placement" if floats else ""
    return Reply(state="yes", evidence=f"{text}{floating}")


def _kernels(summary: Summary) -> Reply:
    """Answer from kernel counts whether kernels run as asked; "yes" only if all are quantized."""
    compute = summary.compute_kernels
    if summary.int8_kernels is None or not compute:
        return Reply(state="unknown", evidence="no engine was audited")
    low = {word: count for word, count in summary.kernel_types.items() if DType.parse(word).is_quantized}
    text = f"{words.formats(low) if low else 'none'} of {count_noun(compute, 'compute kernel')}"
    return Reply(state="yes" if sum(low.values()) == compute else "unknown", evidence=text)


def accurate(case: Case) -> Reply:
    """Answer whether the quantized model is accurate enough.

    Findings that are errors override all figures; warnings about data or calibration override good figures.
    """
    comparison = case.comparison
    findings = [finding for finding in case.findings if finding.code != _FIGURES]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Reply(state="no", evidence=_first_finding(errors))
    if comparison is None:
        return Reply(state="unknown", evidence="not compared with the float model", settle=_MORE)
    if not comparison.meaningful:
        return Reply(
            state="unknown",
            evidence="the samples were random: outputs mean nothing",
            settle=Command("run", ("--samples", "DATA")),
        )
    figures = _figures(comparison, case.limits)
    if figures.state == "no":
        return figures
    doubts = [
        finding
        for finding in findings
        if finding.severity is Severity.WARNING and finding.code.startswith(_DATA)
    ]
    if doubts:
        return Reply(state="unknown", evidence=_first_finding(doubts), settle=_settling(doubts[0]))
    # if the float model predicts the labels, its inputs are right
    if any(task.metric in _LABELLED for task in comparison.task):
        return figures
    guessed = [entry for entry in case.assumptions if entry.is_guessed]
    if guessed:
        inputs = list_names([f"{entry.what} {entry.value}" for entry in guessed], _NAMED)
        return Reply(
            state="unknown",
            evidence=f"the inputs were guessed ({inputs}); {figures.evidence}",
            settle=Command("run", ("--preprocess", "PRESET")),
        )
    if comparison.one_answer and figures.state == "yes":
        samples = count_noun(comparison.samples, "sample")
        return Reply(
            state="unknown",
            evidence=f"the float model gives one class to all {samples}: the samples show one class only, or are prepared wrongly; {figures.evidence}",
            settle=_LABELS,
        )
    return figures


def _settling(doubt: Finding) -> Command:
    """Return the command that removes a doubt about the samples.

    It runs with other samples, or with the recipe or setting in the finding's fix; else it explains the code.
    """
    recipe = _RECIPE.match(doubt.fix)
    changed = ("--recipe", recipe[1]) if recipe else ("--set", *settings_in(doubt.fix)[:1])
    with_fix = Command("run", changed) if len(changed) > 1 else Command("explain", (doubt.code,))
    return _DOUBTS.get(doubt.code, with_fix)


def _first_finding(findings: list[Finding]) -> str:
    """Return the first finding, and the number of the others."""
    first = findings[0]
    more = f" (and {count_noun(len(findings) - 1, 'more finding')})" if len(findings) > 1 else ""
    return f"{first.code} {first.reason}{more}"


def _figures(comparison: Comparison, limits: Limits) -> Reply:
    """Answer from measured accuracy whether the model is accurate: from task metrics, else from outputs."""
    if comparison.task:
        order = ("yes", "unknown", "no")
        answers = {
            task: _of_task(task, limits.max_drop if task is comparison.task[0] else None)
            for task in decisive(comparison)
        }
        return answers[max(answers, key=lambda task: (order.index(answers[task].state), _excess(task)))]
    return _of_outputs(comparison, limits.min_sqnr)


def _excess(task: TaskAccuracy) -> float:
    """Return the accuracy loss relative to the tolerated loss."""
    return (task.reference - task.candidate) / compute_allowance(task)[0]


def _of_task(task: TaskAccuracy, limit: float | None) -> Reply:
    text = words.task(task)
    if task.candidate <= 0:
        cause = ", nor is the float model: check its inputs and the labels" if task.reference <= 0 else ""
        return Reply(state="no", evidence=f"{text}: the quantized model is correct on none{cause}")
    if task.low is None or task.high is None:
        return Reply(state="unknown", evidence=f"{text}: too few samples for an interval", settle=_MORE)
    noticeable, large = compute_allowance(task)
    most = large if limit is None else limit
    if exceeds(-task.high, most):
        return Reply(state="no", evidence=f"{text}: more than {most:g} points are lost")
    if limit is not None and not exceeds(-task.low, limit):
        return Reply(state="yes", evidence=f"{text}: within the limit of {limit:g} points")
    if limit is None and not exceeds(-task.low, large):
        if not exceeds(task.reference - task.candidate, noticeable):
            return Reply(state="yes", evidence=text)
        lost = Command("run", ("--max-drop", f"{-task.low:.1f}"))
        return Reply(state="unknown", evidence=f"{text}: no limit for the loss was given", settle=lost)
    return Reply(
        state="unknown", evidence=f"{text}: a loss of {most:g} points is still possible", settle=_MORE
    )


def _of_outputs(comparison: Comparison, limit: float | None) -> Reply:
    level, overall = sqnr(comparison), comparison.sqnr
    samples = count_noun(comparison.samples, "sample")
    if level is None:
        is_equal = all(
            any(measure.metric == "max_abs" and measure.value == 0 for measure in output.measures)
            for output in comparison.outputs
        )
        if comparison.outputs and is_equal:
            return Reply(state="yes", evidence=f"the outputs are equal on {samples}")
        return Reply(state="unknown", evidence=f"no SQNR of the outputs, {samples}", settle=_LABELS)
    below = 0.0 if overall is None or overall.low is None else max(0.0, overall.sqnr_db - overall.low)
    least = level - below
    text = f"SQNR {level:.1f} dB (at least {least:.1f} with 95 % confidence), {samples}, no labels"
    enough = CLEAN_DECIBELS if limit is None else limit
    severity, reason = loss(comparison)
    if limit is None and severity is Severity.ERROR:
        return Reply(state="no", evidence=f"{reason}, {samples}, no labels")
    if limit is not None and level < limit:
        return Reply(state="no", evidence=f"{text}: below the limit of {limit:g} dB")
    if comparison.samples < _FEWEST:
        return Reply(state="unknown", evidence=f"{text}: too few", settle=_MORE)
    if least >= enough:
        return Reply(state="yes", evidence=text)
    return Reply(
        state="unknown", evidence=f"{text}: below {enough:g} dB, only labels show the loss", settle=_LABELS
    )


def worth(case: Case) -> Reply:
    """Answer whether the engine is faster than the same network in FP16."""
    times = case.worth
    if times is None:
        return Reply(state="unknown", evidence="no time was compared with an FP16 engine", settle=_DEVICE)
    parts = [times.advice] if times.advice else []
    if times.ms is not None and times.fp16_ms is not None:
        kernels = f", {words.more_kernels(times)}" if times.kernels else ""
        parts.insert(
            0,
            f"{times.ms:.4g} ms against {times.fp16_ms:.4g} ms in FP16 on {times.device} [{times.source}]{kernels}",
        )
    if times.low is None or times.high is None:
        return Reply(
            state="unknown", evidence="; ".join([*parts, times.note or "no times are known"]), settle=_DEVICE
        )
    if times.note:
        # A build without a GPU shows neither the time of a launch nor the kernels that the device merges. So an engine
        # that is bound by kernel launches is never called faster or slower because of its kernels.
        bounds = f"{times.low:.2f} to {times.high:.2f} times as fast, if a kernel launch takes 1 to 6 us"
        return Reply(state="unknown", evidence="; ".join([*parts, f"{bounds}: {times.note}"]), settle=_DEVICE)
    text = f"{times.low:.2f} to {times.high:.2f} times as fast: {'; '.join(parts)}"
    if times.low > 1:
        return Reply(state="yes", evidence=text)
    if times.high < 1:
        return Reply(state="no", evidence=text)
    return Reply(state="unknown", evidence=f"undecided, {text}", settle=_DEVICE)
