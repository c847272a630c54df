"""Backends: what builds engines and what runs models; a builder is one file or folder with a `PLUGIN`."""

from qdqtool.plugins import Shelf

BUILDERS = Shelf(
    package="qdqtool.backends",
    besides=frozenset({"cache", "child", "crashes", "drafts", "ort", "percent", "refusals", "shapes"}),
)
"""The builders, by name; the other files of this folder are what they share."""
