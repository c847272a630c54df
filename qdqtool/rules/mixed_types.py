"""The scale's type and the types around it disagree.

    x (FP16) ─ Q (s FP16) ─ DQ ─┐
                                 Conv      one factor is FP16, the other FP32: refused
    w (FP32) ─ Q (s FP32) ─ DQ ─┘

A strongly typed network takes the type behind DequantizeLinear from its scale: an FP32 scale in an FP16 model makes
one input of the next layer FP32 and leaves the other FP16.

Evidence: RTX 1.7.1: `input and kernel must be of same type` (half_scale in an FP32 model, opset13_missing_zp and
com_microsoft_qdq in FP16). TensorRT 8 reads FP32 scales only.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import DEQUANTIZE


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products whose factors have different float types, and FP16 scales for TensorRT 8."""
    for node in flow.products():
        types = [_type(flow.view, tensor) for tensor in node.inputs[:2]]
        quantized = any(flow.origin(node, index) is not None for index in (0, 1))
        if quantized and types[0] is not types[1] and all(dtype.is_float for dtype in types):
            yield Violation(
                node=node.name,
                reason=f"one factor is {types[0]}, the other {types[1]}",
                effect="the parser refuses it: both must be of the same type",
                fix="give the scales of both pairs the type of the float part; "
                f"{repairing(to_float=[node.name])} takes the Q/DQ off",
            )
    if target.family == "8":
        for pair in flow.pairs:
            name = pair.dequantize or pair.quantize or ""
            step = flow.view.by_name[name].inputs[1]
            if flow.view.info(step).dtype is DType.FLOAT16:
                yield Violation(
                    node=name,
                    reason="the scale is FP16",
                    effect="TensorRT 8 wants FP32 scales and refuses it",
                    fix="store scales as FP32 and let the --fp16 flag choose types",
                )


def _type(view: GraphView, tensor: str) -> DType:
    """The type of a factor: that of the scale after a DequantizeLinear, which ONNX calls FP32 before opset 19."""
    maker = view.producer(tensor)
    if maker is None or maker.op != DEQUANTIZE:
        return view.info(tensor).dtype
    scale = view.info(maker.inputs[1]).dtype
    if scale is DType.FLOAT64:
        return DType.FLOAT32  # the parser reads FP64 constants as FP32
    return scale if scale.is_float else view.info(tensor).dtype


PLUGIN = Rule(code="QDQ112", severity=Severity.ERROR, check=check)
