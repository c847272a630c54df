"""Concat and pooling: scales of joined or pooled tensors.

# concat

The branches of a Concat that feeds INT8 layers share one scale with its result.

    before                        after
    a ─┬─ Conv                    a ─┬─ QDQ(s) ─ Conv
       └─ Concat ─ Conv              └─ Concat ─ QDQ(s) ─ Conv
    b ────┘                       b ────┘

One Q after the Concat is enough: the builder moves it into every branch. With one scale, a branch that another INT8
layer also reads is quantized once; with two scales it is written twice.

Evidence: RTX 1.7.1: a pyramid with a shared map writes 0.315 MB with one scale and 0.373 MB with two, because
the producer then writes a float copy. Q only after the Concat builds without requantizing (concat_q_after_only). Different
scales before the Concat and no Q after it make the next layer float (concat_diff_noafter). Classic logs: the pass
SplitQAcrossPrecedingFanIn; NVIDIA/TensorRT issue 2597.

# pool_concat

A Concat of pools is one kernel if the scale after it is the next larger number than the scale before it.

    before                                 after
    x ─┬───────────────── Concat ─ Conv    x ─┬─────────────── QDQ(s) ─ Concat ─ QDQ(s+) ─ Conv
       ├─ MaxPool ──────────┤                 ├─ MaxPool ───── QDQ(s) ───┤
       └─ MaxPool ─ MaxPool ┘                 └─ ... ───────── QDQ(s) ───┘

With equal scales the builder removes the pair after the Concat, and then copies every branch to its place in the
result, because a pool kernel cannot write there. With s+, the next larger number than s, the pair stays, and one kernel
reads all branches and writes the result. No value changes: q * s / s+ rounds to q for every INT8 q.

The rule applies if all branches are INT8 in any case: pools, and tensors that these pools read. The result of any other
layer would be written a second time. Only layers may read the Concat, because s+ and s must not be mixed elsewhere. For
TensorRT for RTX only.

Evidence: RTX 1.7.1: a chain of three pools takes 11 kernels and 237568 bytes instead of 15 and 253952. YOLOX-Nano
takes 215 kernels, none of which converts, instead of 218 with four that convert, at an unchanged 114.24 MB. A
YOLOv8n-like detector takes 126 instead of 129. The same with FP16 scales. For a Concat of a pool and the layer beside
it, a shared scale would give 8 kernels instead of 9, but 0.111 MB instead of 0.078 with fused epilogues.

# pooling

Average pooling: quantized before an INT8 layer on classic TensorRT; next to an INT8 layer on TensorRT for RTX.

    before                           after, classic TensorRT               after, RTX
    x ─ AveragePool ─ QDQ ─ Conv     x ─ QDQ ─ AveragePool ─ QDQ ─ Conv    unchanged

    x ─┬─ QDQ ─ Conv                 x ─┬─ QDQ ─ Conv                      as on classic TensorRT
       └─ AveragePool ─ QDQ ─ Conv      └─ QDQ ─ AveragePool ─ QDQ ─ Conv

An average pool computes new values, so it needs separate Q/DQ; classic TensorRT then fuses DQ, pool and Q. RTX does
this for 3x3 windows with stride 1. It computes all other average pools in float, so Q/DQ before them only adds a
rounding. Exception: if another layer reads the same values in INT8, the pool reads them too, and no float copy is
written. A global average is part of the kernel that produces its input, so Q/DQ saves nothing there.

Evidence: RTX 1.7.1: GlobalAveragePool before a Gemm takes 5 kernels and 0.115 MB with and without Q/DQ, and with Q/DQ
one more quantize-dequantize inside. AveragePool stays `avgpool` Float to Float, 7 kernels and 0.225 MB in both cases.
Two inception modules with an averaged branch: 29 kernels and 1.91 MB with Q/DQ before the average, 31 and 2.90 MB
without. 3x3 with stride 1 between two convolutions: 6 kernels and 0.74 MB with Q/DQ before it, 7 and 1.08 MB without.
Q/DQ before a global average, as modelopt writes it, only rounds once more in ResNet-18 and ResNet-50. Classic:
placement guide of 8.x ("quantizable" layers).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import (
    Placement,
    QdqPair,
    QuantSpec,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotKind,
    SlotStatement,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.core.wording import REPAIR, count_noun, list_names
from qdqtool.graph.qdq.encode import a_step_above
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import wanted_slots
from qdqtool.matching.rule import (
    BuiltGraph,
    Candidate,
    Goal,
    Rule,
    Violation,
    feeding,
    scale_of,
    take_off_pairs,
)
from qdqtool.matching.weights import scales_of_branches
from qdqtool.trt.ops import ASKED_FOR, AVERAGE_POOLS, AVERAGES, PRODUCTS, averages_in_int8

# --- concat ----------------------------------------------------------------------------------------------------------


def match_concat(view: GraphView) -> Iterator[Node]:
    """Yield every Concat."""
    return (node for node in view.nodes if node.op == "Concat")


def place_concat(view: GraphView, options: PlacementOptions) -> Iterator[SharedScale]:
    """Request one scale for the result and the run-time inputs of each Concat. The result is listed first."""
    if "Concat" not in options.ops:
        return
    for node in match_concat(view):
        branches = (tensor for tensor in node.inputs if tensor and not view.is_constant(tensor))
        yield SharedScale(
            tensors=(node.outputs[0], *branches),
            reason=f"branches of {node.name}, which runs INT8 if they share one scale",
        )


def check_concat(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Concats of INT8 branches with more than one scale."""
    for node in match_concat(flow.view):
        scales = scales_of_branches(flow, node)
        if scales < 2:
            continue
        layers = [reader.name for reader in flow.readers(node.outputs[0]) if reader.op in PRODUCTS]
        yield Violation(
            node=node.name,
            reason=f"the branches of {node.name} have {count_noun(scales, 'different scale')}",
            effect=f"{', '.join(layers)} runs in float"
            if layers
            else "the values of branches are quantized twice",
            fix=f"give all branches one scale; {REPAIR} uses the largest",
            severity=None if layers else Severity.INFO,
            products=tuple(layers),
        )


