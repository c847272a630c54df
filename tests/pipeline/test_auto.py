"""`calibrate.method: auto` chooses by the network's outputs, within its budget, and says what it gained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import calibrators
import qdqtool
from calibrators import Calibrator, Grid, Histogram, Range
from qdqtool.calibration.collect import collect
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.rounding import round_weights
from qdqtool.calibration.samples import Samples, open_samples
from qdqtool.calibration.table import constants, make_table
from qdqtool.cli.app import run
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, NodeShift
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.recipe import AUTO, CalibrationOptions, InsertOptions, PlacementOptions
from qdqtool.graph.instrumented.tunable import tunable
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges import calibrators as auto
from qdqtool.pipeline.ranges import decisions, executor
from qdqtool.pipeline.ranges.bias import correct_biases
from qdqtool.pipeline.ranges.calibrators import Judged, choose, competing, distinct, mean_table, weigh_ties
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.reference import CHOOSING, PASSES, Budget, Reference
from qdqtool.pipeline.ranges.samples import TAKEN, count_taken
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import OrtRunner, open_runner
from tests import models

Case = tuple[Model, Placement, Samples, Histograms]


def case(folder: Path, proto: onnx.ModelProto, count: int = 40, tail: float = 0.0) -> Case:
    """A network and samples; with `tail`, one value of every sample is that large."""
    model = load(models.save(proto, folder))
    (entry,) = model.view.inputs
    shape = [dim if isinstance(dim, int) else 1 for dim in entry.shape or ()]
    values = np.random.default_rng(2).standard_normal((count, *shape[1:])).astype(np.float32)
    if tail:
        values.reshape(count, -1)[:, 0] = tail
    np.savez(folder / "s.npz", **{entry.name: values})
    samples = open_samples(str(folder / "s.npz"), model.view.inputs)
    placement = decide(model.view, PlacementOptions())
    return model, placement, samples, collect(model, placement, samples)


def judged(found: Case, **options: object) -> Judged:
    model, placement, samples, histograms = found
    options_ = CalibrationOptions(method="auto", **options)  # type: ignore[arg-type]
    known = (histograms, constants(placement, model.view, options_.weights))
    reference = Reference(model, samples, Budget(), bias=options_.bias == "correct")
    return choose(model, placement, known, options_, reference)


def chosen(found: Case, **options: object) -> CalibrationTable:
    return judged(found, **options).table


def outputs(model: Model, samples: Iterator[object] | Samples) -> list[np.ndarray]:
    runner = open_runner(serialize(model), description="test")
    return [runner.run(sample.feeds)[runner.outputs[0]].astype(np.float64) for sample in samples]  # type: ignore[union-attr]


def noise(found: Case, table: CalibrationTable, taken: Sequence[Sample]) -> float:
    """Relative noise of the outputs on some samples."""
    model, placement, _, _ = found
    plain = outputs(model, iter(taken))
    noisy = outputs(insert(model, placement, table, InsertOptions()), iter(taken))
    energy = sum(float(np.square(one).sum()) for one in plain)
    return sum(float(np.square(a - b).sum()) for a, b in zip(plain, noisy, strict=True)) / energy


def singles(found: Case) -> dict[str, CalibrationTable]:
    model, placement, _, histograms = found
    return {
        method: make_table(histograms, placement, model.view, CalibrationOptions(method=method))
        for method in competing()
    }


ONE_OUTPUT = [
    name
    for name, make in sorted(models.ALL.items())
    if (graph := make().graph) and len(graph.input) == len(graph.output) == 1
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OUTPUT)
@pytest.mark.parametrize("tail", [0.0, 40.0], ids=["even values", "one value far out"])
def test_no_single_calibrator_is_better_on_the_choosing_samples(
    name: str, tail: float, tmp_path: Path
) -> None:
    found = case(tmp_path, models.ALL[name](), tail=tail)
    best = judged(found)
    if not found[1].quantized:
        pytest.skip("nothing is quantized")
    mine = noise(found, best.table, best.samples)
    assert mine <= min(noise(found, table, best.samples) for table in singles(found).values()) * (1 + 1e-5)
    assert mine == pytest.approx(best.best.noise, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_chain", "residual_cnn", "depthwise_cnn"])
@pytest.mark.parametrize("tail", [0.0, 40.0], ids=["even values", "one value far out"])
@pytest.mark.parametrize("large", [True, False], ids=["large", "small"])
def test_nor_is_one_with_corrected_biases(
    name: str, tail: float, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    found = case(tmp_path, models.ALL[name](), count=48, tail=tail)
    best = judged(found, bias="correct")
    assert best.trial.is_batched
    assert len(best.samples) > 30
    others = [best.trial.candidate("", table, best.samples).noise for table in singles(found).values()]
    mine = best.trial.candidate("", best.table, best.samples).noise
    assert mine <= min(others) * (1 + 1e-9)
    assert best.best.noise == best.trial.candidate("", best.table, best.samples).noise


def test_no_sample_is_run_twice_where_they_do_not_fit_into_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitting = 6
    monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    monkeypatch.setattr(Reference, "fitting", fitting)
    sizes: list[int] = []
    run = OrtRunner.run

    def noted(runner: OrtRunner, feeds: Feeds) -> dict[str, np.ndarray]:
        sizes.extend(len(feeds["x"]) for _ in range(runner.description == "candidate tables"))
        return run(runner, feeds)

    monkeypatch.setattr(OrtRunner, "run", noted)
    found = case(tmp_path, models.depthwise_cnn(), tail=40.0)
    best = judged(found, bias="correct")
    assert 0 < max(sizes) <= fitting
    first, rest = 8 * len(distinct(singles(found))), TAKEN - 8
    assert len(best.best.shares) == len(best.samples) == TAKEN
    of_singles = {first + ended * rest for ended in range(1, 1 + len(singles(found)))}
    assert sum(sizes) in {one + of_mean for one in of_singles for of_mean in (0, TAKEN)}


@pytest.mark.parametrize("tail", [4.0, 5.0])
@pytest.mark.parametrize("name", ["conv_chain", "residual_cnn"])
def test_of_large_networks_the_mean_of_what_looks_alike_is_taken_where_it_has_less_noise(
    name: str, tail: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    monkeypatch.setattr(
        executor, "_is_noisier", lambda one, best: False
    )  # so that all of them run all samples
    found = case(tmp_path, models.ALL[name](), count=20, tail=tail)
    best = judged(found, bias="correct")
    tables = singles(found)
    tried = {method: best.trial.candidate("", tables[method], best.samples) for method in distinct(tables)}
    alike = weigh_ties({method: one.shares for method, one in tried.items()})
    mean = mean_table({method: one.table for method, one in tried.items()}, alike)
    noise_of_mean = best.trial.candidate("", mean, best.samples).noise
    quietest = min(one.noise for one in tried.values())
    assert len(alike) > 1
    assert best.best.noise == pytest.approx(min(noise_of_mean, quietest), rel=1e-6)
    is_mean = any("mean of" in one.note for one in best.table.ranges)
    assert is_mean == (noise_of_mean < quietest)


def test_calibrators_that_agree_on_every_range_are_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = case(tmp_path, models.residual_cnn(), tail=40.0)
    ran: set[str] = set()
    started = TrialSession.started

    def noted(self: TrialSession, method: str, table: CalibrationTable) -> TriedTable:
        ran.add(method)
        return started(self, method, table)

    monkeypatch.setattr(TrialSession, "started", noted)
    monkeypatch.setattr("qdqtool.pipeline.ranges.calibrators.competing", lambda: ("max", "twin"))
    monkeypatch.setattr("qdqtool.calibration.table.CALIBRATORS", _With(twin=CALIBRATORS.load("max")))
    chosen(found)
    assert ran == {"max"}


def test_a_calibrator_is_left_once_it_has_made_more_noise_than_the_best_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crush(histogram: Histogram, grid: Grid) -> Range:
        return Range(amax=histogram.amax / 100, method="crush")

    found = case(tmp_path, models.conv_chain())
    ran: dict[str, int] = {}
    advanced = TrialSession.advanced

    def noted(self: TrialSession, candidate: TriedTable, samples: Sequence[Sample]) -> TriedTable:
        after = advanced(self, candidate, samples)
        ran[after.method] = len(after.shares)
        return after

    monkeypatch.setattr(TrialSession, "advanced", noted)
    monkeypatch.setattr(auto, "competing", lambda: ("crush", "max", "mse"))
    monkeypatch.setattr("qdqtool.calibration.table.CALIBRATORS", _With(crush=Calibrator(choose=crush)))
    best = judged(found)
    assert ran["crush"] == CHOOSING
    assert ran[best.best.method] == len(best.samples) > CHOOSING


@pytest.mark.parametrize(("count", "stages"), [(16, 1), (40, 2)])
def test_few_samples_leave_no_calibrator_behind(
    count: int, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    continued = TrialSession.continued

    def noted(
        self: TrialSession,
        candidates: Sequence[TriedTable],
        samples: Sequence[Sample],
        among: Sequence[Sample] | None = None,
    ) -> list[TriedTable]:
        if candidates[0].method != AUTO:  # the mean of all of them
            ran.append(len(samples))
        return continued(self, candidates, samples, among)

    monkeypatch.setattr(TrialSession, "continued", noted)
    monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    best = judged(case(tmp_path, models.depthwise_cnn(), count=count, tail=40.0), bias="correct")
    assert len(ran) == stages
    assert ran[-1] == len(best.samples)


def test_the_choice_is_the_same_every_time(tmp_path: Path) -> None:
    found = case(tmp_path, models.residual_cnn(), tail=30.0)
    assert chosen(found) == chosen(found)


@pytest.mark.parametrize("bias", ["keep", "correct"])
@pytest.mark.parametrize("large", [True, False], ids=["large", "small"])
def test_no_more_inferences_are_spent_than_six_passes(
    bias: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    found = case(tmp_path, models.residual_cnn(), count=100)
    (entry,) = found[0].view.inputs
    spent = 0
    run_one = OrtRunner.run

    def counted(self: OrtRunner, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal spent
        # The session of single layers computes every layer twice.
        spent += (2 if self.description.startswith("errors") else 1) * len(feeds[entry.name])
        return run_one(self, feeds)

    monkeypatch.setattr(OrtRunner, "run", counted)
    chosen(found, bias=bias)
    # if no calibrator leaves early, the batch of all samples repeats the first few of each
    assert CHOOSING < spent <= (PASSES + 1) * count_taken(found[0].view, 100)


def test_every_range_says_its_calibrator_and_what_it_gained(tmp_path: Path) -> None:
    found = case(tmp_path, models.residual_cnn(), tail=40.0)
    table = chosen(found)
    activations = [entry for entry in table.ranges if entry.gain_db is not None]
    assert activations
    assert {entry.method for entry in activations} <= {*competing(), "max"}
    assert all(entry.gain_db is not None and entry.gain_db >= 0 for entry in activations)
    assert table.shifts == ()


def test_a_calibrator_that_ruins_the_output_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crush(histogram: Histogram, grid: Grid) -> Range:
        return Range(amax=histogram.amax / 100, method="crush")

    found = case(tmp_path, models.conv_chain())
    monkeypatch.setattr(auto, "competing", lambda: ("max", "mse", "crush"))
    monkeypatch.setattr("qdqtool.calibration.table.CALIBRATORS", _With(crush=Calibrator(choose=crush)))
    table = chosen(found)
    assert "crush" not in {entry.method for entry in table.ranges}


class _With:
    """The registry with more calibrators."""

    def __init__(self, **more: Calibrator) -> None:
        self._more = more

    def __getattr__(self, name: str) -> object:
        return getattr(CALIBRATORS, name)

    def load(self, name: str) -> object:
        return self._more.get(name) or CALIBRATORS.load(name)


def test_recipe_overrides_hold_in_every_candidate(tmp_path: Path) -> None:
    found = case(tmp_path, models.conv_chain(), tail=40.0)
    table = chosen(found, overrides={"x": "percentile:50"})
    entry = table.by_tensor()["x"]
    assert entry.method == "percentile"
    assert entry.amax[0] < 1
    assert entry.gain_db is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_are_enough_to_choose(count: int, tmp_path: Path) -> None:
    table = chosen(case(tmp_path, models.conv_chain(), count=count), bias="correct")
    assert {entry.tensor for entry in table.ranges} >= {"x"}


@pytest.mark.parametrize(
    "options", [{"exclude": ("*",)}, {"activations": "float"}], ids=["nothing", "weights"]
)
def test_without_quantized_activations_there_is_nothing_to_choose(
    options: dict[str, object], tmp_path: Path
) -> None:
    model, _, samples, _ = case(tmp_path, models.conv_chain())
    placement = decide(model.view, PlacementOptions(**options))  # type: ignore[arg-type]
    table = chosen((model, placement, samples, collect(model, placement, samples)), bias="correct")
    assert {entry.gain_db for entry in table.ranges} <= {None}


def test_without_a_network_each_tensor_takes_its_own_best(tmp_path: Path) -> None:
    model, placement, _, histograms = case(tmp_path, models.conv_chain())
    two = [
        make_table(histograms, placement, model.view, CalibrationOptions(method=method))
        for method in ("auto", "best")
    ]
    assert two[0] == two[1]


def test_the_command_writes_method_and_gain_for_scripts(tmp_path: Path) -> None:
    case(tmp_path, models.residual_cnn(), tail=40.0)
    out = tmp_path / "t.json"
    words = ["calibrate", str(tmp_path / "model.onnx"), "--samples", str(tmp_path / "s.npz"), "-o", str(out)]
    assert run(words) == 0
    ranges = json.loads(out.read_text())["data"]["ranges"]
    gains = [entry["gain_db"] for entry in ranges]
    assert any(gain is not None for gain in gains)
    assert all(entry["method"] for entry in ranges)
    assert {entry.gain_db for entry in CALIBRATION.read(out).ranges} >= set(gains)


@pytest.mark.parametrize("name", sorted(models.ALL))
def test_a_tunable_model_computes_what_the_model_with_these_ranges_computes(
    name: str, tmp_path: Path
) -> None:
    proto = models.ALL[name]()
    if len(proto.graph.input) != 1:
        pytest.skip("several inputs")
    found = case(tmp_path, proto, count=2)
    model, placement, samples, histograms = found
    first, second = (
        make_table(histograms, placement, model.view, CalibrationOptions(method=method))
        for method in ("max", "mse")
    )
    if not placement.quantized:
        pytest.skip("nothing is quantized")
    layers = shiftable(model.view)[:1]
    width = (
        [len(entry) for node in layers if (entry := model.view.constant(node.inputs[2])) is not None]
        if all(len(node.inputs) > 2 for node in layers)
        else []
    )
    shifts = tuple(
        NodeShift(node=node.name, shift=(0.25,) * size) for node, size in zip(layers, width, strict=False)
    )
    second = replace(second, shifts=shifts)
    tuned = tunable(insert(model, placement, first, InsertOptions()), [entry.node for entry in shifts])
    runner = open_runner(serialize(tuned.model), description="test")
    wanted = open_runner(serialize(insert(model, placement, second, InsertOptions())), description="test")
    for sample in samples:
        got = runner.run({**sample.feeds, **tuned.feeds(second)})
        for output, value in wanted.run(sample.feeds).items():
            np.testing.assert_allclose(got[output], value, rtol=1e-4, atol=1e-5)


def test_a_network_of_several_formats_is_judged_by_what_all_of_them_lose(tmp_path: Path) -> None:
    """onnxruntime has no FP4: its blocks are emulated, and only the ranges of the other pairs are tuned."""
    s = models.Sketch()
    s.input("x", ("n", 64))
    s.weight("w1", 64, 64)
    s.weight("w2", 64, 64)
    s.weight("b2", 64)
    s.node("MatMul", ["x", "w1"], "a", name="first")
    s.node("Relu", ["a"], "r")
    s.node("Gemm", ["r", "w2", "b2"], "y", name="second")
    s.output("y", ("n", 64))
    model, _, samples, _ = case(tmp_path, s.model())
    placed = PlacementOptions(format="fp8", formats={"first": "nvfp4"}, sm=("120",))
    placement = decide(model.view, placed)
    histograms = collect(model, placement, samples)
    options = CalibrationOptions(method="max")
    table = make_table(histograms, placement, model.view, options)
    reference = Reference(model, samples, Budget(), bias=False)
    trial = TrialSession(model, placement, table, reference, Budget())
    assert trial.tunable.scales
    assert set(trial.tunable.scales) <= set(table.by_tensor())
    judged_ = trial.candidate("max", table, reference.samples)
    runner = open_runner(
        serialize(insert(model, placement, table, InsertOptions())), description="as it is written"
    )
    assert runner.description.endswith("blocks of FP4 or FP8 emulated")
    signal = noise = 0.0
    for sample in reference.samples:
        (wanted,), (got,) = reference.outputs(sample).values(), runner.run(sample.feeds).values()
        signal += float((wanted.astype(np.float64) ** 2).sum())
        noise += float(((got.astype(np.float64) - wanted) ** 2).sum())
    assert 0 < sum(judged_.shares) == pytest.approx(noise / signal, rel=1e-4)
    moved = correct_biases(model, placement, table, samples).shifts
    assert [entry.node for entry in moved] == ["second"]


def test_calibrators_that_compete_are_those_that_say_so() -> None:
    assert competing() == tuple(name for name in calibrators.names() if calibrators.load(name).competes)


@pytest.mark.parametrize(
    ("room", "share", "is_tried"), [(None, 0.2, True), (0, 0.2, False), (0, 0.6, True), (None, 0.05, False)]
)
def test_weights_of_a_small_network_are_rounded_where_a_tenth_of_the_noise_is_theirs(
    room: int | None, share: float, is_tried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    shape = [dim if isinstance(dim, int) else 1 for dim in load(path).view.inputs[0].shape or ()]
    values = np.random.default_rng(0).standard_normal((20, *shape[1:])).astype(np.float32)
    tried: list[str] = []
    inner = round_weights

    def noted(*words: Any, **more: Any) -> CalibrationTable:
        tried.append("gptq")
        return inner(*words, **more)

    monkeypatch.setattr(decisions, "round_weights", noted)
    monkeypatch.setattr(decisions, "weight_share", lambda *_: share)
    if room is not None:
        monkeypatch.setattr(decisions, "_CHEAP", room)
    qdqtool.quantize(str(path), values)
    assert bool(tried) is is_tried


def test_weights_that_hid_the_noise_are_rounded_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections seem to be enough if other noise is estimated to be larger; if they gain 3 dB, weights made most of it."""
    inputs, rank = 256, 8
    proto = models.Sketch()
    proto.input("x", ("n", inputs))
    proto.weight("w", inputs, 16)
    proto.weight("b", 16)
    proto.node("Gemm", ["x", "w", "b"], "y", name="product")
    proto.output("y", ("n", 16))
    model = proto.model()
    weights = {entry.name: entry for entry in model.graph.initializer}
    values = onnx.numpy_helper.to_array(weights["w"]).copy()
    values[0] = 16 * np.abs(values).max()  # makes the step of all other weights coarse
    weights["w"].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    rng = np.random.default_rng(3)
    mixed = rng.standard_normal((rank, inputs)) / np.sqrt(rank)
    rows = rng.standard_normal((300, rank)) @ mixed + 0.02 * rng.standard_normal((300, inputs))
    seen, unseen = rows[:200].astype(np.float32), rows[200:].astype(np.float32)
    monkeypatch.setattr(decisions, "_SECTION", 32)
    monkeypatch.setattr(decisions, "weight_share", lambda *_: 0.2)
    path = models.save(model, tmp_path)
    plain = open_runner(serialize(load(path)), description="float").run({"x": unseen})["y"]
    noises = {}
    for rounding in ("auto", "gptq"):
        settings = ("place.first_layer=int8", "place.last_layer=int8", f"weights.rounding={rounding}")
        done = qdqtool.quantize(str(path), seen, recipe="transformer-int8", settings=settings)
        quantized = open_runner(done.model.SerializeToString(), description="INT8").run({"x": unseen})["y"]
        noises[rounding] = float(np.square(quantized - plain).sum())
    assert noises["auto"] < 10**0.02 * noises["gptq"]


