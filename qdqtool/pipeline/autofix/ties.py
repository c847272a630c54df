"""What might bring the result closer to the float model: tensors of one shared scale get each its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from qdqtool.auditing.context import AuditContext
from qdqtool.core.placement import Placement, Slot
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.pipeline.autofix.edits import Candidate, EditRequest, Goal, Granularity, scale_of

_NAMED = 3
"""Tensors of a tie that are spelled out."""


def untied(context: AuditContext) -> Iterator[Candidate]:
    """One candidate per tie of the placement; without a placement one per Concat whose branches share a scale."""
    if context.view is None:
        return
    groups = _planned(context.placement) if context.placement else _concats(context.view)
    for subject, slots in groups:
        requests = tuple(request for slot in slots if (request := _own(context.view, slot)) is not None)
        if len(requests) > 1:
            yield Candidate(
                subject=subject, goal=Goal.CLOSER, text="give each branch its own scale", requests=requests
            )


def _planned(placement: Placement) -> Iterator[tuple[str, list[Slot]]]:
    readers: dict[str, list[Slot]] = defaultdict(list)
    for decision in placement.quantized:
        readers[decision.tensor].append(decision.slot)
    for tie in placement.ties:
        more = len(tie.tensors) - _NAMED
        names = ", ".join(tie.tensors[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield names, [slot for tensor in tie.tensors for slot in readers[tensor]]


def _concats(view: GraphView) -> Iterator[tuple[str, list[Slot]]]:
    for node in view.nodes:
        if node.op == "Concat":
            scales = {scale_of(view, _feeding(view, name)) for name in node.inputs}
            if len(scales) == 1 and None not in scales:
                yield node.name, [Slot(node=node.name, index=index) for index in range(len(node.inputs))]


def _own(view: GraphView, slot: Slot) -> EditRequest | None:
    """The request for a scale measured on this input alone, at most the shared one; None where there is no pair."""
    node = view.by_name.get(slot.node)
    shared = scale_of(view, _feeding(view, node.inputs[slot.index])) if node is not None else None
    return None if shared is None else EditRequest(slot=slot, how=Granularity.TENSOR, most=shared)


def _feeding(view: GraphView, tensor: str) -> Node | None:
    maker = view.producer(tensor)
    return maker if maker is not None and maker.op == DEQUANTIZE else None
