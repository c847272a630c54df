"""Weights of four bits: as Q and DQ, and as operators of other tools.

# four_bits

INT4 where it is not supported: on activations, in an odd number of values, before TensorRT 10, or before SM80.

    x ─ Q (INT4) ─ DQ ─ MatMul      16 different values, INT8 arithmetic

    x ──────────────── MatMul       one float product
    w (INT4) ─ DQ ─────┘

INT4 is for weights only: the MatMul is computed in float after a dequantize. (INT4 weights with an activation of
another format are QDQ182.)

The fix stores INT4 weights with INT8 activations, and weights with an odd number of values, as INT8. Every 4-bit
integer minus its zero point fits, so a scale per tensor or channel stays, and no precision is lost. Block scales are
replaced by one scale per output channel. Weights that stay INT4 become signed with zero point 0: exactly if the
integers then fit, otherwise with the step and the clipping that lose least in each block. Scales become positive,
except for TensorRT for RTX, which accepts negative scales: onnxruntime's symmetric blocks use them so that their
farthest value is -8.

Evidence: RTX 1.7.1 fuses INT4 block weights into a float product (int4_block128). An INT4 activation becomes an INT8
activation with 16 values (int4_activation). SM75 is rejected. Weights of [255, 255] are rejected (`Sub-byte
quantization with odd tensor volume is not supported`); [256, 255] builds. INT4 arrived with TensorRT 10.0.

# block_operator

MatMul nodes with 4-bit or 8-bit weights in an operator of onnxruntime.

    x ─ com.microsoft.MatMulNBits (packed weights)        refused
    w (INT4) ─ DQ (blocks) ─ MatMul                       one kernel that reads INT4
    com.microsoft.GatherBlockQuantized (packed table)     refused
    table (INT4) ─ DQ (blocks) ─ Gather                   one kernel that reads INT4

onnxruntime packs weights in blocks along the summed axis into MatMulNBits, and into GatherBlockQuantized for
embeddings. The fix unpacks the integers into a DequantizeLinear with block scales before a MatMul, which computes the
same result. Weights in 4 bits stay INT4 if their zero points allow it (see QDQ109). Weights in 8 bits also have block
scales, which TensorRT dequantizes before the kernel (QDQ110).

With act-order (g_idx) a block contains rows from anywhere on the summed axis. If all blocks have an equal number of
rows, the fix sorts rows and columns, and a Gather sorts the input, so the result does not change. Other orders cannot
be written as Q/DQ.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE. Layout: documentation of the contrib operators.
MatMulNBits: weights [N, blocks, bytes], low bits first, K padded to whole blocks; zero points packed alike,
2^(bits-1) without. GatherBlockQuantized: INT4, UINT4, or UINT8 that holds one or two values per byte along the last
axis. Without zero points, the zero point is 0, or 2^(bits-1) for UINT8.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.grids import get_storage_type
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT4, INT8, DType
from qdqtool.core.wording import REPAIR, count_noun
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.qdq.flow import Flow, RepairContext, set_axis
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import is_quantized, requantize_weight
from qdqtool.trt.ops import PACKED_WEIGHTS, PRODUCTS, quantization_commutes, weight_axis

# --- four_bits -------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx

_FOUR_BITS = frozenset({np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)})
_FACTORS = 2
_SHARES = tuple(float(share) for share in np.linspace(0.0, 1.0, 9))
"""Step sizes to try for a block, as shares of the way from most clipping (0) to no clipping (1)."""


def match_four_bits(flow: Flow) -> Iterator[QdqPair]:
    """Return the Q/DQ pairs of INT4 and UINT4, and Q/DQ pairs of an unknown type."""
    return (pair for pair in flow.pairs if pair.dtype in {DType.INT4, DType.UINT4, DType.UNKNOWN})


def check_four_bits(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report INT4 Q/DQ pairs that do not build, or that have no benefit."""
    old = ", ".join(f"SM{sm}" for sm in sorted(target.sm, key=int) if target.is_rtx and int(sm) < INT4.sm)
    for pair in match_four_bits(flow):
        if pair.dtype is not DType.INT4:
            continue
        node = pair.dequantize or pair.quantize or ""
        if target.is_before(*INT4.release):
            yield Violation(
                node=node,
                reason="the quantized values are INT4",
                effect="the parser refuses the model: INT4 came with TensorRT 10.0",
                fix="use INT8, or TensorRT 10.0 or newer",
            )
        elif pair.kind is SlotKind.ACTIVATION:
            yield Violation(
                node=node,
                reason="an activation is quantized to INT4",
                effect="the activation is rounded to 16 steps, but the arithmetic is still INT8"
                if target.is_rtx
                else "the builder refuses the model: INT4 is for weights only",
                fix=f"use INT8 for activations; {repairing(to_float=flow.products_of(pair) or [node])} keeps the layer float",
                severity=Severity.WARNING if target.is_rtx else None,
            )
        elif target.is_rtx and (count := _odd_number(flow.view.info(pair.tensor).shape)):
            yield Violation(
                node=node,
                reason=f"the tensor has {count_noun(count, 'value')} of 4 bits, an odd number",
                effect="the builder refuses the model: Sub-byte quantization with odd tensor volume is not supported",
                fix=f"pad the tensor to an even number of columns, or store the tensor as INT8, as {REPAIR} does",
            )
        elif old:
            yield Violation(
                node=node,
                reason="the quantized values are INT4",
                effect=f"the build fails for {old}: `model contains HW-specific datatypes: int4`",
                fix=f"use INT8, or build for SM{INT4.sm} or newer only",
            )


