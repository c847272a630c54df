"""Keeps the epilogue of an INT8 kernel in FP32, while an FP16 or BF16 graph would round after every node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from qdqtool.graph.canonical.order import sort
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.trt.ops import ELEMENTWISE_SUMS, EPILOGUE_ACTIVATIONS

Regions = tuple[frozenset[str], ...]
"""Sets of ONNX node names; each set is one kernel."""

_FLOAT = onnx.TensorProto.FLOAT
_EPILOGUE = EPILOGUE_ACTIVATIONS | ELEMENTWISE_SUMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Wide:
    """An FP32 tensor that is rounded to a result of type `element`, and the compute node whose kernel made this tensor."""

    tensor: str
    kernel: str
    element: int


def widen(edit: Edit, wide: dict[str, Wide], regions: Regions | None, path: Path) -> None:
    """Change to FP32 the nodes that follow an FP32 result inside the same TensorRT kernel.

    `wide` holds results of 16 bits by name and grows. A node belongs to the kernel before it if a region contains both.
    Without regions, it belongs if it is a usual epilogue and the only consumer. A QuantizeLinear takes the FP32 value
    in any case.

    Raises:
        InputFileError: the graph has a hole or a cycle.
    """
    readers = Counter(name for node in edit.nodes for name in set(node.input))
    sources = [value.name for value in edit.inputs] + list(edit.constants)
    for node in sort(list(edit.nodes), sources, path) if wide else ():
        source = next((name for name in node.input if name in wide), None)
        if source is None:
            continue
        if node.op_type == QUANTIZE:
            _quantize_wide(edit, node, wide[source].tensor)
        elif _joins(node, wide[source].kernel, regions, alone=readers[source] == 1):
            _make_wide(edit, node, wide, wide[source])


def _joins(node: onnx.NodeProto, kernel: str, regions: Regions | None, *, alone: bool) -> bool:
    if node.op_type not in _EPILOGUE or len(node.output) != 1:
        return False
    if regions is None:
        return alone
    return any(node.name in region and kernel in region for region in regions)


def _quantize_wide(edit: Edit, node: onnx.NodeProto, source: str) -> None:
    scale = edit.value(node.input[1])
    if scale is not None:
        node.input[0] = source
        node.input[1] = edit.constant(f"{node.input[1]}_wide", scale.astype(np.float32))


def _make_wide(edit: Edit, node: onnx.NodeProto, wide: dict[str, Wide], source: Wide) -> None:
    """Change `node` to FP32; a Cast makes its result of 16 bits for its other consumers."""
    for index, name in enumerate(node.input):
        if name:
            node.input[index] = (
                wide[name].tensor if name in wide else _widen_tensor(edit, name, edit.maker(name))
            )
    output = node.output[0]
    edit.write(node, 0, edit.fresh(f"{output}_wide"))
    wide[output] = replace(source, tensor=node.output[0])
    edit.node("Cast", [node.output[0]], [output], name=f"{node.name}_half", to=source.element)


def _widen_tensor(edit: Edit, tensor: str, maker: onnx.NodeProto | None) -> str:
    """Return `tensor` as FP32. Constants and dequantized values are not rounded to 16 bits; other tensors get a Cast."""
    value = edit.value(tensor)
    if value is not None:
        return edit.constant(f"{tensor}_wide", value.astype(np.float32))
    out = edit.fresh(f"{tensor}_wide")
    scale = edit.value(maker.input[1]) if maker is not None and maker.op_type == DEQUANTIZE else None
    if maker is not None and scale is not None:
        wide_scale = edit.constant(f"{maker.input[1]}_wide", scale.astype(np.float32))
        inputs = [maker.input[0], wide_scale, *maker.input[2:]]
        edit.node(DEQUANTIZE, inputs, [out], name=f"{maker.name}_wide").attribute.extend(maker.attribute)
    else:
        edit.node("Cast", [tensor], [out], name=f"{tensor}_wide", to=_FLOAT)
    return out
