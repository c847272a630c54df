"""Only one of the two factors of a product is quantized.

    x ─ Q ─ DQ ─┐                  x ─ Q ─ DQ ─┐
                 Conv  float                    Conv  INT8
    w ──────────┘                  w ─ Q ─ DQ ─┘

INT8, FP8 and FP4 arithmetic need both. With one of them the product is float, and the Q/DQ that is there still rounds
the values and costs kernels. A matrix product whose weights alone are stored in few bits is no mistake where all are so
(see QDQ184); beside products with INT8 arithmetic it may have been forgotten, and is told as information.

Evidence: RTX 1.7.1: weights bare leaves a fake-quantize kernel (chain_noweight), activation bare adds a kernel that
dequantizes the weights in every inference (chain_noact; folded for MatMul, matmul_w_only), one of two activations
gives `CastMulFc`, a dequantize inside a float product (matmul_one_q, matmul_a_only). A matrix product whose weights
alone are INT8 is what `place.format=int8-weights` asks for: fewer bytes, and float arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.asked import FLOAT, words_of
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.flow import Flow
from qdqtool.matching.half_quantized import half_int8, half_quantized
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import BEFORE
from qdqtool.matching.weights import requantized
from qdqtool.trt.ops import MATRIX_PRODUCTS, weight_axis

WEIGHTS_ALONE = "place.format=int8-weights"
"""The setting that asks for just that."""


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products with one quantized factor and one without any Q/DQ, weight-only matrix products excepted."""
    for product, missing in half_quantized(flow, target):
        node, stored = product.node, product.weights_alone
        what = "its weights have" if missing.fixed else f"its input {missing.index} has"
        fix = f"put Q/DQ on {node.inputs[missing.index]}, or take it off the other input"
        if INT8.name in product.asked:
            samples = "" if missing.fixed else " --samples DATA"
            fix += f"; `qdqtool repair{samples}` does the first"
        inside = stored is not None and node.op in MATRIX_PRODUCTS
        yield Violation(
            node=node.name,
            reason=f"{what} no Q/DQ, the other factor has",
            effect=f"{node.op} runs in float"
            + (" and its weights are dequantized in every inference" if stored and not inside else ""),
            fix=f"nothing to do where {WEIGHTS_ALONE} is meant; else {fix}" if inside else fix,
            severity=Severity.INFO if inside else None,
            products=() if inside else (node.name,),
            realised=f"{product.asked}{BEFORE}" if stored is not None and target.is_rtx else FLOAT,
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Quantize float weights of nodes whose activation is quantized."""
    for node, index in half_int8(context.model):
        told = _quantized(context, node.name, index)
        if told is not None:
            yield told


def _quantized(context: RepairContext, name: str, index: int) -> Change | None:
    """Put INT8 values behind a DequantizeLinear in the place of a float constant; None where there is none."""
    edit, reader = context.edit, context.view.by_name[name]
    node = context.nodes[name]
    tensor = node.input[index]
    value = edit.value(tensor)
    if value is None or value.dtype not in (np.float32, np.float16) or value.ndim < 2 or not value.size:
        return None
    axis = weight_axis(reader, index, value.ndim)
    integers, scale, error = requantized(value.astype(np.float64), axis, half=value.dtype == np.float16)
    inputs = [
        edit.constant(f"{tensor}_int8", integers),
        edit.constant(f"{tensor}_scale", scale.astype(value.dtype)),
        edit.constant(f"{tensor}_zero_point", np.zeros(scale.shape, np.int8)),
    ]
    result = edit.fresh(f"{tensor}_dequantized")
    edit.connect(node, index, result)
    edit.node("DequantizeLinear", inputs, [result], name=f"{tensor}_{name}_DequantizeLinear", axis=axis)
    return Change(
        subject=tensor,
        what=f"float weight of {reader.op} {name!r} quantized per channel",
        reason="a quantized activation without a quantized weight silently runs in float",
        error=error,
    )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """What has no Q/DQ: one of two activations, all of them, or the weight."""
    bare = [operand for operand in evidence.activations if not operand.quantized]
    if 0 < len(bare) < len(evidence.activations):
        yield Explanation(
            reason=f"only one of the matrices it multiplies is quantized; {bare[0].source!r} is float",
            fix=f"put Q/DQ on input {bare[0].index} as well, or take it off both",
        )
    if bare and len(bare) == len(evidence.activations) and not any(map(evidence.concat, bare)):
        sources = " and ".join(repr(operand.source) for operand in bare)
        numbers = " and ".join(str(operand.index) for operand in bare)
        several = len(bare) > 1
        extra = "; its quantized weight is dequantized in every inference" if _is_computed(evidence) else ""
        yield Explanation(
            reason=f"no Q/DQ in front of its activation{'s' * several} {sources}{extra}",
            fix=f"put Q/DQ on input{'s' * several} {numbers}{f': {words_of(evidence)} needs all of them' * several}",
        )
    back = (
        "; its quantized activation is turned back to float" if len(bare) < len(evidence.activations) else ""
    )
    for operand in evidence.weights if evidence.activations else ():
        if not operand.quantized:
            yield Explanation(
                reason=f"no Q/DQ on its weight {operand.source!r}{back}",
                fix=f"put Q/DQ on input {operand.index} as well: {words_of(evidence)} needs both",
            )


def _is_computed(evidence: NodeEvidence) -> bool:
    """Whether the kernel reads a quantized weight from another kernel instead of holding it."""
    weight = len(evidence.activations) == 1 and any(operand.quantized for operand in evidence.weights)
    return weight and any(len(layer.inputs) > 1 for layer in evidence.holders.compute)


PLUGIN = Rule(code="QDQ120", severity=Severity.WARNING, check=check, fix=fix, explain=explain)
