"""`weights.equalize: auto`: outlier channels are found without a run, and taken out only where the outputs gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtool.calibration.collect import collect
from qdqtool.calibration.histograms import fitting_histograms
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.cli.app import run
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.kinds import CALIBRATION, REPORT
from qdqtool.core.recipe import Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline import recipes
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges import equalization
from qdqtool.pipeline.ranges.equalization import suspects
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.reference import Budget, Reference
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.runner import start
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models

SIZE, COUNT = 16, 48


def normalized(s: models.Sketch, times: float) -> str:
    """As in a large language model: a normalization's gain makes one channel large, and nobody uses it much."""
    x = s.input("x", ["N", 4, SIZE])
    gain = np.ones(SIZE, np.float32)
    gain[3] = times
    y = s.node(
        "LayerNormalization",
        [x, s.constant("gain", gain), s.constant("offset", np.zeros(SIZE, np.float32))],
        "n",
        name="norm",
        axis=-1,
    )
    first = s.random.standard_normal((SIZE, SIZE)).astype(np.float32) / 4
    first[3] /= times
    y = s.node("MatMul", [y, s.constant("w1", first)], "h", name="fc1")
    y = s.node("Relu", [y], "a", name="act")
    second = s.random.standard_normal((SIZE, SIZE)).astype(np.float32) / 4
    return s.node("MatMul", [y, s.constant("w2", second)], "y", name="fc2")


def gated(s: models.Sketch, times: float) -> str:
    """A gated layer: the large channel comes out of the product of two computed tensors."""
    x = s.input("x", ["N", 4, SIZE])
    up, gate, down = (s.random.standard_normal((SIZE, SIZE)).astype(np.float32) / 4 for _ in range(3))
    up[:, 3] *= times
    down[3] /= times
    left = s.node("MatMul", [x, s.constant("up", up)], "u", name="up_proj")
    right = s.node("MatMul", [x, s.constant("gate", gate)], "g", name="gate_proj")
    right = s.node("Sigmoid", [right], "gs", name="sigmoid")
    y = s.node("Mul", [left, right], "m", name="product")
    return s.node("MatMul", [y, s.constant("down", down)], "y", name="down_proj")


def convolved(s: models.Sketch, times: float, activation: str = "PRelu") -> str:
    """Convolutions of which one makes a channel large."""
    x = s.input("x", ["N", 3, 8, 8])
    first = s.random.standard_normal((SIZE, 3, 3, 3)).astype(np.float32) / 4
    first[3] *= times
    second = s.random.standard_normal((SIZE, SIZE, 3, 3)).astype(np.float32) / 9
    second[:, 3] /= times
    y = s.node("Conv", [x, s.constant("w1", first)], "c", name="conv1", pads=[1, 1, 1, 1])
    more = [s.constant("slope", np.full((SIZE, 1, 1), 0.2, np.float32))] if activation == "PRelu" else []
    if activation == "Clip":
        more = [s.constant("low", np.float32(0)), s.constant("high", np.float32(6))]
    y = s.node(activation, [y, *more], "a", name="act")
    y = s.node("Conv", [y, s.constant("w2", second)], "c2", name="conv2", pads=[1, 1, 1, 1])
    return s.node("GlobalAveragePool", [y], "y", name="pool")


NETWORKS: dict[str, tuple[Callable[[models.Sketch, float], str], str]] = {
    "normalized": (normalized, "transformer-int8"),
    "gated": (gated, "transformer-int8"),
    "convolved": (convolved, "conv-int8"),
}


def written(folder: Path, name: str, times: float, seed: int = 0) -> tuple[Path, Recipe]:
    make, recipe = NETWORKS[name]
    s = models.Sketch(seed)
    y = make(s, times)
    s.output(y, ["N", 4, SIZE] if recipe == "transformer-int8" else ["N", SIZE, 1, 1])
    models.save(s.model(), folder)
    shape = (3, 8, 8) if recipe == "conv-int8" else (4, SIZE)
    values = np.random.default_rng(seed + 1).standard_normal((COUNT, *shape)).astype(np.float32)
    np.savez(folder / "s.npz", x=values)
    return folder / "model.onnx", recipes.load(recipe)


