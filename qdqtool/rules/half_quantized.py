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
from dataclasses import replace

import numpy as np

from qdqtool.core.findings import NodeVerdict, Severity, Verdict
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot, Stance
from qdqtool.core.quant_format import FLOAT, FORMATS, INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.asked import arithmetic_word
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.half_quantized import asks_int8
from qdqtool.matching.half_quantized import half_quantized as match
from qdqtool.matching.operands import Factor, State
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import BEFORE
from qdqtool.matching.weights import requantized
from qdqtool.trt.ops import MATRIX_PRODUCTS, weight_axis

WEIGHTS_ALONE = "place.format=int8-weights"
"""The setting that asks for just that."""


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products with one quantized factor and one without any Q/DQ, weight-only matrix products excepted."""
    for product, missing in match(flow, target):
        node, stored = product.node, product.weights_alone
        what = "its weights have" if missing.fixed else f"its input {missing.index} has"
        both = f"{arithmetic_word(product.asked)} needs both"
        fix = f"put Q/DQ on {node.inputs[missing.index]} as well ({both}), or take it off the other input"
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
    for product, bare in match(context.flow, Target(), alone=True):
        told = _quantized(context, product.node.name, bare.index) if asks_int8(product) else None
        if told is not None:
            yield told


def _quantized(context: RepairContext, name: str, index: int) -> Change | None:
    """INT8 per output channel for a float constant; None where there is none."""
    reader = context.view.by_name[name]
    tensor = reader.inputs[index]
    value = context.edit.value(tensor)
    if value is None or value.dtype not in (np.float32, np.float16) or value.ndim < 2 or not value.size:
        return None
    axis = weight_axis(reader, index, value.ndim)
    _, scale, error = requantized(value.astype(np.float64), axis, half=value.dtype == np.float16)
    scales = tuple(float(step) for step in np.atleast_1d(scale))
    return Change(
        edits=(SlotEdit(slot=Slot(node=name, index=index), scales=scales, axis=axis),),
        subject=tensor,
        what=f"float weight of {reader.op} {name!r} quantized per channel",
        reason="a quantized activation without a quantized weight silently runs in float",
        error=error,
    )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """What has no Q/DQ beyond the halves of `check`: all factors, or the one beside stored weights."""
    bare = [operand for operand in evidence.activations if not operand.quantized]
    several = "s" * (len(bare) > 1)
    if bare:
        numbers = " and ".join(str(operand.index) for operand in bare)
        extra = "; its quantized weight is dequantized in every inference" if _is_computed(evidence) else ""
        measured = "; `qdqtool repair --samples DATA` does" if evidence.any_quantized else ""
        yield Explanation(
            reason=f"no Q/DQ in front of its activation{several}{extra}",
            fix=f"put Q/DQ on input{several} {numbers}{f': {evidence.arithmetic} needs all of them' if several else ''}{measured}",
        )
    for operand in evidence.weights if evidence.activations else ():
        if not operand.quantized:
            yield Explanation(
                reason="no Q/DQ on its weight",
                fix=f"put Q/DQ on input {operand.index} as well: {evidence.arithmetic} needs both",
            )


def _is_computed(evidence: NodeEvidence) -> bool:
    """Whether the kernel reads a quantized weight from another kernel instead of holding it."""
    weight = len(evidence.activations) == 1 and any(operand.quantized for operand in evidence.weights)
    return weight and any(len(layer.inputs) > 1 for layer in evidence.holders.compute)


_LEFT_ALONE = frozenset({Verdict.NOT_FOUND, Verdict.UNKNOWN})
_OF_USER = frozenset({"user", "first_last", "min_channels"})
"""Placement rules that say what the recipe asks for; all others say what TensorRT does, which a build can refute."""


def candidates(built: BuiltGraph) -> Iterator[Candidate]:
    """All inputs of a float product as INT8 needs them; no Q/DQ on one that stays float."""
    islands = {finding.subject for finding in built.findings if finding.check == "float_island"}
    for evidence, verdict in built.nodes:
        if not _is_fallback(evidence, verdict):
            continue
        quantized = evidence.any_quantized
        # What a placement keeps float on purpose is no fallback: INT8 must pay there.
        meant = bool(evidence.decisions) and not evidence.requested
        has_kernel = not any(found.no_kernel for found in evidence.explanations)
        if has_kernel and not meant and (quantized or evidence.node.name in islands):
            yield from _to_int8(evidence, Goal.INT8)
        elif has_kernel and not _is_users_choice(evidence):
            yield from _to_int8(evidence, Goal.CHEAPER)
        direct = [
            operand for operand in evidence.operands if operand.quantized and not evidence.moves(operand)
        ]
        if direct:
            yield Candidate(
                subject=evidence.node.name,
                goal=Goal.CHEAPER,
                text="take Q/DQ off its inputs",
                edits=tuple(
                    SlotEdit(slot=Slot(node=evidence.node.name, index=operand.index)) for operand in direct
                ),
            )


def _is_fallback(evidence: NodeEvidence, verdict: NodeVerdict) -> bool:
    if verdict.is_quantized or verdict.verdict in _LEFT_ALONE:
        return False
    return verdict.verdict is not Verdict.ABSORBED or len({one.quantized for one in evidence.operands}) > 1


def _is_users_choice(evidence: NodeEvidence) -> bool:
    """Whether the recipe says that this node, or everything that nodes read at run time, stays float."""
    return evidence.weights_alone or any(
        opinion.stance is Stance.VETO and opinion.rule in _OF_USER
        for decision in evidence.decisions
        for opinion in decision.opinions
    )


def _to_int8(evidence: NodeEvidence, goal: Goal) -> Iterator[Candidate]:
    format_ = FORMATS[evidence.arithmetic.lower()]
    if format_.block is not None:
        return  # blocks are made by a placement, which knows what divides them
    edits = tuple(
        replace(edit, format=format_)
        for operand in evidence.operands
        if (edit := _wanted(evidence, operand)) is not None
    )
    if edits:
        inputs = ", ".join(
            f"{edit.slot.index} ({'one scale' if edit.axis is None else 'one scale per channel'})"
            for edit in edits
        )
        yield Candidate(subject=evidence.node.name, goal=goal, text=f"quantize input {inputs}", edits=edits)


def _wanted(evidence: NodeEvidence, operand: Factor) -> SlotEdit | None:
    """What an operand lacks for INT8; None where it is as it should be."""
    slot = Slot(node=evidence.node.name, index=operand.index)
    cast = "Cast" in evidence.moves(operand)
    if operand.fixed:
        rank = len(evidence.view.info(evidence.node.inputs[operand.index]).shape or ())
        axis = weight_axis(evidence.node, operand.index, rank)
        right = operand.quantized and not cast and operand.state is not State.WRONG_AXIS
        return None if right else SlotEdit(slot=slot, scales=None, axis=axis)
    pair = operand.pair
    if operand.quantized and not cast and (pair is None or pair.scale_shape in {None, ()}):
        return None
    scale = max(map(abs, pair.scale), default=None) if pair else evidence.largest_branch(operand)
    return SlotEdit(slot=slot, scales=None if scale is None else (scale,))


PLUGIN = Rule(
    code="QDQ120",
    severity=Severity.WARNING,
    check=check,
    fix=fix,
    candidates=candidates,
    explain=explain,
)
