"""Backends: what builds engines and what runs models; `builders` holds one file per builder."""

from qdqtool.plugins import Registry

BUILDERS = Registry(package="qdqtool.backends.builders")
"""The builders, by name."""
