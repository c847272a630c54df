"""Compares two caches, and merges several into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qdqtool.calibration.caches.contents import Cache, Entry
from qdqtool.core.commands import Command
from qdqtool.core.wording import counted
from qdqtool.errors import UsageError

Winner = Literal["error", "first", "last", "max"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Scales of one tensor in two caches.

    Attributes:
        tensor: its name.
        first: scale in the first cache; None if it has no entry.
        second: scale in the second cache; None if it has no entry.
    """

    tensor: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """Second scale over first; None if a scale is missing or the first is unusable."""
        if self.first is None or self.second is None or not (0 < self.first < math.inf):
            return None
        return self.second / self.first

    @property
    def distance(self) -> float:
        """Distance for sorting: absolute logarithm of the ratio; infinite if a scale is missing or unusable."""
        ratio = self.ratio
        return abs(math.log(ratio)) if ratio is not None and 0 < ratio < math.inf else math.inf


def differences(first: Cache, second: Cache) -> tuple[Difference, ...]:
    """Return every tensor whose scales differ, sorted by distance (largest first), then by name."""
    left, right = first.by_tensor(), second.by_tensor()
    found = (
        Difference(
            tensor=tensor,
            first=left[tensor].scale if tensor in left else None,
            second=right[tensor].scale if tensor in right else None,
        )
        for tensor in sorted(left.keys() | right.keys())
    )
    apart = [entry for entry in found if not _same(entry.first, entry.second)]
    return tuple(sorted(apart, key=lambda entry: (-entry.distance, entry.tensor)))


def merge_caches(caches: Sequence[Cache], winner: Winner = "error") -> Cache:
    """Merge the entries of all caches, sorted by tensor; header and format are those of the first cache.

    `winner` says whose scale counts where they disagree: nobody's, the first's, the last's, or the largest.

    Raises:
        UsageError: scales disagree and `winner` is "error".
    """
    merged: dict[str, Entry] = {}
    disagreeing: list[str] = []
    for cache in caches:
        for tensor, entry in cache.by_tensor().items():
            known = merged.get(tensor)
            if known is None:
                merged[tensor] = entry
            elif not _same(known.scale, entry.scale):
                disagreeing.append(tensor)
                merged[tensor] = _chosen(known, entry, winner)
    if disagreeing and winner == "error":
        raise UsageError(
            f"{counted(len(set(disagreeing)), 'tensor has', 'tensors have')} different scales, first {disagreeing[0]!r}",
            fix=f"choose with --take first, last or max; {Command('cache', ('diff',))} shows them",
        )
    first = caches[0]
    start = 2 if first.header else 1
    entries = tuple(
        replace(merged[tensor], line=line, text=merged[tensor].text if cache_of_same_kind(caches) else "")
        for line, tensor in enumerate(sorted(merged), start=start)
    )
    return replace(first, entries=entries, unread=(), ends_open=False)


def cache_of_same_kind(caches: Sequence[Cache]) -> bool:
    """Return whether all caches have one format, so that the text of numbers can be copied."""
    return len({cache.format for cache in caches}) == 1


def _chosen(known: Entry, entry: Entry, winner: Winner) -> Entry:
    if winner == "last":
        return entry
    if winner == "max":
        return max(known, entry, key=lambda one: one.scale if one.is_usable else -math.inf)
    return known


def _same(first: float | None, second: float | None) -> bool:
    both_nan = first is not None and second is not None and math.isnan(first) and math.isnan(second)
    return both_nan or first == second
