"""What the tool itself is: a step is done again where another release, or another state of a checkout, would do it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import calibrators
import qdqtool
from qdqtool._version import __version__

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
            root = Path(place)
            for path in sorted(root.rglob("*.py")):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    guests = {
        f"{entry.dist.name} {entry.dist.version}"
        for group in entry_points().groups
        if group.startswith(_GROUPS)
        for entry in entry_points(group=group)
        if entry.dist is not None
    }
    return " ".join([__version__, digest.hexdigest()[:16], *sorted(guests)])
