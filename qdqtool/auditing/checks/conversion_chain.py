"""Two or more kernels in a row only convert or copy.

    kernel -> reformat -> quantize -> copy -> kernel

Each of them reads and writes the whole tensor again. Several in a row show that the kernels at both ends use different
types or layouts, or that a slice or a concatenation prevents fusion.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.auditing.kernels import origin
from qdqtool.core.claims import Says
from qdqtool.core.commands import Command
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted

_FIX = f"{Command('fix')} tries Q/DQ across slices and concatenations, so that the kernels at both ends agree on a type"


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per longest chain of at least two kernels that only move data."""
    for layer in context.kernels:
        if not _moves(layer) or any(_moves(writer) for writer in context.wiring.writers(layer)):
            continue
        chain = [layer]
        while (following := _following(context, chain[-1])) is not None and following not in chain:
            chain.append(following)
        if len(chain) < 2:
            continue
        sizes = [context.bytes_of(link) for link in chain]
        known = [size for size in sizes if size is not None]
        yield Draft(
            subject=layer.name,
            reason=f"{counted(len(chain), 'kernel in a row only moves', 'kernels in a row only move')} data: "
            + " -> ".join(f"{link.name} ({origin(link)})" for link in chain),
            fix=_FIX,
            bytes=sum(known) if len(known) == len(sizes) else None,
            evidence=tuple(context.at_layer(link.name) for link in chain),
        )


def _moves(layer: EngineLayer) -> bool:
    copies = dict(layer.attributes).get("Origin", "") in {"SLICE", "CONCAT"}
    return layer.role is Role.QDQ or (copies and layer.role is Role.OTHER)


def _following(context: AuditContext, layer: EngineLayer) -> EngineLayer | None:
    readers = context.wiring.readers(layer)
    return readers[0] if len(readers) == 1 and _moves(readers[0]) else None


PLUGIN = Check(code="QDQ209", severity=Severity.INFO, find=find, says=Says.STANDS_ALONE)
