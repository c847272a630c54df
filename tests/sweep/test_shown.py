"""What a sweep says about how sure its accuracies are."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from qdqtool.core.report import Reply, verdict_of
from qdqtool.core.sweep import FloatPoint, Outcome, Sweep, Trial
from qdqtool.pipeline.sweep.front import front
from qdqtool.report import sweeps


def sweep_of(*levels: tuple[float, float, float]) -> Sweep:
    """A sweep with a trial of each accuracy, and its interval."""
    trials = tuple(
        Trial(
            number=number,
            state="complete",
            outcome=Outcome(
                settings=(f"calibrate.method={number}",),
                accuracy=level,
                ms=1.0 + number,
                nodes_int8=3,
                nodes_total=4,
                kernels=5,
                accuracy_low=low,
                accuracy_high=high,
            ),
        )
        for number, (low, level, high) in enumerate(levels)
    )
    return Sweep(
        model="m", metric="top1", unit="%", reference=80.0, device="d", spread=None, pareto=trials[:1], trials=trials
    )  # fmt: skip


def test_one_trial_keeps_its_interval() -> None:
    sweep = sweep_of((78.0, 79.0, 80.0))
    assert sweeps.accuracy_interval(sweep, sweep.trials[0].outcome) == pytest.approx((78.0, 80.0))


def test_intervals_of_many_trials_are_wider_since_the_best_is_looked_for() -> None:
    sweep = sweep_of(*[(78.0, 79.0, 80.0)] * 20)
    low, high = sweeps.accuracy_interval(sweep, sweep.trials[0].outcome)
    assert (low, high) == pytest.approx((79 - 3.023 / 1.96, 79 + 3.023 / 1.96), abs=1e-3)


def test_trials_that_cannot_be_told_from_the_best_are_counted() -> None:
    sweep = sweep_of((78.0, 79.0, 80.0), (77.5, 78.5, 79.5), (60.0, 61.0, 62.0))
    assert "statistically tied" in sweeps.about_accuracy(sweep)
    console = Console(width=200, record=True, file=StringIO())
    console.print(sweeps.table(sweep))
    assert "77.78 to 80.22" in console.export_text()
    assert "79.00 % (77.78 to 80.22)" in sweeps.page(sweep)


def test_the_level_of_the_float_model_is_named_once() -> None:
    """Its point in FP32 lies on it, so that two names would be written over each other."""
    plain = sweep_of((78.0, 79.0, 80.0))
    point = FloatPoint(name="FP32", accuracy=80.0, low=79.0, high=81.0, ms=2.0)
    assert ">float model<" in sweeps.page(plain)
    page = sweeps.page(replace(plain, floats=(point,)))
    assert ">float model<" not in page
    assert ">FP32<" in page
    assert "The float model has 80.00 %. Accuracy is measured." in page


def test_the_result_has_its_reasons_and_the_settings_that_gain_accuracy() -> None:
    plain = sweep_of((77.0, 78.0, 79.0), (79.5, 79.8, 80.1))
    kept = replace(plain.trials[0].outcome, kept_float=("fc",))
    fast = replace(plain.trials[0], outcome=kept)
    yes = Reply(state="yes", evidence="1 ms against 2 ms")
    judged = replace(fast, verdict=verdict_of(yes, yes, yes))
    both = replace(plain, pareto=(judged, plain.trials[1]), trials=(judged, plain.trials[1]))
    assert sweeps.reasons(both) == [
        (
            "Float nodes: 1 of 4 compute nodes. The sweep kept fc float, because these nodes cost accuracy. "
            "The reason for each node is in pareto/0000/report.html."
        ),
        "Time: 1 ms against 2 ms.",
        "Accuracy: trial 0 has -2.00 points against the float model, outside of the 95 % interval.",
        "More accuracy: trial number 1 has +1.80 points and +1.0000 ms, with calibrate.method=1.",
    ]
    assert all(reason in sweeps.page(both) for reason in sweeps.reasons(both))
    tied = sweep_of((77.0, 78.0, 79.0), (77.5, 78.5, 79.5))
    assert "statistically tied" in sweeps.reasons(replace(tied, pareto=tied.trials))[-1]
    assert sweeps.reasons(plain)[-1] == "More accuracy: no trial of this sweep is more accurate."
    assert sweeps.reasons(replace(plain, pareto=())) == []


@given(
    levels=st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.integers(0, 4)), min_size=1, max_size=5),
    timed=st.booleans(),
)
def test_every_sweep_with_a_result_has_reasons(levels: list[tuple[float, bool, int]], timed: bool) -> None:
    plain = sweep_of(*((level, level, level) for level, _, _ in levels))
    trials = tuple(
        replace(
            trial,
            outcome=replace(trial.outcome, nodes_int8=count, kept_float=("fc",) if keeps else ()),
        )
        for trial, (_, keeps, count) in zip(plain.trials, levels, strict=True)
    )
    speed = "estimated" if timed else "not timed"
    reasons = sweeps.reasons(replace(plain, trials=trials, pareto=front(trials), speed=speed))
    openings = [reason.partition(":")[0] for reason in reasons]
    assert openings == ["Float nodes", "Accuracy", "More accuracy"]


def test_the_best_verdict_is_named_with_what_it_lacks_and_float_points_that_beat_trials() -> None:
    plain = sweep_of((78.0, 79.0, 80.0), (77.0, 78.0, 79.0))
    assert sweeps.conclusion(plain) == ""
    assert (
        sweeps.result(plain) == "Trial 0 is the result: top-1 79.00 % (float: 80.00), 1.0000 ms (estimated)."
    )
    yes = Reply(state="yes", evidence="fine")
    slow = Reply(state="no", evidence="2 ms against 1 ms in FP16")
    bad = verdict_of(yes, Reply(state="no", evidence="half is lost"), yes)
    judged = tuple(
        replace(trial, verdict=found)
        for trial, found in zip(plain.trials, (bad, verdict_of(yes, yes, slow)), strict=True)
    )
    fast = FloatPoint(name="FP16", accuracy=78.5, low=None, high=None, ms=1.5)
    sweep = replace(plain, pareto=judged, floats=(fast,))
    said = "Best verdict: trial 1 is doubtful; worth it: no, 2 ms against 1 ms in FP16"
    assert [sweeps.beaten_by(sweep, trial) for trial in judged] == ["", "FP16"]
    assert sweeps.notes(sweep)[1] == said
    page = sweeps.page(sweep)
    assert page.index(sweeps.result(sweep)) < page.index(said)
    assert "(beaten by FP16)" in page
    # both pictures, of points and of intervals, show the beaten trial in grey
    classes = [mark.get("class", "").partition(" ") for mark in sweeps.chart(sweep).iter("circle")]
    for kind in ("dot", "bar"):
        assert sorted(style for begin, _, style in classes if begin == kind) == [
            "p-fp16",
            "p-int8",
            "p-other",
        ]
    assert '<span class="level bad">bad</span>' in page
    console = Console(width=200, record=True, file=StringIO())
    console.print(sweeps.table(sweep))
    assert "doubtful" in console.export_text()


def spreads(sweep: Sweep) -> list[tuple[float, float, float]]:
    """Height and ends of every interval that the chart draws."""
    drawn = sweeps.chart(sweep).iter("line")
    lines = [line.attrib for line in drawn if line.get("class", "").startswith("span")]
    return [(float(line["y1"]), float(line["x1"]), float(line["x2"])) for line in lines]


@given(
    data=st.data(),
    accuracies=st.lists(st.floats(50, 99), min_size=1, max_size=6),
    speed=st.sampled_from(["estimated", "measured", "not timed"]),
)
@settings(max_examples=40, deadline=None)
def test_no_interval_covers_another_and_the_result_agrees_with_the_front(
    data: st.DataObject, accuracies: list[float], speed: str
) -> None:
    plain = sweep_of(*((level - 1, level, level + 1) for level in accuracies))
    times = st.floats(0.5, 8.0)
    floats = tuple(
        FloatPoint(name=name, accuracy=data.draw(st.floats(50, 99)), low=49.0, high=99.5, ms=data.draw(times))
        for name in ("FP32", "FP16")
    )
    spread = (0.6, 1.6) if speed == "estimated" else None
    sweep = replace(plain, pareto=front(plain.trials), floats=floats, speed=speed, spread=spread)
    lines = spreads(sweep)
    assert lines
    for number, (y, low, high) in enumerate(lines):
        assert all(y != other or high < left or right < low for other, left, right in lines[number + 1 :])
    said = sweeps.result(sweep)
    is_beaten = all(sweeps.beaten_by(sweep, trial) for trial in sweep.pareto)
    assert said.startswith("No trial is better") == is_beaten
    assert said.count(". ") == 0
    names = [row.name for row in sweeps.rows(sweep)]
    assert {"FP32", "FP16"} < set(names)
    if speed != "not timed":
        ordered = [row.value.ms for row in sweeps.rows(sweep)]
        assert ordered == sorted(ordered)


def test_nothing_is_said_where_nothing_is_known() -> None:
    sweep = sweep_of((79.0, 79.0, 79.0))
    assert sweeps.about_accuracy(sweep) == ""


def test_an_interval_of_percents_ends_at_a_hundred() -> None:
    sweep = sweep_of((98.9, 99.8, 100.0), (98.0, 99.0, 99.5))
    low, high = sweeps.accuracy_interval(sweep, sweep.trials[0].outcome)
    assert high == 100.0
    assert low < 98.9


def test_every_reason_of_failed_trials_is_told_once_with_what_was_tried() -> None:
    whole = sweep_of((78.0, 79.0, 80.0))
    refused = [
        Trial(
            number=number, state="failed", reason="no <kernel> takes it", settings=(f"place.block={number}",)
        )
        for number in (3, 4)
    ]
    lost = Trial(number=5, state="failed", reason="nothing is quantized")
    sweep = replace(whole, trials=(*whole.trials, *refused, lost))
    said = sweeps.notes(sweep)
    assert "2 trials failed (number 3, 4; tried with place.block=3): no <kernel> takes it" in said
    assert "1 trial failed (number 5): nothing is quantized" in said
    page = sweeps.page(sweep)
    assert "failed: no &lt;kernel&gt; takes it" in page
    assert "<code>place.block=4</code>" in page
