"""Products with 4-bit or 8-bit weights in an operator of onnxruntime.

    x ─ com.microsoft.MatMulNBits (packed weights)        refused
    w (INT4) ─ DQ (blocks) ─ MatMul                       one kernel that reads INT4

onnxruntime packs weights in blocks along the summed axis into MatMulNBits, and into GatherBlockQuantized for embeddings.
The fix unpacks the integers into a DequantizeLinear with block scales in front of a MatMul, which computes the same.
Weights in 4 bits stay INT4 where their zero points allow it (see QDQ109); those in 8 bits have block scales too, which
TensorRT dequantizes before the kernel (QDQ110).

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE. Layout: documentation of the contrib operator MatMulNBits:
weights [N, blocks, bytes], low bits first, K padded to whole blocks; zero points packed alike, 2^(bits-1) without.
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
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import PACKED_WEIGHTS

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_OP: Final = "MatMulNBits"
_TYPES: Final = {4: np.dtype(ml_dtypes.uint4), 8: np.dtype(np.uint8)}
_SCALE, _ZERO, _ORDER, _BIAS = 2, 3, 4, 5
"""Input numbers of scales, zero points, the order of act-order weights, and a bias."""


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Nodes of these operators."""
    for node in flow.view.nodes:
        if node.op == _OP:
            bits = int(node.attribute("bits", 4))
            way = "write it as DequantizeLinear and MatMul"
            if not _is_ordered(flow.view, node):
                way = "quantize without act-order (desc_act=False): blocks of DequantizeLinear hold neighbours, not what g_idx names"
            yield Violation(
                node=node.name,
                reason=f"{node.op} holds weights of {bits} bits packed for onnxruntime",
                effect="the parser knows no such operator",
                fix=way + ("; `qdqtool repair` does" if _is_plain(flow.view, node) else ""),
            )
        elif node.op in PACKED_WEIGHTS:
            yield Violation(
                node=node.name,
                reason=f"{node.op} holds weights packed for onnxruntime",
                effect="the parser knows no such operator",
                fix="quantize these weights as Q/DQ (onnxruntime: quant_format=QuantFormat.QDQ)",
            )


def _is_plain(view: GraphView, node: Node) -> bool:
    """Whether its weights are constants in whole blocks, in their own order."""
    block, rows = int(node.attribute("block_size", 0)), int(node.attribute("K", 0))
    given = [name for name in node.inputs[1:_ORDER] if name]
    known = int(node.attribute("bits", 4)) in _TYPES
    return (
        known
        and block > 0
        and rows % block == 0
        and _is_ordered(view, node)
        and all(map(view.is_constant, given))
    )


def _is_ordered(view: GraphView, node: Node) -> bool:
    """Whether each block holds neighbours of the summed axis, as it does without act-order."""
    order = node.inputs[_ORDER] if len(node.inputs) > _ORDER else ""
    return not order or _counts_up(view.constant(order), int(node.attribute("block_size", 0)))


