"""What the tool itself is: a step is done again where another release, or another state of a checkout, would do it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache

import calibrators
import qdqtool
from qdqtool._version import __version__
from qdqtool.plugins import all_entry_points

_GROUPS = "qdqtool."
"""How the entry-point groups of plug-ins begin."""


@cache
def own_code() -> str:
    """The release, a digest of the source files, and the packages that bring plug-ins with their releases.

    The release alone would do for wheels, but it stays the same while a checkout changes.
    """
    digest = hashlib.sha256()
    for package in (qdqtool, calibrators):
        for place in sorted(package.__path__):
            for name, path in sorted(_sources(place)):
                digest.update(name.encode() + b"\0")
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- see `_sources`
                    digest.update(hashlib.sha256(file.read()).digest())
    guests = {
        f"{entry.dist.name} {entry.dist.version}"
        for group in all_entry_points().groups
        if group.startswith(_GROUPS)
        for entry in all_entry_points().select(group=group)
        if entry.dist is not None
    }
    return " ".join([__version__, digest.hexdigest()[:16], *sorted(guests)])


def _sources(folder: str) -> Iterator[tuple[str, str]]:
    """Every source file: its name inside the folder, and where it lies. Objects for 800 paths would cost as much as reading."""
    for here, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(here, name)  # noqa: PTH118 -- strings, see above
                yield path[len(folder) :].replace(os.sep, "/"), path
