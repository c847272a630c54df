"""How long lists are told in a sentence."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice


def listed(names: Collection[object], most: int) -> str:
    """The first names, and how many there are beyond them.

        >>> listed(["a", "b", "c"], 2)
        'a, b and 1 more'

    Args:
        names: what to list, in the order to tell it in.
        most: how many are named.
    """
    shown = ", ".join(map(str, islice(names, most)))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
