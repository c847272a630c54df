"""Inputs of a compute node that represent INT8 integers times a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx

from qdqtool.core.quant_format import INT8
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.encode import encode
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """Integers and scale of a DequantizeLinear.

    Attributes:
        source: tensor of the integers.
        scale: float32 scalar, or a vector along `axis`.
        axis: channel axis of a vector of scales; None for a scalar.
        value: the integers themselves where they are constant.
    """

    source: str
    scale: NDArray[np.float32]
    axis: int | None
    value: NDArray[np.int8] | None


class Operands:
    """Finds operands in a model under edit; caches each answer."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._makers = edit.producers()
        self._known: dict[str, Operand | None] = {}

    def of(self, tensor: str) -> Operand | None:
        """Return the operand that makes `tensor`; None unless it is symmetric INT8 with constant scales."""
        if tensor not in self._known:
            self._known[tensor] = self._read(tensor)
        return self._known[tensor]

    def _read(self, tensor: str) -> Operand | None:
        node = self._makers.get(tensor)
        if node is None or node.op_type != DEQUANTIZE:
            return None
        scale = self._edit.value(node.input[1])
        if scale is None or scale.ndim > 1 or not self._is_symmetric(node):
            return None
        axis = None if scale.size == 1 else attribute(node, "axis", 1)
        flat = scale.astype(np.float32).reshape(() if axis is None else -1)
        floats, integers = self._constant(node.input[0])
        known = floats if integers is None else integers
        if axis is not None:
            if known is None:
                return None
            axis %= known.ndim
        if integers is None and floats is not None:
            integers = encode(floats, flat, INT8, axis)
        if integers is not None and integers.dtype != np.int8:
            return None
        return Operand(source=node.input[0], scale=flat, axis=axis, value=integers)

    def _is_symmetric(self, node: onnx.NodeProto) -> bool:
        """Return True if the zero point exists, is INT8 and is zero; without one the integers would be UINT8."""
        zero = self._edit.value(node.input[2]) if len(node.input) > 2 else None
        return zero is not None and zero.dtype == np.int8 and not zero.any()

    def _constant(self, tensor: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Return the floats that are quantized to `tensor`, and its integers; None for those that are not constant."""
        node = self._makers.get(tensor)
        floats = self._edit.value(node.input[0]) if node is not None and node.op_type == QUANTIZE else None
        return floats, self._edit.value(tensor)


def attribute(node: onnx.NodeProto, name: str, default: T) -> T:
    """Return the value of an attribute, or `default` if the node does not have it."""
    found = (entry for entry in node.attribute if entry.name == name)
    value: T = next((onnx.helper.get_attribute_value(entry) for entry in found), default)
    return value
