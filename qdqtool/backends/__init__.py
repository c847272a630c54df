"""Backends: what builds engines and what runs models; a builder is one file or folder with a `PLUGIN`."""

from qdqtool.plugins import Shelf

_SHARED = (
    "cache",
    "child",
    "crashes",
    "drafts",
    "facts",
    "flags",
    "gpu",
    "guards",
    "inventory",
    "migration",
    "native",
    "ort",
    "percent",
    "plan",
    "refusals",
    "releases",
    "retry",
    "shapes",
    "targets",
    "timing",
)
BUILDERS = Shelf(package="qdqtool.backends", besides=frozenset(_SHARED))
"""The builders, by name; the other files of this folder are what they share."""
