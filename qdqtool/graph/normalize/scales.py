"""Scales that TensorRT refuses, crashes on or silently runs in float become scalars, or their pair goes.

An activation scale of shape [1] or one per channel keeps a Conv silently in float. Scale 0, NaN or negative is a
parser error, and a scale that is computed at run time crashes the builder.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import numpy as np

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext


def repair(context: RepairContext) -> Iterator[Change]:
    """Repair the scale of every activation pair; take the pair out where there is no usable scale."""
    for pair in context.pairs:
        if pair.kind is SlotKind.WEIGHT or pair.quantize is None or pair.dequantize is None:
            continue
        trouble = _unusable(pair)
        if trouble and context.result(pair) not in context.pinned:
            context.dissolve(pair)
            yield _told(pair, "taken out: the tensor stays float", trouble)
        elif not trouble and any(scale < 0 for scale in pair.scale):
            context.restate(pair, np.abs(np.asarray(pair.scale)).max())
            yield _told(pair, "negative scale became positive", "the parser refuses negative scales")
        elif not trouble and len(pair.scale) > 1:
            low, high = context.span(pair)
            scale = max(-low, high) / INT8.qmax
            context.restate(pair, np.asarray(scale))
            what = f"{len(pair.scale)} scales became one, the largest ({scale:.4g})"
            yield _told(
                pair, what, "a scale per channel on an activation keeps its consumer silently in float"
            )
        elif not trouble and pair.scale_shape == (1,):
            _as_scalar(context, pair)
            reason = "a scale of shape [1] on an activation keeps a Conv silently in float"
            yield _told(pair, "scale of shape [1] became a scalar", reason, error=0.0)


def _unusable(pair: QdqPair) -> str | None:
    if pair.scale_shape is None or not pair.zero_point:
        return "a scale that is computed at run time crashes the builder"
    if not all(isfinite(scale) and scale != 0 for scale in pair.scale):
        return "the parser refuses a scale that is 0 or not a number"
    if any(scale < 0 for scale in pair.scale) and any(pair.zero_point):
        return "the parser refuses negative scales"
    return None


def _as_scalar(context: RepairContext, pair: QdqPair) -> None:
    """Reshape scale and zero point of both nodes, keeping their values and types."""
    for name in (pair.quantize, pair.dequantize):
        node = context.nodes[name or ""]
        for index in range(1, len(node.input)):
            value = context.edit.value(node.input[index])
            if value is not None:
                node.input[index] = context.edit.constant(node.input[index], value.reshape(()))


def _told(pair: QdqPair, what: str, reason: str, error: float | None = None) -> Change:
    subject = pair.quantize or pair.dequantize or pair.tensor
    return Change(repair="scales", subject=subject, what=what, reason=reason, error=error)


PLUGIN = repair
