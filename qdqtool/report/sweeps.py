"""Shows a sweep: a table on the terminal, a self-contained page with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rich.table import Table
from rich.text import Text

from qdqtool.core.report import TITLES, VERDICTS
from qdqtool.core.sweep import Checked, FloatPoint, Outcome, Sweep, Trial
from qdqtool.core.wording import count_noun, list_names
from qdqtool.core.wording import metric as metric_name
from qdqtool.engine.roofline import RATIO_ERROR
from qdqtool.io.escaping import printable
from qdqtool.report import svg
from qdqtool.report.charts import Extent, ExtentRow, Level, Point, axis_over, below, intervals, scatter
from qdqtool.report.templates import environment

_NAMED = 8
"""Number of trials that are named for a shared reason."""
SPARE = ("kernels", "quantized nodes", "ms between", "held-out samples, 95 %", "95 %")
"""Columns that are left out on a narrow terminal, in this order."""
_SETTING = 22
"""Letters of a typical setting, which is hard to read if it is broken into lines."""


def table(sweep: Sweep) -> Table:
    """Return the Pareto front of a sweep as a table, fastest first."""
    head = Table(box=None)
    scored = f"{metric(sweep)} {sweep.unit} [measured]"
    is_checked = any(trial.checked for trial in sweep.pareto)
    held = ("held back", "held-out samples, 95 %") if is_checked else ()
    is_judged = any(trial.verdict for trial in sweep.pareto)
    titles = (
        "trial",
        *(("verdict",) if is_judged else ()),
        scored,
        "95 %",
        *held,
        f"ms [{sweep.speed}]",
        "ms between",
        "quantized nodes",
        "kernels",
    )
    for title in titles:
        head.add_column(Text(printable(title)), justify="right", overflow="fold")
    head.add_column("settings", overflow="fold", min_width=_SETTING)
    for row in rows(sweep):
        head.add_row(
            Text(printable(row.name)),
            *((Text(printable("" if row.trial is None else verdict(row.trial))),) if is_judged else ()),
            "no noise" if row.value.accuracy is None else f"{row.value.accuracy:.2f}",
            _between(_interval(sweep, row.value), 2),
            *((("", "") if row.trial is None else _describe_held_back(row.trial)) if is_checked else ()),
            f"{row.value.ms:.4f}" if row.value.ms else "",
            _between(interval(row.value, sweep.spread), 4),
            row.quantized,
            row.kernels,
            Text(printable("; ".join(settings_of(sweep, row)).replace("; (", " ("))),
        )
    return head


@dataclass(frozen=True, kw_only=True, slots=True)
class PointRow:
    """A row of a sweep's table: a Pareto-optimal trial, or the network without Q/DQ if `trial` is None."""

    name: str
    value: Outcome | FloatPoint
    trial: Trial | None = None

    @property
    def quantized(self) -> str:
        """The number of quantized compute nodes of the row, in words."""
        return nodes(self.value) if isinstance(self.value, Outcome) else "0"

    @property
    def kernels(self) -> str:
        """The number of kernels; "" if it is unknown."""
        count = self.value.kernels if isinstance(self.value, Outcome) else None
        return "" if count is None else str(count)


def rows(sweep: Sweep) -> list[PointRow]:
    """Return the Pareto points and the networks without Q/DQ as rows, the fastest first."""
    points = [
        PointRow(name=str(trial.number), value=outcome, trial=trial) for trial, outcome in _done(sweep.pareto)
    ]
    points += [PointRow(name=point.name, value=point) for point in sweep.floats]
    return points if sweep.speed == "not timed" else sorted(points, key=lambda row: row.value.ms)


def settings_of(sweep: Sweep, row: PointRow) -> list[str]:
    """Return the settings of a table row in words, and the network without Q/DQ that beats it, if any."""
    if not isinstance(row.value, Outcome):
        return ["nothing quantized"]
    better = "" if row.trial is None else beaten_by(sweep, row.trial)
    return [*words(row.value), *([f"(beaten by {better})"] if better else [])]


def verdict(trial: Trial) -> str:
    """Return the verdict of a trial's run; "" if it was not judged."""
    return "" if trial.verdict is None else trial.verdict.answer


