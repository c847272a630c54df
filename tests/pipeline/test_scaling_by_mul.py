"""Channels that no constant can scale: a Mul in front of the products does, what other nodes read stays as it is, and no kernel is added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.qdq.insert import insert, insert_for_engine
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from qdqtool.pipeline.building import build_request, engine_counts
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges.equalization import scalable_by_mul
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models

WIDTH, TOKENS, COUNT, OUTLIER = 64, 16, 32, 40.0


def dense(s: models.Sketch, name: str, x: str, columns: int = WIDTH, *, quiet: bool = False) -> str:
    """A layer that hardly uses channel 3 if it is `quiet`."""
    weight = s.random.standard_normal((WIDTH, columns)).astype(np.float32) / 8
    if quiet:
        weight[3] /= OUTLIER
    return s.node("MatMul", [x, s.constant(f"{name}_w", weight)], f"{name}_y", name=name)


def biased(s: models.Sketch, name: str, x: str) -> str:
    """A layer whose channel 3 is large."""
    bias = np.zeros(WIDTH, np.float32)
    bias[3] = OUTLIER
    return s.node("Add", [dense(s, name, x), s.constant(f"{name}_b", bias)], f"{name}_a", name=f"{name}_add")


def after_norm(s: models.Sketch, x: str) -> str:
    """A normalization after the residual sum, as in BERT: the next sum reads it too."""
    gain = np.ones(WIDTH, np.float32)
    gain[3] = OUTLIER
    constants = [s.constant("gain", gain), s.constant("offset", np.zeros(WIDTH, np.float32))]
    normal = s.node("LayerNormalization", [x, *constants], "t", name="norm", axis=-1)
    return s.node("Add", [dense(s, "read", normal, quiet=True), normal], "sum", name="sum")


def after_gelu(s: models.Sketch, x: str) -> str:
    return dense(s, "read", s.node("Gelu", [biased(s, "first", x)], "t", name="gelu"), quiet=True)


def after_written_gelu(s: models.Sketch, x: str) -> str:
    y = biased(s, "first", x)
    part = s.node("Div", [y, s.constant("root", np.float32(np.sqrt(2)))], "d", name="div")
    part = s.node(
        "Add", [s.node("Erf", [part], "e", name="erf"), s.constant("unit", np.float32(1))], "e1", name="add"
    )
    part = s.node(
        "Mul",
        [s.node("Mul", [y, part], "m", name="mul"), s.constant("half", np.float32(0.5))],
        "t",
        name="half",
    )
    return dense(s, "read", part, quiet=True)


def after_swish(s: models.Sketch, x: str) -> str:
    y = biased(s, "first", x)
    gated = s.node("Mul", [y, s.node("Sigmoid", [y], "g", name="sigmoid")], "t", name="swish")
    return dense(s, "read", gated, quiet=True)


FORMS: dict[str, Callable[[models.Sketch, str], str]] = {
    form.__name__: form for form in (after_norm, after_gelu, after_written_gelu, after_swish)
}


def written(folder: Path, form: str) -> Path:
    s = models.Sketch(0)
    s.output(FORMS[form](s, dense(s, "start", s.input("x", [1, TOKENS, WIDTH]))), [1, TOKENS, WIDTH])
    path = models.save(s.model(20), folder)
    np.savez(
        folder / "s.npz",
        x=np.random.default_rng(1).standard_normal((COUNT, TOKENS, WIDTH)).astype(np.float32),
    )
    return path


def table_of(path: Path, recipe: Recipe, way: str) -> tuple[Model, Placement, CalibrationTable]:
    weights = recipe.weights.model_copy(update={"equalize": way})
    calibrate = recipe.calibrate.model_copy(update={"symmetric": "always"})
    changed = recipe.model_copy(update={"weights": weights, "calibrate": calibrate})
    table = Calibration(
        CalibrationRequest(model=path, recipe=changed, samples=str(path.parent / "s.npz"))
    ).table()
    model = load(path)
    return model, decide(model.view, recipe.placing), table


def outputs(model: Model, x: np.ndarray) -> np.ndarray:
    runner = open_runner(serialize(model), description="test")
    return np.concatenate([next(iter(runner.run({"x": row[None]}).values())) for row in x])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_float_network_stays_the_same_and_the_quantized_one_gets_better(
    form: str, tmp_path: Path
) -> None:
    path, recipe = written(tmp_path, form), recipes.load("transformer-int8")
    model, placement, table = table_of(path, recipe, "auto")
    plain = table_of(path, recipe, "none")[2]
    assert [scalable.tensor for scalable in scalable_by_mul(model, placement)] == ["t"]
    assert table.weights is not None
    assert [each.tensor for each in table.weights.scaled] == ["t"]
    assert table.weights.scaled[0].nodes == ("read",)
    x = np.load(tmp_path / "s.npz")["x"]
    right = outputs(model, x)
    np.testing.assert_allclose(
        outputs(undo_rounding(model, table), x), right, rtol=0, atol=1e-5 * np.abs(right).max()
    )
    before, after = (
        float(np.square(outputs(insert(model, placement, each, recipe.insert), x) - right).sum())
        for each in (plain, table)
    )
    assert after < before / 2


def test_classic_tensorrt_gets_no_mul(tmp_path: Path) -> None:
    path = written(tmp_path, "after_norm")
    recipe = recipes.load("transformer-int8", ["place.target=10"])
    assert table_of(path, recipe, "auto")[2].equalized is None
    smooth = table_of(path, recipe, "smooth")[2]
    assert smooth.weights is None or not smooth.weights.scaled


@pytest.mark.slow
@pytest.mark.parametrize("sm", [86, 120])
@pytest.mark.parametrize("form", FORMS)
def test_the_mul_adds_no_kernel_on_tensorrt_for_rtx(form: str, sm: int, tmp_path: Path) -> None:
    path = written(tmp_path, form)
    recipe = recipes.load("transformer-int8", [f"build.sm=[{sm}]"])
    builder = BUILDERS.load("rtx")
    kernels = []
    for way in ("none", "smooth"):
        model, placement, table = table_of(path, recipe, way)
        assert bool(table.weights and table.weights.scaled) is (way == "smooth")
        network = insert_for_engine(model, placement, table, recipe.insert)
        kernels.append(engine_counts(network, builder, build_request(recipe, ())).kernels)
    assert kernels[1] <= kernels[0]
