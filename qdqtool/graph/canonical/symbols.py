"""Finds shapes that depend on symbolic dimensions or on shape arithmetic, where onnx's inference gives up.

Inference stops at a Reshape to (N, -1, 48). With a number in place of N it goes on, provided that the shape
arithmetic is computed on the way. So it runs three times with different numbers: a dimension that comes out equal is
static, one that moves along is written as an expression of the symbol, and one that moves otherwise stays unknown.
Two runs would give every dimension some expression; the third has to agree with it.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from qdqtool.graph.canonical.compute import computable, compute

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EVEN = 20160
"""Divisible by all small numbers and by 64, so that splits and strides come out even."""
# Two runs give every dimension some expression; the third has to agree with it.
_RUNS = 3
_LEAST, _ROOM = 11, 80
"""The numbers of few symbols are `_EVEN` times 11 to 90: products of three of them still fit 64 bits."""
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
    """Type and shape of every tensor that all runs with numbers agree on."""
    numbers = _numbers_of(_symbols(light))
    runs = [
        _SymbolicRun(light, {symbol: taken[run] for symbol, taken in numbers.items()}, opset).shapes()
        for run in range(_RUNS)
    ]
    found = {}
    for name in sorted(set.intersection(*(set(shapes) for shapes in runs))):
        kind, first = runs[0][name]
        shapes = [shapes[name][1] for shapes in runs]
        if all(len(shape) == len(first) for shape in shapes):
            dims = [_dim(moved, numbers) for moved in zip(*shapes, strict=True)]
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


def _numbers_of(symbols: tuple[str, ...]) -> dict[str, Shape]:
    """The numbers that stand for each symbol, one per run: drawn so that no two symbols move alike."""
    dice = random.Random(0)  # noqa: S311 -- nothing is secret; the same numbers every time
    room = range(_LEAST, _LEAST + max(_ROOM, 4 * _RUNS * len(symbols)))
    drawn = [_EVEN * factor for factor in dice.sample(room, _RUNS * len(symbols))]
    return {symbol: tuple(drawn[_RUNS * place :][:_RUNS]) for place, symbol in enumerate(symbols)}


class _SymbolicRun:
    """One pass over the nodes with a number for each symbol."""

    def __init__(self, light: onnx.ModelProto, numbers: dict[str, int], opset: int) -> None:
        self._graph = light.graph
        self._opset = opset
        self._opsets = list(light.opset_import)
        self._ir = light.ir_version
        self._types: dict[str, onnx.TypeProto] = {}
        self._values: dict[str, NDArray[Any]] = {}
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


def _dim(moved: Shape, numbers: dict[str, Shape]) -> int | str | None:
    """The dimension that is `moved[i]` in run `i`."""
    if len(set(moved)) == 1:
        return moved[0]
    fits = []
    for symbol, (low, high, other) in numbers.items():
        slope = Fraction(moved[1] - moved[0], high - low)
        offset = moved[0] - slope * low
        is_whole = offset.denominator == 1 and slope > 0
        if is_whole and abs(offset) < _EVEN and slope * other + offset == moved[2]:
            fits.append((abs(offset), _expression(symbol, slope, int(offset))))
    return min(fits, default=(0, None), key=lambda fit: fit[0])[1]


def _expression(symbol: str, slope: Fraction, offset: int) -> str:
    """`slope * symbol + offset` as a person writes it: "N", "4*N", "N/2+1"."""
    text = symbol if slope.numerator == 1 else f"{slope.numerator}*{symbol}"
    text += "" if slope.denominator == 1 else f"/{slope.denominator}"
    return text + (f"{offset:+d}" if offset else "")