def fix_concat(context: RepairContext) -> Iterator[Change]:
    """Give the Q/DQ pairs around each Concat and MaxPool one scale, the largest of their scales."""
    for members in _families(context):
        scales = [member.scale[0] for member in members]
        if max(scales) <= a_step_above(np.asarray(min(scales), np.float32), DType.FLOAT32):
            continue  # one float step apart on purpose, so that the builder does not see a repetition
        slots = [slot for member in members for slot in member.slots]
        if any(context.result(member) in context.pinned for member in members):
            slots = []  # a Q/DQ pair that the model returns has no slot, and one that a body reads no input
            for member in members:
                context.restate(member, np.asarray(max(scales)))
        yield Change(
            edits=tuple(SlotEdit(slot=slot, scales=(max(scales),)) for slot in slots),
            subject=", ".join(sorted({member.tensor for member in members})),
            what=f"one scale, {max(scales):.4g}, instead of {len(set(scales))} from {min(scales):.4g} up",
            reason="different scales around Concat or MaxPool cause a second rounding, or keep the next nodes float",
        )


def _families(context: RepairContext) -> list[list[QdqPair]]:
    """Return groups of Q/DQ pairs that must share a scale: pairs around one Concat or MaxPool, or around several that share a pair."""
    before: dict[tuple[str, int], QdqPair] = {}
    behind: dict[str, list[QdqPair]] = {}
    for pair in context.pairs:
        if pair.quantize and pair.dequantize and pair.kind is SlotKind.ACTIVATION and pair.scale_shape == ():
            before |= {(slot.node, slot.index): pair for slot in pair.slots}
            behind.setdefault(pair.tensor, []).append(pair)
    family: dict[str, list[QdqPair]] = {}
    concats = {node.name for node in match_concat(context.view)}
    for node in context.view.nodes:
        count = len(node.inputs) if node.name in concats else int(node.op == "MaxPool")
        inputs = [before[node.name, index] for index in range(count) if (node.name, index) in before]
        if not count or len(inputs) < count:
            continue
        around = [*inputs, *behind.get(node.outputs[0], [])]
        merged = [relative for pair in around for relative in family.get(pair.quantize or "", [pair])]
        whole = list({pair.quantize: pair for pair in merged}.values())
        family |= {pair.quantize or "": whole for pair in whole}
    return list({id(members): members for members in family.values()}.values())


