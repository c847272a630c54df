"""What was asked of a node, what its kernel computes in, and how its weight is held.

Asked is read from the Q/DQ nodes in front of its two factors. Realised is read from the layer information: arithmetic in
few bits where both factors of the kernel have the same small type; else, where the kernel reads a stored weight, float
arithmetic that dequantizes inside the kernel; else, where another kernel makes that weight float first, a defeat: the
weight is written and read again in every inference, although the engine file is as small as one where it is not.

Evidence: layer dumps of about 790 builds with TensorRT for RTX 1.7.1. Nothing in its log tells these cases apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from qdqtool.auditing.evidence import NodeEvidence
from qdqtool.auditing.operands import Operand
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.quant_format import INT4
from qdqtool.graph.lower import MX_DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import FP4_DYNAMIC

FLOAT, UNKNOWN = "float", "unknown"
BEFORE = " dequantized before the kernel"
"""Ends the words for a weight that another kernel turns into floats in every inference."""
_SMALL = {
    DType.INT8: "int8",
    DType.INT4: "int4",
    DType.FLOAT8: "fp8",
    DType.FLOAT8_E5M2: "fp8_e5m2",
    DType.FLOAT4: "nvfp4",
}
_VECTOR_PRODUCT = "MulSum"
"""How a generated kernel is called that multiplies a matrix with one row: `...CastMulCastReshMulSum`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Realised:
    """One node.

    Attributes:
        asked: a format ("int8", "nvfp4"), one of its weights alone ("int4-weights"), or "float".
        realised: in the same words; "float", "unknown", or weights that are dequantized before the kernel.
        layer: the kernel that dequantizes the weight, "" without one.
        bytes_lost: what that kernel writes and the next one reads, in every inference; None without one.
    """

    asked: str
    realised: str
    layer: str = ""
    bytes_lost: int | None = None


def realised(case: NodeEvidence, precision: DType) -> Realised:
    """What became of what was asked of one node; `precision` is the type of its arithmetic."""
    asked = asked_of(case)
    if precision in _SMALL:
        return Realised(asked=asked, realised=_SMALL[precision])
    layers = case.holders.compute or tuple(
        layer for layer in case.holders.other if _VECTOR_PRODUCT in layer.name
    )
    if not layers:
        return Realised(asked=asked, realised=UNKNOWN)
    held = stored_weight(layers)
    if held is not None:
        return Realised(asked=asked, realised=f"{_held_as(held, asked)}-weights")
    for layer in case.made:
        stored = stored_weight((layer,))
        if stored is not None and layer.outputs:
            size = layer.outputs[0].bytes
            return Realised(
                asked=asked,
                realised=f"{_held_as(stored, asked)}-weights{BEFORE}",
                layer=layer.name,
                bytes_lost=None if size is None else 2 * size,
            )
    return Realised(asked=asked, realised=FLOAT)


def _held_as(weight: EngineTensor, asked: str) -> str:
    """The format that a stored weight has; a dump shows E4M3 values for MXFP8 too, and nothing of its scales."""
    if weight.dtype is DType.FLOAT8 and asked.startswith("mxfp8"):
        return "mxfp8"
    return _SMALL[weight.dtype]


def asked_of(case: NodeEvidence) -> str:
    """The format that the Q/DQ nodes in front of a node ask for."""
    view = case.view
    weights = {_format(view, operand) for operand in case.weights}
    activations = {_format(view, operand) for operand in case.activations}
    asked = weights | activations
    if asked <= {FLOAT}:
        return FLOAT
    if len(asked) == 1:
        return asked.pop()
    if activations <= {FLOAT}:
        return f"{'+'.join(sorted(weights - {FLOAT}))}-weights"
    if weights <= {FLOAT}:
        return f"{'+'.join(sorted(activations - {FLOAT}))}-activations"
    return "+".join(sorted(asked - {FLOAT}))


def words_of(case: NodeEvidence) -> str:
    """What a sentence calls the arithmetic that Q/DQ on all inputs of a node would ask for."""
    asked = asked_of(case).split("+")[0].split("-")[0]
    # INT4 is a format of weights alone.
    return "INT8" if asked in {FLOAT, INT4.name} else asked.upper()


def makers(engine: Engine) -> Mapping[str, EngineLayer]:
    """Kernels that read constants only, by the tensor that they make."""
    return {
        tensor.name: layer
        for layer in engine.layers
        if layer.constants and not layer.inputs and layer.role is not Role.NONE
        for tensor in layer.outputs
    }


def stored_weight(layers: Iterable[EngineLayer]) -> EngineTensor | None:
    """The largest constant in few bits that is no list of scales; None without one."""
    found = [
        constant
        for layer in layers
        for constant in layer.constants
        if constant.dtype in _SMALL and sum(size != 1 for size in constant.shape or ()) > 1
    ]
    # Block scales of a small FP4 weight are padded, and may then be larger than the weight.
    found = [constant for constant in found if constant.dtype is DType.FLOAT4] or found
    return max(found, key=lambda constant: prod(constant.shape or ()), default=None)


def _format(view: GraphView, operand: Operand) -> str:
    if operand.dequantize is None:
        return FLOAT
    return _stored_format(view, operand.dequantize)


def _stored_format(view: GraphView, dequantize: Node) -> str:
    if dequantize.op == MX_DEQUANTIZE:
        return "mxfp8"
    before = view.producer(dequantize.inputs[0])
    if before is not None and before.op == FP4_DYNAMIC:
        return "nvfp4"
    dtype = view.info(dequantize.inputs[0]).dtype
    if len(dequantize.inputs) > 2 and dequantize.inputs[2]:
        dtype = view.info(dequantize.inputs[2]).dtype
    return _SMALL.get(dtype, str(dtype))
