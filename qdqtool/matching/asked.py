"""Which number format the Q/DQ nodes in front of a node ask for."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FLOAT, FORMATS, INT4, NAMES, asked_as
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.quantized import Quantization
from qdqtool.graph.view import Node


def format_of(pair: QdqPair | None, quantization: Quantization | None) -> str:
    """The format of values that a pair makes; one that is irregular is named after its type."""
    if quantization is not None:
        return quantization.format.name
    if pair is None:
        return FLOAT
    # UINT8 is read as INT8 where its zero point is 0, and refused otherwise.
    return NAMES.get(DType.INT8 if pair.dtype is DType.UINT8 else pair.dtype, str(pair.dtype))


def asked_of(flow: Flow, node: Node, inputs: Iterable[int]) -> str:
    """The format that the Q/DQ nodes in front of these inputs ask for."""
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for index in inputs:
        asked[flow.is_fixed(node, index)].add(
            format_of(flow.origin(node, index), flow.quantization(node, index))
        )
    return asked_as(asked[True], asked[False])


def arithmetic_word(asked: str) -> str:
    """What a sentence calls the arithmetic in a format that is asked for."""
    name = asked.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    # INT4 is a format of weights alone; UINT8 and wider integers are read as INT8 where they are read at all.
    return name.upper() if name in FORMATS and name != INT4.name else "INT8"
