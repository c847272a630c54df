"""Dynamic input dimensions for which only one length fits the model's own weights.

Exporters leave a dimension open that the network multiplies with a matrix of a fixed number of rows: any other length
is refused by every runtime. Samples drawn at random and the shapes of a build have to be of this length.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import onnx

from qdqtool.trt.ops import RECURRENT

Dim = int | str | None

_EXPRESSION = re.compile(
    r"(?:(?P<factor>\d+)\*)?(?P<symbol>[^\s+*/-][^+*/]*?)(?:/(?P<divisor>\d+))?(?P<offset>[+-]\d+)?"
)
"""A symbol times a fraction plus a number, as `symbols` and onnx's inference write it: "4*N/2+1", "N + 160"."""
_ROUNDED = re.compile(
    r"floor\(\(?(?:(?P<factor>\d+)\*)?(?P<symbol>[^\s+*/()-][^+*/()]*?)(?:(?P<shift>[+-]\d+)\))?/(?P<divisor>\d+)\)(?P<offset>[+-]\d+)?"
)
"""An expression that is rounded down, so that several lengths of the symbol fit: "floor((N+1)/2)"."""


def settle(graph: onnx.GraphProto) -> dict[str, int]:
    """Replace dynamic input dimensions by the only length that fits; return symbol -> length.

    Takes a graph whose shapes are inferred; expressions of the symbol stay until shapes are inferred again. A symbol of
    which two nodes demand two lengths keeps its name: that model does not run, and a runtime says so best.
    """
    free = {name for value in graph.input for name in _named(value) if isinstance(name, str)}
    demanded: dict[str, set[int]] = defaultdict(set)
    if free:
        for given, wanted in _equal(graph):
            symbol, length = solved(given, wanted)
            if symbol in free:
                demanded[symbol].add(length)
    found = {symbol: lengths.pop() for symbol, lengths in demanded.items() if len(lengths) == 1}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim, name in zip(_dims(value), _named(value), strict=True):
            if name in found:
                dim.dim_value = found[name]
    return found


def solved(given: Dim, wanted: Dim) -> tuple[str, int]:
    """Return the symbol of one dimension, and its length if the other dimension is a number; ("", 0) if that is inconclusive."""
    if isinstance(given, int):
        given, wanted = wanted, given
    match = _EXPRESSION.fullmatch(given.replace(" ", "")) if isinstance(given, str) else None
    if match is None or not isinstance(wanted, int):
        return "", 0
    length = (
        Fraction(wanted - int(match["offset"] or 0)) * int(match["divisor"] or 1) / int(match["factor"] or 1)
    )
    return (match["symbol"], int(length)) if length.denominator == 1 and length > 0 else ("", 0)


def length_of(dim: int | str, lengths: Mapping[str, int]) -> int | None:
    """Return the length of a dimension for these lengths of symbols; None if its form is not that of `symbols`.

    >>> length_of("height/4+1", {"height": 32})
    9
    >>> length_of("floor((height+3)/4)", {"height": 33})
    9
    """
    if isinstance(dim, int):
        return dim
    text = dim.replace(" ", "")
    match = _ROUNDED.fullmatch(text) or _EXPRESSION.fullmatch(text)
    if match is None or match["symbol"] not in lengths:
        return None
    parts = match.groupdict()
    scaled = lengths[parts["symbol"]] * int(parts["factor"] or 1) + int(parts.get("shift") or 0)
    return scaled // int(parts["divisor"] or 1) + int(parts["offset"] or 0)


def _equal(graph: onnx.GraphProto) -> Iterator[tuple[Dim, Dim]]:
    """Yield pairs of dimensions that operators require to be equal: those that a compute node sums over."""
    shapes = _shapes(graph)
    for node in graph.node:
        first, second = (shapes.get(name, ()) for name in (*node.input, "", "")[:2])
        if node.domain not in {"", "ai.onnx"} or not first or not second:
            continue
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "MatMul":
            yield first[-1], second[max(len(second) - 2, 0)]
        elif node.op_type == "Gemm" and len(first) == len(second) == 2:
            yield first[0 if flags.get("transA") else 1], second[1 if flags.get("transB") else 0]
        elif node.op_type in RECURRENT and len(first) == len(second) == 3:
            yield first[2], second[2]
        elif node.op_type == "Conv" and len(first) == len(second) > 2:
            channels = second[1]
            yield first[1], channels * flags.get("group", 1) if isinstance(channels, int) else None


def _shapes(graph: onnx.GraphProto) -> Mapping[str, tuple[Dim, ...]]:
    found = {value.name: _named(value) for value in (*graph.value_info, *graph.output, *graph.input)}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _named(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Return the dimensions of a tensor; dimensions without a name are named as `symbols` names them."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_{index}"
        for index, dim in enumerate(_dims(value))
    )


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims
