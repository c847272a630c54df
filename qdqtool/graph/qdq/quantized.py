"""A float graph and the quantizations of its slots: the meaning of a Q/DQ model without its Q/DQ nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import QuantFormat
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.deferred import array

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quantization:
    """Quantization of the values that one slot reads.

    Attributes:
        format: how values are stored.
        scale: float32, (): one scale; (channels,): one per channel along `axis`; the tensor's shape with `axis` divided
            by `block`: one per block. Block scales of formats with two levels are those of the first level. None if the
            model computes a scale per block at run time.
        axis: channel axis, or the axis that blocks divide; None for one scale.
        block: values along `axis` that share a scale; None without blocks.
        global_scale: second level of formats with two levels, else None.
        stored: whether a constant is stored in the format, behind a DequantizeLinear alone.
        codes: the stored values of a constant that are not the nearest to its float ones; None if they are, or where
            nodes quantize.
        pair: the first slot, in graph order, that reads the same Q/DQ pair; None if the pair serves this slot alone.
        zero_point: the integer that stands for 0; other than 0 for INT8 activations only.
    """

    format: QuantFormat
    scale: NDArray[np.float32] | None
    axis: int | None = None
    block: int | None = None
    global_scale: float | None = None
    stored: bool = False
    codes: NDArray[Any] | None = None
    pair: Slot | None = None
    zero_point: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for quantizations that write equal constants, whatever other slots share the pair."""
        scale = None if self.scale is None else (self.scale.shape, self.scale.astype(np.float32).tobytes())
        return (
            self.format.name,
            scale,
            self.axis,
            self.block,
            self.global_scale,
            self.stored,
            self.zero_point,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantization) and (self.key, self.pair) == (other.key, other.pair)

    def __hash__(self) -> int:
        return hash((self.key, self.pair))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedGraph:
    """A float model and the quantization of each of its slots.

    Attributes:
        model: the float model. Constants that are stored in few bits are the floats that these stand for.
        assignment: quantizations by slot, in graph order; slots that are not in it are float.
    """

    model: Model
    assignment: Mapping[Slot, Quantization] = field(default_factory=lambda: MappingProxyType({}))

    def __eq__(self, other: object) -> bool:
        """Return True if the assignments and graphs are equal, whatever the order of their constants."""
        if not isinstance(other, QuantizedGraph):
            return NotImplemented
        return dict(self.assignment) == dict(other.assignment) and _content(self.model) == _content(
            other.model
        )

    __hash__ = None  # type: ignore[assignment]


def _content(model: Model) -> tuple[Any, ...]:
    graph = model.proto.graph
    return (
        sorted(node.SerializeToString(deterministic=True) for node in graph.node),
        {tensor.name: _value(tensor) for tensor in graph.initializer},
        [value.name for value in graph.input],
        [value.name for value in graph.output],
    )


def _value(tensor: onnx.TensorProto) -> tuple[int, tuple[int, ...], bytes]:
    value = array(tensor)
    content = value.tobytes() if value.dtype.kind != "O" else b"\0".join(tensor.string_data)
    return tensor.data_type, tuple(tensor.dims), content
