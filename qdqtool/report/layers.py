"""Engine layers as rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor
from qdqtool.core.report import LayerRow, TensorRow

_QUANTIZED = frozenset({DType.INT8, DType.FLOAT8, DType.INT4, DType.FLOAT4})


def layer_rows(engine: Engine, times: Mapping[str, float], macs: Mapping[str, int]) -> tuple[LayerRow, ...]:
    """All layers in launch order, with the precision of their inputs and the bytes they move."""
    return tuple(
        LayerRow(
            name=layer.name,
            kind=layer.kind,
            tactic=layer.tactic,
            onnx_nodes=layer.onnx_nodes,
            inputs=tuple(_tensor(tensor) for tensor in layer.inputs),
            constants=tuple(_tensor(tensor) for tensor in layer.constants),
            outputs=tuple(_tensor(tensor) for tensor in layer.outputs),
            precision=_precision(layer),
            bytes=_bytes((*layer.inputs, *layer.outputs)),
            weight_bytes=_bytes(layer.constants),
            ms=times.get(layer.name),
            macs=macs.get(layer.name),
        )
        for layer in engine.layers
    )


def _tensor(tensor: EngineTensor) -> TensorRow:
    return TensorRow(
        name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, format=tensor.format, bytes=tensor.bytes
    )


def _precision(layer: EngineLayer) -> str:
    """The one number type of the run-time inputs; index and shape tensors do not count."""
    types = {tensor.dtype for tensor in layer.inputs or layer.outputs}
    if DType.UNKNOWN in types:
        return DType.UNKNOWN.value
    numbers = sorted(dtype.value for dtype in types if dtype.is_float or dtype in _QUANTIZED)
    if not numbers:
        return next(iter(sorted(dtype.value for dtype in types)), DType.UNKNOWN.value)
    return numbers[0] if len(numbers) == 1 else "mixed"


def _bytes(tensors: tuple[EngineTensor, ...]) -> int | None:
    sizes = [tensor.bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
