"""Shapes are known behind symbolic dimensions and shape arithmetic, and never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from qdqtool.graph.load import load
from tests import models
from tests.graph.placing import opened
from tests.shared import shared


def _split_heads(s: models.Sketch, x: str) -> str:
    """What exporters write for `x.view(x.shape[0], -1, 4, 8)`."""
    shape = s.node("Shape", [x], "shape")
    batch = s.node("Gather", [shape, s.constant("first", np.array(0))], "batch", axis=0)
    batch = s.node("Unsqueeze", [batch, s.constant("axes", np.array([0]))], "batch1")
    to = s.node("Concat", [batch, s.constant("rest", np.array([-1, 4, 8]))], "to", axis=0)
    return s.node("Reshape", [x, to], "heads")


def test_a_reshape_to_symbol_and_minus_one_is_known(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Relu", [_split_heads(s, s.input("x", ["batch", 7, 32]))], "y"))
    view = opened(s.model(), tmp_path).view
    assert view.info("heads").shape == ("batch", 7, 4, 8)
    assert view.info("y").shape == ("batch", 7, 4, 8)


def test_two_symbols_stay_apart(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(_split_heads(s, s.input("x", ["batch", "tokens", 32])))
    assert opened(s.model(), tmp_path).view.info("heads").shape == ("batch", "tokens", 4, 8)


def test_expressions_of_a_symbol_are_written_out(tmp_path: Path) -> None:
    s = models.Sketch()
    x = _split_heads(s, s.input("x", ["N", 7, 32]))
    y = s.node("Concat", [x, s.constant("token", np.zeros((1, 7, 4, 8), np.float32))], "longer", axis=0)
    s.node("Reshape", [x, s.constant("flat", np.array([-1, 8]))], "flattened")
    s.nodes.append(helper.make_node("Identity", ["flattened"], ["z"]))
    s.output("z")
    s.output(y)
    view = opened(s.model(), tmp_path).view
    assert view.info("longer").shape == ("N+1", 7, 4, 8)
    assert view.info("flattened").shape == ("28*N", 8)


def test_a_dimension_that_depends_on_values_stays_unknown(tmp_path: Path) -> None:
    s = models.Sketch()
    found = s.node("NonZero", [s.input("x", ["N", 3])], "found")
    s.output(s.node("Cast", [found], "y", to=1))
    shape = opened(s.model(), tmp_path).view.info("found").shape
    assert shape is not None
    assert shape[0] == 2
    assert isinstance(shape[1], str)


@pytest.mark.shared
def test_every_tensor_of_the_vision_transformer_has_a_shape() -> None:
    view = load(shared("models/vit_cifar10_pgd_2_3_16/model.onnx")).view
    assert [name for node in view.nodes for name in node.outputs if view.info(name).shape is None] == []
    assert {view.info(node.outputs[0]).shape for node in view.nodes if node.op == "Softmax"} == {
        ("batch_size", 3, 5, 5)
    }


def test_a_mask_over_two_symbols_is_known_and_never_made(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", "tokens", 8])
    shape = s.node("Shape", [x], "shape")
    size = s.node(
        "Slice", [shape, *(s.constant(f"c{i}", np.array([v])) for i, v in enumerate((0, 2)))], "size"
    )
    ones = s.node("ConstantOfShape", [size], "ones")
    s.output(s.node("Unsqueeze", [ones, s.constant("last", np.array([2]))], "mask"))
    s.output(s.node("Relu", [x], "y"))
    assert opened(s.model(), tmp_path).view.info("mask").shape == ("batch", "tokens", 1)
