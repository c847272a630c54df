"""Finds shapes that depend on symbolic dimensions or on shape arithmetic, where onnx's inference gives up.

Inference stops at a Reshape to (N, -1, 48). With a number in place of N it goes on, provided that the shape
arithmetic is computed on the way. So it runs twice with two different numbers: a dimension that comes out equal is
static, one that moves along is written as an expression of the symbol, and one that moves otherwise stays unknown.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from qdqtool.graph.compute import computable, compute

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EVEN = 5040
"""Divisible by all small numbers, so that splits and strides come out even."""
_RUNS = ((11, 17), (13, 31))
"""Per run: the first symbol's number, and the ratio from symbol to symbol; both differ, so none moves like another."""
_SMALL = 64
"""Elements; a value that is computed only to find shapes is not larger."""

_FAILURES = (
    onnx.defs.SchemaError,
    onnx.checker.ValidationError,
    InferenceError,
    RuntimeError,
    ValueError,
)

Shape = tuple[int, ...]


def resolve(light: onnx.ModelProto, opset: int) -> dict[str, onnx.ValueInfoProto]:
    """Type and shape of every tensor that two runs with numbers agree on."""
    symbols = _symbols(light)
    first, second = (_Run(light, symbols, run, opset).shapes() for run in _RUNS)
    found = {}
    for name in sorted(first.keys() & second.keys()):
        kind, one = first[name]
        _, two = second[name]
        if len(one) == len(two):
            dims = [_dim(a, b, symbols) for a, b in zip(one, two, strict=True)]
            found[name] = onnx.helper.make_tensor_value_info(name, kind, dims)
    return found


def _symbols(light: onnx.ModelProto) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for value in light.graph.input:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                names[dim.dim_param or _unnamed(value.name, index)] = None
    return tuple(names)


def _unnamed(tensor: str, index: int) -> str:
    return f"{tensor}_{index}"


def _number(position: int, run: tuple[int, int]) -> int:
    return int(_EVEN * run[0] * run[1] ** position)


class _Run:
    """One pass over the nodes with a number for each symbol."""

    def __init__(
        self, light: onnx.ModelProto, symbols: tuple[str, ...], run: tuple[int, int], opset: int
    ) -> None:
        self._graph = light.graph
        self._opset = opset
        self._opsets = list(light.opset_import)
        self._ir = light.ir_version
        self._types: dict[str, onnx.TypeProto] = {}
        self._values: dict[str, NDArray[Any]] = {}
        numbers = {symbol: _number(position, run) for position, symbol in enumerate(symbols)}
        for value in light.graph.input:
            kind = onnx.TypeProto()
            kind.CopyFrom(value.type)
            for index, dim in enumerate(kind.tensor_type.shape.dim):
                if not dim.HasField("dim_value"):
                    dim.dim_value = numbers[dim.dim_param or _unnamed(value.name, index)]
            self._types[value.name] = kind
        for tensor in light.graph.initializer:
            self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._learn(tensor.name, numpy_helper.to_array(tensor))

    def shapes(self) -> dict[str, tuple[int, Shape]]:
        """Element type and shape of every tensor whose dimensions all became numbers."""
        for node in self._graph.node:
            self._visit(node)
        found = {}
        for name, kind in self._types.items():
            dims = _numbers(kind)
            if dims is not None:
                found[name] = (kind.tensor_type.elem_type, dims)
        return found

    def _visit(self, node: onnx.NodeProto) -> None:
        names = {name for name in node.input if name}
        if not names <= self._types.keys():
            return
        values = None
        if node.op_type == "Shape" and len(node.attribute) == 0:
            dims = _numbers(self._types[node.input[0]])
            values = None if dims is None else {node.output[0]: np.asarray(dims, np.int64)}
        elif names and names <= self._values.keys() and computable(node) and self._is_small(node, names):
            values = compute(node, {name: self._values[name] for name in sorted(names)}, self._opset)
        if values is None:
            self._types.update(self._inferred(node, names))
            return
        for name, value in values.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            self._types[name] = onnx.helper.make_tensor_type_proto(kind, value.shape)
            self._learn(name, value)

    def _is_small(self, node: onnx.NodeProto, names: set[str]) -> bool:
        """Whether no output is known to be large: a few numbers suffice to ask for terabytes."""
        shapes = map(_numbers, self._inferred(node, names).values())
        return all(math.prod(shape) <= _SMALL for shape in shapes if shape is not None)

    def _inferred(self, node: onnx.NodeProto, names: set[str]) -> dict[str, onnx.TypeProto]:
        """Types of the outputs as the operator's schema infers them from types and known values."""
        known = {
            name: numpy_helper.from_array(self._values[name], name) for name in names if name in self._values
        }
        types = {name: self._types[name] for name in names}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, node.domain)
            return dict(
                infer_node_outputs(
                    schema, node, types, known, opset_imports=self._opsets, ir_version=self._ir
                )
            )
        except _FAILURES:
            return {}

    def _learn(self, name: str, value: NDArray[Any]) -> None:
        if value.size <= _SMALL:
            self._values[name] = value


def _numbers(kind: onnx.TypeProto) -> Shape | None:
    """The dimensions of a tensor type where all are numbers."""
    dims = kind.tensor_type.shape.dim
    known = kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
    return (
        tuple(dim.dim_value for dim in dims)
        if known and all(dim.HasField("dim_value") for dim in dims)
        else None
    )


def _dim(one: int, two: int, symbols: tuple[str, ...]) -> int | str | None:
    """The dimension that is `one` with the first numbers and `two` with the second."""
    if one == two:
        return one
    for position, symbol in enumerate(symbols):
        low, high = (_number(position, run) for run in _RUNS)
        slope = Fraction(two - one, high - low)
        offset = one - slope * low
        if offset.denominator == 1 and slope > 0 and abs(offset) < _EVEN:
            return _expression(symbol, slope, int(offset))
    return None


def _expression(symbol: str, slope: Fraction, offset: int) -> str:
    """`slope * symbol + offset` as a person writes it: "N", "4*N", "N/2+1"."""
    text = symbol if slope.numerator == 1 else f"{slope.numerator}*{symbol}"
    text += "" if slope.denominator == 1 else f"/{slope.denominator}"
    return text + (f"{offset:+d}" if offset else "")
