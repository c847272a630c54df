"""Weights whose pairs are taken out give what onnxruntime makes of the pairs, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.instrumented.tunable import with_folded_weights
from qdqtool.graph.onnx_io import deferred
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.find import QUANTIZE
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.runtime.runner import open_model, open_runner
from tests import models
from tests.graph.placing import placement_for, table_for


def quantized(proto: onnx.ModelProto, folder: Path, weights: str = "qdq") -> Model:
    model = load(models.save(proto, folder))
    placement = placement_for(model)
    table = table_for(model, placement, models.feeds(proto))
    return insert(model, placement, table, InsertOptions(weights=weights))


@pytest.mark.parametrize("least", [0, 1 << 16], ids=["all weights in a file", "small weights in the model"])
@pytest.mark.parametrize("weights", ["qdq", "stored"])
@pytest.mark.parametrize("name", models.ALL)
def test_outputs_are_the_same_to_the_bit(
    name: str, weights: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred, "HEAVY", least)
    proto = models.ALL[name]()
    made, feeds = quantized(proto, tmp_path, weights), models.feeds(proto)
    folded = with_folded_weights(made, tmp_path)
    plain = open_runner(serialize(made), description="pairs", optimized=False).run(feeds)
    found = open_model(folded, description="folded").run(feeds)
    unoptimized = open_runner(serialize(folded), description="folded", optimized=False).run(feeds)
    for output, value in plain.items():
        np.testing.assert_array_equal(unoptimized[output], value)
        np.testing.assert_allclose(found[output], value, rtol=1e-3, atol=1e-4 * max(1, np.abs(value).max()))


@pytest.mark.parametrize("name", models.ALL)
def test_no_pair_of_a_weight_is_left(name: str, tmp_path: Path) -> None:
    made = quantized(models.ALL[name](), tmp_path)
    folded = with_folded_weights(made, tmp_path)
    left = [node for node in folded.view.nodes if node.op == QUANTIZE]
    assert all(not folded.view.is_constant(node.inputs[0]) for node in left)
    # of a weight behind a Transpose the pair reads what that makes
    assert name == "weight_transpose" or any(
        made.view.is_constant(node.inputs[0]) for node in made.view.nodes if node.op == QUANTIZE
    )


def test_a_pair_around_another_zero_stays(tmp_path: Path) -> None:
    made = quantized(models.gemms(), tmp_path)
    zeros = [node.input[2] for node in made.proto.graph.node if node.op_type == QUANTIZE]
    for tensor in made.proto.graph.initializer:
        if tensor.name in zeros:
            value = onnx.numpy_helper.to_array(tensor) + np.int8(3)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    folded = with_folded_weights(made, tmp_path)
    assert [node.op for node in folded.view.nodes] == [node.op for node in made.view.nodes]
