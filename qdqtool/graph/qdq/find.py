"""Reads the Q/DQ nodes of a model, also of models that other tools quantized."""

from __future__ import annotations

from math import ceil, copysign, isfinite, prod
from typing import TYPE_CHECKING, Any

from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.encode import is_number
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import (
    DEQUANTIZE,
    DYNAMIC_TYPES,
    KEEPS_AXES,
    PACKED_WEIGHTS,
    QDQ,
    QUANTIZE,
    computes_integers,
    is_other_quantizer,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DEQUANTIZE", "QUANTIZE", "behind_pairs", "find", "quantized_ops"]
_FARTHEST = 16
"""Most Casts and Identities to skip between a stored scale and its consumer."""
_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})


def behind_pairs(view: GraphView, tensor: str) -> str:
    """Return the float tensor before any Q/DQ nodes; the tensor itself if it has no Q/DQ."""
    node = view.producer(tensor)
    while node is not None and node.op in QDQ:
        tensor = node.inputs[0]
        node = view.producer(tensor)
    return tensor


def find(model: Model) -> tuple[QdqPair, ...]:
    """Find every Q/DQ pair: one entry per DequantizeLinear, plus each QuantizeLinear without a DequantizeLinear.

    The pairs are in graph order. Scales are read if they are constant; nothing is checked.
    """
    view = model.view
    pairs = []
    for node in view.nodes:
        if _is(node, DEQUANTIZE):
            before = view.producer(node.inputs[0])
            pairs.append(_pair(before if before and _is(before, QUANTIZE) else None, node, view))
        elif _is(node, QUANTIZE) and not any(_is(use.node, DEQUANTIZE) for use in view.uses(node.outputs[0])):
            pairs.append(_pair(node, None, view))
    return tuple(pairs)


def quantized_ops(model: Model) -> tuple[str, ...]:
    """Return operator types of the main graph that quantize, compute with integers or hold packed integers; sorted.

    () for a float model.
    """
    kept = QDQ | PACKED_WEIGHTS
    ops = {
        node.op
        for node in model.view.nodes
        if node.op in kept or computes_integers(node.op) or is_other_quantizer(node.op, node.domain)
    }
    return tuple(sorted(ops))


def _is(node: Node, op: str) -> bool:
    return node.op == op and node.domain in _DOMAINS


def _pair(quantize: Node | None, dequantize: Node | None, view: GraphView) -> QdqPair:
    first, last = quantize or dequantize, dequantize or quantize
    assert first is not None
    assert last is not None
    tensor = first.inputs[0]
    scale = _constant(last.inputs[1], view)
    uses = view.uses(last.outputs[0])
    return QdqPair(
        tensor=tensor,
        quantize=quantize.name if quantize else None,
        dequantize=dequantize.name if dequantize else None,
        kind=SlotKind.WEIGHT if view.is_constant(_skip_clip(view, tensor)) else SlotKind.ACTIVATION,
        dtype=_integer_type(last, quantize, view),
        scale=() if scale is None else _numbers(scale),
        scale_shape=None if scale is None else tuple(scale.shape),
        zero_point=_zero_point(last, view),
        axis=_axis(last, view),
        slots=tuple(Slot(node=use.node.name, index=use.index) for use in uses),
        returned=view.is_output(last.outputs[0]),
        domain="" if last.domain == "ai.onnx" else last.domain,
    )


def _skip_clip(view: GraphView, tensor: str) -> str:
    """Return the float tensor of a Q that a Clip follows before DQ; `tensor` itself if there is no Clip.

    Brevitas writes fewer bits with such a Clip.
    """
    clip = view.producer(tensor)
    maker = view.producer(clip.inputs[0]) if clip is not None and clip.op == "Clip" else None
    return maker.inputs[0] if maker is not None and _is(maker, QUANTIZE) else tensor


def _integer_type(last: Node, quantize: Node | None, view: GraphView) -> DType:
    if len(last.inputs) > 2 and last.inputs[2]:
        return view.info(last.inputs[2]).dtype
    between = quantize.outputs[0] if quantize else last.inputs[0]
    maker = view.producer(between)
    if maker is not None and maker.op in DYNAMIC_TYPES:
        # Shape inference does not know TensorRT's own operators.
        return DYNAMIC_TYPES[maker.op][maker.outputs.index(between)]
    return view.info(between).dtype


def _zero_point(node: Node, view: GraphView) -> tuple[int, ...]:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return (0,) * prod(view.constant_shape(node.inputs[1]) or ())
    value = _constant(node.inputs[2], view)
    entries = () if value is None else _numbers(value)
    # FP8 zero points may have fractions; rounding away from 0 keeps them different from 0
    return (
        tuple(int(copysign(ceil(abs(entry)), entry)) for entry in entries)
        if all(map(isfinite, entries))
        else ()
    )


def _constant(tensor: str, view: GraphView) -> NDArray[Any] | None:
    """Return a constant, also through an Identity or a Cast, which parsers fold; None for a computed value."""
    for _ in range(_FARTHEST):
        value, node = view.constant(tensor), view.producer(tensor)
        if value is not None or node is None or node.op not in KEEPS_AXES or not node.inputs:
            return value
        tensor = node.inputs[0]
    return None


def _numbers(value: NDArray[Any]) -> tuple[float, ...]:
    """Return the entries of a scale or zero point as numbers; () for strings and complex numbers."""
    if not is_number(value):
        return ()
    return tuple(float(entry) for entry in value.reshape(-1))


def _axis(node: Node, view: GraphView) -> int | None:
    shape = view.info(node.inputs[1]).shape
    if not shape:
        return None
    axis = node.integer("axis", 1)
    rank = len(view.info(node.inputs[0]).shape or ())
    return axis + rank if axis < 0 and rank else axis
