"""Values that are quantized twice, with one scale or with two.

# two_scales

One tensor is quantized with different scales for different layers.

    x ─┬─ Q(s=0.05) ─ DQ ─ Conv      x is written twice
       └─ Q(s=0.10) ─ DQ ─ Conv

Its producer writes one INT8 copy per scale, and parallel layers that read it are not merged.

The fix gives all of them the largest scale.

Evidence: RTX 1.7.1 writes two Int8 tensors (shared_scale_diff_consumers, two_scales_for_one_tensor); with equal
scales it writes one. Classic: HorizontalMergeQNodes needs equal scales; NVIDIA/TensorRT issue 1602.

# requantized

A tensor is dequantized and quantized again with another scale.

    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.05) ─ DQ ─ Conv      two roundings
    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.10) ─ DQ ─ Conv      one

The values are rounded twice, and the coarser scale sets the accuracy. Equal scales cost nothing: the second pair
changes no value and is removed. Scales that differ by the smallest step change no value either.

The fix removes one of two successive pairs: the first if its range covers the range of the second, otherwise the
second.

Evidence: RTX 1.7.1 quantizes twice (double_qdq); with equal scales one kernel is left. Across MaxPool the same happens,
because the scale must not change through operators that only move values.

# constant_scalar

A quantized constant of rank 0.

    50 (INT8, shape []) ─ DQ ─ Mul      refused
    0.5 (float) ─────────────── Mul      fine

The builder recognises quantized weights before DequantizeLinear, but not scalars.

Evidence: RTX 1.7.1: `Quantized constant (X) is only allowed before DQ or PLUGIN_V2` for a scalar INT8 constant
(scalar_const_q); an equal constant of shape [1,1,1,1] builds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.wording import REPAIR, count_noun
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import BuiltGraph, Candidate, Goal, Rule, Stage, Violation, kernel_of
from qdqtool.matching.weights import store_again
from qdqtool.trt.ops import DEQUANTIZE, weight_axis

# --- two_scales ------------------------------------------------------------------------------------------------------


def match_two_scales(flow: Flow) -> Iterator[tuple[str, tuple[QdqPair, ...]]]:
    """Yield run-time tensors that have several quantization scales, and their Q/DQ pairs."""
    for tensor, pairs in flow.by_tensor.items():
        if len({pair.scale for pair in pairs if pair.scale}) > 1 and not flow.view.is_constant(tensor):
            yield tensor, pairs


def check_two_scales(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report run-time tensors that have several quantization scales."""
    for tensor, pairs in match_two_scales(flow):
        scales = {pair.scale for pair in pairs if pair.scale}
        yield Violation(
            node=pairs[0].quantize or "",
            reason=f"{tensor} is quantized with {count_noun(len(scales), 'different scale')}",
            effect=f"the producer writes the tensor {count_noun(len(scales), 'time')}",
            fix=f"use one scale for all readers of the tensor; {REPAIR} uses the largest",
        )


def fix_two_scales(context: RepairContext) -> Iterator[Change]:
    """If a tensor has several scales, give its symmetric Q/DQ pairs the largest scale: it does not clip more values."""
    for tensor, all_pairs in match_two_scales(context.flow):
        pairs = [
            pair
            for pair in all_pairs
            if pair.dequantize and context.is_plain(pair) and context.symmetric(pair)
        ]
        scales = [pair.scale[0] for pair in pairs if len(pair.scale) == 1 and pair.scale[0] > 0]
        if len(scales) < len(pairs) or len(set(scales)) < 2:
            continue
        for pair in pairs:
            if pair.scale[0] != max(scales):
                context.restate(pair, np.asarray(max(scales)))
                yield Change(
                    subject=pair.quantize or "",
                    what=f"scale {pair.scale[0]:.4g} became {max(scales):.4g}, the scale of another reader of {tensor}",
                    reason="a tensor is written once for each scale that its readers use",
                )


# --- requantized -----------------------------------------------------------------------------------------------------


def match_requantized(flow: Flow) -> Iterator[tuple[QdqPair, QdqPair]]:
    """Yield Q/DQ pairs whose input is already quantized, each after the pair that quantized its input."""
    for pair in flow.pairs:
        before = flow.origins.get(pair.tensor)
        if before is not None and pair.quantize is not None:
            yield before, pair


