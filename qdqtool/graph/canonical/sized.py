"""One pass of shape inference over the nodes of a model, with a number in the place of each symbol.

With numbers, the shape arithmetic on the way can be computed, so that inference goes on where symbols end it. A pass
also tells whether the model accepts these numbers: the two sides of a U-Net meet only where the size is even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from qdqtool.graph.canonical.compute import computable, compute
from qdqtool.graph.canonical.lengths import Length, windowed

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEEPS_COUNT = frozenset({"Reshape", "SpaceToDepth"})
"""Operators that onnx infers sizes of without counting elements, which stay as many."""


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


def symbols_of(light: onnx.ModelProto) -> tuple[str, ...]:
    """The free dimensions of the inputs; one without a name gets one of its own."""
    names: dict[str, None] = {}
    for value in light.graph.input:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                names[dim.dim_param or _unnamed(value.name, index)] = None
    return tuple(names)


def _unnamed(tensor: str, index: int) -> str:
    return f"{tensor}_{index}"


class SizedRun:
    """One pass over the nodes with a number for each symbol.

    Attributes:
        numbers: what stands for each symbol.
        accepted: the nodes, by index, whose operators took these sizes; what is not among them failed, made something
            empty or could not be reached.
    """

    def __init__(self, light: onnx.ModelProto, numbers: Mapping[str, int], opset: int) -> None:
        self.numbers = numbers
        self.accepted: set[int] = set()
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

    def passes(self, expected: frozenset[int] = frozenset()) -> bool:
        """Visit all nodes; ends at the first of the expected ones that does not take these sizes."""
        for index, node in enumerate(self._graph.node):
            if self._visit(node):
                self.accepted.add(index)
            elif index in expected:
                return False
        return True

    def shapes(self) -> dict[str, tuple[int, Shape]]:
        """Element type and shape of every tensor whose dimensions all became numbers."""
        found = {}
        for name, kind in self._types.items():
            dims = _numbers(kind)
            if dims is not None:
                found[name] = (kind.tensor_type.elem_type, dims)
        return found

    def _visit(self, node: onnx.NodeProto) -> bool:
        names = {name for name in node.input if name}
        if not names <= self._types.keys():
            return False
        values = None
        if node.op_type == "Shape" and len(node.attribute) == 0:
            dims = _numbers(self._types[node.input[0]])
            values = None if dims is None else {node.output[0]: np.asarray(dims, np.int64)}
        elif names and names <= self._values.keys() and computable(node) and self._is_small(node, names):
            values = compute(node, {name: self._values[name] for name in sorted(names)}, self._opset)
            if values is not None and not self._has_shapes(node, names, values):
                values = None
        if values is None:
            types = self._inferred(node, names)
            self._types.update(types or {})
            return types is not None and self._fits(node)
        for name, value in values.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            self._types[name] = onnx.helper.make_tensor_type_proto(kind, value.shape)
            self._learn(name, value)
        return True

    def _fits(self, node: onnx.NodeProto) -> bool:
        """Whether the sizes that inference passed are possible: it counts no elements, and a window may reach beyond its input."""
        made = [dims for name in node.output if name in self._types and (dims := _numbers(self._types[name]))]
        if any(size < 1 for dims in made for size in dims):
            return False
        given = [_numbers(self._types[name]) for name in node.input[:2] if name]
        if not made or not given or given[0] is None:
            return True
        if node.op_type in KEEPS_COUNT:
            return math.prod(given[0]) == math.prod(made[0])
        places = [Length(offset=size) for size in given[0][2:]]
        kernel = (given[1] or ())[2:] if len(given) > 1 else ()
        # onnx divides towards zero: half of -1 and one more is 1
        return all(end is None or end.offset > 0 for end in windowed(node, places, kernel))

    def _is_small(self, node: onnx.NodeProto, names: set[str]) -> bool:
        """Whether no output is known to be large: a few numbers suffice to ask for terabytes."""
        shapes = map(_numbers, (self._inferred(node, names) or {}).values())
        return all(math.prod(shape) <= _SMALL for shape in shapes if shape is not None)

    def _has_shapes(self, node: onnx.NodeProto, names: set[str], values: Mapping[str, NDArray[Any]]) -> bool:
        """Whether values have the shapes that inference finds: onnx's reference gives some operators others."""
        shapes = {name: _numbers(kind) for name, kind in (self._inferred(node, names) or {}).items()}
        return all(shapes.get(name) in {None, value.shape} for name, value in values.items())

    def _inferred(self, node: onnx.NodeProto, names: set[str]) -> dict[str, onnx.TypeProto] | None:
        """Types of the outputs as the operator's schema infers them from types and known values; None where it fails."""
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
            return None

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
