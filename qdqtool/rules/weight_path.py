"""Something stands between the weights' DequantizeLinear and the layer.

    w ─ Q ─ DQ ─ Transpose ─ MatMul      float
    w transposed ─ Q ─ DQ ─ MatMul       INT8

Classic TensorRT fuses DequantizeLinear with the layer only where it feeds it directly; behind a Transpose, a Reshape
or a Cast the weights are dequantized at run time and the layer is float. TensorRT for RTX looks through.

Evidence: NVIDIA/TensorRT issue 1604; RTX 1.7.1 builds an INT8 product behind a Transpose (weight_transposed).
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
from qdqtool.graph.view import Node
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.rule import CLASSIC, Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, stored_again
from qdqtool.trt.ops import CASTS

_HINDERING = CASTS | {"Pad"}
"""What TensorRT for RTX does not look through on a weight, and Pad with another value than 0 nowhere."""


def match(flow: Flow) -> Iterator[tuple[Node, Node, QdqPair]]:
    """Products that read quantized weights through another operator, the nearest one, and the pair of the weights."""
    for node in flow.products():
        for index in (0, 1):
            pair = flow.origin(node, index)
            between = flow.view.producer(node.inputs[index])
            if pair is None or between is None or pair.kind is not SlotKind.WEIGHT:
                continue
            if between.name != pair.dequantize:
                yield node, between, pair


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for node, between, _ in match(flow):
        yield Violation(
            node=node.name,
            reason=f"{between.op} {between.name} stands between the DequantizeLinear and its weights",
            effect=f"the weights are dequantized at run time and {node.op} runs in float",
            fix=f"apply the {between.op} to the stored weights, so that DequantizeLinear feeds the layer; `qdqtool repair` does",
            products=(node.name,),
        )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """An operator between DequantizeLinear and the node: Cast and Pad hinder, others only some classic releases."""
    for operand in evidence.operands:
        moves = evidence.moves(operand)
        hindering = sorted(move for move in moves if not evidence.rtx or move in _HINDERING)
        if hindering:
            hinders = (
                "" if _HINDERING & set(hindering) else ", which keeps some TensorRT releases from fusing"
            )
            yield Explanation(
                reason=f"{' and '.join(hindering)} between DequantizeLinear and input {operand.index}{hinders}",
                fix="move Q/DQ behind it, so that DequantizeLinear feeds this node directly"
                + ("; `qdqtool repair` does" if _is_repaired(evidence, moves, fixed=operand.fixed) else ""),
                of_builder=True,
            )


def _is_repaired(evidence: NodeEvidence, moves: frozenset[str], *, fixed: bool) -> bool:
    """Whether `fix` finds it: stored weights behind operators that only move them."""
    return fixed and not evidence.decisions and not _HINDERING & moves


def fix(context: RepairContext) -> Iterator[Change]:
    """Apply what stands between a weight and its reader to the stored values."""
    return stored_again(context, (pair for _, _, pair in match(context.flow)), _behind_moves)


def _behind_moves(weight: StoredWeight) -> str:
    if weight.reader is None or not weight.moves:
        return ""
    names = ", ".join(move.op for move in weight.moves)
    return f"{names} between DequantizeLinear and {weight.reader.op} keeps it in float"


PLUGIN = Rule(
    code="QDQ124",
    severity=Severity.WARNING,
    targets=CLASSIC,
    stage=Stage.LEGAL,
    after=("cast",),
    check=check,
    fix=fix,
    explain=explain,
)