def table_of(path: Path, recipe: Recipe, way: str, samples: str = "s.npz") -> CalibrationTable:
    weights = recipe.weights.model_copy(update={"equalize": way})
    changed = recipe.model_copy(update={"weights": weights})
    given = str(path.parent / samples) if samples.endswith(".npz") else samples
    return Calibration(CalibrationRequest(model=path, recipe=changed, samples=given)).table()


def noise(path: Path, recipe: Recipe, table: CalibrationTable) -> float:
    model = load(path)
    quantized = insert(model, decide(model.view, recipe.placing), table, recipe.insert)
    x = np.load(path.parent / "s.npz")["x"]
    one, two = (
        open_runner(serialize(each), description="test").run({"x": x})["y"] for each in (model, quantized)
    )
    return float(np.square(one - two).sum() / np.square(one).sum())


def kept_of(
    journal: Journal, way: str
) -> tuple[tuple[TrialRecord, ...], TrialRecord, tuple[TrialRecord, ...]]:
    """The records kept before the way that is kept, its own, and those kept in the equalized network."""
    (place,) = [
        number for number, one in enumerate(journal.trials) if one.settings == (f"weights.equalize={way}",)
    ]
    own = journal.trials[place]
    assert own.outcome is TrialOutcome.KEPT
    before = tuple(one for one in journal.trials[:place] if one.outcome is TrialOutcome.KEPT)
    return before, own, tuple(one for one in journal.kept if one.what.endswith(", equalized"))


