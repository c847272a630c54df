"""Digests of the code that determines results: if this code changes, steps run again.

It consists of:

- all files of the packages `qdqtool` and `calibrators`: source, messages, pages, templates. The release alone would do for wheels,
  but it stays the same while a checkout changes;
- the files of installed plug-ins, for the same reason;
- the releases of the libraries that compute.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import calibrators
import qdqtool
from qdqtool._version import __version__
from qdqtool.plugins import all_entry_points

_GROUPS = "qdqtool."
"""Prefix of the entry-point groups of plug-ins."""
_COMPUTING = (
    "numba",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-ep-openvino",
)
"""Packages whose release changes values; the builder's release is in the key of the step that builds."""
_MADE = (".pyc", ".pyo", "~", ".swp")
"""Suffixes of files that Python and editors leave."""


@cache
def own_code() -> str:
    """Return the release of qdqtool, a digest of its files, and the releases of libraries and of packages with plug-ins."""
    folders = [place for package in (qdqtool, calibrators) for place in sorted(package.__path__)]
    libraries = (f"{name} {version}" for name in _COMPUTING if (version := release(name)))
    return " ".join([__version__, _digest(folders), *libraries, *sorted(set(_guests()))])


def code_behind(module: str) -> str:
    """Return a digest of a module's package without importing it; "" if there is no such package.

    The working folder is searched too, because functions of the user are imported from there.
    """
    top = module.partition(".")[0]
    try:
        spec = find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])  # noqa: PTH109
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    if spec.submodule_search_locations is not None:
        return _digest(sorted(spec.submodule_search_locations))
    return _digest([spec.origin]) if spec.origin and os.path.isfile(spec.origin) else ""  # noqa: PTH113


def release(distribution: str) -> str | None:
    """Return the installed release of a package; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _guests() -> Iterator[str]:
    """Yield each third-party package with plug-ins, its release, and a digest of its code."""
    for group in all_entry_points().groups:
        if group.startswith(_GROUPS):
            for entry in all_entry_points().select(group=group):
                owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module
                yield f"{owner} {code_behind(entry.module)}"


def _digest(places: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for place in places:
        for name, path in sorted(_files(place)):
            digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- see `_files`
                digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:16]


def _files(place: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the path of every file in a folder, or of the file itself.

    Path objects for 900 files would take as long as reading them.
    """
    if os.path.isfile(place):  # noqa: PTH113 -- strings, see above
        yield os.path.basename(place), place  # noqa: PTH119
        return
    for here, folders, names in os.walk(place):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and not name.endswith(_MADE):
                path = os.path.join(here, name)  # noqa: PTH118
                yield path[len(place) :].replace(os.sep, "/"), path
