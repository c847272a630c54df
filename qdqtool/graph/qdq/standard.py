"""Replaces TensorRT's own variants of QuantizeLinear and DequantizeLinear by the equivalent operators of ONNX.

    trt.TRT_FP8QuantizeLinear(x, s)            QuantizeLinear(x, s, 0 as FP8)
    trt.TRT_FP8DequantizeLinear(q, s)          DequantizeLinear(q, s)
    trt.TRT_INT4DequantizeLinear(w, s)         DequantizeLinear(w, s), attributes kept

nvidia-modelopt writes them for opsets that lack a type. TensorRT for RTX 1.7.1 builds the same kernels from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from qdqtool.core.grids import stored_as
from qdqtool.core.quant_format import INT4
from qdqtool.core.tensors import DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.trt.ops import TRT_DOMAIN

_SPELLINGS: Final = {
    QUANTIZE: (QUANTIZE, None),
    DEQUANTIZE: (DEQUANTIZE, None),
    "TRT_FP8QuantizeLinear": (QUANTIZE, DType.FLOAT8),
    "TRT_FP8DequantizeLinear": (DEQUANTIZE, None),
    "TRT_INT4QuantizeLinear": (QUANTIZE, DType.INT4),
    "TRT_INT4DequantizeLinear": (DEQUANTIZE, None),
}
"""Operator of the domain "trt" -> equivalent ONNX operator, and the type that its name states."""


def is_spelled_apart(op: str, domain: str) -> bool:
    """Return True if an operator is a TensorRT variant of QuantizeLinear or DequantizeLinear."""
    return domain == TRT_DOMAIN and op in _SPELLINGS


def standardise(edit: Edit) -> Iterator[tuple[str, str]]:
    """Rewrite every TensorRT variant in place; yield the node name and the old operator type."""
    for node in edit.nodes:
        if not is_spelled_apart(node.op_type, node.domain):
            continue
        op, dtype = _SPELLINGS[node.op_type]
        told = node.op_type
        node.op_type, node.domain = op, ""
        if dtype is not None and len(node.input) == 2:
            scale = edit.value(node.input[1])
            zeros = np.zeros(() if scale is None else scale.shape, stored_as(dtype))
            node.input.append(edit.constant(f"{node.name}_zero_point", zeros))
        yield node.name, told


def standard(model: Model) -> Model:
    """Return the model with the operators of ONNX, in an opset that has them; the model itself if it has no variants."""
    if not any(is_spelled_apart(node.op, node.domain) for node in model.view.nodes):
        return model
    proto, _ = raise_opset(model.proto, INT4.opset, model.path)
    edit = Edit(replace(model, proto=proto))
    for _ in standardise(edit):
        pass
    return edit.finish(retyped=True)
