"""An Add reads its shortcut in float although other nodes read the same values as INT8.

The kernel that produces these values writes them twice, and the Add reads the float copy. Placement may do this on
purpose: in a network with LayerNormalization, an INT8 residual stream loses accuracy in every block. This finding
reports the cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.auditing.explanations import why_float
from qdqtool.core.claims import Part, Says
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Placement, Slot, Stance
from qdqtool.core.wording import counted
from qdqtool.graph.view import GraphView
from qdqtool.matching.evidence import Explanation


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft for all Adds that are float for one reason."""
    if context.view is None or context.placement is None:
        return
    groups: dict[tuple[bool, Explanation], list[tuple[Slot, str]]] = defaultdict(list)
    for slot, tensor, shared in _float_shortcuts(context.view, context.placement):
        cause = why_float(slot, context.placement)
        if cause is not None:
            # Only the name of the input differs between Adds that no rule asked for.
            reason, fix = (text.replace(str(slot), "this input") for text in (cause.reason, cause.fix))
            groups[shared, replace(cause, reason=reason, fix=fix)].append((slot, tensor))
    for (shared, cause), found in groups.items():
        sizes = [_saved(context.view, tensor) if shared else None for _, tensor in found]
        known = [size for size in sizes if size is not None]
        several = f"{counted(len(found), 'Add reads', 'Adds read')}" if len(found) > 1 else "reads"
        what = (
            "in float, although other nodes read the same tensor quantized"
            if shared
            else "the shortcut in float"
        )
        yield Draft(
            subject=found[0][0].node,
            reason=f"{several} {what}: {cause.reason}",
            fix=cause.fix,
            bytes=sum(known) if len(known) == len(sizes) else None,
            evidence=tuple(context.at_node(slot.node) for slot, _ in found),
            claims=tuple(claim for claim in cause.claims if claim.part is Part.REASON),
        )


def _float_shortcuts(view: GraphView, placement: Placement) -> Iterator[tuple[Slot, str, bool]]:
    """Yield float inputs of Adds that another node reads quantized or that a rule asked for.

    The last item is true if another node reads the tensor quantized.
    """
    decisions = {decision.slot: decision for decision in placement.decisions}
    shared = {decision.tensor for decision in placement.quantized}
    for node in view.nodes:
        for index, tensor in enumerate(node.inputs if node.op == "Add" else ()):
            slot = Slot(node=node.name, index=index)
            decision = decisions.get(slot)
            wanted = decision is not None and any(
                opinion.stance is Stance.REQUEST for opinion in decision.opinions
            )
            if (tensor in shared or wanted) and not (decision is not None and decision.quantize):
                yield slot, tensor, tensor in shared


def _saved(view: GraphView, tensor: str) -> int | None:
    """Return the bytes that a float copy moves beyond INT8: the copy is written and read, INT8 would only be read.

    As dumped for bert, albert and deberta-v2 of two blocks: 32 KiB four times written and read, 224 KiB less with INT8.
    """
    info = view.info(tensor)
    if info.elements is None or info.dtype.bits is None:
        return None
    return info.elements * (2 * info.dtype.bits // 8 - 1)


PLUGIN = Check(code="QDQ219", severity=Severity.INFO, find=find, says=Says.READS_FLOAT)
