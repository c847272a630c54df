"""Why a node does not run INT8, or what else it was asked for, from evidence.

The evidence is the placement's vetoes and the Q/DQ graph around the node.

Each cause was seen in builds of small graphs with TensorRT for RTX 1.7.1, which the tests repeat. Where no cause applies
the audit says so instead of inventing one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qdqtool.auditing.evidence import NodeEvidence
from qdqtool.auditing.operands import Operand
from qdqtool.auditing.realised import words_of
from qdqtool.core.placement import Stance
from qdqtool.graph.view import Node
from qdqtool.trt.ops import CASTS, RECURRENT, weight_axis

_DQ = "DequantizeLinear"
_HINDERING = CASTS | {"Pad"}
"""What TensorRT for RTX does not look through on a weight, and Pad with another value than 0 nowhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A reason and what to do about it."""

    reason: str
    fix: str


def causes(case: NodeEvidence) -> tuple[Cause, ...]:
    """What the evidence supports: the placement's own refusals, else what the builder never does, else the graph."""
    for finders in ((_vetoed, _unasked), (_never, _transposed, _old_architecture), _SEEN_IN_GRAPH):
        found = tuple(cause for find in finders for cause in find(case))
        if found:
            return found
    return ()


def _vetoed(case: NodeEvidence) -> Iterator[Cause]:
    """Placement refused an input."""
    seen = set()
    for decision in case.decisions:
        for opinion in decision.opinions:
            if opinion.stance is Stance.VETO and (opinion.rule, opinion.reason) not in seen:
                seen.add((opinion.rule, opinion.reason))
                yield Cause(
                    reason=f"placement kept it float: {opinion.reason} (rule {opinion.rule})",
                    fix=opinion.fix or f"nothing to do, unless you skip the rule {opinion.rule}",
                )


def _unasked(case: NodeEvidence) -> Iterator[Cause]:
    """Placement heard no request for an input."""
    quiet = [
        str(decision.slot)
        for decision in case.decisions
        if not decision.quantize and not any(opinion.stance is Stance.VETO for opinion in decision.opinions)
    ]
    if quiet:
        yield Cause(
            reason=f"no placement rule asked for {', '.join(quiet)}",
            fix=f"add {case.node.op} to place.ops in the recipe, or see `qdqtool place` for what each rule said",
        )


def _never(case: NodeEvidence) -> Iterator[Cause]:
    """TensorRT has no INT8 kernel for this operator, with whatever Q/DQ around it."""
    if case.node.op == "Einsum" and not case.rtx:
        yield Cause(
            reason="classic TensorRT quantizes MatMul, not Einsum",
            fix="write it as MatMul with Transpose and Reshape around it (prepare.einsum does, where one MatMul suffices)",
        )
    elif case.node.op in RECURRENT and not case.decisions:
        yield Cause(
            reason=f"TensorRT has no {words_of(case)} kernel for {case.node.op}",
            fix=f"{_bare(case)}; FP16 (`qdqtool convert`) is the fastest it runs in",
        )


def _bare(case: NodeEvidence) -> str:
    """What to do with a node that cannot run INT8."""
    return "take the Q/DQ off its inputs" if _any_quantized(case.operands) else "nothing to do"


def _constants_only(case: NodeEvidence) -> Iterator[Cause]:
    """A product of constants that nobody folded."""
    if not case.activations:
        yield Cause(
            reason="it multiplies constants, the same in every inference, because nobody folded them",
            fix="nothing to do: `prepare` folds what is small enough, and the builder computes the rest once"
            if case.decisions
            else "fold constants before the build: `qdqtool repair` does it",
        )


def _transposed(case: NodeEvidence) -> Iterator[Cause]:
    """RTX has no INT8 kernel for ConvTranspose; classic releases disagree about the axis of its scales."""
    if case.node.op != "ConvTranspose":
        return
    if case.rtx:
        quantized = _any_quantized(case.operands)
        yield Cause(
            reason=f"TensorRT for RTX runs no ConvTranspose in {words_of(case)}"
            + ("; its Q/DQ only adds dequantize kernels" if quantized else ""),
            fix=f"{_bare(case)}: this builder runs it in float"
            + (" (in a recipe place.exclude_ops: [ConvTranspose])" if quantized else ""),
        )
    elif any(operand.axis is not None for operand in case.weights):
        yield Cause(
            reason="its weight has one scale per channel; TensorRT releases disagree about their axis for ConvTranspose",
            fix="quantize the weight of ConvTranspose per tensor",
        )


def _old_architecture(case: NodeEvidence) -> Iterator[Cause]:
    """RTX has no INT8 convolution for SM75."""
    if case.rtx and case.node.op == "Conv" and "sm75" in case.targets:
        yield Cause(
            reason="built for SM75, where TensorRT for RTX silently runs every INT8 convolution in float",
            fix="build for SM80 or newer; on SM75 leave convolutions float",
        )


def _one_of_two(case: NodeEvidence) -> Iterator[Cause]:
    """Only one factor of a product of two activations is quantized."""
    bare = [operand for operand in case.activations if not operand.quantized]
    if len(case.activations) > 1 and 0 < len(bare) < len(case.activations):
        yield Cause(
            reason=f"only one of the matrices it multiplies is quantized; {bare[0].source!r} is float",
            fix=f"put Q/DQ on input {bare[0].index} as well, or take it off both",
        )


