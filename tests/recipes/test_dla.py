"""The recipe dla-int8: every floating-point tensor gets a scale, in the Q/DQ model and in the cache made from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qdqtool.calibration.caches import read_cache
from qdqtool.calibration.caches.linting import lint_cache
from qdqtool.cli.app import run
from qdqtool.core.findings import Severity
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide
from qdqtool.trt.ops import SHAPE_READERS
from tests import models

NETWORKS = (
    models.residual_cnn,
    models.concat_cnn,
    models.depthwise_cnn,
    models.silu_cnn,
    models.unet,
    models.attention,
    models.gemms,
    models.branching,
)


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
def test_a_cache_for_dla_has_a_scale_of_every_tensor(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    quantized, plain, cache = (str(tmp_path / name) for name in ("q.onnx", "plain.onnx", "dla.cache"))
    model = str(models.save(make(), tmp_path))
    assert run(["quantize", model, "--recipe", "dla-int8", "--samples", "random:4", "-o", quantized]) == 0
    command = ["cache", "from-qdq", quantized, "--trt", "10.3", "--model", plain, "--out", cache]
    assert run(command) == 0
    view = load(Path(plain)).view
    entries = read_cache(Path(cache))
    floats = {
        tensor
        for node in view.nodes
        if node.op not in SHAPE_READERS
        for tensor in (*node.inputs, *node.outputs)
        if tensor and not view.is_constant(tensor) and view.info(tensor).dtype.is_float
    }
    read = {tensor for tensor in floats if view.uses(tensor) or view.is_output(tensor)}
    assert read
    assert read <= set(entries.by_tensor())
    assert not [entry for entry in lint_cache(entries, view=view) if entry.severity > Severity.INFO]
    assert {value.name for value in view.outputs} == {value.name for value in load(Path(model)).view.outputs}


def test_nodes_that_are_named_float_split_the_part_on_dla(tmp_path: Path) -> None:
    model = load(models.save(models.residual_cnn(), tmp_path))
    recipe = recipes.load("dla-int8")
    view = prepare(model, recipe.preparing).view
    conv = next(node.name for node in view.nodes if node.op == "Conv")
    without = recipes.load("dla-int8", [f"place.exclude=[{conv}]"])
    slots = {decision.slot.node for decision in decide(view, without.placing).quantized}
    assert conv not in slots
    assert conv in {decision.slot.node for decision in decide(view, recipe.placing).quantized}


@pytest.mark.parametrize("change", ["place.format=fp8", "place.activations=float", "place.formats={a: fp8}"])
def test_dla_takes_no_other_format(change: str, tmp_path: Path) -> None:
    view = load(models.save(models.gemms(), tmp_path)).view
    with pytest.raises(UsageError, match="every_tensor is for DLA"):
        decide(view, recipes.load("dla-int8", [change]).placing)


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    options = recipes.load("dla-int8").preparing
    first = prepare(load(models.save(models.residual_cnn(), tmp_path)), options)
    second = prepare(first, options)
    assert first.proto.graph.SerializeToString(deterministic=True) == second.proto.graph.SerializeToString(
        deterministic=True
    )
