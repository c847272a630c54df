"""Integer biases behind DequantizeLinear become float biases.

onnxruntime and TensorFlow store biases as INT32. TensorRT adds the bias in float, and its DequantizeLinear does not
read INT32: the parser stops. The float values are exactly scale times integer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.normalize.values import dequantized
from qdqtool.trt.ops import PRODUCTS


def repair(context: RepairContext) -> Iterator[Change]:
    """Store what the DequantizeLinear of a bias, or of any INT32 constant, would make."""
    for pair in context.pairs:
        value = dequantized(context, pair) if _is_bias(context, pair) else None
        if value is None:
            continue
        kind = context.scale_type(context.nodes[pair.dequantize or ""])
        context.redirect(
            context.result(pair), context.edit.constant(f"{pair.tensor}_float", value.astype(kind))
        )
        yield Change(
            repair="bias",
            subject=pair.tensor,
            what=f"{pair.dtype} bias became float",
            reason="TensorRT adds biases in float and refuses a DequantizeLinear on INT32",
            error=0.0,
        )


def _is_bias(context: RepairContext, pair: QdqPair) -> bool:
    if pair.dequantize is None or context.result(pair) in context.pinned:
        return False
    if context.integers(pair) == np.int32:
        return True
    slots = pair.slots
    return bool(slots) and all(
        slot.index == 2 and context.nodes[slot.node].op_type in PRODUCTS for slot in slots
    )


PLUGIN = repair
