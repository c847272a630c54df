"""A placement and a table for any small model, without asking the rooms that make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Decision, Placement, QuantSpec, Slot, SlotKind
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from tests import models


def opened(proto: onnx.ModelProto, folder: Path) -> Model:
    """The model as `load` gives it."""
    return load(models.save(proto, folder))


def decision(
    node: str, index: int, tensor: str, axis: int | None = None, *, weight: bool = False
) -> Decision:
    return Decision(
        slot=Slot(node=node, index=index),
        tensor=tensor,
        op="Conv",
        kind=SlotKind.WEIGHT if weight else SlotKind.ACTIVATION,
        quantize=True,
        spec=QuantSpec(axis=axis),
        opinions=(),
    )


def placement_for(model: Model) -> Placement:
    """Every input of every weighted node, weights per output channel."""
    found = []
    for node in model.view.nodes:
        if node.op not in {"Conv", "ConvTranspose", "Gemm", "MatMul"}:
            continue
        for index, tensor in enumerate(node.inputs[:2]):
            shape = model.view.constant_shape(tensor)
            axis = None if shape is None else _axis(node.op, node.attribute("transB", 0), index, len(shape))
            found.append(decision(node.name, index, tensor, axis, weight=shape is not None))
    return Placement(decisions=tuple(found), ties=())


def _axis(op: str, transposed: int, index: int, rank: int) -> int:
    if op == "Conv":
        return 0
    if op == "ConvTranspose":
        return 1
    if op == "Gemm":
        return 0 if transposed else 1
    return rank - 1 if index == 1 else rank - 2


def table_for(model: Model, placement: Placement, feeds: dict[str, np.ndarray]) -> CalibrationTable:
    """Largest magnitudes: activations over one sample, weights per channel."""
    acts = [found.tensor for found in placement.quantized if found.kind is SlotKind.ACTIVATION]
    watched = models.run(onnx.ModelProto.FromString(probe(model, acts).source), feeds) if acts else {}
    ranges = {
        name: TensorRange(tensor=name, amax=(float(np.abs(value).max()),)) for name, value in watched.items()
    }
    for found in placement.quantized:
        if found.kind is SlotKind.WEIGHT:
            assert found.spec is not None
            ranges[found.tensor] = weight_range(model, found.tensor, found.spec.axis)
    return CalibrationTable(ranges=tuple(ranges[name] for name in sorted(ranges)))


def weight_range(model: Model, tensor: str, axis: int | None) -> TensorRange:
    value = model.view.constant(tensor)
    assert value is not None
    others = tuple(place for place in range(value.ndim) if place != axis) if axis is not None else None
    amax = np.atleast_1d(np.abs(value).max(axis=others))
    return TensorRange(tensor=tensor, amax=tuple(float(entry) for entry in amax), axis=axis)
