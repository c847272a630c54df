"""Which builder is meant. The value lives in the data model, because recipes hold one; readers find it here too."""

from qdqtool.core.target import FAMILIES, Target

__all__ = ["FAMILIES", "Target"]
