"""INT4 where it cannot be: on activations, in an odd number of values, before TensorRT 10, or before SM80.

    x ─ Q (INT4) ─ DQ ─ MatMul      16 different values, INT8 arithmetic

    x ──────────────── MatMul       one float product
    w (INT4) ─ DQ ─────┘

INT4 is for weights only: the product itself is computed in float behind a dequantize. (INT4 weights beside an activation
of another format are QDQ182.)

The fix stores INT4 beside INT8 activations as INT8: every 4-bit integer minus its zero point fits, so one scale per tensor
or channel stays and nothing is lost; so do weights of an odd number of values; scales of blocks are replaced by one per output channel. Weights that stay INT4
become signed with zero point 0, exactly where the integers then fit, else with the step and the clipping that cost least in
each block. But for TensorRT for RTX, which does not mind, scales become positive: onnxruntime's symmetric blocks have negative
ones, so that their farthest value is -8.

Evidence: RTX 1.7.1 fuses INT4 block weights into a float product (int4_block128); an INT4 activation becomes an INT8 one of
16 values (int4_activation); SM75 is refused, and so are weights of [255, 255] (`Sub-byte quantization with odd tensor
volume is not supported`), where [256, 255] is built. INT4 arrived with TensorRT 10.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.grids import stored_as
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT4
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext, set_axis
from qdqtool.graph.view import GraphView, Use
from qdqtool.matching.half_quantized import is_quantized
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import requantized
from qdqtool.trt.ops import PRODUCTS, quantization_commutes, weight_axis

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_FOUR_BITS = frozenset({np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)})
_FACTORS = 2
_SHARES = tuple(float(share) for share in np.linspace(0.0, 1.0, 9))
"""How much of the way between clipping most and clipping nothing a block's step is tried at."""


