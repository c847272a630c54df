"""FP4 values that are not blocks of 16 along the summed axis with scales of two levels.

    scales (float) ─────────────── DQ (w FP4) ─ MatMul      float
    scales (FP8) ─ DQ (global) ─── DQ (w FP4) ─ MatMul      FP4

FP4 kernels read FP8 scales, one per 16 values that are summed, and one float scale for all of them. With float scales,
one scale for the tensor, a single block per row, or blocks along another axis the product is float. Blocks of 32 are taken
for blocks of 16, and a weight [K, 16] of a MatMul in blocks along its columns for one in blocks along K.

Evidence: RTX 1.7.1 for SM120: each form beside one that is an FP4 `gemm`; `Only block_size == 16 is supported for now` and
`input tensor must be 2D or 3D` for TRT_FP4DynamicQuantize; static blocks of 32 build with half the scales of the gemm;
[64, 16] with scales [64, 1] builds with 64 scales per column where [32, 1] and more are float. Summed values 16: the
weights are dequantized before the kernel, 32 are FP4; a factor with one scale in all: `ScaleMode is illegal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import NVFP4
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.operands import Factor, Product, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import FP4_DYNAMIC, summed_axis

_FORM = "FP8 scales of blocks of 16 along the summed axis, behind one float scale"
_RANKS = (2, 3)
_BLOCK = NVFP4.blocks[0]
_TWO_BLOCKS = "keep it float: 32 summed values and more make at least two blocks"


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Quantizers that the parser refuses, and products whose FP4 factors are in another form."""
    for node in flow.view.nodes:
        reason = _refusal(flow, node) if node.op == FP4_DYNAMIC else ""
        if reason:
            yield Violation(
                node=node.name,
                reason=reason,
                effect="the parser refuses it",
                fix=f"use blocks of 16 on tensors of 2 or 3 dimensions (Reshape around the product); {_leave_float(node)}",
                severity=Severity.ERROR,
            )
    for product in products(flow, target):
        if product.arithmetic == NVFP4.name:
            yield from _flaws(flow, product, target)


def _leave_float(node: Node) -> str:
    return f"{repairing(to_float=[node.name])} takes the Q/DQ off"


def _refusal(flow: Flow, node: Node) -> str:
    rank = len(flow.view.info(node.inputs[0]).shape or ())
    block = node.integer("block_size", _BLOCK)
    if block != _BLOCK:
        return f"it makes blocks of {block}"
    return f"its input has {rank} dimensions" if rank and rank not in _RANKS else ""


def _flaws(flow: Flow, product: Product, target: Target) -> Iterator[Violation]:
    node = product.node
    if not target.is_rtx:
        yield from _misread(flow, product)
        return
    single = [factor for factor in product.factors if _scales(flow, node, factor) == 1]
    if single:
        yield Violation(
            node=node.name,
            reason=f"its input {single[0].index} is a single block of {_BLOCK} values, with one scale",
            effect="the parser refuses it",
            fix=f"{_TWO_BLOCKS}; {_leave_float(node)}",
            severity=Severity.ERROR,
        )
        return
    misread = tuple(_misread(flow, product))
    yield from misread
    if misread:
        return
    for factor in product.factors:
        flaw = _flaw(flow, node, factor)
        if flaw is not None:
            yield Violation(
                node=node.name,
                reason=flaw[0],
                effect=f"{node.op} runs in float",
                fix=f"{flaw[1]}; {_leave_float(node)}",
                products=(node.name,),
            )
            return


def _misread(flow: Flow, product: Product) -> Iterator[Violation]:
    """Scales that the kernel takes for those of other blocks."""
    node = product.node
    for factor in product.factors:
        block = None if factor.quantization is None else factor.quantization.block
        whose = f"blocks of {block}" if block not in {None, _BLOCK} else ""
        if not whose and _is_column_block(flow, node, factor):
            whose = f"blocks along axis {flow.channel_axis(node, factor.index)}, with one per row"
        if whose:
            yield Violation(
                node=node.name,
                reason=f"the scales of its input {factor.index} are those of {whose}",
                effect=f"the engine is built as if blocks were of {_BLOCK} along the sum, and values meet scales of others",
                fix=f"{_FORM}; {_leave_float(node)}",
                severity=Severity.ERROR,
            )


def _is_column_block(flow: Flow, node: Node, factor: Factor) -> bool:
    """Whether a weight [K, 16] is in blocks along its columns, which the kernel does not tell from blocks along K."""
    shape = _shape(flow, node, factor)
    axis = flow.channel_axis(node, factor.index)
    if not factor.fixed or axis is None or axis != len(shape) - 1 or shape[axis] != _BLOCK:
        return False
    return axis != summed_axis(node, factor.index, len(shape))


def _flaw(flow: Flow, node: Node, factor: Factor) -> tuple[str, str] | None:
    """Why a kernel cannot read an FP4 factor, and what to do."""
    pair, quantization = factor.pair, factor.quantization
    if pair is not None and quantization is None:
        one_level = pair.scale_shape is not None or pair.dtype is not DType.FLOAT4
        return (f"the scales of its input {factor.index} have one level", _FORM) if one_level else None
    shape = _shape(flow, node, factor)
    axis = flow.channel_axis(node, factor.index)
    wanted = summed_axis(node, factor.index, len(shape)) if shape else None
    if axis is None or wanted is None:
        return None
    if axis != wanted:
        return (
            f"the blocks of its input {factor.index} go along axis {axis}, the sum along axis {wanted}",
            _FORM,
        )
    if shape[axis] == _BLOCK:
        return f"its sum of {_BLOCK} values is a single block", _TWO_BLOCKS
    return None


def _shape(flow: Flow, node: Node, factor: Factor) -> tuple[int | str, ...]:
    """The shape of a factor, as the Q/DQ graph or the float one knows it; () where neither does."""
    written = flow.view.info(node.inputs[factor.index]).shape
    return written or flow.plain.info(flow.plain.by_name[node.name].inputs[factor.index]).shape or ()


def _scales(flow: Flow, node: Node, factor: Factor) -> int | None:
    """How many block scales a factor has; None where sizes are open or it has no blocks."""
    shape = _shape(flow, node, factor)
    sizes = [size for size in shape if isinstance(size, int)]
    if factor.quantization is None or factor.quantization.block != _BLOCK or len(sizes) != len(shape):
        return None
    return prod(sizes) // _BLOCK


PLUGIN = Rule(code="QDQ185", formats=frozenset({"nvfp4"}), severity=Severity.WARNING, check=check)
