"""Type and format words that nobody recognises, counted."""

from __future__ import annotations

from collections import Counter

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Engine


def unknown_formats(engine: Engine) -> tuple[tuple[str, int], ...]:
    """The words of every tensor whose type is unknown, with how often they occur, in alphabetical order."""
    counts = Counter(
        tensor.format
        for layer in engine.layers
        for tensor in (*layer.inputs, *layer.constants, *layer.outputs)
        if tensor.dtype is DType.UNKNOWN
    )
    return tuple(sorted(counts.items()))
