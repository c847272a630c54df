"""Builds small graphs with TensorRT for RTX and says what became of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.engine import EngineLayer
from qdqtool.core.placement import Decision, Placement, SlotKind
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from tests import models


@dataclass(frozen=True)
class Built:
    """What became of a graph: its error, or its kernels, the precision of its products, and bytes that move."""

    error: str = ""
    kernels: tuple[EngineLayer, ...] = ()
    precision: tuple[tuple[str, str], ...] = ()
    bytes: int = 0

    @property
    def roundings(self) -> int:
        return sum(layer.name.count("Roun") for layer in self.kernels)


def build(proto: onnx.ModelProto, target: str = "sm86") -> Built:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = models.save(proto, folder)
        try:
            result, _ = RTX.build(BuildRequest(model=path, folder=folder, targets=(target,), timeout_s=120))
        except QdqError as error:
            log = folder / "build.log"
            return Built(error=f"{error.what} {log.read_text('utf-8') if log.exists() else ''}")
        assert result.layers is not None
        engine = read(folder / result.layers)
        report = audit(load(path), engine)
        return Built(
            kernels=engine.kernels,
            precision=tuple((verdict.node, _word(verdict.precision)) for verdict in report.verdicts),
            bytes=report.counts.activation_bytes_dumped or 0,
        )


def quantized(proto: onnx.ModelProto, types: str = "fp32", **options: object) -> tuple[Model, Placement]:
    """The Q/DQ model that placement makes of a float one, with made-up activation ranges."""
    for dim in (dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        if dim.dim_param:
            dim.dim_value = 1
    with tempfile.TemporaryDirectory() as folder:
        model = prepare(load(models.save(proto, Path(folder))), PrepareOptions())
        placement = decide(model.view, PlacementOptions(float_type=types, **options))
        made = insert(model, placement, table(model, placement), InsertOptions(types=types))
        # large weights stand in the file, which goes with the folder
        return replace(made, proto=whole(made.proto)), placement


def table(model: Model, placement: Placement) -> CalibrationTable:
    """Ranges without calibration: weights as they are, probabilities 1, other activations some, one value per tie."""
    shares = {name for node in model.view.nodes if node.op == "Softmax" for name in node.outputs}
    tied = {name: 4.0 + number for number, tie in enumerate(placement.ties) for name in tie.tensors}
    ranges = {
        decision.tensor: TensorRange(
            tensor=decision.tensor,
            amax=_amax(model, decision)
            if decision.kind is SlotKind.WEIGHT
            else (1.0,)
            if decision.tensor in shares
            else (tied.get(decision.tensor, 2.0 + len(decision.tensor) / 16),),
            axis=decision.spec.axis if decision.spec else None,
        )
        for decision in placement.quantized
    }
    return CalibrationTable(ranges=tuple(ranges[name] for name in sorted(ranges)))


def _amax(model: Model, decision: Decision) -> tuple[float, ...]:
    values = np.abs(model.view.constant(decision.tensor))
    axis = decision.spec.axis if decision.spec else None
    others = None if axis is None else tuple(index for index in range(values.ndim) if index != axis)
    return tuple(max(float(value), 1e-4) for value in np.atleast_1d(values.max(axis=others)))


def _word(dtype: DType) -> str:
    return "float" if dtype.is_float else str(dtype)