def fix_four_bits(context: RepairContext) -> Iterator[Change]:
    """Store 4-bit constants as INT8, except weights that are only multiplied by floats."""
    for pair in match_four_bits(context.flow):
        node = context.nodes[pair.dequantize or pair.quantize or ""]
        if pair.dequantize is None or context.stored_type(node.input[0]) not in _FOUR_BITS:
            continue
        rank = len(context.edit.constants[node.input[0]].dims)
        uses = tuple(_uses(context.view, node.output[0]))
        odd = (context.target is None or context.target.is_rtx) and _odd_number(
            tuple(context.edit.constants[node.input[0]].dims)
        )
        if uses and not odd and all(_multiplies_floats(context.view, use) for use in uses):
            yield from _signed_four_bits(context, node)
            continue
        axis = weight_axis(uses[0].node, uses[0].index, rank) if len(uses) == 1 else None
        error = _widen_inputs(context, node, axis)
        if error is not None:
            yield Change(
                subject=node.input[0],
                what="4-bit integers stored as INT8" + (", one scale per output channel" if error else ""),
                reason="an odd number of 4-bit values does not build"
                if odd
                else "TensorRT accepts INT4 only for weights with float activations",
                error=error,
            )


def _odd_number(shape: tuple[int | str, ...] | None) -> int:
    """Return the number of values of a tensor if it is odd, else 0."""
    sizes = [size for size in shape or () if isinstance(size, int)]
    count = prod(sizes) if sizes and len(sizes) == len(shape or ()) else 0
    return count if count % 2 else 0


def _uses(view: GraphView, tensor: str) -> Iterator[Use]:
    """Yield the consumers of `tensor`, directly or after operators that only move its values."""
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


def _signed_four_bits(context: RepairContext, node: onnx.NodeProto) -> Iterator[Change]:
    """Store weights as INT4 with zero point 0 and positive scales, if they are stored otherwise."""
    arrays = _packed_arrays(context, node)
    signed = context.stored_type(node.input[0]) == get_storage_type(DType.INT4)
    if arrays is None or not np.isfinite(arrays[1]).all():
        return
    integers, scale, zero = arrays
    # TensorRT for RTX uses negative scales unchanged (QDQ103)
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
    packed = edit.constant(f"{stem}_int4", shrunk.astype(get_storage_type(DType.INT4)))
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
    """Return the factor for each INT4 scale that gives the least squared error.

    Factor 1 clips all values beyond the INT4 range; the largest factor clips none.

    The farthest value of onnxruntime's symmetric blocks is 8 steps from 0. Clipping it alone loses least.
    """
    below, above = (_extreme(np.minimum(steps, 0), scale, node), _extreme(np.maximum(steps, 0), scale, node))
    most = np.maximum(1.0, np.maximum(-below / 8.0, above / 7.0))
    best, least = np.ones_like(most), np.full(most.shape, np.inf)
    for share in _SHARES:
        tried = 1.0 + share * (most - 1.0)
        wide = _spread(tried, node, steps.shape)
        noise = _sum_by_scale((_to_four_bits(steps, wide) * wide - steps) ** 2, scale, node)
        best = np.where(noise < least, tried, best)
        least = np.minimum(noise, least)
    return best


