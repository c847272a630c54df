"""How two engines of the same model differ: aligned by ONNX node, with the causes in words."""

from qdqtool.engine.diff.compare import compare
from qdqtool.engine.diff.explored import Explored

__all__ = ["Explored", "compare"]
