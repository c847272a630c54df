"""Quantization that is switched at run time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.calibration import NodeShift
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.toggles import SwitchableModel, switchable
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.graph.qdq.insert import insert
from tests import models
from tests.graph.placing import opened, placement_for, table_for

BUILDERS = {
    "a residual network": models.residual_cnn,
    "attention": models.attention,
    "transposed convolutions": models.unet,
}


def made(
    proto: onnx.ModelProto, folder: Path, options: InsertOptions | None = None
) -> tuple[Model, SwitchableModel]:
    model = opened(proto, folder)
    placement = placement_for(model)
    table = table_for(model, placement, models.feeds(proto))
    quantized = insert(model, placement, table, options or InsertOptions())
    return quantized, switchable(quantized)


def ran(board: SwitchableModel, feeds: dict[str, np.ndarray], on: set[str]) -> dict[str, np.ndarray]:
    switches = {switch: np.array(node in on) for node, switch in board.switches.items()}
    return models.run(board.model.proto, {**feeds, **switches}, optimize=False)


def test_a_float_model_has_no_switches(tmp_path: Path) -> None:
    assert switchable(opened(models.conv_chain(), tmp_path)).switches == {}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_all_off_is_the_float_model_and_all_on_the_quantized_one(build, tmp_path: Path) -> None:
    proto = build()
    quantized, board = made(proto, tmp_path)
    feeds = models.feeds(proto)
    float_outputs = models.run(opened(proto, tmp_path).proto, feeds, optimize=False)
    qdq_outputs = models.run(quantized.proto, feeds, optimize=False)
    for name, value in ran(board, feeds, set()).items():
        np.testing.assert_array_equal(value, float_outputs[name])
    for name, value in ran(board, feeds, set(board.switches)).items():
        np.testing.assert_array_equal(value, qdq_outputs[name])


def test_a_corrected_bias_is_switched_with_its_node(tmp_path: Path) -> None:
    proto = models.residual_cnn()
    model = opened(proto, tmp_path)
    placement = placement_for(model)
    plain = table_for(model, placement, models.feeds(proto))
    channels = {
        node.name: len(model.view.constant(node.inputs[1]))
        for node in shiftable(model.view)
        if node.op == "Conv"
    }
    shifts = tuple(NodeShift(node=name, shift=(0.5,) * count) for name, count in channels.items())
    quantized = insert(model, placement, replace(plain, shifts=shifts), InsertOptions())
    board = switchable(quantized, shifts)
    feeds = models.feeds(proto)
    for outputs, on in (
        (models.run(model.proto, feeds, optimize=False), set()),
        (models.run(quantized.proto, feeds, optimize=False), set(board.switches)),
    ):
        for name, value in ran(board, feeds, on).items():
            np.testing.assert_allclose(value, outputs[name], rtol=1e-4, atol=1e-5)


def test_corrections_of_another_model_are_refused(tmp_path: Path) -> None:
    quantized, board = made(models.residual_cnn(), tmp_path)
    node = next(node.name for node in quantized.view.nodes if node.op == "Conv")
    assert node in board.switches
    with pytest.raises(InputFileError, match="does not have 999"):
        switchable(quantized, [NodeShift(node=node, shift=(0.0,) * 999)])


def test_every_node_that_reads_dequantized_values_has_one_switch(tmp_path: Path) -> None:
    proto = models.residual_cnn()
    _, board = made(proto, tmp_path)
    weighted = [node.name for node in proto.graph.node if node.op_type in {"Conv", "Gemm"}]
    assert list(board.switches) == weighted
    assert len(set(board.switches.values())) == len(weighted)
    assert board.stuck == ()


def test_weights_stored_as_integers_cannot_be_switched_and_are_named(tmp_path: Path) -> None:
    _, board = made(models.conv_chain(), tmp_path, InsertOptions(weights="int8"))
    assert set(board.stuck) == set(board.switches)