def _to_four_bits(steps: NDArray[Any], wide: NDArray[Any]) -> NDArray[Any]:
    clipped: NDArray[Any] = np.clip(np.rint(steps / wide), -8, 7)
    return clipped


def _widen_inputs(context: RepairContext, node: onnx.NodeProto, axis: int | None) -> float | None:
    """Store the weight of a 4-bit DequantizeLinear as INT8 and return the error; None if its inputs are not suitable constants."""
    arrays = _packed_arrays(context, node)
    if arrays is None:
        return None
    integers, scale, zero = arrays
    stem, error = node.input[0], 0.0
    steps = integers - _spread(zero, node, integers.shape)
    kind = scale.dtype
    if scale.ndim > 1:
        value = steps * _spread(scale, node, integers.shape)
        steps, scale, error = requantize_weight(value, axis, kind)
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


def _packed_arrays(
    context: RepairContext, node: onnx.NodeProto
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
    """Return integers, scales and zero points of a DequantizeLinear; None if they are not constants of suitable shapes."""
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
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    return int(axis) % rank


def _spread(grid: NDArray[Any], node: onnx.NodeProto, shape: tuple[int, ...]) -> NDArray[Any]:
    """Repeat one value per tensor, channel or block over the whole tensor."""
    if grid.size == 1:
        return np.broadcast_to(grid.reshape(()), shape)
    if grid.ndim == 1 and len(shape) > 1:
        axis = _axis(node, len(shape))
        return grid.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    for place, size in enumerate(shape):
        block = _block(node, size, grid.shape[place])
        grid = np.repeat(grid, block, axis=place).take(range(size), axis=place)
    return grid


def _extreme(steps: NDArray[Any], scale: NDArray[Any], node: onnx.NodeProto) -> NDArray[Any]:
    """Return the value with the largest magnitude for each scale. All of `steps` must have the same sign."""
    if scale.size == 1:
        return np.full(scale.shape, steps.flat[np.abs(steps).argmax()], np.float64)
    for place, firsts in _firsts(steps.shape, scale, node):
        low, high = np.minimum.reduceat(steps, firsts, place), np.maximum.reduceat(steps, firsts, place)
        steps = np.where(-low > high, low, high)
    return steps.reshape(scale.shape).astype(np.float64)


def _sum_by_scale(values: NDArray[Any], scale: NDArray[Any], node: onnx.NodeProto) -> NDArray[Any]:
    """Return the sum of the values that share a scale, for each scale."""
    if scale.size == 1:
        return np.full(scale.shape, values.sum(), np.float64)
    for place, firsts in _firsts(values.shape, scale, node):
        values = np.add.reduceat(values, firsts, place)
    return values.reshape(scale.shape)


def _firsts(sizes: tuple[int, ...], scale: NDArray[Any], node: onnx.NodeProto) -> Iterator[tuple[int, range]]:
    """Yield each axis, and the positions along this axis at which a new scale begins."""
    if scale.ndim == 1:
        axis = _axis(node, len(sizes))
        counts = [size if place == axis else 1 for place, size in enumerate(sizes)]
    else:
        counts = list(scale.shape)
    for place, count in enumerate(counts):
        yield place, range(0, sizes[place], _block(node, sizes[place], count))


def _block(node: onnx.NodeProto, size: int, count: int) -> int:
    """Return how many of the values along an axis share one of `count` scales. The last block may be shorter."""
    block = _attributes(node).get("block_size", 0)
    return block if block and -(-size // block) == count != size else -(-size // count)


# --- block_operator --------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    _Unpacked = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None]

_OP: Final = "MatMulNBits"
_TABLE: Final = "GatherBlockQuantized"
_TYPES: Final = {4: np.dtype(ml_dtypes.uint4), 8: np.dtype(np.uint8)}
_SCALE, _ZERO, _ORDER, _BIAS = 2, 3, 4, 5
"""Input numbers of the scales, the zero points, the row order of act-order weights, and the bias."""


def match_block_operator(view: GraphView) -> Iterator[Node]:
    """Return the nodes of operators with weights packed for onnxruntime."""
    return (node for node in view.nodes if node.op in PACKED_WEIGHTS)


def check_block_operator(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report operators with weights packed for onnxruntime, which TensorRT does not import."""
    view = flow.view
    for node in match_block_operator(view):
        if node.op == _OP:
            bits = node.integer("bits", 4)
            way = "replace the node by DequantizeLinear and MatMul"
            if not _has_even_blocks(view, node):
                way = "quantize without act-order (desc_act=False): its g_idx gives blocks of different lengths, but DequantizeLinear needs equal blocks"
            yield Violation(
                node=node.name,
                reason=f"{node.op} contains {bits}-bit weights packed for onnxruntime",
                effect="the parser does not know this operator",
                fix=way + (f"; {REPAIR} does this" if _is_plain(view, node) else ""),
            )
        else:
            way = "quantize these weights as Q/DQ (onnxruntime: quant_format=QuantFormat.QDQ)"
            if node.op == _TABLE and all(
                map(view.is_constant, filter(None, (node.inputs[0], *node.inputs[2:])))
            ):
                way = f"replace the node by DequantizeLinear and Gather; {REPAIR} does this if the blocks divide the axis"
            yield Violation(
                node=node.name,
                reason=f"{node.op} contains weights packed for onnxruntime",
                effect="the parser does not know this operator",
                fix=way,
            )


def _is_plain(view: GraphView, node: Node) -> bool:
    """Return True if the weights are constants in whole blocks, and Q/DQ can represent their order."""
    block, rows = node.integer("block_size", 0), node.integer("K", 0)
    inputs = [name for name in node.inputs[1:_ORDER] if name]
    is_stored_so = node.integer("bits", 4) in _TYPES
    return (
        is_stored_so
        and block > 0
        and rows % block == 0
        and _has_even_blocks(view, node)
        and all(map(view.is_constant, inputs))
    )


def _has_even_blocks(view: GraphView, node: Node) -> bool:
    """Return True if all blocks of a weight have the same number of rows."""
    name = node.inputs[_ORDER] if len(node.inputs) > _ORDER else ""
    rows, block = node.integer("K", 0), node.integer("block_size", 0)
    return not name or _order(view.constant(name), rows, block) is not None


def _order(groups: NDArray[Any] | None, rows: int, block: int) -> NDArray[Any] | None:
    """Return an order of rows in which the rows of each block are adjacent; None if blocks differ in length."""
    if groups is None or block <= 0 or not 0 < rows <= groups.size:
        return None
    groups = groups.reshape(-1)[:rows].astype(np.int64)
    order: NDArray[Any] = np.argsort(groups, kind="stable")
    return order if np.array_equal(groups[order], np.arange(rows) // block) else None


def fix_block_operator(context: RepairContext) -> Iterator[Change]:
    """Rewrite operators with packed constant weights as DequantizeLinear and MatMul or Gather."""
    if not any(node.op in {_OP, _TABLE} for node in match_block_operator(context.view)):
        return
    context.require_opset(INT4.opset)
    for operator in match_block_operator(context.view):
        node = context.nodes[operator.name]
        if node.op_type == _OP and (unpacked := _unpack_weight(context, node)) is not None:
            yield _product(context, node, unpacked)
        elif node.op_type == _TABLE and (table := _table(context, node)) is not None:
            yield _lookup(context, node, table)


def _product(context: RepairContext, node: onnx.NodeProto, unpacked: _Unpacked) -> Change:
    integers, scale, zeros, order = unpacked
    error = 0.0
    if integers.dtype == np.uint8:
        integers, scale, error = _signed_block_operator(integers, scale, zeros)
        _write(context, node, (integers, scale, None), order)
    else:
        _write(context, node, (integers, scale, zeros), order)
    sorted_too = "" if order is None else ", after a Gather that sorts its input in the order of the blocks"
    return Change(
        subject=node.name,
        what=f"{_OP} became DequantizeLinear and MatMul, with "
        + ("wider steps for zero point 0" if error else "the same integers and scales")
        + sorted_too,
        reason=f"TensorRT does not import {_OP}",
        error=error,
    )


def _table(
    context: RepairContext, node: onnx.NodeProto
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None] | None:
    """Return integers, scales and zero points of an embedding table, in the layout of DequantizeLinear; None if this is impossible."""
    edit, of = context.edit, {"block_size": 128, "quantize_axis": 1, **_attributes(node)}
    data, scale = edit.value(node.input[0]), edit.value(at(node.input, 2))
    zeros = edit.value(at(node.input, 3)) if at(node.input, 3) else None
    if data is None or scale is None or (zeros is None and at(node.input, 3)):
        return None
    bits, block = of["bits"], of["block_size"]
    if block <= 0 or not (data.size and scale.size and 0 < data.ndim == scale.ndim):
        return None
    if data.dtype == np.uint8:
        if bits not in _TYPES or (zeros is not None and (zeros.dtype, zeros.ndim) != (data.dtype, data.ndim)):
            return None
        kind = _TYPES[bits]
        data = _bits(data, bits).astype(kind)
        if zeros is None:
            zeros = np.full(scale.shape, 1 << (bits - 1), np.uint8).astype(kind)
        else:
            zeros = _bits(zeros, bits)[..., : scale.shape[-1]].astype(kind)
    elif data.dtype not in (ml_dtypes.int4, ml_dtypes.uint4):
        return None
    axis = of["quantize_axis"] % data.ndim
    blocks = tuple(size // block if at == axis else size for at, size in enumerate(data.shape))
    fits = data.shape[axis] % block == 0 and scale.shape == blocks
    return (data, scale, zeros) if fits and (zeros is None or zeros.shape == blocks) else None


def _lookup(
    context: RepairContext,
    node: onnx.NodeProto,
    table: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None],
) -> Change:
    integers, scale, zeros = table
    of, error = {"gather_axis": 0, "quantize_axis": 1, **_attributes(node)}, 0.0
    axis = of["quantize_axis"] % integers.ndim
    if integers.dtype == np.uint8 and zeros is not None:
        turned = [np.moveaxis(part, axis, 0) for part in (integers, scale, zeros)]
        flat = (part.reshape(len(part), -1) for part in turned)
        signed, steps, error = _signed_block_operator(*flat)
        integers = np.moveaxis(signed.reshape(turned[0].shape), 0, axis)
        scale, zeros = np.moveaxis(steps.reshape(turned[1].shape), 0, axis), None
    block = integers.shape[axis] // scale.shape[axis]
    weight = _add_dequantization(
        context, node.input[0], node.name, (integers, scale, zeros), axis=axis, block=block
    )
    context.edit.remove([node])
    context.edit.node(
        "Gather",
        [weight, node.input[1]],
        [node.output[0]],
        name=f"{node.name}_Gather",
        axis=of["gather_axis"],
    )
    return Change(
        subject=node.name,
        what=f"{_TABLE} became DequantizeLinear and Gather, with "
        + ("wider steps for zero point 0" if error else "the same integers and scales"),
        reason=f"TensorRT does not import {_TABLE}",
        error=error,
    )


def _attributes(node: onnx.NodeProto) -> dict[str, int]:
    attributes = {attribute.name: int(attribute.i) for attribute in node.attribute}
    return {"bits": 4, **attributes}


def _unpack_weight(context: RepairContext, node: onnx.NodeProto) -> _Unpacked | None:
    """Return integers [K, N], scales and zero points [blocks, N], and the order of rows; None if this form is impossible."""
    edit, of = context.edit, _attributes(node)
    bits, block, rows, columns = (of.get(name, 0) for name in ("bits", "block_size", "K", "N"))
    packed, scale = edit.value(node.input[1]), edit.value(at(node.input, _SCALE))
    kind = _TYPES.get(bits)
    if packed is None or scale is None or kind is None or packed.dtype != np.uint8:
        return None
    if min(block, rows, columns) <= 0 or rows % block:
        return None
    count = rows // block
    if packed.size != columns * count * block * bits // 8 or scale.size != columns * count:
        return None
    groups = edit.value(at(node.input, _ORDER)) if at(node.input, _ORDER) else np.arange(rows) // block
    order = _order(groups, rows, block)
    if order is None:
        return None
    integers = _bits(packed.reshape(columns, -1), bits).T[order]
    zeros = np.full((count, columns), 1 << (bits - 1), np.uint8)
    if at(node.input, _ZERO):
        zero_points = edit.value(at(node.input, _ZERO))
        if (
            zero_points is None
            or zero_points.dtype != np.uint8
            or zero_points.size != columns * -(-count * bits // 8)
        ):
            return None
        zeros = _bits(zero_points.reshape(columns, -1), bits)[:, :count].T
    return (
        np.ascontiguousarray(integers.astype(kind)),
        np.ascontiguousarray(scale.reshape(columns, count).T),
        np.ascontiguousarray(zeros.astype(kind)),
        None if np.array_equal(order, np.arange(rows)) else order,
    )


def _signed_block_operator(
    integers: NDArray[Any], scale: NDArray[Any], zeros: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Return INT8 with zero point 0, positive scales, and the largest error relative to the largest integer.

    Exact if the shifted integers fit. A negative scale can turn the farthest value of a symmetric block into 128; it
    becomes 127, because wider steps would cost more accuracy. Blocks that do not fit for other reasons get wider
    steps.
    """
    scale, turned = np.abs(scale), np.where(scale < 0, -1.0, 1.0)
    block = integers.shape[0] // scale.shape[0]
    steps = integers.astype(np.float64) - np.repeat(zeros.astype(np.float64), block, axis=0)
    steps *= np.repeat(turned, block, axis=0)
    blocked = steps.reshape(*scale.shape[:1], block, scale.shape[1])
    low, high = blocked.min(axis=1) / INT8.qmin, blocked.max(axis=1)
    stretch = np.maximum(1.0, np.maximum(low, np.where(high > INT8.qmax + 1, high / INT8.qmax, 0.0)))
    shrunk = np.clip(np.rint(blocked / stretch[:, None]), INT8.qmin, INT8.qmax)
    error = np.abs(shrunk * stretch[:, None] - blocked).max(initial=0) / max(np.abs(steps).max(initial=0), 1)
    return shrunk.reshape(steps.shape).astype(np.int8), (scale * stretch).astype(scale.dtype), float(error)


def _bits(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Unpack integers that are packed along the last axis, low bits first."""
    if bits == 8:
        return packed
    both: NDArray[np.uint8] = np.stack([packed & 15, packed >> 4], axis=-1)
    return both.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def _write(
    context: RepairContext,
    node: onnx.NodeProto,
    weight: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None],
    order: NDArray[Any] | None,
) -> None:
    edit, stem, name = context.edit, node.input[1], node.name
    block = weight[0].shape[0] // weight[1].shape[0]
    stored = _add_dequantization(context, stem, name, weight, axis=0, block=block)
    source, bias = node.input[0], at(node.input, _BIAS)
    if order is not None:
        places = edit.constant(f"{stem}_order", order.astype(np.int64))
        unsorted, source = source, edit.fresh(f"{name}_sorted")
        edit.node("Gather", [unsorted, places], [source], name=f"{name}_Gather", axis=-1)
    result = edit.fresh(f"{node.output[0]}_product") if bias else node.output[0]
    edit.remove([node])
    edit.node("MatMul", [source, stored], [result], name=f"{name}_MatMul")
    if bias:
        edit.node("Add", [result, bias], [node.output[0]], name=f"{name}_Add")


def _add_dequantization(
    context: RepairContext,
    stem: str,
    name: str,
    weight: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None],
    *,
    axis: int,
    block: int,
) -> str:
    """Add a DequantizeLinear with these integers, scales and zero points; return its result."""
    edit, (integers, scale, zeros) = context.edit, weight
    inputs = [edit.constant(f"{stem}_unpacked", integers), edit.constant(f"{stem}_scale", scale)]
    if zeros is not None:
        inputs.append(edit.constant(f"{stem}_zero_point", zeros))
    result = edit.fresh(f"{stem}_dequantized")
    edit.node(
        "DequantizeLinear", inputs, [result], name=f"{name}_DequantizeLinear", axis=axis, block_size=block
    )
    return result


PLUGIN = {
    "four_bits": Rule(
        code="QDQ109",
        formats=frozenset({"int4"}),
        severity=Severity.ERROR,
        stage=Stage.LEGAL,
        after=("dynamic",),
        check=check_four_bits,
        fix=fix_four_bits,
    ),
    "block_operator": Rule(
        code="QDQ190",
        formats=frozenset({"int4", "int8"}),
        severity=Severity.ERROR,
        stage=Stage.WRITE_OUT,
        after=("own_spelling",),
        check=check_block_operator,
        fix=fix_block_operator,
    ),
}