def _concat_unequal(case: NodeEvidence) -> Iterator[Cause]:
    """A Concat of differently scaled branches with no Q/DQ behind it."""
    for operand in case.activations:
        concat = _concat_of_dequantized(case, operand)
        if concat is not None:
            yield Cause(
                reason=f"its input comes from {concat.name!r}, whose branches are quantized with scales of their own "
                "and which no Q/DQ follows",
                fix=f"put Q/DQ between {concat.name!r} and this node, or give its branches one shared scale",
            )


def _concat_of_dequantized(case: NodeEvidence, operand: Operand) -> Node | None:
    producer = case.view.producer(operand.source)
    if operand.quantized or producer is None or producer.op != "Concat":
        return None
    branches = [case.view.producer(name) for name in producer.inputs]
    return producer if all(branch is not None and branch.op == _DQ for branch in branches) else None


def _bare_activation(case: NodeEvidence) -> Iterator[Cause]:
    """No Q/DQ in front of the activation."""
    if any(_concat_of_dequantized(case, operand) for operand in case.activations):
        return
    if case.activations and not _any_quantized(case.activations):
        sources = " and ".join(repr(operand.source) for operand in case.activations)
        numbers = " and ".join(str(operand.index) for operand in case.activations)
        several = len(case.activations) > 1
        extra = (
            "; its quantized weight is dequantized in every inference" if _weight_is_computed(case) else ""
        )
        yield Cause(
            reason=f"no Q/DQ in front of its activation{'s' * several} {sources}{extra}",
            fix=f"put Q/DQ on input{'s' * several} {numbers}{f': {words_of(case)} needs all of them' * several}",
        )


def _weight_is_computed(case: NodeEvidence) -> bool:
    """Whether the kernel reads its weight from another kernel instead of holding it."""
    one_activation = len(case.activations) == 1 and _any_quantized(case.weights)
    return one_activation and any(len(layer.inputs) > 1 for layer in case.holders.compute)


def _bare_weight(case: NodeEvidence) -> Iterator[Cause]:
    """No Q/DQ on the weight."""
    if not case.activations:
        return
    back = "; its quantized activation is turned back to float" if _any_quantized(case.activations) else ""
    for operand in case.weights:
        if not operand.quantized:
            yield Cause(
                reason=f"no Q/DQ on its weight {operand.source!r}{back}",
                fix=f"put Q/DQ on input {operand.index} as well: {words_of(case)} needs both",
            )


def _any_quantized(operands: tuple[Operand, ...]) -> bool:
    return any(operand.quantized for operand in operands)


def _ranked_scale(case: NodeEvidence) -> Iterator[Cause]:
    """A scale of shape [1] on the input of a convolution."""
    for operand in case.activations:
        if case.rtx and case.node.op == "Conv" and operand.scale_shape == (1,):
            yield Cause(
                reason="the scale of its activation has shape [1] instead of []; TensorRT for RTX then computes in float",
                fix="make the scale and the zero point scalars (`qdqtool repair` does it)",
            )


def _channel_activation(case: NodeEvidence) -> Iterator[Cause]:
    """Per-channel scales on an activation."""
    for operand in case.activations:
        if operand.axis is not None:
            yield Cause(
                reason=f"its activation has one scale per channel; TensorRT multiplies {words_of(case)} only with one per tensor",
                fix="calibrate the activation per tensor",
            )


def _weight_axis(case: NodeEvidence) -> Iterator[Cause]:
    """Per-channel weight scales on the wrong axis."""
    for operand in case.weights:
        rank = len(case.view.constant_shape(operand.source) or ())
        wanted = weight_axis(case.node, operand.index, rank)
        if None in {operand.seen_axis, wanted} or operand.seen_axis == wanted:
            continue
        behind = f" (axis {operand.seen_axis} behind {' and '.join(operand.moves)})" if operand.moves else ""
        yield Cause(
            reason=f"its weight scales run along axis {operand.axis}{behind}, not along the output channels "
            f"(axis {wanted})",
            fix=f"put the Q/DQ behind {operand.moves[-1]} and quantize the weight along axis {wanted}"
            if operand.moves
            else f"quantize the weight along axis {wanted}",
        )


def _moved(case: NodeEvidence) -> Iterator[Cause]:
    """An operator between DequantizeLinear and the node: Cast and Pad hinder, others only some classic releases."""
    for operand in case.operands:
        hindering = sorted({move for move in operand.moves if not case.rtx or move in _HINDERING})
        if hindering:
            hinders = (
                "" if _HINDERING & set(hindering) else ", which keeps some TensorRT releases from fusing"
            )
            yield Cause(
                reason=f"{' and '.join(hindering)} between DequantizeLinear and input {operand.index}{hinders}",
                fix="move Q/DQ behind it, so that DequantizeLinear feeds this node directly",
            )


_SEEN_IN_GRAPH: tuple[Callable[[NodeEvidence], Iterator[Cause]], ...] = (
    _constants_only,
    _concat_unequal,
    _one_of_two,
    _bare_activation,
    _bare_weight,
    _ranked_scale,
    _channel_activation,
    _weight_axis,
    _moved,
)
