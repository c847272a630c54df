"""Release numbers as tuples of ints, which compare in the right order."""

from __future__ import annotations

import re

Release = tuple[int, ...]

_BANNER = re.compile(r"&&&& RUNNING TensorRT\.trtexec \[TensorRT v(\d{4,6})\]")


def packed_release(number: int) -> Release:
    """Convert the number in trtexec's banner: 8412 is 8.4.12; from 10 on, 101401 is 10.14.1."""
    if number < 10_000:
        return number // 1000, number // 100 % 10, number % 100
    return number // 10_000, number // 100 % 100, number % 100


def banner_release(text: str) -> Release:
    """Return the release in the first trtexec banner of a text.

    Return an empty tuple if there is none; 7.x and older print no number.
    """
    found = _BANNER.search(text)
    return packed_release(int(found[1])) if found else ()


def spell(release: Release) -> str:
    """Format a release with dots."""
    return ".".join(map(str, release))