def check_requantized(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report values that are quantized twice, with different scales."""
    for before, pair in match_requantized(flow):
        if before.scale and not _alike(before.scale, pair.scale):
            yield Violation(
                node=pair.quantize or "",
                reason=f"the input of this Q comes from {before.dequantize} with another scale",
                effect="the values are rounded twice, and the finer scale gains nothing",
                fix=f"use one scale for both Q/DQ pairs, or remove one pair; {REPAIR} does this",
            )


def _alike(before: tuple[float, ...], scale: tuple[float, ...]) -> bool:
    """Return True if two scales give the same INT8 values: 128 steps differ by less than half a step."""
    return len(before) == len(scale) and all(
        abs(step - size) * 256 < size for step, size in zip(before, scale, strict=True)
    )


def fix_requantized(context: RepairContext) -> Iterator[Change]:
    """Remove one of two consecutive Q/DQ pairs: the unnecessary one."""
    following = _following(context)
    before = {second.quantize or "": first for first, second in following.items()}
    for first in context.pairs:
        while (second := following.get(first.quantize or "")) is not None:
            loser = _loser(context, first, second)
            if loser is None:
                break
            context.dissolve(loser)
            yield Change(
                subject=loser.quantize or "",
                what=f"removed {'before' if loser is first else 'after'} another pair on the same tensor",
                reason="a value that is quantized twice is rounded twice, and different scales add a kernel",
            )
            _unlink(following, before, loser)


def _following(context: RepairContext) -> dict[str, QdqPair]:
    """Map the first Q/DQ pair, by its QuantizeLinear, to a second pair that directly follows it.

    Left out are weights, and first pairs that other nodes read too.
    """
    following = {}
    for first, second in match_requantized(context.flow):
        readable = all(context.is_plain(pair) and context.is_known(pair) for pair in (first, second))
        if readable and first.quantize is not None and first.kind is not SlotKind.WEIGHT:
            reader = context.consumer(first)
            if reader is not None and reader.name == second.quantize:
                following[first.quantize] = second
    return following


def _unlink(following: dict[str, QdqPair], before: dict[str, str], gone: QdqPair) -> None:
    """Remove the Q/DQ pair `gone` from a chain of consecutive pairs, and connect its neighbours.

    `before` maps each pair to the previous one, by the names of their QuantizeLinear nodes.
    """
    behind = following.pop(gone.quantize or "", None)
    first = before.pop(gone.quantize or "", None)
    if first is not None:
        following.pop(first)
    if behind is None:
        return
    before.pop(behind.quantize or "")
    if first is not None:
        following[first] = behind
        before[behind.quantize or ""] = first


def _loser(context: RepairContext, first: QdqPair, second: QdqPair) -> QdqPair | None:
    """Return which of two consecutive Q/DQ pairs can be removed: its range covers the other range within one step.

    The first is preferred; None if neither can be removed.
    """
    (low_1, high_1), (low_2, high_2) = context.span(first), context.span(second)
    step = max(first.scale[0], second.scale[0])
    if low_1 <= low_2 + step and high_1 >= high_2 - step:
        return first
    spare = second.dequantize is not None and context.result(second) not in context.pinned
    covers = low_2 <= low_1 + step and high_2 >= high_1 - step
    return second if spare and covers else None


def candidates_requantized(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose one Q/DQ pair for a weight with two pairs if a kernel computes one of the pairs in every inference."""
    for layer in built.layers_with("runtime_weights"):
        edits = []
        for evidence, _ in built.nodes:
            for operand in evidence.weights:
                held = _find_stacked(built.view, operand.pair) if operand.pair is not None else set()
                if held & set(layer.onnx_nodes):
                    rank = len(built.view.info(evidence.node.inputs[operand.index]).shape or ())
                    axis = weight_axis(evidence.node, operand.index, rank)
                    slot = Slot(node=evidence.node.name, index=operand.index)
                    edits.append(SlotEdit(slot=slot, scales=None, axis=axis))
        if edits:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="keep one pair on its weight",
                edits=tuple(edits),
            )


def _find_stacked(view: GraphView, pair: QdqPair) -> set[str]:
    """Return the Q of a Q/DQ pair and the DQ directly before it; an empty set if no DQ is directly before the pair."""
    first = view.producer(pair.tensor)
    if pair.quantize is None or first is None or first.op != DEQUANTIZE:
        return set()
    return {pair.quantize, first.name}


# --- constant_scalar -------------------------------------------------------------------------------------------------


def match_constant_scalar(flow: Flow) -> Iterator[QdqPair]:
    """Yield the Q/DQ pairs on constants of rank 0."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and flow.view.constant_shape(pair.tensor) == ():
            yield pair


def check_constant_scalar(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report constants of rank 0 that are stored as integers before a DequantizeLinear."""
    for pair in match_constant_scalar(flow):
        if pair.quantize is None:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"the constant {pair.tensor} is a scalar with Q/DQ",
                effect="the builder refuses the model: Quantized constant is only allowed before DQ",
                fix=f"store the scalar as a float constant without Q/DQ; {REPAIR} does this",
            )


def fix_constant_scalar(context: RepairContext) -> Iterator[Change]:
    """Store quantized scalars as floats."""
    return store_again(
        context, match_constant_scalar(context.flow), lambda _: "TensorRT cannot quantize a scalar"
    )


PLUGIN = {
    "two_scales": Rule(
        code="QDQ129",
        severity=Severity.WARNING,
        after=("requantized", "residual_add", "concat", "probabilities"),
        check=check_two_scales,
        fix=fix_two_scales,
    ),
    "requantized": Rule(
        code="QDQ128",
        severity=Severity.WARNING,
        stage=Stage.LEGAL,
        after=(
            "activation_channels",
            "scale_computed",
            "scale_rank",
            "scale_value",
            "weight_axis",
            "weight_path",
        ),
        check=check_requantized,
        fix=fix_requantized,
        candidates=candidates_requantized,
    ),
    "constant_scalar": Rule(
        code="QDQ106",
        severity=Severity.ERROR,
        stage=Stage.LEGAL,
        after=("cast",),
        check=check_constant_scalar,
        fix=fix_constant_scalar,
    ),
}
