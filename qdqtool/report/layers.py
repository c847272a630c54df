"""Engine layers as rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.core.engine import Engine, EngineTensor
from qdqtool.core.report import LayerRow, TensorRow


def layer_rows(engine: Engine, times: Mapping[str, float], macs: Mapping[str, int]) -> tuple[LayerRow, ...]:
    """All layers in launch order, with the bytes they move."""
    return tuple(
        LayerRow(
            name=layer.name,
            kind=layer.kind,
            tactic=layer.tactic,
            onnx_nodes=layer.onnx_nodes,
            inputs=tuple(_tensor(tensor) for tensor in layer.inputs),
            constants=tuple(_tensor(tensor) for tensor in layer.constants),
            outputs=tuple(_tensor(tensor) for tensor in layer.outputs),
            role=layer.role,
            precision=layer.precision,
            certainty=layer.precision_certainty,
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


def _bytes(tensors: tuple[EngineTensor, ...]) -> int | None:
    sizes = [tensor.bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
