"""An Add reads its shortcut in float although other nodes read the same values as INT8.

The kernel that makes these values writes them twice, and the Add reads the wider copy. Placement may mean it so: the
residual stream of a network that normalizes what it adds up loses accuracy in every block. This says what that costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.advice import joined
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Decision, Placement, Stance
from qdqtool.core.wording import counted
from qdqtool.graph.view import GraphView


def find(context: AuditContext) -> Iterator[Draft]:
    """One draft for all Adds that are float for one reason."""
    if context.view is None or context.placement is None:
        return
    groups: dict[tuple[str, str], list[Decision]] = defaultdict(list)
    for decision in _vetoed(context.placement):
        vetoes = [opinion for opinion in decision.opinions if opinion.stance is Stance.VETO]
        reason = "; ".join(dict.fromkeys(opinion.reason for opinion in vetoes))
        groups[reason, joined(opinion.fix for opinion in vetoes)].append(decision)
    for (reason, fix), found in groups.items():
        sizes = [_saved(context.view, decision.tensor) for decision in found]
        known = [size for size in sizes if size is not None]
        several = f"{counted(len(found), 'Add reads', 'Adds read')}" if len(found) > 1 else "reads"
        yield Draft(
            subject=found[0].slot.node,
            reason=f"{several} in float what other nodes read quantized: {reason}",
            fix=fix,
            bytes=sum(known) if len(known) == len(sizes) else None,
            evidence=tuple(context.at_node(decision.slot.node) for decision in found),
        )


def _vetoed(placement: Placement) -> Iterator[Decision]:
    """Shortcuts that would be INT8, as another node reads them so, and that a rule keeps float."""
    shared = {decision.tensor for decision in placement.quantized}
    for decision in placement.decisions:
        wanted = any(opinion.stance is Stance.REQUEST for opinion in decision.opinions)
        if decision.op == "Add" and wanted and not decision.quantize and decision.tensor in shared:
            yield decision


def _saved(view: GraphView, tensor: str) -> int | None:
    """Bytes that are moved for a float copy: it is written and read, where INT8 would be read alone.

    As dumped for bert, albert and deberta-v2 of two blocks: 32 KiB four times written and read, 224 KiB less with INT8.
    """
    info = view.info(tensor)
    if info.elements is None or info.dtype.bits is None:
        return None
    return info.elements * (2 * info.dtype.bits // 8 - 1)


PLUGIN = Check(code="QDQ219", severity=Severity.INFO, find=find)