_NAMED = 3
"""The largest number of tensors of a group that a message names."""


def candidates_concat(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose one scale for branches of a Concat before a float compute node, and separate scales for branches with one scale."""
    for evidence, verdict in built.nodes:
        for operand in evidence.activations if not verdict.is_quantized else ():
            joint, scale = evidence.concat(operand), evidence.largest_branch(operand)
            if joint is not None and scale is not None:
                yield Candidate(
                    subject=evidence.node.name,
                    goal=Goal.INT8,
                    text="give all branches one scale",
                    edits=tuple(
                        SlotEdit(slot=Slot(node=joint[0].name, index=index), scales=(scale,))
                        for index in range(len(joint[0].inputs))
                    ),
                )
    view = built.view
    groups = _find_planned_ties(built.placement) if built.placement else _find_tied(view)
    for subject, slots in groups:
        edits = tuple(edit for slot in slots if (edit := _own(view, slot)) is not None)
        if len(edits) > 1:
            yield Candidate(
                subject=subject, goal=Goal.CLOSER, text="give each branch its own scale", edits=edits
            )


def _find_planned_ties(placement: Placement) -> Iterator[tuple[str, list[Slot]]]:
    """Yield the groups of tensors with a shared scale in a placement, each with the inputs that read the tensors."""
    readers: dict[str, list[Slot]] = defaultdict(list)
    for decision in placement.quantized:
        readers[decision.tensor].append(decision.slot)
    for tie in placement.ties:
        yield list_names(tie.tensors, _NAMED), [slot for tensor in tie.tensors for slot in readers[tensor]]


def _find_tied(view: GraphView) -> Iterator[tuple[str, list[Slot]]]:
    """Yield the Concats whose branches share a scale, each with its inputs."""
    for node in match_concat(view):
        scales = {scale_of(view, feeding(view, name)) for name in node.inputs}
        if len(scales) == 1 and None not in scales:
            yield node.name, [Slot(node=node.name, index=index) for index in range(len(node.inputs))]


def _own(view: GraphView, slot: Slot) -> SlotEdit | None:
    """Return an edit that gives an input its measured scale, at most the shared scale; else None."""
    node = view.by_name.get(slot.node)
    shared = scale_of(view, feeding(view, node.inputs[slot.index])) if node is not None else None
    return None if shared is None else SlotEdit(slot=slot, scales=None, most=shared)


# --- pool_concat -----------------------------------------------------------------------------------------------------


def place_pool_concat(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | SharedScale]:
    """Request Q/DQ on all branches of a Concat of pools, with a separate result scale (RTX only)."""
    if not options.builder.is_rtx or not set(options.ops) >= ASKED_FOR:
        return
    for node in view.nodes:
        if node.op != "Concat" or not _is_of_pools(view, node) or not _feeds_layers(view, node):
            continue
        for index in range(len(node.inputs)):
            yield SlotStatement(
                slot=Slot(node=node.name, index=index),
                stance=RequestOrVeto.REQUEST,
                reason="a Concat of pools is one kernel with pairs on both sides",
                spec=QuantSpec(),
                only_if_shared=True,
            )
        yield SharedScale(
            tensors=(node.outputs[0], *node.inputs),
            reason=f"{node.name} joins pools: scales that differ by the smallest amount avoid a copy of each branch",
            apart=node.outputs,
        )


def _is_of_pools(view: GraphView, concat: Node) -> bool:
    """Return True if at least two branches are MaxPools, and all other branches are inputs of these MaxPools."""
    makers = {tensor: view.producer(tensor) for tensor in concat.inputs}
    pools = [maker for maker in makers.values() if maker is not None and maker.op == "MaxPool"]
    read = {pool.inputs[0] for pool in pools}
    return len(pools) > 1 and all(maker in pools or tensor in read for tensor, maker in makers.items())


def _feeds_layers(view: GraphView, concat: Node) -> bool:
    uses = view.uses(concat.outputs[0])
    if not uses or view.is_output(concat.outputs[0]):
        return False
    return all(use.node.op in PRODUCTS and use.index == 0 for use in uses)


# --- pooling ---------------------------------------------------------------------------------------------------------


def match_pooling(view: GraphView) -> Iterator[tuple[Node, bool]]:
    """Yield nodes that average, each with True if TensorRT for RTX computes the node in float."""
    return ((node, not averages_in_int8(node)) for node in view.nodes if node.op in AVERAGES)


def place_pooling(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Request or veto Q/DQ on the input of average pools, if INT8 layers read their result or their input."""
    slots = wanted_slots(view)
    for node, in_float in match_pooling(view):
        if node.op not in AVERAGE_POOLS or "AveragePool" not in options.ops:
            continue
        slot = Slot(node=node.name, index=0)
        if options.builder.is_rtx and in_float:
            yield _beside(view, node, slot)
        elif any(Slot(node=u.node.name, index=u.index) in slots for u in view.uses(node.outputs[0])):
            yield SlotStatement(
                slot=slot,
                stance=RequestOrVeto.REQUEST,
                reason="an average pool between INT8 layers fuses with Q/DQ on both sides",
                spec=QuantSpec(),
            )


def _beside(view: GraphView, node: Node, slot: Slot) -> SlotStatement:
    """Return the request or veto for RTX: an average pool reads INT8 if other nodes read INT8, but a global average never does."""
    if node.op == "AveragePool" and len(view.uses(node.inputs[0])) > 1:
        return SlotStatement(
            slot=slot,
            stance=RequestOrVeto.REQUEST,
            reason="another layer reads these values in INT8; if the pool also reads INT8, no float copy is written",
            spec=QuantSpec(),
            only_if_shared=True,
        )
    return SlotStatement(
        slot=slot,
        stance=RequestOrVeto.VETO,
        reason="TensorRT for RTX averages in float: Q/DQ before it would only add a rounding",
    )


def check_pooling(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report average pools that read a DequantizeLinear and average in float."""
    averaged = {Slot(node=node.name, index=0) for node, in_float in match_pooling(flow.view) if in_float}
    for pair in flow.pairs:
        for slot in pair.slots:
            node = flow.view.by_name[slot.node]
            if slot in averaged and not _saves_a_copy(flow, node):
                yield Violation(
                    node=node.name,
                    reason=f"{node.op} has Q/DQ on its input",
                    effect="the pool averages in float, so the Q/DQ pair only adds a rounding",
                    fix=f"remove the pair; {REPAIR} does this",
                )


def fix_pooling(context: RepairContext) -> Iterator[Change]:
    """Remove the Q/DQ pair before a pool that averages in float.

    Only for TensorRT for RTX, because classic TensorRT averages in INT8.
    """
    if context.target is None:
        return
    for violation in check_pooling(context.flow, context.target):
        yield from take_off_pairs(context.view, context.view.by_name[violation.node], (0,), violation)


def _saves_a_copy(flow: Flow, pool: Node) -> bool:
    """Return True if other layers read the pool's input in INT8.

    False for a global average, which is part of the kernel before it.
    """
    pair = flow.origins.get(pool.inputs[0])
    if pool.op != "AveragePool" or pair is None:
        return False
    slots = (slot for twin in flow.by_tensor.get(pair.tensor, (pair,)) for slot in twin.slots)
    return any(flow.view.by_name[slot.node].op not in AVERAGES for slot in slots)


PLUGIN = {
    "concat": Rule(
        code="QDQ125",
        severity=Severity.WARNING,
        place=place_concat,
        check=check_concat,
        fix=fix_concat,
        candidates=candidates_concat,
    ),
    "pool_concat": Rule(code="QDQ175", place=place_pool_concat),
    "pooling": Rule(
        code="QDQ131",
        severity=Severity.INFO,
        targets=frozenset({"rtx"}),
        place=place_pooling,
        check=check_pooling,
        fix=fix_pooling,
    ),
}
