"""Equivalence classes of overlapping groups."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def classes(groups: Iterable[Iterable[T]]) -> tuple[frozenset[T], ...]:
    """Merge overlapping groups into disjoint classes. The order of the classes is not defined."""
    parent: dict[T, T] = {}

    def root(item: T) -> T:
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for group in groups:
        members = list(group)
        for member in members:
            parent[root(member)] = root(members[0])
    found: dict[T, set[T]] = {}
    for item in parent:
        found.setdefault(root(item), set()).add(item)
    return tuple(frozenset(members) for members in found.values())
