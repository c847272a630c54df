"""Figures and verdicts as text, identical on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qdqtool.core.comparison import (
    AGAINST_REFERENCE,
    Assumption,
    Comparison,
    Measure,
    MismatchCause,
    MismatchExplanation,
    OutputComparison,
    PartComparison,
    TaskAccuracy,
    exceeds,
)
from qdqtool.core.findings import Severity
from qdqtool.core.report import TITLES, Report, RunVerdict, Summary, Worth
from qdqtool.core.sensitivity import FloatSet
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun, list_names, metric
from qdqtool.engine.costs import COMPUTES, CONVERTS, FINISHES, OTHERS

# --- figures and verdicts --------------------------------------------------------------------------------------------

UNKNOWN = "unknown"
_PREFIXES = ("", "k", "M", "G", "T")
_UNITS = ("KiB", "MiB", "GiB")
_KEPT = 4
"""Number of float nodes that are named."""


def judgement(verdict: RunVerdict) -> tuple[str, ...]:
    """Return the verdict, a line for each question, and the command that answers the first unknown question."""
    return (
        f"Verdict: {verdict.answer}",
        *(
            f"  {TITLES[question] + ':':<10} {answer.state:<8} {answer.evidence}"
            for question, answer in verdict.answers
        ),
        *((f"  {'Settle it:':<10} {settling(verdict.settle)}",) if verdict.settle else ()),
    )


def settling(command: Command) -> str:
    """Return the command that answers an open question of the verdict; a comment says if it needs a GPU."""
    return f"{command.line}{'  # on the machine with the GPU' if 'trtexec' in command.arguments else ''}"


def verdict(summary: Summary) -> str:
    """Return the headline sentence: how much of the network runs in INT8, or in other formats that were requested."""
    if summary.nodes_total is None or summary.nodes_int8 is None:
        return _kernel_verdict(summary)
    if not summary.nodes_total:
        return "INT8: the model has no compute nodes"
    if not set(summary.requested) <= {"int8", "float"}:
        request, runs = formats(summary.requested), formats(summary.realised)
        return f"Formats: {runs} of {count_noun(summary.nodes_total, 'compute node')}" + (
            ", as asked" if request == runs else f"; asked: {request}"
        )
    share = percent(summary.nodes_int8, summary.nodes_total)
    return f"INT8: {summary.nodes_int8} of {count_noun(summary.nodes_total, 'compute node')} ({share})"


def title(report: Report) -> str:
    """Return the headline of a page: the verdict on an engine; for a study without an engine, its subject."""
    if report.layers or report.verdicts or report.summary.builder:
        return verdict(report.summary)
    if report.sensitivity is not None:
        return f"Sensitivity of {report.sensitivity.model}"
    if report.comparison is not None:
        return f"{report.comparison.candidate} compared with {report.comparison.reference}"
    if report.ranges:
        return f"Ranges of {report.summary.model}"
    return verdict(report.summary)


_OTHER = {dtype.value for dtype in DType if dtype.is_quantized and dtype is not DType.INT8}
"""Quantized types of kernels other than INT8."""


def formats(counts: Mapping[str, int]) -> str:
    """Return counts of formats as text: `fp8 17, float 1`, the most frequent first."""
    return ", ".join(f"{word} {count}" for word, count in sorted(counts.items(), key=lambda item: -item[1]))


def _kernel_verdict(summary: Summary) -> str:
    """Return the headline sentence from the kernels only, for a report without an audit of nodes."""
    if summary.kernels and not summary.compute_kernels:
        return "INT8: unknown, because the layer information shows no compute kernel"
    if summary.int8_kernels is None or not summary.compute_kernels:
        return "INT8: unknown, because no engine was audited"
    if _OTHER & set(summary.kernel_types):
        return f"Formats: {formats(summary.kernel_types)} of {count_noun(summary.compute_kernels, 'compute kernel')}"
    share = percent(summary.int8_kernels, summary.compute_kernels)
    return (
        f"INT8: {summary.int8_kernels} of {count_noun(summary.compute_kernels, 'compute kernel')} ({share})"
    )


def percent(part: int, whole: int) -> str:
    """Return a share as text without decimals; 100 % only for all, 0 % only for none."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 1:
        return "under 1 %"
    return f"{99 if 99 < share < 100 else round(share)} %"


