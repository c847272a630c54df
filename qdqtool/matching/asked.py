"""Which number format the Q/DQ nodes in front of a node ask for."""

from __future__ import annotations

from qdqtool.core.dtypes import DType
from qdqtool.core.quant_format import FORMATS as BY_NAME
from qdqtool.core.quant_format import INT4
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import NodeEvidence, Operand
from qdqtool.trt.ops import FP4_DYNAMIC

FLOAT = "float"
FORMATS = {
    DType.INT8: "int8",
    DType.INT4: "int4",
    DType.FLOAT8: "fp8",
    DType.FLOAT8_E5M2: "fp8_e5m2",
    DType.FLOAT4: "nvfp4",
}


def asked_of(evidence: NodeEvidence) -> str:
    """The format that the Q/DQ nodes in front of a node ask for."""
    view = evidence.view
    weights = {_format(view, operand) for operand in evidence.weights}
    activations = {_format(view, operand) for operand in evidence.activations}
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


def words_of(evidence: NodeEvidence) -> str:
    """What a sentence calls the arithmetic that Q/DQ on all inputs of a node would ask for."""
    asked = asked_of(evidence).split("+")[0].split("-")[0]
    # INT4 is a format of weights alone; UINT8 and wider integers are read as INT8 where they are read at all.
    return asked.upper() if asked in BY_NAME and asked != INT4.name else "INT8"


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
    return FORMATS.get(dtype, str(dtype))
