"""Which row of a profile belongs to which layer: by normalized name, and by order where names repeat."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from qdqtool.core.engine import Engine
from qdqtool.core.timing import Profile, ProfileRow
from qdqtool.core.wording import counted
from qdqtool.trt.names import normalized

_FOREIGN = 0.5
"""Below this share of matched rows the profile is taken for that of another engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """Times joined with layers.

    Attributes:
        rows: the row of every layer, or None, in the order of the layers.
        unmatched: rows that belong to no layer.
        matched: share of the rows that do.
        notes: what a reader should know.
    """

    rows: tuple[ProfileRow | None, ...]
    unmatched: tuple[ProfileRow, ...]
    matched: float
    notes: tuple[str, ...] = ()


def join_times(engine: Engine, profile: Profile) -> Timed:
    """Give every layer the first row of its name that no earlier layer has taken."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for index, row in enumerate(profile.rows):
        waiting[normalized(row.name)].append(index)
    taken: list[int | None] = []
    for layer in engine.layers:
        candidates = waiting[normalized(layer.name)]
        taken.append(candidates.popleft() if candidates else None)
    used = {index for index in taken if index is not None}
    unmatched = tuple(row for index, row in enumerate(profile.rows) if index not in used)
    matched = len(used) / len(profile.rows) if profile.rows else 0.0
    return Timed(
        rows=tuple(None if index is None else profile.rows[index] for index in taken),
        unmatched=unmatched,
        matched=matched,
        notes=(*profile.notes, *_notes(matched, unmatched)),
    )


def _notes(matched: float, unmatched: tuple[ProfileRow, ...]) -> list[str]:
    if matched < _FOREIGN:
        return [
            f"the profile belongs to another engine: only {matched:.0%} of its rows name a layer of this one"
        ]
    return (
        [
            f"{counted(len(unmatched), 'row of the profile names', 'rows of the profile name')} no layer, first {unmatched[0].name!r}"
        ]
        if unmatched
        else []
    )
