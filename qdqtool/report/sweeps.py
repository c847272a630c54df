"""Shows a sweep: a table on the terminal, a self-contained page with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

from rich.table import Table
from rich.text import Text

from qdqtool.core.sweep import Checked, FloatPoint, Outcome, Sweep, Trial
from qdqtool.core.verdict import TITLES, VERDICTS
from qdqtool.core.wording import counted, listed
from qdqtool.core.wording import metric as metric_name
from qdqtool.engine.roofline import RATIO_ERROR
from qdqtool.io.escaping import printable
from qdqtool.report import svg
from qdqtool.report.charts import Level, Point, axis_over, scatter
from qdqtool.report.templates import environment

_NAMED = 8
"""Number of trials that are named for a shared reason."""
SPARE = ("kernels", "quantized nodes", "ms between", "held-out samples, 95 %", "95 %")
"""Columns that are left out on a narrow terminal, in this order."""
_SETTING = 22
"""Letters of a typical setting, which is hard to read if it is broken into lines."""


def table(sweep: Sweep) -> Table:
    """Return the Pareto front as a table, fastest first."""
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
    for trial, outcome in _done(sweep.pareto):
        head.add_row(
            str(trial.number),
            *((Text(printable(verdict(trial))),) if is_judged else ()),
            f"{outcome.accuracy:.2f}",
            _between(accuracy_interval(sweep, outcome), 2),
            *(_held_back(trial) if is_checked else ()),
            f"{outcome.ms:.4f}" if outcome.ms else "",
            _between(interval(outcome, sweep.spread), 4),
            nodes(outcome),
            "" if outcome.kernels is None else str(outcome.kernels),
            Text(printable("; ".join(words(outcome)))),
        )
    for point in sweep.floats:
        head.add_row(
            Text(printable(point.name)),
            *(("",) if is_judged else ()),
            "no noise" if point.accuracy is None else f"{point.accuracy:.2f}",
            _between(_ends(point), 2),
            *(("", "") if is_checked else ()),
            f"{point.ms:.4f}" if point.ms else "",
            _between(interval(point, sweep.spread), 4),
            "0",
            "",
            "nothing quantized",
        )
    return head


def verdict(trial: Trial) -> str:
    """Return the verdict of a trial's run; "" if it was not judged."""
    return "" if trial.verdict is None else trial.verdict.answer


def conclusion(sweep: Sweep) -> str:
    """Return the trial with the best verdict, the fastest of several, and the answers that it lacks; "" without verdicts."""
    judged = [
        (trial, trial.verdict)
        for trial in sweep.pareto
        if trial.verdict is not None and trial.verdict.answer in VERDICTS
    ]
    if not judged:
        return ""
    best, found = min(judged, key=lambda entry: VERDICTS.index(entry[1].answer))
    lacking = [
        f"{TITLES[question].lower()}: {answer.state}, {answer.evidence}"
        for question, answer in found.answers
        if answer.state != "yes"
    ]
    return f"Best verdict: trial {best.number} is {found.answer}{'; ' if lacking else ''}{'; '.join(lacking)}"


def beaten(sweep: Sweep) -> str:
    """Name the Pareto points that the network with nothing quantized beats in both accuracy and time; "" if none."""
    if sweep.speed == "not timed":
        return ""
    said = []
    for point in sweep.floats:
        level = math.inf if point.accuracy is None else point.accuracy
        lost = [
            trial.number
            for trial, outcome in _done(sweep.pareto)
            if level >= outcome.accuracy and point.ms <= outcome.ms
        ]
        if lost:
            said.append(
                f"{point.name} with nothing quantized beats {counted(len(lost), 'Pareto point')} in both accuracy and time: "
                f"number {listed(lost, _NAMED)}"
            )
    return "; ".join(said)


def nodes(outcome: Outcome) -> str:
    """Return how many compute nodes run in each low-bit format, and the total: "5 int8, 3 fp8 of 12"."""
    formats = outcome.formats or ({"int8": outcome.nodes_int8} if outcome.nodes_int8 else {})
    return (
        f"{', '.join(f'{count} {name}' for name, count in formats.items()) or '0'} of {outcome.nodes_total}"
    )


def checked(sweep: Sweep, trial: Trial) -> str:
    """Return a trial's accuracy on held-back samples, with its 95 % interval; "" if none were held back."""
    accuracy, ends = _held_back(trial)
    told = f"{accuracy} {sweep.unit}"
    return "" if not accuracy else f"{told} ({ends})" if ends else told


def _held_back(trial: Trial) -> tuple[str, str]:
    """Return the accuracy on held-back samples and its interval as two cells; "" if there is none."""
    found = trial.checked
    return ("", "") if found is None else (f"{found.accuracy:.2f}", _between(_ends(found), 2))


def _ends(point: FloatPoint | Checked) -> tuple[float, float] | None:
    return None if point.low is None or point.high is None else (point.low, point.high)