def match(flow: Flow) -> Iterator[QdqPair]:
    """Pairs of INT4, and those of a type that has no name here, as UINT4."""
    return (pair for pair in flow.pairs if pair.dtype in {DType.INT4, DType.UNKNOWN})


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """INT4 pairs in a place where they do not build."""
    old = ", ".join(f"SM{sm}" for sm in sorted(target.sm, key=int) if target.is_rtx and int(sm) < INT4.sm)
    for pair in match(flow):
        if pair.dtype is not DType.INT4:
            continue
        node = pair.dequantize or pair.quantize or ""
        if target.family == "8":
            yield Violation(
                node=node,
                reason="the integers are INT4",
                effect="TensorRT 8 has no INT4",
                fix="use INT8, or TensorRT 10 or newer",
            )
        elif pair.kind is SlotKind.ACTIVATION:
            yield Violation(
                node=node,
                reason="an activation is INT4",
                effect="it is rounded to 16 steps, and the arithmetic is INT8 all the same"
                if target.is_rtx
                else "the builder refuses it: INT4 is for weights only",
                fix=f"use INT8 for activations; {repairing(to_float=flow.products_of(pair) or [node])} leaves the layer float",
                severity=Severity.WARNING if target.is_rtx else None,
            )
        elif target.is_rtx and (count := _odd_number(flow.view.info(pair.tensor).shape)):
            yield Violation(
                node=node,
                reason=f"it holds {counted(count, 'value')} of 4 bits, an odd number",
                effect="the builder refuses it: Sub-byte quantization with odd tensor volume is not supported",
                fix="pad its columns to an even number, or store it as INT8; `qdqtool repair` stores it so",
            )
        elif old:
            yield Violation(
                node=node,
                reason="the integers are INT4",
                effect=f"the build fails for {old}: `model contains HW-specific datatypes: int4`",
                fix=f"use INT8, or build for SM{INT4.sm} or newer only",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Store 4-bit constants as INT8 unless all they do is multiply floats."""
    for pair in match(context.flow):
        node = context.nodes[pair.dequantize or pair.quantize or ""]
        if pair.dequantize is None or context.stored_type(node.input[0]) not in _FOUR_BITS:
            continue
        rank = len(context.edit.constants[node.input[0]].dims)
        uses = tuple(_uses(context.view, node.output[0]))
        odd = (context.target is None or context.target.is_rtx) and _odd_number(
            tuple(context.edit.constants[node.input[0]].dims)
        )
        if uses and not odd and all(_multiplies_floats(context.view, use) for use in uses):
            yield from _signed(context, node)
            continue
        axis = weight_axis(uses[0].node, uses[0].index, rank) if len(uses) == 1 else None
        error = _widened(context, node, axis)
        if error is not None:
            yield Change(
                subject=node.input[0],
                what="4-bit integers stored as INT8" + (", one scale per output channel" if error else ""),
                reason="an odd number of 4-bit values is not built"
                if odd
                else "TensorRT takes INT4 only for weights beside float activations",
                error=error,
            )


def _odd_number(shape: tuple[int | str, ...] | None) -> int:
    """How many values a tensor holds where that is an odd number; else 0."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    count = prod(sizes) if sizes and len(sizes) == len(shape or ()) else 0
    return count if count % 2 else 0


def _uses(view: GraphView, tensor: str) -> Iterator[Use]:
    """Who reads the values of `tensor`, past operators that only move them."""
    for use in view.uses(tensor):
        if use.index == 0 and quantization_commutes(view, use.node):
            yield from _uses(view, use.node.outputs[0])
        else:
            yield use


def _multiplies_floats(view: GraphView, use: Use) -> bool:
    return (
        use.node.op in PRODUCTS
        and use.index < _FACTORS
        and not is_quantized(view, use.node.inputs[1 - use.index])
    )


def _signed(context: RepairContext, node: onnx.NodeProto) -> Iterator[Change]:
    """INT4 with zero point 0 and positive scales for a node that has others."""
    found = _given(context, node)
    signed = context.stored_type(node.input[0]) == stored_as(DType.INT4)
    if found is None or not np.isfinite(found[1]).all():
        return
    integers, scale, zero = found
    # TensorRT for RTX multiplies by negative scales as they are (QDQ103)
    negative = np.zeros_like(scale, bool) if _is_for_rtx(context) else scale < 0
    if signed and not zero.any() and not negative.any():
        return
    sign = np.where(_spread(negative, node, integers.shape), -1, 1)
    steps, scale = (integers - _spread(zero, node, integers.shape)) * sign, np.where(negative, -scale, scale)
    stretch = _stretch(steps, scale, node)
    wide = _spread(stretch, node, integers.shape)
    shrunk = _to_four_bits(steps, wide)
    error = float(np.abs(shrunk * wide - steps).max(initial=0) / max(np.abs(steps).max(initial=0), 1))
    stem = node.input[0]
    edit = context.edit
    packed = edit.constant(f"{stem}_int4", shrunk.astype(stored_as(DType.INT4)))
    _connect(context, node, [packed, edit.constant(f"{stem}_scale", (scale * stretch).astype(scale.dtype))])
    del node.input[2:]
    wider = ", with wider steps" if (stretch > 1).any() else ""
    yield Change(
        subject=stem,
        what=f"4-bit weights made signed with zero point 0{' and positive scales' if negative.any() else ''}{wider}",
        reason=f"TensorRT reads INT4 with zero point 0{' and positive scales' if negative.any() else ''} only",
        error=error,
    )


def _is_for_rtx(context: RepairContext) -> bool:
    return context.target is not None and context.target.is_rtx


def _stretch(steps: NDArray[Any], scale: NDArray[Any], node: onnx.NodeProto) -> NDArray[np.float64]:
    """By how much wider each step must be for the least squared error: 1 clips most, the largest clips nothing.

    Of onnxruntime's symmetric blocks, whose farthest value is 8 steps on either side, clipping that one alone loses least.
    """
    below, above = (_extreme(np.minimum(steps, 0), scale, node), _extreme(np.maximum(steps, 0), scale, node))
    most = np.maximum(1.0, np.maximum(-below / 8.0, above / 7.0))
    best, least = np.ones_like(most), np.full(most.shape, np.inf)
    for share in _SHARES:
        tried = 1.0 + share * (most - 1.0)
        wide = _spread(tried, node, steps.shape)
        noise = _summed((_to_four_bits(steps, wide) * wide - steps) ** 2, scale, node)
        best = np.where(noise < least, tried, best)
        least = np.minimum(noise, least)
    return best


def _to_four_bits(steps: NDArray[Any], wide: NDArray[Any]) -> NDArray[Any]:
    clipped: NDArray[Any] = np.clip(np.rint(steps / wide), -8, 7)
    return clipped


def _widened(context: RepairContext, node: onnx.NodeProto, axis: int | None) -> float | None:
    """Give the node INT8 inputs; returns the error, None where its scales are not constants that fit."""
    found = _given(context, node)
    if found is None:
        return None
    integers, scale, zero = found
    stem, error = node.input[0], 0.0
    steps = integers - _spread(zero, node, integers.shape)
    kind = scale.dtype
    if scale.ndim > 1:
        value = steps * _spread(scale, node, integers.shape)
        steps, scale, error = requantized(value, axis, half=kind == np.float16)
        set_axis(node, axis, drop=("block_size",))
    inputs = [
        context.edit.constant(f"{stem}_int8", steps.astype(np.int8)),
        context.edit.constant(f"{stem}_scale", scale.astype(kind)),
        context.edit.constant(f"{stem}_zero_point", np.zeros(scale.shape, np.int8)),
    ]
    _connect(context, node, inputs)
    return error


def _connect(context: RepairContext, node: onnx.NodeProto, inputs: list[str]) -> None:
    for place, name in enumerate(inputs):
        if place < len(node.input):
            context.edit.connect(node, place, name)
        else:
            node.input.append(name)


def _given(
    context: RepairContext, node: onnx.NodeProto
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
    """Integers, scales and zero points of a DequantizeLinear; None where they are no constants that fit."""
    values = [context.edit.value(name) if name else None for name in node.input[:3]]
    integers, scale = values[0], values[1]
    zero = values[2] if len(values) > 2 else np.zeros((), np.int8)
    if integers is None or scale is None or zero is None or zero.shape not in {(), (1,), scale.shape}:
        return None
    blocks = scale.ndim == integers.ndim and all(scale.shape)
    channels = scale.ndim == 1 and scale.size in {1, integers.shape[_axis(node, integers.ndim)]}
    if not integers.ndim or not (scale.ndim == 0 or channels or blocks):
        return None
    return integers.astype(np.int16), scale, zero.astype(np.int16)


def _axis(node: onnx.NodeProto, rank: int) -> int:
    given = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return int(given) % rank


def _spread(grid: NDArray[Any], node: onnx.NodeProto, shape: tuple[int, ...]) -> NDArray[Any]:
    """One value per tensor, channel or block, repeated over the tensor."""
    if grid.size == 1:
        return np.broadcast_to(grid.reshape(()), shape)
    if grid.ndim == 1 and len(shape) > 1:
        axis = _axis(node, len(shape))
        return grid.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    for place, size in enumerate(shape):
        grid = np.repeat(grid, -(-size // grid.shape[place]), axis=place).take(range(size), axis=place)
    return grid


def _extreme(steps: NDArray[Any], scale: NDArray[Any], node: onnx.NodeProto) -> NDArray[Any]:
    """The step farthest from 0 for each scale, as float; `steps` has one sign."""
    if scale.size == 1:
        return np.full(scale.shape, steps.flat[np.abs(steps).argmax()], np.float64)
    for place, firsts in _firsts(steps.shape, scale, node):
        low, high = np.minimum.reduceat(steps, firsts, place), np.maximum.reduceat(steps, firsts, place)
        steps = np.where(-low > high, low, high)
    return steps.reshape(scale.shape).astype(np.float64)


def _summed(values: NDArray[Any], scale: NDArray[Any], node: onnx.NodeProto) -> NDArray[Any]:
    """The sum of the values of each scale."""
    if scale.size == 1:
        return np.full(scale.shape, values.sum(), np.float64)
    for place, firsts in _firsts(values.shape, scale, node):
        values = np.add.reduceat(values, firsts, place)
    return values.reshape(scale.shape)


def _firsts(sizes: tuple[int, ...], scale: NDArray[Any], node: onnx.NodeProto) -> Iterator[tuple[int, range]]:
    """For each axis where the values of the scales begin."""
    if scale.ndim == 1:
        axis = _axis(node, len(sizes))
        counts = [size if place == axis else 1 for place, size in enumerate(sizes)]
    else:
        counts = list(scale.shape)
    for place, count in enumerate(counts):
        yield place, range(0, sizes[place], -(-sizes[place] // count))


PLUGIN = Rule(
    code="QDQ109",
    formats=frozenset({"int4"}),
    severity=Severity.ERROR,
    stage=Stage.LEGAL,
    after=("dynamic",),
    check=check,
    fix=fix,
)