def conclusion(sweep: Sweep) -> str:
    """Return the trial with the best verdict, and its questions not answered "yes"; "" without verdicts.

    Of trials with equal verdicts, return the fastest.
    """
    judged = [
        (trial, trial.verdict)
        for trial in sweep.pareto
        if trial.verdict is not None and trial.verdict.answer in VERDICTS
    ]
    if not judged:
        return ""
    best, verdict = min(judged, key=lambda entry: VERDICTS.index(entry[1].answer))
    lacking = [
        f"{TITLES[question].lower()}: {answer.state}, {answer.evidence}"
        for question, answer in verdict.answers
        if answer.state != "yes"
    ]
    return (
        f"Best verdict: trial {best.number} is {verdict.answer}{'; ' if lacking else ''}{'; '.join(lacking)}"
    )


def result(sweep: Sweep) -> str:
    """Return the result of the sweep in one sentence: the trial to use, or that the network without Q/DQ is better."""
    done = _done(sweep.pareto)
    if not done:
        return "No trial has a result."
    best, outcome = _best(sweep)
    level = f"{metric(sweep)} {outcome.accuracy:.2f} {sweep.unit}".rstrip()
    kept = f"{level} (float: {sweep.reference:.2f})" if sweep.reference is not None else level
    if sweep.speed == "not timed":
        return f"Trial {best.number} is the most accurate: {kept} with {nodes(outcome)} compute nodes quantized; nothing was timed."
    floats = [point for point in sweep.floats if point.ms]
    if not floats:
        return f"Trial {best.number} is the result: {kept}, {outcome.ms:.4f} ms ({sweep.speed})."
    point = min(floats, key=lambda float_point: float_point.ms)
    change = outcome.ms / point.ms - 1
    is_launched = best.verdict is not None and best.verdict.worth.state == "unknown"
    is_unsure = sweep.speed == "estimated" and (abs(change) < RATIO_ERROR[1] or is_launched)
    doubt = "; estimates are too coarse to decide this, so time both on your GPU" if is_unsure else ""
    if all(beaten_by(sweep, trial) for trial, _ in done):
        return (
            f"No trial is better than {point.name} without Q/DQ, which takes {point.ms:.4f} ms ({sweep.speed}) with "
            f"{float_accuracy(sweep, point)}: the best, trial {best.number}, takes {outcome.ms:.4f} ms with {level}{doubt}."
        )
    return (
        f"Trial {best.number} is the result: {kept}, {outcome.ms:.4f} ms ({sweep.speed}), "
        f"{abs(change):.0%} {'less' if change < 0 else 'more'} than {point.name} without Q/DQ{doubt}."
    )


def reasons(sweep: Sweep) -> list[str]:
    """Return the reasons for the best trial's time and accuracy, and settings of other trials that gain accuracy.

    The sentences name its float nodes, the evidence about its time, its accuracy against the float model, and the next
    more accurate point of the Pareto front; [] without a result.
    """
    if not _done(sweep.pareto):
        return []
    best, outcome = _best(sweep)
    return [
        sentence
        for sentence in (
            _float_nodes(best, outcome),
            _time_evidence(best),
            _accuracy_gap(sweep, best, outcome),
            _next_better(sweep, outcome),
        )
        if sentence
    ]


def _float_nodes(best: Trial, outcome: Outcome) -> str:
    count = outcome.nodes_total - outcome.quantized
    if not count:
        return f"Float nodes: none of {count_noun(outcome.nodes_total, 'compute node')}."
    kept = outcome.kept_float
    chosen = (
        f" The sweep kept {list_names(list(kept), _NAMED)} float, because these nodes cost accuracy."
        if kept
        else ""
    )
    return (
        f"Float nodes: {count} of {count_noun(outcome.nodes_total, 'compute node')}.{chosen} "
        f"The reason for each node is in {_folder(best)}."
    )


def _time_evidence(best: Trial) -> str:
    """Return the evidence that a trial is faster, if its verdict says so; "" otherwise."""
    is_faster = best.verdict is not None and best.verdict.worth.state == "yes"
    return f"Time: {best.verdict.worth.evidence}." if best.verdict is not None and is_faster else ""


