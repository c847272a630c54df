"""Which number format the Q/DQ nodes in front of a node ask for."""

from __future__ import annotations

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FLOAT, FORMATS, INT4, NAMES, asked_as
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.qdq.quantized import Quantization
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import NodeEvidence, Operand
from qdqtool.trt.ops import FP4_DYNAMIC


def format_of(pair: QdqPair | None, quantization: Quantization | None) -> str:
    """The format of values that a pair makes; one that is irregular is named after its type."""
    if quantization is not None:
        return quantization.format.name
    if pair is None:
        return FLOAT
    # UINT8 is read as INT8 where its zero point is 0, and refused otherwise.
    return NAMES.get(DType.INT8 if pair.dtype is DType.UINT8 else pair.dtype, str(pair.dtype))


def asked_of(evidence: NodeEvidence) -> str:
    """The format that the Q/DQ nodes in front of a node ask for."""
    view = evidence.view
    weights = {_format(view, operand) for operand in evidence.weights}
    return asked_as(weights, {_format(view, operand) for operand in evidence.activations})


def words_of(evidence: NodeEvidence) -> str:
    """What a sentence calls the arithmetic that Q/DQ on all inputs of a node would ask for."""
    return arithmetic_word(asked_of(evidence))


def arithmetic_word(asked: str) -> str:
    """What a sentence calls the arithmetic in a format that is asked for."""
    name = asked.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    # INT4 is a format of weights alone; UINT8 and wider integers are read as INT8 where they are read at all.
    return name.upper() if name in FORMATS and name != INT4.name else "INT8"


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
    return NAMES.get(dtype, str(dtype))
