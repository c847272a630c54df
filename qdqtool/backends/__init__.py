"""Backends that build engines and run models; `builders` holds one file per builder."""

from qdqtool.plugins import Registry

BUILDERS = Registry(package="qdqtool.backends.builders")
"""Registry of the builders, by name."""
