"""A float weight beside a quantized activation gets a pair too.

With Q/DQ on one side only TensorRT silently runs the node in float and keeps the quantize kernel. The scales of a
weight follow from its values, so the missing pair needs no samples.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.normalize.half_quantized import half_quantized
from qdqtool.graph.normalize.weights import requantized
from qdqtool.trt.ops import weight_axis


def repair(bench: RepairContext) -> Iterator[Change]:
    """Quantize float weights of nodes whose activation is quantized."""
    for node in bench.view.nodes:
        for index in half_quantized(bench.view, node):
            told = _quantized(bench, node.name, index)
            if told is not None:
                yield told


def _quantized(bench: RepairContext, name: str, index: int) -> Change | None:
    """Put INT8 values behind a DequantizeLinear in the place of a float constant; None where there is none."""
    edit, reader = bench.edit, bench.view.by_name[name]
    node = bench.nodes[name]
    tensor = node.input[index]
    value = edit.value(tensor)
    if value is None or value.dtype not in (np.float32, np.float16) or value.ndim < 2 or not value.size:
        return None
    axis = weight_axis(reader, index, value.ndim)
    integers, scale, error = requantized(value.astype(np.float64), axis, half=value.dtype == np.float16)
    inputs = [
        edit.constant(f"{tensor}_int8", integers),
        edit.constant(f"{tensor}_scale", scale.astype(value.dtype)),
        edit.constant(f"{tensor}_zero_point", np.zeros(scale.shape, np.int8)),
    ]
    result = edit.fresh(f"{tensor}_dequantized")
    edit.connect(node, index, result)
    edit.node("DequantizeLinear", inputs, [result], name=f"{tensor}_{name}_DequantizeLinear", axis=axis)
    return Change(
        repair="missing",
        subject=tensor,
        what=f"float weight of {reader.op} {name!r} quantized per channel",
        reason="a quantized activation without a quantized weight silently runs in float",
        error=error,
    )


PLUGIN = repair
