"""Wording of lists and counts in a sentence."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

_METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "next_token": "next token",
    "sqnr_db": "SQNR",
    "psnr": "PSNR",
    "max_abs": "max abs",
    "mean_abs": "mean abs",
    "kl": "KL",
}


def list_names(names: Collection[object], most: int) -> str:
    """Return the first names, and the number of the other ones.

        >>> listed(["a", "b", "c"], 2)
        'a, b and 1 more'

    Args:
        names: names to list, in their order.
        most: how many are named.
    """
    shown = ", ".join(map(str, islice(names, most)))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def count_noun(number: int, noun: str, plural: str = "", *, grouped: bool = False) -> str:
    """Return a count with its noun, in the singular or plural.

        >>> counted(1, "finding"), counted(0, "finding"), counted(2, "node was", "nodes were")
        ('1 finding', '0 findings', '2 nodes were')

    Args:
        number: how many.
        noun: word after the number 1.
        plural: word after other numbers; without it, `noun` with an s.
        grouped: whether thousands are set apart by commas.
    """
    return f"{number:{',' if grouped else ''}} {noun if number == 1 else plural or noun + 's'}"


def metric(name: str) -> str:
    """Return a metric's name as people write it: "top-1" for "top1"."""
    return _METRICS.get(name, name)


def computing_in(format_: str) -> str:
    """Return words for a format that `core.engine.count_formats` counts.

    >>> computing_in("fp8"), computing_in("int4-weights")
    ('in FP8', 'with INT4 weights')
    """
    title = format_.removesuffix("-weights").upper()
    return f"in {title}" if title == format_.upper() else f"with {title} weights"