def size(count: int | None) -> str:
    """Return bytes as B, KiB, MiB or GiB, with three digits."""
    if count is None:
        return UNKNOWN
    if count < 1 << 10:
        return f"{count} B"
    step = min((count.bit_length() - 1) // 10, len(_UNITS))
    amount = count / (1 << 10 * step)
    return f"{amount:.{max(0, 3 - len(str(int(amount))))}f} {_UNITS[step - 1]}"


def number(value: float | None) -> str:
    """Return a number with up to four significant digits."""
    return UNKNOWN if value is None else f"{value:.4g}"


def large(value: int | None) -> str:
    """Return a count with a decimal prefix: 3.78 G; "" if unknown."""
    if value is None:
        return ""
    step = min((len(str(abs(value))) - 1) // 3, len(_PREFIXES) - 1)
    return f"{value / 1000**step:.3g} {_PREFIXES[step]}".rstrip()


def task(entry: TaskAccuracy) -> str:
    """Return a task metric with its interval as text: `top-1 98.4 % -> 98.1 % (-0.3 points, 95 % interval -0.9 to +0.2), 500 samples`."""
    step = entry.candidate - entry.reference
    span = (
        ""
        if entry.low is None or entry.high is None
        else f", 95 % interval {entry.low:+.1f} to {entry.high:+.1f}"
    )
    unit = f" {entry.unit}" if entry.unit else ""
    return (
        f"{metric(entry.metric)} {entry.reference:.1f}{unit} -> {entry.candidate:.1f}{unit} "
        f"({_format_signed(step)} points{span}), {count_noun(entry.samples, 'sample')}"
    )


def shift(entry: TaskAccuracy) -> str:
    """Return a task metric of both models as text: `top-1 98.4 -> 98.1 %`."""
    unit = f" {entry.unit}" if entry.unit else ""
    return f"{metric(entry.metric)} {entry.reference:.1f} -> {entry.candidate:.1f}{unit}"


def spread(entry: TaskAccuracy, *, meaningful: bool = True) -> str:
    """Return the change of a task metric: `-0.3 points (95 % interval -0.9 to +0.2), 500 samples: within noise`."""
    span = (
        ""
        if entry.low is None or entry.high is None
        else f" (95 % interval {entry.low:+.1f} to {entry.high:+.1f})"
    )
    judged = noise(entry) if meaningful else ""
    step = _format_signed(entry.candidate - entry.reference)
    return f"{step} points{span}, {count_noun(entry.samples, 'sample')}{f': {judged}' if judged else ''}"


def noise(entry: TaskAccuracy) -> str:
    """Return whether a difference is more than chance, in words; "" for metrics relative to the float outputs."""
    if entry.metric in AGAINST_REFERENCE or entry.low is None or entry.high is None:
        return ""
    if entry.high < 0:
        return "a significant loss"
    if entry.low > 0:
        return "a significant gain"
    return "within noise"


def measure(entry: Measure) -> str:
    """Return an accuracy figure as text, such as `SQNR 34.2 dB`, or why there is none."""
    if entry.value is None:
        return f"{metric(entry.metric)}: {entry.note or UNKNOWN}"
    unit = f" {entry.unit}" if entry.unit else ""
    return f"{metric(entry.metric)} {number(entry.value)}{unit}"


_MANY = 1.1
"""Kernels of the quantized engine over those of FP16 from which the difference is explained."""
_NAMED_FROM = 0.25
"""Share of the most frequent kind from which other kinds are named."""
_MORE: Final = {
    FINISHES: "only finish low-bit products (QDQ222)",
    CONVERTS: "only quantize, cast or reformat",
    COMPUTES: "compute products",
    OTHERS: "compute something else",
}


def more_kernels(worth: Worth) -> str:
    """Return the kernels of the INT8 and the FP16 engine, with the kinds of additional kernels if there are many."""
    ours, theirs = worth.kernels or (0, 0)
    text = f"{ours} kernels against {theirs}"
    more = sorted(worth.more.items(), key=lambda entry: -entry[1])
    shown = [(kind, count) for kind, count in more if count >= _NAMED_FROM * more[0][1]]
    if ours <= _MANY * theirs or not shown:
        return text
    return f"{text}: {list_names([f'{count} more {_MORE[kind]}' for kind, count in shown], len(_MORE))}"


def float_set(entry: FloatSet) -> str:
    """Return the accuracy of a set of float nodes: `SQNR 41.8 dB, 10 of 12 compute nodes quantized (83 %), top-1 98.4 -> 98.1 %`."""
    level = "no noise" if entry.sqnr_db is None else f"SQNR {entry.sqnr_db:.1f} dB"
    share = percent(entry.int8_nodes, entry.total_nodes)
    accuracy = "" if entry.task is None else f", {shift(entry.task)}"
    return f"{level}, {entry.int8_nodes} of {count_noun(entry.total_nodes, 'compute node')} quantized ({share}){accuracy}"


def cause(entry: MismatchExplanation) -> str:
    """Return why an engine differs from its graph: `SQNR 27.7 dB to its own graph: explained by rounding (...)`."""
    if entry.cause is MismatchCause.SAME:
        return "equal to the result of the Q/DQ graph"
    rounding = "changes nothing" if entry.rounding_db is None else f"alone gives {entry.rounding_db:.1f} dB"
    near = "equal" if entry.nearest_db is None else f"{entry.nearest_db:.1f} dB"
    distance = UNKNOWN if entry.sqnr_db is None else f"{entry.sqnr_db:.1f} dB"
    return f"SQNR {distance} to its own graph: {entry.cause.value} (rounding {rounding}; nearest: {entry.nearest}, {near})"


def value(entry: Measure) -> str:
    """Return a figure with its unit, or the reason why there is no figure."""
    unit = f" {entry.unit}" if entry.unit else ""
    return entry.note or UNKNOWN if entry.value is None else f"{number(entry.value)}{unit}"


def headline(output: OutputComparison) -> str:
    """Return the most informative measure of an output: the SQNR if there is one, else the first measure."""
    chosen = _choose_measure(output)
    return UNKNOWN if chosen is None else measure(chosen)


def part(entry: PartComparison) -> str:
    """Return the accuracy of a part of an output: `boxes and scores contains /model/Sigmoid_output_0: SQNR 11.8 dB`."""
    first, *further = entry.tensors
    tensors = first + (f" and {count_noun(len(further), 'more feature map')}" if further else "")
    level = (
        f"SQNR {number(entry.sqnr_db)} dB" if entry.sqnr_db is not None else f"SQNR: {entry.note or UNKNOWN}"
    )
    return f"{entry.output} {'was chosen from' if entry.chosen else 'contains'} {tensors}: {level}"


def sqnr(output: OutputComparison) -> float | None:
    """Return the SQNR of a tensor in dB; None if it was not measured or is undefined."""
    return next((entry.value for entry in output.measures if entry.metric == "sqnr_db"), None)


def other_measures(output: OutputComparison) -> str:
    """Return all measures of an output except the one that `headline` returns."""
    chosen = _choose_measure(output)
    return ", ".join(measure(entry) for entry in output.measures if entry is not chosen)


def count(number_of: int | None) -> str:
    """Return a count, or the word for an unknown count."""
    return UNKNOWN if number_of is None else str(number_of)


def severities(counts: Mapping[str, int]) -> str:
    """Return the number of findings by severity: `1 error, 2 warning, 1 info`."""
    order = sorted(Severity, key=lambda severity: -severity.rank)
    return ", ".join(f"{counts.get(severity.value, 0)} {severity.value}" for severity in order)


def accuracy_caveat(comparison: Comparison) -> str:
    """Return the reason not to trust the accuracy; "" if there is no such reason."""
    return "" if comparison.meaningful else "random samples: accuracy meaningless"


def _choose_measure(output: OutputComparison) -> Measure | None:
    by_name = {entry.metric: entry for entry in reversed(output.measures)}
    return by_name.get("sqnr_db", output.measures[0] if output.measures else None)


def _format_signed(step: float) -> str:
    return "0.0" if abs(step) < 0.05 else f"{step:+.1f}"


def limit_rows(limit: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines about an accuracy limit, from the data in limit.json."""
    limits = [
        f"at most {limit['max_drop']:g} points lost" if limit["max_drop"] is not None else "",
        f"at least {limit['min_sqnr']:g} dB" if limit["min_sqnr"] is not None else "",
    ]
    aim = " and ".join(filter(None, limits))
    samples = f"{limit['samples']} samples  [measured]"
    chosen, whole = limit["chosen"], limit["whole"]
    if chosen is None:
        built = limit["built"]
        tried = built or limit["path"][0]
        nodes, level = count_noun(len(tried["kept"]), "node"), _level(tried)
        if built:
            yield (
                "Limit",
                f"{aim}: not met by the built model with {nodes} float ({level}), {samples}",
            )
        else:
            yield "Limit", f"{aim}: not met even with all {nodes} float ({level}), {samples}"
        return
    if not chosen["kept"]:
        yield "Limit", f"{aim}: met with every node quantized ({_level(whole)}), {samples}"
        yield from _others(limit, whole, whole)
        return
    formats = limit["formats"]
    names = [
        node if formats.get(node, "float") == "float" else f"{node} ({formats[node]})"
        for node in chosen["kept"]
    ]
    how = "outside INT8" if set(formats.values()) - {"float"} else "float"
    yield "Limit", f"{aim}: met with {count_noun(len(names), 'node')} {how}: {list_names(names, _KEPT)}"
    taken = next(
        (alternative for alternative in limit["alternatives"] if alternative["formats"] == formats), chosen
    )
    yield "", f"{_level(whole)} -> {_level(taken)}, {samples}"
    yield from _others(limit, chosen, taken)
    before, after = limit["before"], limit["after"]
    if before and after:
        yield "Its cost", f"{_costs(before, after)}{_ms(taken)}  [two builds]"
    for alternative in limit["alternatives"]:
        if alternative["formats"] != formats and alternative["cost"] and before:
            words = ", ".join(sorted(set(alternative["formats"].values())))
            yield (
                f"In {words}",
                f"{_level(alternative)}; {_costs(before, alternative['cost'])}{_ms(alternative)}  [two builds]",
            )


def _others(
    limit: Mapping[str, Any], chosen: Mapping[str, Any], taken: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield what the evaluation samples show about unseen samples, and how many samples would be needed.

    `taken` is `chosen`, or `chosen` in other formats.
    """
    if limit.get("calibrated"):
        yield (
            "",
            "these samples were also used for calibration, so they say little about other samples: pass others with --eval-samples",
        )
        return
    confidence = limit.get("confidence")
    if not confidence:
        yield from _explain_doubts(limit, taken)
        return
    sure = f"({100 * confidence:g} % confidence)"
    level, least = taken["sqnr_db"], chosen.get("least_db")
    if limit["min_sqnr"] is not None and level is not None:
        if least is None:
            yield (
                "",
                f"{count_noun(limit['samples'], 'sample')} are too few to predict the SQNR of other samples",
            )
        else:
            # other formats had to keep the same margin as the chosen nodes
            yield "", f"other samples have at least {level - chosen['sqnr_db'] + least:.1f} dB {sure}"
    task, worst = taken["task"], chosen.get("worst_drop")
    if limit["max_drop"] is None or task is None or worst is None:
        return
    worst += _drop(task) - _drop(chosen["task"])
    if not exceeds(worst, limit["max_drop"]):
        yield "", f"other samples lose at most {max(0.0, worst):.2f} points {sure}"
    else:
        yield "", f"other samples may lose up to {worst:.1f} points {sure}: {_would_do(limit)}"


def _would_do(limit: Mapping[str, Any]) -> str:
    """Return words on how many samples could confirm that unseen samples keep the allowed drop."""
    if limit["enough"] is None:
        return "the loss on these samples already reaches the limit, so more samples cannot help"
    return f"for {limit['max_drop']:g} about {_two_digits(limit['enough'])} samples with the same loss are needed"


def _two_digits(count: int) -> str:
    """Return the count rounded up to two digits, because it is an estimate."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // unit) * unit:,}"


def _drop(task: Mapping[str, Any]) -> float:
    return float(task["reference"] - task["candidate"])


def _explain_doubts(limit: Mapping[str, Any], kept: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield why unseen samples may exceed the allowed drop although the evaluation samples do not."""
    most, task = limit["max_drop"], kept["task"]
    if most is None or task is None:
        return
    points_per_sample = 100 / max(1, limit["samples"])
    if task["low"] is not None and task["low"] < -most:
        between = f"{task['low']:+.1f} to {task['high']:+.1f} points"
        yield "", f"95 % interval of the change {between}: other samples may lose more"
    elif most < points_per_sample:
        yield "", f"one sample is {points_per_sample:.3g} points: other samples may lose more"


def _ms(alternative: Mapping[str, Any]) -> str:
    return f"; {alternative['ms']:.4f} ms (estimated)" if alternative.get("ms") else ""


def _costs(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the costs in which two engines differ, with both figures."""
    paid = (
        _describe_change("kernels", before["kernels"], after["kernels"], str),
        _describe_change("activations", before["activation_bytes"], after["activation_bytes"], size),
        _describe_change("engine", before["engine_bytes"], after["engine_bytes"], size),
    )
    return ", ".join(filter(None, paid))


def _level(entry: Mapping[str, Any]) -> str:
    level = "no noise" if entry["sqnr_db"] is None else f"{entry['sqnr_db']:.1f} dB"
    task = entry["task"]
    return (
        level if task is None else f"{level}, {metric(task['metric'])} {task['candidate']:.2f} {task['unit']}"
    )


def _describe_change(name: str, before: int | None, after: int | None, spelled: Callable[[int], str]) -> str:
    return "" if before is None or after is None else f"{name} {spelled(before)} -> {spelled(after)}"


# --- accuracy --------------------------------------------------------------------------------------------------------
# Accuracy against the float model as lines of figures.

_SHOWN = 8
"""Number of outputs that are shown; the others are counted."""


def accuracy_rows(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield a line for each task metric and each output, with the reliability of its figures."""
    caveat = accuracy_caveat(comparison)
    source = f"  [{caveat}]" if caveat else "  [measured]"
    for result in comparison.task:
        verdict = "" if caveat else noise(result)
        yield "Accuracy", f"{task(result)}{f': {verdict}' if verdict else ''}{source}"
    for output in comparison.outputs[:_SHOWN]:
        yield "Output", f"{output.output}: {', '.join(map(measure, output.measures))}{source}"
        for entry in comparison.parts:
            if entry.output == output.output:
                yield "", f"{part(entry)}{source}"
    if len(comparison.outputs) > _SHOWN:
        yield "Output", f"and {count_noun(len(comparison.outputs) - _SHOWN, 'more output')}"


def input_rows(assumptions: tuple[Assumption, ...]) -> Iterator[tuple[str, str]]:
    """Yield text rows on how inputs are prepared: one row per source of values, such as "given"."""
    for number, source in enumerate(dict.fromkeys(entry.source for entry in assumptions)):
        values = ", ".join(f"{entry.what} {entry.value}" for entry in assumptions if entry.source == source)
        yield "" if number else "Inputs", f"{values}  [{source}]"
