"""Turns Constant nodes, sparse initializers and initializers that are also inputs into plain initializers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.walk import bodies, copied
from qdqtool.io.memory import budget
from qdqtool.trt.ops import QDQ, RANDOM

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- compute ---------------------------------------------------------------------------------------------------------
# Computes the outputs of one node from constant inputs.


NOT_FOLDED = RANDOM | QDQ | {"Dropout", "DynamicQuantizeLinear"}
"""Operators whose result on constants must not be computed ahead of time."""


_log = logging.getLogger(__name__)


def computable(node: onnx.NodeProto) -> bool:
    """Return True if the outputs depend on the inputs alone: no randomness, no control flow, no custom operator.

    Q/DQ nodes do too, but must be there for TensorRT to see.
    """
    foreign = node.domain not in {"", "ai.onnx"}
    return not foreign and node.op_type not in NOT_FOLDED and not any(True for _ in bodies(node))


def compute(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs by name. None if onnx's reference cannot compute or store them, or divides by zero."""
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    wanted = [name for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in wanted],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            made = ReferenceEvaluator(model).run(wanted, dict(inputs))
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        _log.info("left %s %r unchanged: %s", node.op_type, node.name, error)
        return None
    return {name: np.asarray(value) for name, value in zip(wanted, made, strict=True)}


# --- constants -------------------------------------------------------------------------------------------------------


_LARGEST = 1 << 30
"""Most bytes that the sparse tensors of a model may take as plain tensors."""


def lift_constants(graph: onnx.GraphProto) -> int:
    """Replace Constant nodes by initializers of the same name; return how many.

    Strings, sparse values and constants that are model outputs stay nodes.
    """
    returned = {value.name for value in graph.output}
    rest, lifted = [], []
    for node in graph.node:
        tensor = constant_tensor(node) if node.output and node.output[0] not in returned else None
        if tensor is None:
            rest.append(node)
        else:
            lifted.append(tensor)
    if lifted:
        kept = [copied(node) for node in rest]
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(lifted)
    return len(lifted)


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor that a Constant node makes, named like its output; None for other nodes and for strings."""
    if node.op_type != "Constant" or node.domain not in {"", "ai.onnx"} or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    kinds = onnx.AttributeProto
    if attribute.name == "value" and attribute.type == kinds.TENSOR:
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = node.output[0]
        return tensor
    values: dict[tuple[str, int], Any] = {
        ("value_float", kinds.FLOAT): np.float32(attribute.f),
        ("value_floats", kinds.FLOATS): np.asarray(attribute.floats, np.float32),
        ("value_int", kinds.INT): np.int64(attribute.i),
        ("value_ints", kinds.INTS): np.asarray(attribute.ints, np.int64),
    }
    value = values.get((attribute.name, attribute.type))
    return None if value is None else numpy_helper.from_array(np.asarray(value), node.output[0])


def drop_default_inputs(graph: onnx.GraphProto) -> int:
    """Remove initializers from the list of inputs, where IR versions before 4 list them; return how many."""
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    dropped = len(graph.input) - len(inputs)
    if dropped:
        kept = [copied(value) for value in inputs]
        del graph.input[:]
        graph.input.extend(kept)
    return dropped


def drop_repeats(graph: onnx.GraphProto) -> int:
    """Keep the last of several initializers with one name, as onnxruntime does; return the number of removed ones."""
    last = {tensor.name: position for position, tensor in enumerate(graph.initializer)}
    repeats = [position for position, tensor in enumerate(graph.initializer) if last[tensor.name] != position]
    for position in reversed(repeats):
        del graph.initializer[position]
    return len(repeats)


def densify(graph: onnx.GraphProto, path: Path) -> int:
    """Convert sparse initializers to plain ones, which builders read; return how many.

    Raises:
        InputFileError: indices outside the tensor, or more than 1 GiB of them all.
    """
    room, made = min(_LARGEST, budget()), []
    for sparse in graph.sparse_initializer:
        made.append(_dense(sparse, path, room))
        room -= len(made[-1].raw_data)
    del graph.sparse_initializer[:]
    graph.initializer.extend(made)
    return len(made)


def _dense(sparse: onnx.SparseTensorProto, path: Path, room: int) -> onnx.TensorProto:
    name, dims = sparse.values.name, tuple(sparse.dims)
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    wrong = InputFileError(
        f"sparse tensor {name!r} has indices that do not match its shape {list(dims)}, or needs more than {room:,} bytes",
        fix="export the model again with plain initializers",
        where=str(path),
    )
    if min(dims, default=1) < 0 or math.prod(dims) * values.itemsize > room or indices.dtype.kind != "i":
        raise wrong
    places = indices
    if indices.ndim == 2:
        if indices.shape[1] != len(dims) or (indices < 0).any() or (indices >= np.asarray(dims)).any():
            raise wrong
        places = np.ravel_multi_index(tuple(indices.T), dims)
    if places.shape != values.shape or ((places < 0) | (places >= math.prod(dims))).any():
        raise wrong
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[places] = values
    return numpy_helper.from_array(dense.reshape(dims), name)
