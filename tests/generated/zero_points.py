"""Q/DQ models of generated networks with zero points, and the same models without rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

import qdqtool
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import SlotKind
from qdqtool.core.recipe import InsertOptions, PrepareOptions
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare_as_placed
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE, find
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.qdq.zero_points import with_constants
from qdqtool.graph.view import Model
from tests.generated.draft import Network, run
from tests.generated.law import PLAIN

OFTEN = (-128, -90, -128, 17, 127)
EXACT = 1e-5
"""Largest error of networks in FP32: a share of the constants, which cancel, or of the largest output."""
NARROW = 2e-2
"""The same of networks with a part in 16 bits, which rounds otherwise."""


def with_zero_points(network: Network, folder: Path) -> Model:
    """The Q/DQ model of a network whose activations have zero points, tensors that share a range the same one."""
    source = folder / "network.onnx"
    onnx.save(network.proto, source)
    table = qdqtool.calibrate(source, list(network.samples), settings=PLAIN)
    placement = qdqtool.place(source, settings=PLAIN)
    model = prepare_as_placed(load(source), PrepareOptions(), placement)
    return insert(model, placement, shifted(table, network.seed), InsertOptions())


def shifted(table: CalibrationTable, seed: int) -> CalibrationTable:
    """The table with a zero point for every activation, chosen by its range so that ties stay; no value is cut off above."""

    def moved(entry: TensorRange) -> TensorRange:
        if entry.axis is not None or entry.low is None:
            return entry
        zero = OFTEN[(seed + int(1e6 * entry.amax[0])) % len(OFTEN)]
        if entry.low >= 0:
            zero = -128
        return replace(entry, zero_point=zero)

    return replace(table, ranges=tuple(map(moved, table.ranges)))


def broken(network: Network, folder: Path) -> str | None:
    """How the model with constants differs from that with zero points, both without rounding; None if it does not."""
    model = with_zero_points(network, folder)
    made, _ = with_constants(model)
    zeros = {
        pair.tensor
        for pair in find(made)
        if pair.quantize and any(pair.zero_point) and pair.kind is SlotKind.ACTIVATION
    }
    if zeros:
        return f"zero points are left: {sorted(zeros)}"
    most = NARROW if "Cast" in network.operators else EXACT
    largest = max((128 * max(pair.scale) for pair in find(model) if pair.quantize), default=0.0)
    before, after = (whole(unrounded(one).proto) for one in (model, made))
    unsure = from_places(network.proto)
    for feeds in network.samples[:2]:
        found = run(after, feeds)
        for name, value in run(before, feeds).items():
            if found[name].shape != value.shape or found[name].dtype != value.dtype:
                return f"{name} was {value.dtype}{value.shape} and is {found[name].dtype}{found[name].shape}"
            if name in unsure:
                continue
            wide = value.astype(np.float64)
            error = float(np.abs(found[name] - wide).max(initial=0))
            if value.dtype.kind == "f" and not error <= most * max(
                1.0, largest, float(np.abs(wide).max(initial=0))
            ):
                return f"{name} differs by {error:.2g}"
    return None


def from_places(proto: onnx.ModelProto) -> set[str]:
    """Tensors computed from the place of the largest value: of two that are nearly the same, rounding chooses."""
    found: set[str] = set()
    for node in proto.graph.node:
        if node.op_type in {"ArgMax", "ArgMin", "TopK"} or found & set(node.input):
            found.update(node.output)
    return found


def unrounded(model: Model) -> Model:
    """The model with a Clip instead of each Q and DQ of an activation: it cuts off what they do, and rounds nothing."""
    edit = Edit(model)
    for node in tuple(edit.nodes):
        if node.op_type != QUANTIZE or node.input[0] in edit.constants:
            continue
        step, zero = edit.value(node.input[1]), edit.value(node.input[2])
        assert step is not None
        assert zero is not None
        limits = [
            edit.constant(f"{node.name}_{code}", np.asarray((code - int(zero)) * float(step), step.dtype))
            for code in (-128, 127)
        ]
        backs = [back for back, _ in edit.readers(node.output[0])]
        assert backs
        for back in backs:
            assert back.op_type == DEQUANTIZE
            edit.node("Clip", [node.input[0], *limits], [back.output[0]], name=f"{back.name}_clip")
        edit.remove([node, *backs])
    edit.prune()
    return edit.finish()