@pytest.mark.parametrize(("numbers", "count"), [(2, 64), (8, 64), (10, 32)])
def test_more_samples_choose_if_the_outputs_have_few_numbers(
    numbers: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtool.pipeline.ranges.samples._SMALL", 0)
    s = models.Sketch()
    s.input("x", ("n", 16))
    s.weight("w", 16, numbers)
    s.node("MatMul", ["x", "w"], "y", name="product")
    s.output("y", ("n", numbers))
    view = load(models.save(s.model(), tmp_path)).view
    assert [count_taken(view, whole) for whole in (500, 40, 8)] == [count, min(count, 40), 32]


def of_peaks(seed: int = 0) -> tuple[onnx.ModelProto, np.ndarray]:
    """A network that reads the largest value of each channel, and samples of which half have a peak.

    Most values lie below half a quantization step: they round to 0, and only their layers' means tell of them.
    """
    random, s = np.random.default_rng(seed), models.Sketch()
    x = s.input("x", ["n", 16, 8, 8])
    for name in ("first", "second"):
        weight = s.constant(f"{name}_w", (np.abs(random.normal(size=(16, 16, 1, 1))) / 5).astype(np.float32))
        bias = s.constant(f"{name}_b", np.zeros(16, np.float32))
        x = s.node("Relu", [s.node("Conv", [x, weight, bias], f"{name}_c", name=name)], f"{name}_r")
    x = s.node("Flatten", [s.node("GlobalMaxPool", [x], "largest")], "flat")
    weight = s.constant("last_w", random.normal(size=(2, 16)).astype(np.float32))
    s.output(s.node("Gemm", [x, weight], "y", name="last", transB=1))
    samples = random.uniform(0.001, 0.0038, size=(64, 16, 8, 8)).astype(np.float32)
    for sample in samples[::2]:
        sample[:, random.integers(8), random.integers(8)] = random.uniform(0.5, 1, size=16)
    return s.model(17), samples


def test_biases_stay_where_corrected_ones_make_the_outputs_noisier() -> None:
    proto, samples = of_peaks()
    settings = {"calibrate.symmetric": "always", "weights.equalize": "none"}
    kept = qdqtool.quantize(proto, samples, recipe="conv-int8", settings=settings)
    assert kept.calibration.shifts == ()
    assert kept.calibration.journal is not None
    row = next(row for row in kept.calibration.journal.trials if row.what == "biases as they are")
    assert row.outcome is TrialOutcome.KEPT
    named = {**settings, "calibrate.method": "max"}
    assert qdqtool.quantize(proto, samples, recipe="conv-int8", settings=named).calibration.shifts


@pytest.mark.parametrize("batched", [True, False])
def test_shifts_of_a_table_count_once(batched: bool, tmp_path: Path) -> None:
    found = case(tmp_path, models.residual_cnn())
    model, placement, samples, _ = found
    reference = Reference(model, samples, Budget(), bias=True)
    reference.together = reference.together and batched
    assert reference.together is batched
    node = shiftable(model.view)[0]
    (channels,) = model.view.info(node.inputs[2]).shape or ()
    plain = singles(found)["max"]
    shifted = replace(plain, shifts=(NodeShift(node=node.name, shift=(0.5,) * int(channels)),))
    noises = [
        TrialSession(model, placement, table, reference, Budget())
        .candidate("", shifted, reference.samples[:4])
        .noise
        for table in (plain, shifted)
    ]
    assert noises[0] == pytest.approx(noises[1], rel=1e-6)
