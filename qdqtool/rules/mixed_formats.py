"""The two factors of a product are quantized in different number formats.

    x ─ Q (INT8) ─ DQ ─┐                       x ─ Q (FP8) ─ DQ ─┐
                        MatMul   no build                          MatMul   FP8
    w (FP8) ─ DQ ──────┘                       w (FP8) ─ DQ ─────┘

A kernel multiplies two factors of one format. Different formats in different layers are fine: what lies between them
changes the format at no cost.

Evidence: RTX 1.7.1: INT8 with FP8 either way, FP8 with INT4, and a Conv of INT8 and INT4 end with `Input and filter have
to be the same type`; INT4 weights with one scale or one per channel beside an INT8 activation are widened to INT8 by a
kernel of their own; INT4 blocks beside INT8 build, and the result is multiplied by a constant of as many scales as there
are blocks and columns together, which fits no output; anything with FP4, and what could not be multiplied in its own
format either (scales along another axis), is multiplied in float.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.quant_format import INT4, INT8, NAMES, NVFP4
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import Product, State, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import MATRIX_PRODUCTS

_REFUSED = "the build fails: both factors must be of the same type"
_WRONG = "the engine builds and multiplies its result by scales of other columns"


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products with factors in two formats that TensorRT knows."""
    for product in products(flow, target):
        formats = [factor.format for factor in product.factors]
        known = set(formats) <= {*NAMES.values(), "mxfp8"}
        if not product.mixed or not known or _is_int4_activation(product):
            continue
        effect, severity, realised = _outcome(product, target)
        yield Violation(
            node=product.node.name,
            reason=f"one factor is {formats[0]}, the other {formats[1]}",
            effect=effect,
            fix=_fix(product),
            severity=severity,
            products=(product.node.name,),
            realised=realised,
        )


def _outcome(product: Product, target: Target) -> tuple[str, Severity, str]:
    formats = {factor.format for factor in product.factors}
    if not target.is_rtx:
        return _REFUSED, Severity.ERROR, "float"
    if NVFP4.name in formats or not {factor.state for factor in product.factors} <= {
        State.READY,
        State.BLOCKS,
    }:
        return f"{product.node.op} runs in float", Severity.WARNING, "float"
    if formats == {INT8.name, INT4.name} and product.node.op in MATRIX_PRODUCTS:
        small = next(factor for factor in product.factors if factor.format == INT4.name)
        blocks = small.quantization is not None and small.quantization.block is not None
        if blocks:
            return _WRONG, Severity.ERROR, INT8.name
        return (
            "a kernel of its own widens the weights to INT8 in every inference",
            Severity.WARNING,
            INT8.name,
        )
    return _REFUSED, Severity.ERROR, "float"


def _fix(product: Product) -> str:
    activation = next((factor.format for factor in product.factors if not factor.fixed), "float")
    if any(factor.format == INT4.name and factor.fixed for factor in product.factors):
        return "leave the activation float, or make the weights INT8; `qdqtool repair` does the second"
    command = repairing(to_float=[product.node.name])
    return f"quantize the weights to {activation} too, or leave both float; {command} does the second"


def _is_int4_activation(product: Product) -> bool:
    """Whether an INT4 activation is widened to INT8, of which the rule four_bits speaks."""
    return any(
        factor.format == INT4.name and factor.pair is not None and factor.pair.kind is SlotKind.ACTIVATION
        for factor in product.factors
    )


PLUGIN = Rule(code="QDQ182", severity=Severity.ERROR, check=check)
