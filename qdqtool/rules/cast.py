"""A Cast to or from FP16 between Q/DQ and its neighbours.

    Q ─ DQ (FP32 scale) ─ Cast (FP16) ─ Conv      float
    Q ─ DQ (FP16 scale) ─ Conv                    INT8

A Cast between DequantizeLinear and a Conv keeps the Conv in float. From opset 19 on Q and DQ read and make FP16
themselves, by the type of their scale: the fix raises the opset where it must and folds the Cast into the scale.

Evidence: RTX 1.7.1 runs the Conv in float (cast_between).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.canonical.opset import HALF_SCALES
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.scales import storable
from qdqtool.matching.rule import Rule, Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqtool.graph.view import Node


def fix(context: RepairContext) -> Iterator[Change]:
    """Fold Cast to FP16 behind DequantizeLinear, and Cast from FP16 before QuantizeLinear."""
    if _needs_half_scales(context):
        raised = context.require_opset(HALF_SCALES)
        yield Change(
            subject=context.path.name,
            what=raised or "",
            reason=f"Q/DQ nodes take FP16 scales from opset {HALF_SCALES} on",
            error=0.0,
        )
    for pair in context.pairs:
        reader, maker = _cast_behind(context, pair), _cast_before(context, pair)
        if reader is None and maker is None:
            continue
        scale = storable(np.asarray(pair.scale, np.float32).reshape(pair.scale_shape or ()), half=True)
        if pair.dequantize:
            _rescale(context, pair.dequantize, scale, half=reader is not None)
        if pair.quantize:
            _rescale(context, pair.quantize, scale, half=maker is not None)
        if reader is not None:
            context.redirect(reader.outputs[0], context.result(pair))
            yield _told(pair.dequantize or "", f"Cast {reader.name!r} behind it folded into its scale")
        if maker is not None:
            context.edit.connect(context.nodes[pair.quantize or ""], 0, maker.inputs[0])
            yield _told(pair.quantize or "", f"Cast {maker.name!r} before it folded into its scale")


def _needs_half_scales(context: RepairContext) -> bool:
    """Whether FP16 scales are there or will be, while the opset has none."""
    return context.edit.opset < HALF_SCALES and any(
        _has_half_scale(context, pair) or _cast_behind(context, pair) or _cast_before(context, pair)
        for pair in context.pairs
    )


def _has_half_scale(context: RepairContext, pair: QdqPair) -> bool:
    names = [name for name in (pair.quantize, pair.dequantize) if name]
    return any(context.view.info(context.nodes[name].input[1]).dtype is DType.FLOAT16 for name in names)


def _cast_behind(context: RepairContext, pair: QdqPair) -> Node | None:
    reader = context.consumer(pair) if pair.dequantize and pair.scale else None
    wanted = (
        reader is not None
        and reader.op == "Cast"
        and context.view.info(reader.outputs[0]).dtype is DType.FLOAT16
    )
    return reader if wanted else None


def _cast_before(context: RepairContext, pair: QdqPair) -> Node | None:
    maker = context.view.producer(pair.tensor) if pair.quantize and pair.scale else None
    wanted = (
        maker is not None and maker.op == "Cast" and context.view.info(maker.inputs[0]).dtype is DType.FLOAT16
    )
    return maker if wanted else None


def _rescale(context: RepairContext, name: str, scale: NDArray[np.float32], *, half: bool) -> None:
    node = context.nodes[name]
    node.input[1] = context.edit.constant(node.input[1], scale.astype(np.float16) if half else scale)


def _told(subject: str, what: str) -> Change:
    return Change(
        subject=subject,
        what=what,
        reason="a Cast between DequantizeLinear and a compute node keeps that node in float",
    )


PLUGIN = Rule(code="QDQ153", stage=Stage.LEGAL, after=("bias",), fix=fix)
