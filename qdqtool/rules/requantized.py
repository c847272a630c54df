"""A tensor is dequantized and quantized again with another scale.

    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.05) ─ DQ ─ Conv      two roundings
    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.10) ─ DQ ─ Conv      one

Two roundings instead of one; the coarser scale decides what is left. Equal scales cost nothing: the second pair
changes no value and is removed. Scales one step apart change no value either.

The fix dissolves the first of two pairs that follow each other where its range covers that of the second, and the second
where it is the other way round.

Evidence: RTX 1.7.1 quantizes twice (double_qdq); with equal scales one kernel is left. Across MaxPool the same happens
(B3 rule 1: the scale must not change through operators that only move values).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal, kernel_of
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import DEQUANTIZE, weight_axis


def match(flow: Flow) -> Iterator[tuple[QdqPair, QdqPair]]:
    """Pairs whose tensor holds values that are quantized already, each behind the pair of these."""
    for pair in flow.pairs:
        before = flow.origins.get(pair.tensor)
        if before is not None and pair.quantize is not None:
            yield before, pair


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Those with another scale."""
    for before, pair in match(flow):
        if before.scale and not _alike(before.scale, pair.scale):
            yield Violation(
                node=pair.quantize or "",
                reason=f"its input comes from {before.dequantize} with another scale",
                effect="the values are rounded twice, and the coarser scale is lost in the finer one",
                fix="use one scale for both pairs, or remove one; `qdqtool repair` does",
            )


def _alike(before: tuple[float, ...], scale: tuple[float, ...]) -> bool:
    """Whether no INT8 value can tell the scales from each other: 128 steps differ by less than half a step."""
    return len(before) == len(scale) and all(
        abs(one - other) * 256 < other for one, other in zip(before, scale, strict=True)
    )


def fix(context: RepairContext) -> Iterator[Change]:
    """Dissolve the needless one of two pairs that follow each other."""
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
                what=f"taken out {'before' if loser is first else 'behind'} another pair on the same tensor",
                reason="a value that is quantized twice is rounded twice, and different scales cost a kernel",
            )
            _unlink(following, before, loser)


def _following(context: RepairContext) -> dict[str, QdqPair]:
    """For each pair, by the name of its QuantizeLinear, the pair that reads nothing but its result."""
    found = {}
    for first, second in match(context.flow):
        readable = all(context.is_plain(pair) and context.is_known(pair) for pair in (first, second))
        if readable and first.quantize is not None and first.kind is not SlotKind.WEIGHT:
            reader = context.consumer(first)
            if reader is not None and reader.name == second.quantize:
                found[first.quantize] = second
    return found


def _unlink(following: dict[str, QdqPair], before: dict[str, str], gone: QdqPair) -> None:
    """Let the pair before a dissolved one see the pair behind it; `before` says who is before whom."""
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
    """The pair whose range covers the other's, within one step; the second only where it can be spared."""
    (low_1, high_1), (low_2, high_2) = context.span(first), context.span(second)
    step = max(first.scale[0], second.scale[0])
    if low_1 <= low_2 + step and high_1 >= high_2 - step:
        return first
    spare = second.dequantize is not None and context.result(second) not in context.pinned
    covers = low_2 <= low_1 + step and high_2 >= high_1 - step
    return second if spare and covers else None


def candidates(built: BuiltGraph) -> Iterator[Candidate]:
    """One pair on a weight that has two, one of which a kernel computes in every inference."""
    for layer in built.layers_with("runtime_weights"):
        edits = []
        for evidence, _ in built.nodes:
            for operand in evidence.weights:
                held = _stacked(built.view, operand.pair) if operand.pair is not None else set()
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


def _stacked(view: GraphView, pair: QdqPair) -> set[str]:
    """The Q of a pair and the DQ of another pair right in front of it; nothing where there is only one pair."""
    first = view.producer(pair.tensor)
    if pair.quantize is None or first is None or first.op != DEQUANTIZE:
        return set()
    return {pair.quantize, first.name}


PLUGIN = Rule(
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
    check=check,
    fix=fix,
    candidates=candidates,
)
