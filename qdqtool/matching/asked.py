"""The number format that the Q/DQ nodes before a node ask for."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FLOAT, FORMATS, INT4, NAMES, asked_as
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.quantized import Quantization
from qdqtool.graph.view import Node


def format_of(pair: QdqPair | None, quantization: Quantization | None) -> str:
    """Return the format of the values of a pair; an irregular pair is named after its type."""
    if quantization is not None:
        return quantization.format.name
    if pair is None:
        return FLOAT
    # UINT8 is read as INT8 where its zero point is 0, and refused otherwise.
    return NAMES.get(DType.INT8 if pair.dtype is DType.UINT8 else pair.dtype, str(pair.dtype))


def asked_of(flow: Flow, node: Node, inputs: Iterable[int]) -> str:
    """Return the format that the Q/DQ nodes before these inputs ask for."""
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for index in inputs:
        asked[flow.is_fixed(node, index)].add(
            format_of(flow.origin(node, index), flow.quantization(node, index))
        )
    return asked_as(asked[True], asked[False])


def arithmetic_word(asked: str) -> str:
    """Return the name of the arithmetic in a requested format, for use in a sentence."""
    name = asked.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    # INT4 is a format of weights alone; UINT8 and wider integers are read as INT8 where they are read at all.
    return name.upper() if name in FORMATS and name != INT4.name else "INT8"
