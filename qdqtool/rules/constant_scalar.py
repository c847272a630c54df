"""A quantized constant of rank 0.

    50 (INT8, shape []) ─ DQ ─ Mul      refused
    0.5 (float) ─────────────── Mul      fine

The builder recognises quantized weights in front of DequantizeLinear, but not scalars.

Evidence: RTX 1.7.1: `Quantized constant (X) is only allowed before DQ or PLUGIN_V2` for a scalar INT8 constant
(scalar_const_q); the same constant as [1,1,1,1] builds.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import stored_again


def match(flow: Flow) -> Iterator[QdqPair]:
    """Pairs of constants of rank 0."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and flow.view.constant_shape(pair.tensor) == ():
            yield pair


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Those stored as integers, behind which only a DequantizeLinear stands."""
    for pair in match(flow):
        if pair.quantize is None:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"the constant {pair.tensor} is a scalar stored as integers",
                effect="the builder refuses it: Quantized constant is only allowed before DQ",
                fix="store the scalar as a float constant without Q/DQ; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Store single numbers in float."""
    return stored_again(context, match(context.flow), lambda _: "TensorRT cannot quantize a single number")


PLUGIN = Rule(
    code="QDQ106", severity=Severity.ERROR, stage=Stage.LEGAL, after=("cast",), check=check, fix=fix
)
