"""Products with 4-bit or 8-bit weights in an operator of onnxruntime.

    x ─ com.microsoft.MatMulNBits (packed weights)        refused
    w (INT4) ─ DQ (blocks) ─ MatMul                       one kernel that reads INT4
    com.microsoft.GatherBlockQuantized (packed table)     refused
    table (INT4) ─ DQ (blocks) ─ Gather                   one kernel that reads INT4

onnxruntime packs weights in blocks along the summed axis into MatMulNBits, and into GatherBlockQuantized for embeddings.
The fix unpacks the integers into a DequantizeLinear with block scales in front of a MatMul, which computes the same.
Weights in 4 bits stay INT4 where their zero points allow it (see QDQ109); those in 8 bits have block scales too, which
TensorRT dequantizes before the kernel (QDQ110).

With act-order (g_idx) a block holds rows from all over the summed axis. Where every block has as many rows as the others,
rows and columns are sorted: a Gather sorts the input, which computes the same. Other orders have no form in Q/DQ.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE. Layout: documentation of the contrib operators. MatMulNBits:
weights [N, blocks, bytes], low bits first, K padded to whole blocks; zero points packed alike, 2^(bits-1) without.
GatherBlockQuantized: INT4, UINT4, or UINT8 that holds two or one of them along the last axis; zero points 0 without, for
UINT8 2^(bits-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import INT4, INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import PACKED_WEIGHTS

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    _Unpacked = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any] | None]

_OP: Final = "MatMulNBits"
_TABLE: Final = "GatherBlockQuantized"
_TYPES: Final = {4: np.dtype(ml_dtypes.uint4), 8: np.dtype(np.uint8)}
_SCALE, _ZERO, _ORDER, _BIAS = 2, 3, 4, 5
"""Input numbers of scales, zero points, the order of act-order weights, and a bias."""


def match(view: GraphView) -> Iterator[Node]:
    """Nodes of these operators."""
    return (node for node in view.nodes if node.op in PACKED_WEIGHTS)


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    view = flow.view
    for node in match(view):
        if node.op == _OP:
            bits = node.integer("bits", 4)
            way = "write it as DequantizeLinear and MatMul"
            if not _has_even_blocks(view, node):
                way = (
                    "quantize without act-order (desc_act=False): its g_idx gives blocks of different lengths, and those of "
                    "DequantizeLinear are equal"
                )
            yield Violation(
                node=node.name,
                reason=f"{node.op} holds weights of {bits} bits packed for onnxruntime",
                effect="the parser knows no such operator",
                fix=way + ("; `qdqtool repair` does" if _is_plain(view, node) else ""),
            )
        else:
            way = "quantize these weights as Q/DQ (onnxruntime: quant_format=QuantFormat.QDQ)"
            if node.op == _TABLE and all(
                map(view.is_constant, filter(None, (node.inputs[0], *node.inputs[2:])))
            ):
                way = "write it as DequantizeLinear and Gather; `qdqtool repair` does where blocks divide the axis"
            yield Violation(
                node=node.name,
                reason=f"{node.op} holds weights packed for onnxruntime",
                effect="the parser knows no such operator",
                fix=way,
            )


def _is_plain(view: GraphView, node: Node) -> bool:
    """Whether its weights are constants in whole blocks, in an order that can be written."""
    block, rows = node.integer("block_size", 0), node.integer("K", 0)
    given = [name for name in node.inputs[1:_ORDER] if name]
    known = node.integer("bits", 4) in _TYPES
    return (
        known
        and block > 0
        and rows % block == 0
        and _has_even_blocks(view, node)
        and all(map(view.is_constant, given))
    )


def _has_even_blocks(view: GraphView, node: Node) -> bool:
    """Whether every block has as many rows as the others."""
    name = node.inputs[_ORDER] if len(node.inputs) > _ORDER else ""
    rows, block = node.integer("K", 0), node.integer("block_size", 0)
    return not name or _order(view.constant(name), rows, block) is not None


def _order(groups: NDArray[Any] | None, rows: int, block: int) -> NDArray[Any] | None:
    """The order of rows in which each block holds neighbours; None where blocks have different lengths."""
    if groups is None or block <= 0 or not 0 < rows <= groups.size:
        return None
    groups = groups.reshape(-1)[:rows].astype(np.int64)
    order: NDArray[Any] = np.argsort(groups, kind="stable")
    return order if np.array_equal(groups[order], np.arange(rows) // block) else None


def fix(context: RepairContext) -> Iterator[Change]:
    """Write every such operator with constant weights as DequantizeLinear and MatMul or Gather."""
    if not any(node.op in {_OP, _TABLE} for node in match(context.view)):
        return
    context.require_opset(INT4.opset)
    for found in match(context.view):
        node = context.nodes[found.name]
        if node.op_type == _OP and (unpacked := _unpacked(context, node)) is not None:
            yield _product(context, node, unpacked)
        elif node.op_type == _TABLE and (table := _table(context, node)) is not None:
            yield _lookup(context, node, table)


def _product(context: RepairContext, node: onnx.NodeProto, unpacked: _Unpacked) -> Change:
    integers, scale, zeros, order = unpacked
    error = 0.0
    if integers.dtype == np.uint8:
        integers, scale, error = _signed(integers, scale, zeros)
        _write(context, node, (integers, scale, None), order)
    else:
        _write(context, node, (integers, scale, zeros), order)
    sorted_too = "" if order is None else ", behind a Gather that sorts its input as its blocks are"
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
    """Integers, scales and zero points of a table, in the layout of DequantizeLinear; None where it cannot hold them."""
    edit, of = context.edit, {"block_size": 128, "quantize_axis": 1, **_attributes(node)}
    data, scale = edit.value(node.input[0]), edit.value(_input(node, 2))
    given = edit.value(_input(node, 3)) if _input(node, 3) else None
    if data is None or scale is None or (given is None and _input(node, 3)):
        return None
    bits, block = of["bits"], of["block_size"]
    if block <= 0 or not (data.size and scale.size and 0 < data.ndim == scale.ndim):
        return None
    if data.dtype == np.uint8:
        if bits not in _TYPES or (given is not None and (given.dtype, given.ndim) != (data.dtype, data.ndim)):
            return None
        kind = _TYPES[bits]
        data = _bits(data, bits).astype(kind)
        if given is None:
            given = np.full(scale.shape, 1 << (bits - 1), np.uint8).astype(kind)
        else:
            given = _bits(given, bits)[..., : scale.shape[-1]].astype(kind)
    elif data.dtype not in (ml_dtypes.int4, ml_dtypes.uint4):
        return None
    axis = of["quantize_axis"] % data.ndim
    blocks = tuple(size // block if at == axis else size for at, size in enumerate(data.shape))
    fits = data.shape[axis] % block == 0 and scale.shape == blocks
    return (data, scale, given) if fits and (given is None or given.shape == blocks) else None


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
        signed, steps, error = _signed(*flat)
        integers = np.moveaxis(signed.reshape(turned[0].shape), 0, axis)
        scale, zeros = np.moveaxis(steps.reshape(turned[1].shape), 0, axis), None
    block = integers.shape[axis] // scale.shape[axis]
    weight = _dequantized(context, node.input[0], node.name, (integers, scale, zeros), axis=axis, block=block)
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
    given = {attribute.name: int(attribute.i) for attribute in node.attribute}
    return {"bits": 4, **given}


def _input(node: onnx.NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _unpacked(context: RepairContext, node: onnx.NodeProto) -> _Unpacked | None:
    """Integers [K, N], scales and zero points [blocks, N], and the order of rows; None where this form cannot hold them."""
    edit, of = context.edit, _attributes(node)
    bits, block, rows, columns = (of.get(name, 0) for name in ("bits", "block_size", "K", "N"))
    packed, scale = edit.value(node.input[1]), edit.value(_input(node, _SCALE))
    kind = _TYPES.get(bits)
    if packed is None or scale is None or kind is None or packed.dtype != np.uint8:
        return None
    if min(block, rows, columns) <= 0 or rows % block:
        return None
    count = rows // block
    if packed.size != columns * count * block * bits // 8 or scale.size != columns * count:
        return None
    groups = edit.value(_input(node, _ORDER)) if _input(node, _ORDER) else np.arange(rows) // block
    order = _order(groups, rows, block)
    if order is None:
        return None
    integers = _bits(packed.reshape(columns, -1), bits).T[order]
    zeros = np.full((count, columns), 1 << (bits - 1), np.uint8)
    if _input(node, _ZERO):
        given = edit.value(_input(node, _ZERO))
        if given is None or given.dtype != np.uint8 or given.size != columns * -(-count * bits // 8):
            return None
        zeros = _bits(given.reshape(columns, -1), bits)[:, :count].T
    return (
        np.ascontiguousarray(integers.astype(kind)),
        np.ascontiguousarray(scale.reshape(columns, count).T),
        np.ascontiguousarray(zeros.astype(kind)),
        None if np.array_equal(order, np.arange(rows)) else order,
    )


def _signed(
    integers: NDArray[Any], scale: NDArray[Any], zeros: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], float]:
    """INT8 with zero point 0 and positive scales, and the largest error as a share of the largest step.

    Exact where the shifted integers fit. A 128, which a negative scale makes of the farthest value of a symmetric block,
    becomes 127, as wider steps would cost more; blocks that do not fit otherwise get wider steps.
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
    """The integers that are packed along the last axis, low bits first."""
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
    stored = _dequantized(context, stem, name, weight, axis=0, block=block)
    source, bias = node.input[0], _input(node, _BIAS)
    if order is not None:
        places = edit.constant(f"{stem}_order", order.astype(np.int64))
        given, source = source, edit.fresh(f"{name}_sorted")
        edit.node("Gather", [given, places], [source], name=f"{name}_Gather", axis=-1)
    result = edit.fresh(f"{node.output[0]}_product") if bias else node.output[0]
    edit.remove([node])
    edit.node("MatMul", [source, stored], [result], name=f"{name}_MatMul")
    if bias:
        edit.node("Add", [result, bias], [node.output[0]], name=f"{name}_Add")


def _dequantized(
    context: RepairContext,
    stem: str,
    name: str,
    weight: tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None],
    *,
    axis: int,
    block: int,
) -> str:
    """A DequantizeLinear with these integers, scales and zero points; returns its result."""
    edit, (integers, scale, zeros) = context.edit, weight
    inputs = [edit.constant(f"{stem}_unpacked", integers), edit.constant(f"{stem}_scale", scale)]
    if zeros is not None:
        inputs.append(edit.constant(f"{stem}_zero_point", zeros))
    result = edit.fresh(f"{stem}_dequantized")
    edit.node(
        "DequantizeLinear", inputs, [result], name=f"{name}_DequantizeLinear", axis=axis, block_size=block
    )
    return result


PLUGIN = Rule(
    code="QDQ190",
    formats=frozenset({"int4", "int8"}),
    severity=Severity.ERROR,
    stage=Stage.WRITE_OUT,
    after=("own_spelling",),
    check=check,
    fix=fix,
)
