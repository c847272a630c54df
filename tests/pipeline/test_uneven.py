"""Channels that depthwise convolutions read are made equally large: the network computes the same, and INT8 keeps the small ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run as cli
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.recipe import Recipe
from qdqtool.core.weights import WeightChanges, load_weights, save_weights
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import undo_rounding, with_changes
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges.equalization import even_channels, factors, uneven
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models

CHANNELS, COUNT = 16, 24


def swish(s: models.Sketch, x: str) -> str:
    return s.node("Mul", [x, s.node("Sigmoid", [x], f"{x}_gate")], f"{x}_swish")


def hard_swish(s: models.Sketch, x: str) -> str:
    """As exporters write it out."""
    low, high, three, six = (
        s.constant(f"{x}_{name}", np.float32(value))
        for name, value in (("low", 0), ("high", 6), ("three", 3), ("six", 6))
    )
    gate = s.node("Clip", [s.node("Add", [x, three], f"{x}_moved"), low, high], f"{x}_cut")
    return s.node("Div", [s.node("Mul", [x, gate], f"{x}_product"), six], f"{x}_swish")


def relu(s: models.Sketch, x: str) -> str:
    return s.node("Relu", [x], f"{x}_relu")


def relu6(s: models.Sketch, x: str) -> str:
    low, high = (s.constant(f"{x}_{name}", np.float32(value)) for name, value in (("low", 0), ("high", 6)))
    return s.node("Clip", [x, low, high], f"{x}_relu6")


ACTIVATIONS: dict[str, Callable[[models.Sketch, str], str]] = {
    "swish": swish,
    "hard swish": hard_swish,
    "relu": relu,
    "relu6": relu6,
}
NO_FUSION = ("swish", "hard swish", "relu")


def separable(name: str, seed: int = 0, spread: float = 4.0) -> onnx.ModelProto:
    """Two separable convolutions whose channels are of very different size, as trained ones are."""
    s = models.Sketch(seed)
    x = s.input("x", ["N", 3, 12, 12])
    act = ACTIVATIONS[name]
    for number, channels in enumerate((3, CHANNELS)):
        sizes = np.exp(s.random.uniform(-spread, 0, CHANNELS)).astype(np.float32).reshape(-1, 1, 1, 1)
        weight = s.random.standard_normal((CHANNELS, channels, 1, 1)).astype(np.float32) * sizes * 3
        x = s.node(
            "Conv", [x, s.constant(f"wide{number}_w", weight)], f"wide{number}_y", name=f"wide{number}"
        )
        x = act(s, x)
        weight = s.random.standard_normal((CHANNELS, 1, 3, 3)).astype(np.float32) / sizes / 3
        more = {"group": CHANNELS, "pads": [1, 1, 1, 1]}
        x = s.node(
            "Conv",
            [x, s.constant(f"deep{number}_w", weight)],
            f"deep{number}_y",
            name=f"deep{number}",
            **more,
        )
        x = s.node("Relu", [x], f"deep{number}_relu")
    s.output(s.node("GlobalAveragePool", [x], "y", name="pool"), ["N", CHANNELS, 1, 1])
    return s.model()


def written(folder: Path, name: str, seed: int = 0, spread: float = 4.0) -> Path:
    values = np.random.default_rng(seed + 1).standard_normal((COUNT, 3, 12, 12)).astype(np.float32)
    np.savez(folder / "s.npz", x=values)
    return models.save(separable(name, seed, spread), folder)


def recipe_of(way: str, target: str = "rtx") -> Recipe:
    recipe = recipes.load("conv-int8", (f"place.target={target}",))
    weights = recipe.weights.model_copy(update={"equalize": way, "rounding": "nearest"})
    return recipe.model_copy(update={"weights": weights})


def table_of(path: Path, recipe: Recipe) -> CalibrationTable:
    return Calibration(
        CalibrationRequest(model=path, recipe=recipe, samples=str(path.parent / "s.npz"))
    ).table()


def run(model: Model, values: np.ndarray) -> np.ndarray:
    return open_runner(serialize(model), description="test").run({"x": values})["y"]


def changes_of(path: Path) -> tuple[Model, WeightChanges]:
    model = load(path)
    placement = decide(model.view, recipe_of("none").placing)
    samples = tuple(open_samples(str(path.parent / "s.npz"), model.view.inputs))
    return model, even_channels(model, uneven(model, placement, everywhere=True), samples)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_the_float_network_computes_the_same_with_channels_of_equal_size(
    name: str, seed: int, tmp_path: Path
) -> None:
    path = written(tmp_path, name, seed)
    model, changes = changes_of(path)
    assert bool(changes.scaled) == (name != "relu")
    values = np.load(tmp_path / "s.npz")["x"]
    wanted = run(model, values)
    save_weights(tmp_path / "w.npz", changes)
    for each in (changes, load_weights(tmp_path / "w.npz")):
        np.testing.assert_allclose(
            run(with_changes(model, each), values), wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max())
        )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_small_channels_are_kept_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    model = load(path)
    values = np.load(tmp_path / "s.npz")["x"]
    wanted = run(model, values)
    noise = {}
    for way in ("none", "depthwise", "auto"):
        table = table_of(path, recipe_of(way))
        placement = decide(model.view, recipe_of(way).placing)
        quantized = insert(model, placement, table, recipe_of(way).insert)
        # of every channel by itself: it is the small ones that one scale loses
        error = np.square(run(quantized, values) - wanted).mean(axis=(0, 2, 3))
        noise[way] = float(np.median(error / np.square(wanted).mean(axis=(0, 2, 3))))
        assert run(undo_rounding(model, table), values) == pytest.approx(
            wanted, rel=0, abs=1e-5 * float(np.abs(wanted).max())
        )
        # of outlier channels behind a Relu `auto` has more ways
        told = {"none": {None}, "depthwise": {"depthwise"}, "auto": {"depthwise", "auto", "cross-layer"}}[way]
        assert (table.equalized.way if table.equalized else None) in told
    assert noise["depthwise"] < noise["none"] / 4
    assert noise["auto"] < noise["none"] / 4


@pytest.mark.parametrize("target", ["8", "10", "rtx"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_auto_breaks_no_fusion_of_classic_tensorrt_and_a_named_way_may(
    name: str, target: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name)
    named = table_of(path, recipe_of("depthwise", target))
    assert named.equalized is not None
    found = table_of(path, recipe_of("auto", target))
    assert (found.equalized is not None) == (target == "rtx" or name in NO_FUSION)


@pytest.mark.parametrize("target", ["10", "rtx"])
@pytest.mark.parametrize("name", NO_FUSION)
def test_a_mul_that_nobody_saw_fused_must_gain_more(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, name)
    monkeypatch.setattr("qdqtool.pipeline.ranges.decisions._UNSEEN_DB", 1000.0)
    found = table_of(path, recipe_of("auto", target))
    assert (found.equalized is not None) == (target == "rtx" or name == "relu")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_finding_names_the_way_and_the_way_ends_it(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, spread=7.0)
    found = [one for one in table_of(path, recipe_of("none")).findings if one.code == "CAL150"]
    assert found
    assert all("--set weights.equalize=depthwise" in one.fix for one in found)
    assert not [one for one in table_of(path, recipe_of("depthwise")).findings if one.code == "CAL150"]


def test_channels_that_are_alike_cost_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("samples were run")

    values = np.random.default_rng(1).standard_normal((COUNT, 3, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=values)
    path = models.save(separable("relu6", spread=0.2), tmp_path)
    monkeypatch.setattr("qdqtool.pipeline.ranges.equalization._peaks", refuse)
    assert table_of(path, recipe_of("auto")).equalized is None


def test_what_shares_its_scale_or_has_another_reader_is_left_alone(tmp_path: Path) -> None:
    s = models.Sketch(0)
    x = s.input("x", ["N", 3, 12, 12])
    wide = {"group": CHANNELS, "pads": [1, 1, 1, 1]}
    for number in range(2):
        y = s.node("Conv", [x, s.weight(f"w{number}", CHANNELS, 3, 1, 1)], f"c{number}", name=f"c{number}")
        swish(s, y)
    deep = s.weight("deep", CHANNELS, 1, 3, 3)
    one = s.node("Conv", ["c0_swish", deep], "d0", name="d0", **wide)
    s.output(s.node("Add", [one, "c0_swish"], "y0"), None)
    both = s.node("Concat", ["c1_swish", "c1_swish"], "both", axis=1)
    deep = s.weight("deep2", 2 * CHANNELS, 1, 3, 3)
    s.output(s.node("Conv", [both, deep], "y1", name="d1", group=2 * CHANNELS, pads=[1, 1, 1, 1]), None)
    model = load(models.save(s.model(), tmp_path))
    placement = decide(model.view, recipe_of("none").placing)
    read = {entry.tensor for entry in placement.quantized if entry.slot.node in {"d0", "d1"}}
    assert "c0_swish" in read
    assert not {one.tensor for one in uneven(model, placement, everywhere=True)} & {"c0_swish", "c1_swish"}


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1e6)))
def test_factors_leave_every_channel_that_fires_as_large_as_any_other(largest: np.ndarray) -> None:
    found = factors(largest)
    assert (found > 0).all()
    live = largest > 2.0**-16 * largest.max()
    if live.any():
        after = largest[live] / found[live]
        assert after.max() <= 2**0.25 * after.min() * (1 + 1e-9)
    assert (found[~live] == 1).all()


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="building needs qdqtool[rtx]")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_engine_has_as_many_kernels_as_without(name: str, tmp_path: Path) -> None:
    """TensorRT for RTX multiplies in the kernel of the layer in front."""
    path = written(tmp_path, name)
    kernels = {}
    for way in ("none", "depthwise"):
        out = tmp_path / way
        words = ["--samples", str(tmp_path / "s.npz"), "--set", f"weights.equalize={way}", "--out", str(out)]
        assert cli(["run", str(path), *words]) == 0
        kernels[way] = len(read_layers(out / "layers.json").layers)
    assert kernels["depthwise"] == kernels["none"]


def test_a_table_for_another_network_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "swish")
    model, changes = changes_of(path)
    one = replace(changes.scaled[0], tensor="x")
    with pytest.raises(InputFileError, match="has no node"):
        with_changes(model, replace(changes, scaled=(one,)))
