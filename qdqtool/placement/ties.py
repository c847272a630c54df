"""The ties that matter once the quantized tensors are known, merged into groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from qdqtool.core.equivalence import classes
from qdqtool.core.placement import Tie

_MOST_REASONS = 4
"""Most reasons listed for one merged tie."""


def carriers(ties: Iterable[Tie], quantized: Iterable[str]) -> frozenset[str]:
    """Return the quantized tensors and all tensors their Q moves back to: from the first tensor of a tie to the others."""
    behind = _by_first(ties)
    reached = set(quantized)
    frontier = sorted(reached)
    while frontier:
        for tie in behind.get(frontier.pop(), ()):
            fresh = set(tie.tensors) - reached
            reached |= fresh
            frontier.extend(fresh)
    return frozenset(reached)


def effective(ties: Iterable[Tie], quantized: frozenset[str]) -> tuple[Tie, ...]:
    """Return the merged ties on the path of a Q that moves backward, each with only the tensors that need a scale."""
    behind = _by_first(ties)
    active = [tie for first in sorted(carriers(ties, quantized) & behind.keys()) for tie in behind[first]]
    groups = [group for group in classes(tie.tensors for tie in active) if len(group & quantized) > 1]
    home = {tensor: number for number, group in enumerate(groups) for tensor in group}
    parts: dict[int, list[Tie]] = defaultdict(list)
    for tie in active:
        if tie.tensors[0] in home:
            parts[home[tie.tensors[0]]].append(tie)
    merged = (_merged(groups[number] & quantized, members) for number, members in parts.items())
    return tuple(sorted(merged, key=lambda tie: tie.tensors))


def _by_first(ties: Iterable[Tie]) -> dict[str, list[Tie]]:
    behind: dict[str, list[Tie]] = defaultdict(list)
    for tie in ties:
        behind[tie.tensors[0]].append(tie)
    return behind


def _merged(tensors: frozenset[str], ties: list[Tie]) -> Tie:
    reasons = sorted({tie.reason for tie in ties})
    more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return Tie(
        tensors=tuple(sorted(tensors)),
        rule=", ".join(sorted({tie.rule for tie in ties})),
        reason="; ".join(reasons[:_MOST_REASONS]) + more,
        apart=tuple(sorted({name for tie in ties for name in tie.apart}.intersection(tensors))),
    )