def _between(ends: tuple[float, float] | None, digits: int) -> str:
    return "" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def notes(sweep: Sweep) -> list[str]:
    """Return the outcome of the trials, and notes for reading the table."""
    states = [trial.state for trial in sweep.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    float_model = (
        "" if sweep.reference is None else f"; the float model has {sweep.reference:.2f} {sweep.unit}"
    )
    said = (
        conclusion(sweep),
        beaten(sweep),
        f"{counted(len(states), 'trial')}: {counts}{float_model}",
        *_failures(sweep),
        about_accuracy(sweep),
        about_times(sweep),
    )
    return [sentence for sentence in said if sentence]


def _failures(sweep: Sweep) -> Iterator[str]:
    """Yield the reasons why trials failed, each once."""
    reasons: dict[str, list[Trial]] = {}
    for trial in sweep.trials:
        if trial.state == "failed":
            reasons.setdefault(trial.reason, []).append(trial)
    for reason, trials in reasons.items():
        numbers = listed([trial.number for trial in trials], _NAMED)
        tried = "; ".join(text.replace('"', "") for text in trials[0].settings)
        example = f"; tried with {tried}" if tried else ""
        yield f"{counted(len(trials), 'trial')} failed (number {numbers}{example}): {reason}"


def accuracy(sweep: Sweep, outcome: Outcome) -> str:
    """Return a trial's accuracy with an interval that holds for all trials at once.

    The best of many trials on the same samples looks better than it is: with n trials each interval is widened so that
    all n hold together with 95 % (Bonferroni, intervals taken as normal).
    """
    ends = accuracy_interval(sweep, outcome)
    told = f"{outcome.accuracy:.2f} {sweep.unit}"
    return told if ends is None else f"{told} ({ends[0]:.2f} to {ends[1]:.2f})"


def accuracy_interval(sweep: Sweep, outcome: Outcome) -> tuple[float, float] | None:
    """Return the interval of the accuracy; the intervals of all trials hold together with 95 % confidence."""
    if outcome.accuracy_low is None or outcome.accuracy_high is None:
        return None
    count = max(1, sum(trial.outcome is not None for trial in sweep.trials))
    wider = NormalDist().inv_cdf(1 - 0.025 / count) / NormalDist().inv_cdf(0.975)
    middle = outcome.accuracy
    low = middle - wider * (middle - outcome.accuracy_low)
    high = middle + wider * (outcome.accuracy_high - middle)
    return (max(low, 0.0), min(high, 100.0)) if sweep.unit == "%" else (low, high)


def about_accuracy(sweep: Sweep) -> str:
    """Return how certain the accuracies are, and whether the search may have chosen by chance."""
    done = [trial.outcome for trial in sweep.trials if trial.outcome is not None]
    known = [(one, ends) for one in done if (ends := accuracy_interval(sweep, one)) is not None]
    if len(known) < 2:
        return ""
    best, ends = max(known, key=lambda entry: entry[0].accuracy)
    alike = sum(other[1] >= ends[0] for one, other in known if one is not best)
    held = next((trial.checked.samples for trial in sweep.pareto if trial.checked), 0)
    told = (
        f" The Pareto front was measured again on {held} held-out samples that the search did not use: these figures need no correction for the search."
        if held
        else ""
    )
    return f"Intervals hold for all {counted(len(done), 'trial')} at once (95 %, Bonferroni); {counted(alike, 'other trial is', 'other trials are')} statistically tied with the most accurate one on these samples.{told}"


def about_times(sweep: Sweep) -> str:
    """Return where the times come from, and their possible error."""
    if sweep.spread is not None:
        low, high = sweep.spread
        return (
            f"Times are estimated for {sweep.device} by a roofline over the layers of engines of TensorRT for RTX; recorded "
            f"engines took {low:g} to {high:g} times their estimate, and the ratio of two builds of one network was off by "
            f"{RATIO_ERROR[0]:.0%} in the median, {RATIO_ERROR[1]:.0%} at most."
        )
    if sweep.speed == "measured":
        return (
            f"Times are measured on {sweep.device}, alternating with the same reference, with 95 % intervals."
        ) + (" They say little about a GPU." if sweep.device.startswith("onnxruntime") else "")
    return "Nothing was timed: trials are ranked by accuracy alone."


def time(outcome: Outcome | FloatPoint, spread: tuple[float, float] | None) -> str:
    """Return the time of a trial in ms with its interval if known."""
    ends = interval(outcome, spread)
    if ends is not None:
        return f"{outcome.ms:.4f} ({ends[0]:.4f} to {ends[1]:.4f})"
    return f"{outcome.ms:.4f}" if outcome.ms else ""


def interval(outcome: Outcome | FloatPoint, spread: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the interval of the true time in ms: from past errors for estimates, at 95 % for measurements."""
    if spread is not None:
        return outcome.ms * spread[0], outcome.ms * spread[1]
    if outcome.ms_low is not None and outcome.ms_high is not None:
        return outcome.ms_low, outcome.ms_high
    return None


def page(sweep: Sweep) -> str:
    """Return the HTML text of the page; it needs no network, and everything is escaped."""
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
            checked=checked,
            verdict=verdict,
            conclusion=". ".join(filter(None, (conclusion(sweep), beaten(sweep)))),
            nodes=nodes,
            float_accuracy=_float_accuracy,
            pareto={trial.number for trial in sweep.pareto},
            chart=svg.inline(chart(sweep)),
            folder=_folder,
        )
    )


def _float_accuracy(sweep: Sweep, point: FloatPoint) -> str:
    ends = _ends(point)
    if point.accuracy is None:
        return "no noise"
    told = f"{point.accuracy:.2f} {sweep.unit}"
    return told if ends is None else f"{told} ({ends[0]:.2f} to {ends[1]:.2f})"


def _folder(sweep: Sweep, trial: Trial) -> str:
    """Return the file that the sweep kept of a Pareto-optimal trial: its report, or its recipe if no engine was built."""
    built = sweep.speed != "not timed" and not sweep.device.startswith("onnxruntime")
    return f"pareto/{trial.number:04}/{'report.html' if built else 'recipe.yaml'}"


def chart(sweep: Sweep) -> svg.Element:
    """Plot accuracy against time, or against the share of quantized nodes if nothing was timed.

    The front is a line, every point says its settings; the float model is a point in FP32 and in FP16, and a level where
    the metric has one for it. FP32 without a level has no noise, and so no place.
    """
    best = {trial.number for trial in sweep.pareto}
    timed = sweep.speed != "not timed"
    points = [
        Point(
            x=_across(sweep, outcome),
            y=outcome.accuracy,
            text="\n".join(_hint(sweep, trial, outcome)),
            style="p-int8" if trial.number in best else "p-other",
            radius=6.0 if trial.number in best else 4.0,
            span=interval(outcome, sweep.spread) if timed else None,
            rise=accuracy_interval(sweep, outcome),
        )
        for trial, outcome in sorted(_done(sweep.trials), key=lambda entry: entry[0].number in best)
    ]
    points += [
        Point(
            x=point.ms if timed else 0.0,
            y=point.accuracy,
            text=f"float model in {point.name}\n{metric(sweep)} {_float_accuracy(sweep, point)} (measured)"
            + (f"\n{time(point, sweep.spread)} ms ({sweep.speed})" if timed else ""),
            style="p-fp16" if point.name == "FP16" else "p-fp32",
            radius=5.0,
            span=interval(point, sweep.spread) if timed else None,
            rise=_ends(point),
            label=point.name,
        )
        for point in sweep.floats
        if point.accuracy is not None
    ]
    known = [] if sweep.reference is None else [sweep.reference]
    return scatter(
        points,
        axis_over(
            f"ms on {sweep.device} ({sweep.speed})" if timed else "quantized compute nodes, %",
            [end for point in points for end in (point.x, *(point.span or ()))],
        ),
        axis_over(
            f"{metric(sweep)} {sweep.unit} (measured)",
            [*known, *(end for point in points for end in (point.y, *(point.rise or ())))],
        ),
        "Accuracy against time" if timed else "Accuracy against the share of quantized nodes",
        [(_across(sweep, outcome), outcome.accuracy) for _, outcome in _done(sweep.pareto)],
        # the name of a point on the level would be written over it
        None
        if sweep.reference is None
        else Level(y=sweep.reference, text="" if any(point.label for point in points) else "float model"),
    )


def _across(sweep: Sweep, outcome: Outcome) -> float:
    if sweep.speed != "not timed":
        return outcome.ms
    return 100 * outcome.quantized / outcome.nodes_total if outcome.nodes_total else 0.0


def _hint(sweep: Sweep, trial: Trial, outcome: Outcome) -> list[str]:
    lines = [f"trial {trial.number}", f"{metric(sweep)} {accuracy(sweep, outcome)} (measured)"]
    if sweep.speed != "not timed":
        lines.append(f"{time(outcome, sweep.spread)} ms ({sweep.speed})")
    lines.append(f"compute nodes quantized: {nodes(outcome)}")
    return [*lines, *words(outcome)]


def metric(sweep: Sweep) -> str:
    """Return the display name of the sweep's metric."""
    return metric_name(sweep.metric)


def words(outcome: Outcome) -> list[str]:
    """Return the settings of a trial in readable form: choices, then the nodes that were kept float."""
    kept = outcome.kept_float
    chosen = [
        text.replace('"', "") for text in outcome.settings if not (kept and text.startswith("place.exclude="))
    ]
    return [*chosen, *([f"float: {', '.join(kept)}"] if kept else [])]


def _done(trials: tuple[Trial, ...]) -> list[tuple[Trial, Outcome]]:
    return [(trial, trial.outcome) for trial in trials if trial.outcome is not None]
