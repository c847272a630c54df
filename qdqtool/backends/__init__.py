"""Backends: what builds engines and what runs models; a builder is one file or folder with a `PLUGIN`."""

from qdqtool.plugins import Registry

_SHARED = (
    "child",
    "flags",
    "gpu",
    "inventory",
    "building",
    "migration",
    "native",
    "ort",
    "plan",
    "releases",
    "running",
    "shapes",
    "targets",
    "timing",
    "torch_qat",
)
BUILDERS = Registry(package="qdqtool.backends", besides=frozenset(_SHARED))
"""The builders, by name; the other files of this folder are what they share."""