def _counts_up(order: NDArray[Any] | None, block: int) -> bool:
    return (
        order is not None and block > 0 and np.array_equal(order.reshape(-1), np.arange(order.size) // block)
    )


def fix(context: RepairContext) -> Iterator[Change]:
    """Write every MatMulNBits with constant weights as DequantizeLinear and MatMul."""
    if not any(node.op == _OP for node in context.view.nodes):
        return
    context.require_opset(INT4.opset)
    for node in list(context.edit.nodes):
        if node.op_type == _OP and (unpacked := _unpacked(context, node)) is not None:
            integers, scale, zeros = unpacked
            error = 0.0
            if integers.dtype == np.uint8:
                integers, scale, error = _signed(integers, scale, zeros)
                _write(context, node, integers, scale, None)
            else:
                _write(context, node, integers, scale, zeros)
            yield Change(
                subject=node.name,
                what=f"{_OP} became DequantizeLinear and MatMul, with "
                + ("wider steps for zero point 0" if error else "the same integers and scales"),
                reason=f"TensorRT does not import {_OP}",
                error=error,
            )


def _attributes(node: onnx.NodeProto) -> dict[str, int]:
    given = {attribute.name: int(attribute.i) for attribute in node.attribute}
    return {"bits": 4, **given}


def _input(node: onnx.NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _unpacked(
    context: RepairContext, node: onnx.NodeProto
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None:
    """Integers [K, N], scales and zero points [blocks, N]; None where this form cannot hold them."""
    edit, of = context.edit, _attributes(node)
    bits, block, rows, columns = (of.get(name, 0) for name in ("bits", "block_size", "K", "N"))
    packed, scale = edit.value(node.input[1]), edit.value(_input(node, _SCALE))
    kind = _TYPES.get(bits)
    if packed is None or scale is None or kind is None or block <= 0 or rows % block:
        return None
    if _input(node, _ORDER) and not _counts_up(edit.value(_input(node, _ORDER)), block):
        return None
    count = rows // block
    if packed.size != columns * count * block * bits // 8 or scale.size != columns * count:
        return None
    integers = _bits(packed.reshape(columns, -1), bits).T
    zeros = np.full((count, columns), 1 << (bits - 1), np.uint8)
    if _input(node, _ZERO):
        given = edit.value(_input(node, _ZERO))
        if given is None or given.dtype != np.uint8:
            return None
        zeros = _bits(given.reshape(columns, -1), bits)[:, :count].T
    return (
        np.ascontiguousarray(integers.astype(kind)),
        np.ascontiguousarray(scale.reshape(columns, count).T),
        np.ascontiguousarray(zeros.astype(kind)),
    )


def _signed(
    integers: NDArray[Any], scale: NDArray[Any], zeros: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], float]:
    """INT8 with zero point 0, and the largest error as a share of the largest step.

    Exact where the shifted integers fit; else blocks that do not get wider steps.
    """
    block = integers.shape[0] // scale.shape[0]
    steps = integers.astype(np.float64) - np.repeat(zeros.astype(np.float64), block, axis=0)
    blocked = steps.reshape(*scale.shape[:1], block, scale.shape[1])
    limits = np.where(blocked < 0, -INT8.qmin, INT8.qmax)
    stretch = np.maximum(1.0, (np.abs(blocked) / limits).max(axis=1))
    shrunk = np.rint(blocked / stretch[:, None])
    error = np.abs(shrunk * stretch[:, None] - blocked).max(initial=0) / max(np.abs(steps).max(initial=0), 1)
    return shrunk.reshape(steps.shape).astype(np.int8), (scale * stretch).astype(scale.dtype), float(error)


def _bits(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The integers of packed rows, low bits first."""
    if bits == 8:
        return packed
    both: NDArray[np.uint8] = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    return both


def _write(
    context: RepairContext,
    node: onnx.NodeProto,
    integers: NDArray[Any],
    scale: NDArray[Any],
    zeros: NDArray[Any] | None,
) -> None:
    edit, stem = context.edit, node.input[1]
    block = integers.shape[0] // scale.shape[0]
    inputs = [edit.constant(f"{stem}_unpacked", integers), edit.constant(f"{stem}_scale", scale)]
    if zeros is not None:
        inputs.append(edit.constant(f"{stem}_zero_point", zeros))
    weight, bias = edit.fresh(f"{stem}_dequantized"), _input(node, _BIAS)
    edit.node(
        "DequantizeLinear", inputs, [weight], name=f"{node.name}_DequantizeLinear", axis=0, block_size=block
    )
    result = edit.fresh(f"{node.output[0]}_product") if bias else node.output[0]
    name = node.name
    edit.remove([node])
    edit.node("MatMul", [node.input[0], weight], [result], name=f"{name}_MatMul")
    if bias:
        edit.node("Add", [result, bias], [node.output[0]], name=f"{name}_Add")


PLUGIN = Rule(
    code="QDQ190",
    severity=Severity.ERROR,
    stage=Stage.WRITE_OUT,
    after=("own_spelling",),
    check=check,
    fix=fix,
)
