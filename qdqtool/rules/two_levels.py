"""FP4 values that are not blocks of 16 along the summed axis with scales of two levels.

    scales (float) ─────────────── DQ (w FP4) ─ MatMul      float
    scales (FP8) ─ DQ (global) ─── DQ (w FP4) ─ MatMul      FP4

FP4 kernels read FP8 scales, one per 16 values that are summed, and one float scale for all of them. With float scales,
one scale for the tensor, or blocks along another axis the product is float. Blocks of 32 are taken for blocks of 16.

Evidence: RTX 1.7.1 for SM120: each form beside one that is an FP4 `gemm`; `Only block_size == 16 is supported for now` and
`input tensor must be 2D or 3D` for TRT_FP4DynamicQuantize; static blocks of 32 build with half the scales of the gemm.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import NVFP4
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.operands import Factor, Product, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import FP4_DYNAMIC, summed_axis

_FORM = "FP8 scales of blocks of 16 along the summed axis, behind one float scale"
_RANKS = (2, 3)
_BLOCK = 16


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Quantizers that the parser refuses, and products whose FP4 factors are in another form."""
    for node in flow.view.nodes:
        reason = _refusal(flow, node) if node.op == FP4_DYNAMIC else ""
        if reason:
            yield Violation(
                node=node.name,
                reason=reason,
                effect="the parser refuses it",
                fix="use blocks of 16 on tensors of 2 or 3 dimensions (Reshape around the product)",
                severity=Severity.ERROR,
            )
    for product in products(flow, target):
        if product.arithmetic == NVFP4.name:
            yield from _flaws(flow, product, target)


def _refusal(flow: Flow, node: Node) -> str:
    rank = len(flow.view.info(node.inputs[0]).shape or ())
    block = int(node.attribute("block_size", _BLOCK))
    if block != _BLOCK:
        return f"it makes blocks of {block}"
    return f"its input has {rank} dimensions" if rank and rank not in _RANKS else ""


def _flaws(flow: Flow, product: Product, target: Target) -> Iterator[Violation]:
    node = product.node
    flaws = [_flaw(flow, node, factor) for factor in product.factors]
    found = next(filter(None, flaws), None)
    if found is not None:
        if target.is_rtx:
            yield Violation(
                node=node.name,
                reason=found,
                effect=f"{node.op} runs in float",
                fix=_FORM,
                products=(node.name,),
            )
        return
    for factor in product.factors:
        block = None if factor.quantization is None else factor.quantization.block
        if block not in {None, _BLOCK}:
            yield Violation(
                node=node.name,
                reason=f"the scales of its input {factor.index} are those of blocks of {block}",
                effect="the engine is built as if blocks were of 16, and values meet scales of others",
                fix=_FORM,
                severity=Severity.ERROR,
            )


def _flaw(flow: Flow, node: Node, factor: Factor) -> str | None:
    """Why a kernel cannot read an FP4 factor."""
    pair, quantization = factor.pair, factor.quantization
    if pair is not None and quantization is None:
        return (
            f"the scales of its input {factor.index} have one level"
            if pair.scale_shape is not None or pair.dtype is not DType.FLOAT4
            else None
        )
    rank = len(flow.view.info(node.inputs[factor.index]).shape or ()) or len(
        flow.plain.info(flow.plain.by_name[node.name].inputs[factor.index]).shape or ()
    )
    axis = flow.channel_axis(node, factor.index)
    wanted = summed_axis(node, factor.index, rank) if rank else None
    if None in {axis, wanted} or axis == wanted:
        return None
    return f"the blocks of its input {factor.index} go along axis {axis}, the sum along axis {wanted}"


PLUGIN = Rule(code="QDQ185", severity=Severity.WARNING, check=check)