def _accuracy_gap(sweep: Sweep, best: Trial, outcome: Outcome) -> str:
    if sweep.reference is None:
        return ""
    change = outcome.accuracy - sweep.reference
    words = f"Accuracy: trial {best.number} has {change:+.2f} {_points(sweep)} against the float model"
    ends = accuracy_interval(sweep, outcome)
    if ends is None:
        return f"{words}."
    is_tied = ends[0] <= sweep.reference <= ends[1]
    return f"{words}, {'within' if is_tied else 'outside of'} the 95 % interval."


def _next_better(sweep: Sweep, outcome: Outcome) -> str:
    better = [entry for entry in _done(sweep.pareto) if entry[1].accuracy > outcome.accuracy]
    if not better:
        return "More accuracy: no trial of this sweep is more accurate."
    trial, gained = min(better, key=lambda entry: entry[1].accuracy)
    added = [text for text in words(gained) if text not in words(outcome)]
    dropped = [text for text in words(outcome) if text not in words(gained)]
    settings = f"with {'; '.join(added)}" if added else f"without {'; '.join(dropped)}"
    cost = f" and {gained.ms - outcome.ms:+.4f} ms" if sweep.speed != "not timed" else ""
    ends, gained_ends = accuracy_interval(sweep, outcome), accuracy_interval(sweep, gained)
    is_tied = ends is not None and gained_ends is not None and ends[1] >= gained_ends[0]
    doubt = "; the two are statistically tied on these samples" if is_tied else ""
    return (
        f"More accuracy: trial number {trial.number} has {gained.accuracy - outcome.accuracy:+.2f} {_points(sweep)}{cost}, "
        f"{settings}{doubt}."
    )


def _points(sweep: Sweep) -> str:
    return "points" if sweep.unit == "%" else sweep.unit


def _best(sweep: Sweep) -> tuple[Trial, Outcome]:
    """Return the trial with the best verdict, not beaten by a float network, then the fastest; the most accurate if not timed."""
    done = _done(sweep.pareto)
    if sweep.speed == "not timed":
        return max(done, key=lambda entry: entry[1].accuracy)
    order = {answer: place for place, answer in enumerate(VERDICTS)}
    return min(
        done, key=lambda entry: (order.get(verdict(entry[0]), len(order)), bool(beaten_by(sweep, entry[0])))
    )


def beaten_by(sweep: Sweep, trial: Trial) -> str:
    """Return the name of a network without Q/DQ that is at least as accurate and as fast as the trial; "" if there is none."""
    if sweep.speed == "not timed" or trial.outcome is None:
        return ""
    for point in sorted(sweep.floats, key=lambda network: network.ms):
        level = math.inf if point.accuracy is None else point.accuracy
        if level >= trial.outcome.accuracy and point.ms <= trial.outcome.ms:
            return point.name
    return ""


def nodes(outcome: Outcome) -> str:
    """Return the number of compute nodes in each low-bit format, and the total: "5 int8, 3 fp8 of 12"."""
    formats = outcome.formats or ({"int8": outcome.nodes_int8} if outcome.nodes_int8 else {})
    return (
        f"{', '.join(f'{count} {name}' for name, count in formats.items()) or '0'} of {outcome.nodes_total}"
    )


def describe_check(sweep: Sweep, trial: Trial) -> str:
    """Return a trial's accuracy on held-out samples with its 95 % interval; "" if there were none."""
    accuracy, ends = _describe_held_back(trial)
    words = f"{accuracy} {sweep.unit}"
    return "" if not accuracy else f"{words} ({ends})" if ends else words


def _describe_held_back(trial: Trial) -> tuple[str, str]:
    """Return a trial's accuracy on held-out samples and its interval as two cells; "" if there were none."""
    held_out = trial.checked
    return ("", "") if held_out is None else (f"{held_out.accuracy:.2f}", _between(_ends(held_out), 2))


