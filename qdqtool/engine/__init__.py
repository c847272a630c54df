"""Reads descriptions of engines: every layer-information form and profile, costs, comparison."""

from qdqtool.engine.layer_info import read, read_text

__all__ = ["read", "read_text"]
