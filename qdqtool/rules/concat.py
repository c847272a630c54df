"""The branches of a Concat that feeds INT8 layers share one scale with its result.

    before                        after
    a ─┬─ Conv                    a ─┬─ QDQ(s) ─ Conv
       └─ Concat ─ Conv              └─ Concat ─ QDQ(s) ─ Conv
    b ────┘                       b ────┘

One Q behind the Concat is enough: the builder pushes it into every branch. With one scale, a branch that another
INT8 layer reads too is quantized once; with two scales it is written twice.

Evidence: RTX 1.7.1: a pyramid with a shared map writes 0.315 MB with the tie and 0.373 MB without (the producer
writes a float copy); Q behind the Concat only is built without requantizing (concat_q_after_only), different scales
in front of it and none behind make the next layer float (concat_diff_noafter). Classic logs: the pass
SplitQAcrossPrecedingFanIn; NVIDIA/TensorRT issue 2597.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Placement, Slot, SlotKind, Tie
from qdqtool.core.qdq import QdqPair
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted, listed
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.scales import a_step_above
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal, feeding, scale_of
from qdqtool.matching.half_quantized import scales_of_branches
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import PRODUCTS


def match(view: GraphView) -> Iterator[Node]:
    """Every Concat."""
    return (node for node in view.nodes if node.op == "Concat")


def place(view: GraphView, options: PlacementOptions) -> Iterator[Tie]:
    """One tie per Concat: its result first, then its run-time inputs."""
    if "Concat" not in options.ops:
        return
    for node in match(view):
        branches = (tensor for tensor in node.inputs if tensor and not view.is_constant(tensor))
        yield Tie(
            tensors=(node.outputs[0], *branches),
            reason=f"branches of {node.name}, which is INT8 when they share one scale",
        )


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Concats of INT8 branches with more than one scale."""
    for node in match(flow.view):
        scales = scales_of_branches(flow, node)
        if scales < 2:
            continue
        layers = [reader.name for reader in flow.readers(node.outputs[0]) if reader.op in PRODUCTS]
        yield Violation(
            node=node.name,
            reason=f"the branches of {node.name} have {counted(scales, 'different scale')}",
            effect=f"{', '.join(layers)} runs in float" if layers else "branches are quantized twice",
            fix="give all branches one scale; `qdqtool repair` takes the largest",
            severity=None if layers else Severity.INFO,
            products=tuple(layers),
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Give the pairs before and behind each Concat and MaxPool their largest scale."""
    for members in _families(context):
        scales = [member.scale[0] for member in members]
        if max(scales) <= a_step_above(np.asarray(min(scales), np.float32), DType.FLOAT32):
            continue  # a step apart on purpose: no integer changes by it, and the builder does not take it for a repetition
        slots = [slot for member in members for slot in member.slots]
        if any(member.returned for member in members):  # no input reads what the model returns
            slots = []
            for member in members:
                context.restate(member, np.asarray(max(scales)))
        yield Change(
            edits=tuple(SlotEdit(slot=slot, scales=(max(scales),)) for slot in slots),
            subject=", ".join(sorted({member.tensor for member in members})),
            what=f"one scale, {max(scales):.4g}, instead of {len(set(scales))} from {min(scales):.4g} up",
            reason="different scales around Concat or MaxPool cost a second rounding, or the INT8 of what follows",
        )


def _families(context: RepairContext) -> list[list[QdqPair]]:
    """Pairs that must share a scale: those around one node, and around nodes that have a pair in common."""
    before: dict[tuple[str, int], QdqPair] = {}
    behind: dict[str, list[QdqPair]] = {}
    for pair in context.pairs:
        if pair.quantize and pair.dequantize and pair.kind is SlotKind.ACTIVATION and pair.scale_shape == ():
            before |= {(slot.node, slot.index): pair for slot in pair.slots}
            behind.setdefault(pair.tensor, []).append(pair)
    family: dict[str, list[QdqPair]] = {}
    concats = {node.name for node in match(context.view)}
    for node in context.view.nodes:
        count = len(node.inputs) if node.name in concats else int(node.op == "MaxPool")
        inputs = [before[node.name, index] for index in range(count) if (node.name, index) in before]
        if not count or len(inputs) < count:
            continue
        around = [*inputs, *behind.get(node.outputs[0], [])]
        merged = [other for pair in around for other in family.get(pair.quantize or "", [pair])]
        whole = list({pair.quantize: pair for pair in merged}.values())
        family |= {pair.quantize or "": whole for pair in whole}
    return list({id(members): members for members in family.values()}.values())


_NAMED = 3
"""Tensors of a tie that are spelled out."""


def candidates(built: BuiltGraph) -> Iterator[Candidate]:
    """One scale for the branches in front of a float product; a scale of its own for each where they share one."""
    for evidence, verdict in built.nodes:
        for operand in evidence.activations if not verdict.is_quantized else ():
            found, scale = evidence.concat(operand), evidence.largest_branch(operand)
            if found is not None and scale is not None:
                yield Candidate(
                    subject=evidence.node.name,
                    goal=Goal.INT8,
                    text="give all branches one scale",
                    edits=tuple(
                        SlotEdit(slot=Slot(node=found[0].name, index=index), scales=(scale,))
                        for index in range(len(found[0].inputs))
                    ),
                )
    view = built.view
    groups = _planned(built.placement) if built.placement else _tied(view)
    for subject, slots in groups:
        edits = tuple(edit for slot in slots if (edit := _own(view, slot)) is not None)
        if len(edits) > 1:
            yield Candidate(
                subject=subject, goal=Goal.CLOSER, text="give each branch its own scale", edits=edits
            )


def _planned(placement: Placement) -> Iterator[tuple[str, list[Slot]]]:
    """The ties of a placement, and who reads their tensors."""
    readers: dict[str, list[Slot]] = defaultdict(list)
    for decision in placement.quantized:
        readers[decision.tensor].append(decision.slot)
    for tie in placement.ties:
        yield listed(tie.tensors, _NAMED), [slot for tensor in tie.tensors for slot in readers[tensor]]


def _tied(view: GraphView) -> Iterator[tuple[str, list[Slot]]]:
    """The Concats whose branches share a scale."""
    for node in match(view):
        scales = {scale_of(view, feeding(view, name)) for name in node.inputs}
        if len(scales) == 1 and None not in scales:
            yield node.name, [Slot(node=node.name, index=index) for index in range(len(node.inputs))]


def _own(view: GraphView, slot: Slot) -> SlotEdit | None:
    """A scale measured on this input alone, at most the shared one; None where there is no pair."""
    node = view.by_name.get(slot.node)
    shared = scale_of(view, feeding(view, node.inputs[slot.index])) if node is not None else None
    return None if shared is None else SlotEdit(slot=slot, scales=None, most=shared)


PLUGIN = Rule(
    code="QDQ125",
    severity=Severity.WARNING,
    place=place,
    check=check,
    fix=fix,
    candidates=candidates,
)