def _ends(point: FloatPoint | Checked) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _between(ends: tuple[float, float] | None, digits: int) -> str:
    return "" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def notes(sweep: Sweep) -> list[str]:
    """Return the outcome of the sweep's trials, and notes for reading its table."""
    states = [trial.state for trial in sweep.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    float_model = (
        "" if sweep.reference is None else f"; the float model has {sweep.reference:.2f} {sweep.unit}"
    )
    sentences = (
        result(sweep),
        conclusion(sweep),
        *reasons(sweep),
        f"{count_noun(len(states), 'trial')}: {counts}{float_model}",
        *_failures(sweep),
        about_accuracy(sweep),
        about_times(sweep),
    )
    return [sentence for sentence in sentences if sentence]


def _failures(sweep: Sweep) -> Iterator[str]:
    """Yield the reasons why trials failed, each once."""
    reasons: dict[str, list[Trial]] = {}
    for trial in sweep.trials:
        if trial.state == "failed":
            reasons.setdefault(trial.reason, []).append(trial)
    for reason, trials in reasons.items():
        numbers = list_names([trial.number for trial in trials], _NAMED)
        tried = "; ".join(text.replace('"', "") for text in trials[0].settings)
        example = f"; tried with {tried}" if tried else ""
        yield f"{count_noun(len(trials), 'trial')} failed (number {numbers}{example}): {reason}"


def accuracy(sweep: Sweep, value: Outcome | FloatPoint) -> str:
    """Return the accuracy of a trial with its interval, which holds for all trials together.

    The best of many trials on one set of samples looks better than it is. With n trials, each interval is widened so
    that all n are right together with 95 % confidence (Bonferroni, with normal distributions).
    """
    if value.accuracy is None:
        return "no noise"
    ends = _interval(sweep, value)
    words = f"{value.accuracy:.2f} {sweep.unit}"
    return words if ends is None else f"{words} ({ends[0]:.2f} to {ends[1]:.2f})"


def _interval(sweep: Sweep, value: Outcome | FloatPoint) -> tuple[float, float] | None:
    return accuracy_interval(sweep, value) if isinstance(value, Outcome) else _ends(value)


def accuracy_interval(sweep: Sweep, outcome: Outcome) -> tuple[float, float] | None:
    """Return the interval of the accuracy. With 95 % confidence, the intervals of all trials hold together."""
    if outcome.accuracy_low is None or outcome.accuracy_high is None:
        return None
    count = max(1, sum(trial.outcome is not None for trial in sweep.trials))
    wider = NormalDist().inv_cdf(1 - 0.025 / count) / NormalDist().inv_cdf(0.975)
    middle = outcome.accuracy
    low = middle - wider * (middle - outcome.accuracy_low)
    high = middle + wider * (outcome.accuracy_high - middle)
    return (max(low, 0.0), min(high, 100.0)) if sweep.unit == "%" else (low, high)


def about_accuracy(sweep: Sweep) -> str:
    """Return words on how certain the accuracies of a sweep are, and how many trials tie with the best."""
    done = [trial.outcome for trial in sweep.trials if trial.outcome is not None]
    intervals = [
        (outcome, ends) for outcome in done if (ends := accuracy_interval(sweep, outcome)) is not None
    ]
    if len(intervals) < 2:
        return ""
    best, ends = max(intervals, key=lambda entry: entry[0].accuracy)
    alike = sum(interval[1] >= ends[0] for outcome, interval in intervals if outcome is not best)
    held = next((trial.checked.samples for trial in sweep.pareto if trial.checked), 0)
    check = (
        f" The Pareto front was measured again on {held} held-out samples that the search did not use: these figures need no correction for the search."
        if held
        else ""
    )
    return f"Intervals hold for all {count_noun(len(done), 'trial')} at once (95 %, Bonferroni); {count_noun(alike, 'other trial is', 'other trials are')} statistically tied with the most accurate one on these samples.{check}"


def about_times(sweep: Sweep) -> str:
    """Return words on where the times of a sweep come from, and their possible error."""
    if sweep.spread is not None:
        low, high = sweep.spread
        return (
            f"Times are estimated for {sweep.device} by a roofline over the layers of engines of TensorRT for RTX; recorded "
            f"engines took {low:g} to {high:g} times their estimate, and the ratio of two builds of one network was off by "
            f"{RATIO_ERROR[0]:.0%} in the median, {RATIO_ERROR[1]:.0%} at most."
        )
    if sweep.speed == "measured":
        launches = (
            f" Kernel launches are the bottleneck of trials {list_names(sweep.launch_bound, _NAMED)}, so their times do not compare kernels."
            if sweep.launch_bound
            else ""
        )
        return (
            f"Times are measured on {sweep.device}, alternating with the same reference, with 95 % intervals."
        ) + (
            " These times say little about times on a GPU."
            if sweep.device.startswith("onnxruntime")
            else launches
        )
    return "Nothing was timed: trials are ranked by accuracy alone."


def time(outcome: Outcome | FloatPoint, spread: tuple[float, float] | None) -> str:
    """Return the time of a trial in ms, with its interval if it is known."""
    ends = interval(outcome, spread)
    if ends is not None:
        return f"{outcome.ms:.4f} ({ends[0]:.4f} to {ends[1]:.4f})"
    return f"{outcome.ms:.4f}" if outcome.ms else ""


def interval(outcome: Outcome | FloatPoint, spread: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of a trial's true time in ms, from past errors of estimates or from measurements."""
    if spread is not None:
        return outcome.ms * spread[0], outcome.ms * spread[1]
    if outcome.ms_low is not None and outcome.ms_high is not None:
        return outcome.ms_low, outcome.ms_high
    return None


def page(sweep: Sweep) -> str:
    """Return the HTML page of a sweep, which needs no network."""
    return (
        environment()
        .get_template("sweep.html")
        .render(
            sweep=sweep,
            words=words,
            time=time,
            metric=metric(sweep),
            about=" ".join(filter(None, (about_accuracy(sweep), about_times(sweep)))),
            accuracy=accuracy,
            checked=describe_check,
            verdict=verdict,
            result=result(sweep),
            conclusion=conclusion(sweep),
            reasons=reasons(sweep),
            rows=rows(sweep),
            settings_of=settings_of,
            beaten_by=beaten_by,
            nodes=nodes,
            pareto={trial.number for trial in sweep.pareto if not beaten_by(sweep, trial)},
            chart=svg.inline(chart(sweep)),
            folder=_folder,
        )
    )


def float_accuracy(sweep: Sweep, point: FloatPoint) -> str:
    """Return the accuracy of the float network as text; "no noise" if the metric compares with the float network itself."""
    return (
        "no noise"
        if point.accuracy is None
        else f"{metric(sweep)} {point.accuracy:.2f} {sweep.unit}".rstrip()
    )


def _folder(trial: Trial) -> str:
    """Return the link to a Pareto point: its report if its run was judged, and so had an engine; else its recipe."""
    return f"pareto/{trial.number:04}/{'recipe.yaml' if trial.verdict is None else 'report.html'}"


def chart(sweep: Sweep) -> svg.Element:
    """Plot accuracy against time (if nothing was timed, against the share of quantized nodes); plot the intervals below.

    The front is a line, every point says its settings. The network in FP32 and in FP16 are points like any other: one
    that they beat is not on the front. FP32 without a level has no noise, and so no place.
    """
    shown = rows(sweep)
    best = {row.name for row in shown if row.trial is None or not beaten_by(sweep, row.trial)}
    points = [
        Point(
            x=_across(sweep, outcome),
            y=outcome.accuracy,
            text="\n".join(_hint(sweep, trial, outcome)),
            style="p-int8" if str(trial.number) in best else "p-other",
            radius=6.0 if str(trial.number) in best else 4.0,
        )
        for trial, outcome in sorted(_done(sweep.trials), key=lambda entry: str(entry[0].number) in best)
    ]
    points += [
        Point(
            x=_across(sweep, point),
            y=point.accuracy,
            text=_float_hint(sweep, point),
            style=_style(point),
            radius=5.0,
            label=point.name,
        )
        for point in sweep.floats
        if point.accuracy is not None
    ]
    reference = [] if sweep.reference is None else [sweep.reference]
    ends = [end for row in shown for end in _interval(sweep, row.value) or ()]
    title = "Accuracy against " + ("time" if sweep.speed != "not timed" else "the share of quantized nodes")
    drawing = scatter(
        points,
        axis_over(_time_axis(sweep), [point.x for point in points]),
        axis_over(_accuracy_axis(sweep), [*reference, *(point.y for point in points), *ends]),
        title,
        _front(sweep, [row for row in shown if row.name in best]),
        # the name of a point on this level would be written over it
        None
        if sweep.reference is None
        else Level(y=sweep.reference, text="" if any(point.label for point in points) else "float model"),
    )
    lower = _interval_rows(sweep, shown)
    return drawing if lower is None else below(drawing, lower, title)


def _front(sweep: Sweep, best: Sequence[PointRow]) -> list[tuple[float, float]]:
    """Return the chart positions of the points on the Pareto front, the fastest first."""
    front: list[tuple[float, float]] = []
    for row in best:
        if row.value.accuracy is not None and (not front or row.value.accuracy > front[-1][1]):
            front.append((_across(sweep, row.value), row.value.accuracy))
    return front


def _interval_rows(sweep: Sweep, shown: Sequence[PointRow]) -> svg.Element | None:
    """Draw the intervals of the front and of the network without Q/DQ, one row each; None if no interval is known."""
    levels = [
        None
        if row.value.accuracy is None
        else Extent(value=row.value.accuracy, ends=_interval(sweep, row.value))
        for row in shown
    ]
    times = [Extent(value=row.value.ms, ends=interval(row.value, sweep.spread)) for row in shown]
    columns: list[tuple[str, Sequence[Extent | None]]] = [(_accuracy_axis(sweep), levels)]
    columns += [(f"ms ({sweep.speed})", times)] if sweep.speed != "not timed" else []
    columns = [
        (label, spreads) for label, spreads in columns if any(extent and extent.ends for extent in spreads)
    ]
    if not columns:
        return None
    axes = [
        axis_over(
            label, [end for extent in spreads if extent for end in (extent.value, *(extent.ends or ()))]
        )
        for label, spreads in columns
    ]
    return intervals(
        [
            ExtentRow(
                name=row.name if row.trial is None else f"trial {row.name}",
                values=tuple(spreads[number] for _, spreads in columns),
                style="p-other" if row.trial and beaten_by(sweep, row.trial) else _style(row.value),
                text="\n".join(_hint(sweep, row.trial, row.value))
                if row.trial is not None and isinstance(row.value, Outcome)
                else _float_hint(sweep, row.value),
            )
            for number, row in enumerate(shown)
        ],
        axes,
        "95 % intervals",
    )


def _style(value: Outcome | FloatPoint) -> str:
    return "p-int8" if isinstance(value, Outcome) else "p-fp16" if value.name == "FP16" else "p-fp32"


def _accuracy_axis(sweep: Sweep) -> str:
    return f"{metric(sweep)} {sweep.unit} (measured)"


def _time_axis(sweep: Sweep) -> str:
    return (
        f"ms on {sweep.device} ({sweep.speed})"
        if sweep.speed != "not timed"
        else "quantized compute nodes, %"
    )


def _float_hint(sweep: Sweep, value: Outcome | FloatPoint) -> str:
    name = value.name if isinstance(value, FloatPoint) else ""
    timed = f"\n{time(value, sweep.spread)} ms ({sweep.speed})" if sweep.speed != "not timed" else ""
    return f"float model in {name}\n{metric(sweep)} {accuracy(sweep, value)} (measured){timed}"


def _across(sweep: Sweep, outcome: Outcome | FloatPoint) -> float:
    if sweep.speed != "not timed":
        return outcome.ms
    if not isinstance(outcome, Outcome):
        return 0.0
    return 100 * outcome.quantized / outcome.nodes_total if outcome.nodes_total else 0.0


def _hint(sweep: Sweep, trial: Trial, outcome: Outcome) -> list[str]:
    lines = [f"trial {trial.number}", f"{metric(sweep)} {accuracy(sweep, outcome)} (measured)"]
    if sweep.speed != "not timed":
        lines.append(f"{time(outcome, sweep.spread)} ms ({sweep.speed})")
    lines.append(f"compute nodes quantized: {nodes(outcome)}")
    return [*lines, *words(outcome)]


def metric(sweep: Sweep) -> str:
    """Return the display name of the metric of a sweep."""
    return metric_name(sweep.metric)


def words(outcome: Outcome) -> list[str]:
    """Return the settings of a trial in readable form: its choices, then its float nodes."""
    kept = outcome.kept_float
    chosen = [
        text.replace('"', "") for text in outcome.settings if not (kept and text.startswith("place.exclude="))
    ]
    return [*chosen, *([f"float: {', '.join(kept)}"] if kept else [])]


def _done(trials: tuple[Trial, ...]) -> list[tuple[Trial, Outcome]]:
    return [(trial, trial.outcome) for trial in trials if trial.outcome is not None]
