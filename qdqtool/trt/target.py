"""The target builder, also importable from here. It is in the data model (`core.target`), because recipes contain one."""

from qdqtool.core.target import FAMILIES, Target

__all__ = ["FAMILIES", "Target"]