@pytest.mark.parametrize("name", NETWORKS)
def test_outlier_channels_are_taken_out_by_default_and_the_float_network_stays_the_same(
    name: str, tmp_path: Path
) -> None:
    path, recipe = written(tmp_path, name, 60)
    assert recipe.weights.equalize == "auto"
    plain, found = table_of(path, recipe, "none"), table_of(path, recipe, "auto")
    assert found.equalized is not None
    assert found.equalized.gain_db is not None
    assert found.equalized.gain_db > 3
    assert found.journal is not None
    before, way, after = kept_of(found.journal, found.equalized.way)
    assert not before
    assert way.gain == pytest.approx(found.equalized.gain_db, abs=0.01)
    assert after
    assert all(entry.origin[0].startswith("network equalized by") for entry in found.ranges)
    assert noise(path, recipe, found) < noise(path, recipe, plain) / 2
    model = load(path)
    x = np.load(tmp_path / "s.npz")["x"][:8]
    wanted, folded = (
        open_runner(serialize(each), description="test").run({"x": x})["y"]
        for each in (model, undo_rounding(model, found))
    )
    np.testing.assert_allclose(folded, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 4.0, 30.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_never_worse_on_the_choosing_samples_than_without(
    name: str, times: float, tmp_path: Path
) -> None:
    path, recipe = written(tmp_path, name, times)
    plain, found = (table_of(path, recipe, way) for way in ("none", "auto"))
    if found.equalized is None:
        assert found == plain
        return
    model = load(path)
    placement = decide(model.view, recipe.placing)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    bias = recipe.calibrate.bias == "correct"
    shares = []
    for table in (plain, found):
        changed = undo_rounding(model, table)
        changes = table.weights
        rounded = replace(table, weights=replace(changes, values={}) if changes else None)
        trial = TrialSession(
            changed, placement, rounded, Reference(changed, samples, Budget(), bias=bias), Budget()
        )
        shares.append(trial.candidate("", rounded, trial.at_once()).noise)
    assert shares[1] < shares[0]


@pytest.mark.parametrize("bias", [True, False], ids=["biases corrected", "biases kept"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_another_form_of_the_network_gives_is_taken_over(
    name: str, bias: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured anew, for the same samples, at the same price: what is chosen must not depend on it."""
    path, recipe = written(tmp_path, name, 60)
    found = table_of(path, recipe, "auto")
    model = load(path)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    first = Reference(model, samples, Budget(), bias=bias)
    changed = undo_rounding(model, found)
    anew = Reference(changed, samples, Budget(), bias=bias)
    taken = Reference(changed, samples, Budget(), bias=bias, earlier=first)
    assert taken.budget == anew.budget
    assert (taken.layers, taken.together, taken.ends) == (anew.layers, anew.together, anew.ends)
    for mine, theirs in zip(taken.samples, anew.samples, strict=True):
        assert (mine.name, taken.number(mine)) == (theirs.name, anew.number(theirs))
        for tensor, value in anew.outputs(theirs).items():
            near = 1e-5 * float(np.abs(value).max())
            np.testing.assert_allclose(taken.outputs(mine)[tensor], value, rtol=0, atol=near)
    if not bias:
        monkeypatch.setattr("qdqtool.pipeline.ranges.reference.open_model", None)
        Reference(changed, samples, Budget(), earlier=first)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_without_outlier_channels_runs_nothing_more(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("channels were measured")

    monkeypatch.setattr("qdqtool.pipeline.ranges.decisions.relieve_channels", refuse)
    path, recipe = written(tmp_path, name, 1)
    assert table_of(path, recipe, "auto") == table_of(path, recipe, "none")


def test_where_nothing_is_quantized_nothing_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was run to judge nothing")

    monkeypatch.setattr("qdqtool.pipeline.ranges.decisions.Reference", refuse)
    monkeypatch.setattr("qdqtool.pipeline.ranges.decisions.correct_biases", refuse)
    path, _ = written(tmp_path, "convolved", 60)
    recipe = recipes.load("conv-int8", ["place.exclude=['*']"])
    for method in ("auto", "max"):
        how = recipe.calibrate.model_copy(update={"method": method})
        table = table_of(path, recipe.model_copy(update={"calibrate": how}), "auto")
        assert (table.ranges, table.shifts, table.equalized) == ((), (), None)


def test_clipped_activations_are_left_alone(tmp_path: Path) -> None:
    s = models.Sketch(0)
    s.output(convolved(s, 60, "Clip"), ["N", SIZE, 1, 1])
    models.save(s.model(), tmp_path)
    model = load(tmp_path / "model.onnx")
    recipe = recipes.load("conv-int8")
    placement = decide(model.view, recipe.placing)
    samples = open_samples("random:8", model.view.inputs)
    histograms = collect(model, placement, samples)
    table = make_table(histograms, placement, model.view, recipe.calibrate)
    assert suspects(model, placement, table, histograms) == ()


def test_random_samples_choose_nothing(tmp_path: Path) -> None:
    path, recipe = written(tmp_path, "normalized", 60)
    assert table_of(path, recipe, "auto", "random:40").equalized is None


def test_outliers_that_no_constant_tells_show_in_the_histogram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, recipe = written(tmp_path, "normalized", 60)
    model = load(path)
    placement = decide(model.view, recipe.placing)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    histograms = collect(model, placement, samples)
    table = make_table(histograms, placement, model.view, recipe.calibrate)
    monkeypatch.setattr(equalization, "_is_noise_predicted", lambda *_: False)
    assert [one.tensor for one in suspects(model, placement, table, histograms)] == ["n"]


@pytest.mark.slow
def test_a_run_tells_it_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "normalized", 60)
    out = tmp_path / "run"
    words = ["run", str(path), "--recipe", "transformer-int8", "--samples", str(tmp_path / "s.npz")]
    assert run([*words, "--out", str(out)]) == 0
    table = CALIBRATION.read(out / "calibration.json")
    assert table.equalized is not None
    assert any("equalized: +" in note for note in REPORT.read(out / "report.json").notes)
    before = (out / "calibration.json").stat().st_mtime_ns
    assert run([*words, "--out", str(out)]) == 0
    assert (out / "calibration.json").stat().st_mtime_ns == before


def test_a_run_that_takes_the_table_of_another_shows_the_histograms_of_that_network(tmp_path: Path) -> None:
    path, recipe = written(tmp_path, "normalized", 60)
    first = RunRequest(
        model=path,
        recipe=recipe,
        samples=str(tmp_path / "s.npz"),
        eval_samples=None,
        labels=None,
        out=tmp_path / "1",
    )
    start(first, "calibrate")
    second = replace(
        first,
        out=tmp_path / "2",
        histograms=tmp_path / "1" / "histograms.npz",
        table=tmp_path / "1" / "calibration.json",
    )
    start(second, "calibrate")
    one, two = (fitting_histograms(tmp_path / name) for name in "12")
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != (tmp_path / "1" / "histograms.npz").read_bytes()
