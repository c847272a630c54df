"""Quantize/dequantize pairs in a graph, whichever tool wrote them."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.tensors import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class QdqPair:
    """A QuantizeLinear and the DequantizeLinear after it, or only one of the two.

    Attributes:
        tensor: the float tensor that is quantized; for a DequantizeLinear alone, the integers it reads.
        quantize: node name of the QuantizeLinear; None if integers come from elsewhere.
        dequantize: node name of the DequantizeLinear; None if nothing turns the integers back.
        kind: whether `tensor` is a constant.
        dtype: type of the integers between the two.
        scale: quantization steps; empty if they are computed at run time.
        scale_shape: shape of the scale, () for a scalar; None if it is computed.
        zero_point: one value per scale, zeros if the node has none; empty if computed, or not a number.
        axis: channel axis of a scale with one dimension or more; not negative if the rank is known.
        slots: the inputs that read the result.
        returned: whether the model returns the result.
        domain: operator domain of the nodes ("" or "com.microsoft").
    """

    tensor: str
    quantize: str | None
    dequantize: str | None
    kind: SlotKind
    dtype: DType
    scale: tuple[float, ...]
    scale_shape: tuple[int, ...] | None
    zero_point: tuple[int, ...]
    axis: int | None
    slots: tuple[Slot, ...]
    returned: bool = False
    domain: str = ""
