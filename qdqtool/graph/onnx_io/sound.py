"""Looks for values that no engine can compute with: NaN anywhere, infinity in weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.trt.ops import PRODUCTS, QDQ, RECURRENT

WEIGHTED = PRODUCTS | RECURRENT | {"BatchNormalization", "LayerNormalization"}
"""Operators with trained constants."""


_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
)
_PIECE = 1 << 22
"""Values that are looked at together."""


def _is_finite(values: NDArray[Any]) -> bool:
    """Whether all values are finite, piece by piece: a Boolean for each would take a quarter of the weights again."""
    flat = values.reshape(-1)
    return all(np.isfinite(flat[at : at + _PIECE]).all() for at in range(0, flat.size, _PIECE))


def check_values(graph: onnx.GraphProto, path: Path) -> tuple[str, ...]:
    """Notes on constants that hold infinity for a reason (masks, bounds).

    Raises:
        InputFileError: a constant holds NaN, or a weight holds infinity.
    """
    readers: dict[str, str] = {
        name: f"{node.op_type} {node.name!r}"
        for node in reversed(graph.node)
        if node.op_type in WEIGHTED
        for name in node.input
    }
    scales = {node.input[1] for node in graph.node if node.op_type in QDQ and len(node.input) > 1}
    notes = []
    for tensor in graph.initializer:
        if tensor.data_type not in _FLOATS or tensor.name in scales:
            continue  # of scales, lint says more
        values = array(tensor)
        if _is_finite(values):
            continue
        nans, count = int(np.isnan(values).sum()), int((~np.isfinite(values)).sum())
        reader = readers.get(tensor.name)
        if nans or reader:
            used = f", read by {reader}" if reader else ""
            raise InputFileError(
                f"tensor {tensor.name!r} holds {nans} NaN and {count - nans} infinite of {counted(values.size, 'value')}{used}",
                fix="train or export the model again; such weights make every output NaN",
                where=str(path),
            )
        notes.append(
            f"constant {tensor.name!r} holds {counted(count, 'infinite value')} and was left as it is"
        )
    return tuple(notes)
