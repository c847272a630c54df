"""Turns all spellings of constants into plain initializers, and confirms computed constants with onnxruntime."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.deferred import byte_size, with_values
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.walk import bodies, copy_message
from qdqtool.io.files import budget
from qdqtool.trt.ops import QDQ, RANDOM

# --- compute ---------------------------------------------------------------------------------------------------------
# Computes the outputs of one node from constant inputs.


NOT_FOLDED = RANDOM | QDQ | {"Dropout", "DynamicQuantizeLinear"}
"""Operators whose result on constants must not be computed ahead of time."""


_log = logging.getLogger(__name__)


def computable(node: onnx.NodeProto) -> bool:
    """Return True if the outputs of a node depend on its inputs alone: no randomness, no control flow, no custom operator.

    Q/DQ nodes do not count, because TensorRT must see them.
    """
    foreign = node.domain not in {"", "ai.onnx"}
    return not foreign and node.op_type not in NOT_FOLDED and not any(True for _ in bodies(node))


def compute(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of a node by name; None if onnx's reference cannot compute or store them, or divides by zero."""
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    names = [name for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in names],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            outputs = ReferenceEvaluator(model).run(names, dict(inputs))
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        _log.info("left %s %r unchanged: %s", node.op_type, node.name, error)
        return None
    return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}


# --- constants -------------------------------------------------------------------------------------------------------


_LARGEST_SPARSE = 1 << 30
"""Most bytes that the sparse tensors of a model may take as plain tensors."""


def lift_constants(graph: onnx.GraphProto) -> int:
    """Replace Constant nodes by initializers of the same name; return the number of replaced nodes.

    Strings, sparse values and constants that are model outputs stay nodes.
    """
    returned = {value.name for value in graph.output}
    left, lifted = [], []
    for node in graph.node:
        tensor = constant_tensor(node) if node.output and node.output[0] not in returned else None
        if tensor is None:
            left.append(node)
        else:
            lifted.append(tensor)
    if lifted:
        kept = [copy_message(node) for node in left]
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
    """Remove initializers from the list of inputs, where IR versions before 4 list them; return the number."""
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    dropped = len(graph.input) - len(inputs)
    if dropped:
        kept = [copy_message(value) for value in inputs]
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
    """Convert sparse initializers to dense ones, which builders read; return the number.

    Raises:
        InputFileError: indices outside the tensor, or more than 1 GiB of them all.
    """
    room, tensors = min(_LARGEST_SPARSE, budget()), []
    for sparse in graph.sparse_initializer:
        tensors.append(_dense(sparse, path, room))
        room -= len(tensors[-1].raw_data)
    del graph.sparse_initializer[:]
    graph.initializer.extend(tensors)
    return len(tensors)


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


# --- confirm ---------------------------------------------------------------------------------------------------------
# Confirms with onnxruntime the results that onnx's reference computed from constants.
#
# The reference ignores attributes of some operators (LSTM, GRU, MaxPool, LRN, Resize), and a computed constant
# replaces what a runtime would compute. So a value is used only if onnxruntime computes an equal value from these
# constants. It runs in the child process of `onnx_io.passes`, within its limits: an untrusted model may request any
# amount of memory.


SAME_EVERYWHERE = frozenset(
    {
        "Concat",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Split",
    }
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"}
    | {"Abs", "Add", "And", "Equal", "Greater", "Less", "Mul", "Neg", "Not", "Or", "Sub"}
)
"""Operators whose implementations all return equal bits: they copy values, compare them, or round once (IEEE 754)."""


Computed = tuple[onnx.NodeProto, Mapping[str, "NDArray[Any]"]]
"""A node and its outputs by name."""

_BATCH = 64 << 20
"""Bytes of constants sent to the child process at once."""
_LARGEST_MESSAGE = 1 << 30
"""Most bytes around one node that is to be confirmed; a protobuf message holds 2 GiB."""
_STEPS = 64
"""Largest difference of two correct results, in steps of FP32 and FP64 (2 for shorter types); kernels add in different orders."""
_FP32_STEP = 2.0**-23
"""Distance from 1 to the next FP32 number; kernels of shorter types add in FP32."""
_OLDEST_IR = 8
"""First IR version of all opsets up to 18; initializers are not inputs there."""


def find_unconfirmed(
    computed: Sequence[Computed], constant: Callable[[str], onnx.TensorProto | None], opset: int
) -> frozenset[str]:
    """Return the constants that onnxruntime computes differently, and all constants computed from them.

    A constant that onnxruntime cannot compute, because it lacks a kernel, counts as confirmed.

    Args:
        computed: nodes in graph order, with their computed outputs.
        constant: the tensor of a name that none of the nodes makes.
        opset: version of the operators.
    """
    values = {name: value for _, outputs in computed for name, value in outputs.items()}
    bad: set[str] = set()
    for nodes, leaves in _batches([node for node, _ in computed], values, constant):
        theirs = None if leaves is None else _by_onnxruntime(nodes, leaves, values, opset)
        for node in nodes:
            names = [name for name in node.output if name and (theirs is None or name in theirs)]
            wrong = [name for name in names if theirs is None or not _agree(values[name], theirs[name])]
            if wrong:
                _log.info(
                    "left %s %r unchanged: onnxruntime does not confirm the change", node.op_type, node.name
                )
            bad.update(wrong)
    for node, outputs in computed:
        if not bad.isdisjoint((*node.input, *outputs)):
            bad |= outputs.keys()
    return frozenset(bad)


def compute_confirmed(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of one node by name; None if they cannot be computed, or if onnxruntime does not confirm them."""
    outputs = compute(node, inputs, opset)
    if outputs is None:
        return None
    tensors = {name: numpy_helper.from_array(value, name) for name, value in inputs.items()}
    return None if find_unconfirmed([(node, outputs)], tensors.get, opset) else outputs


def _batches(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, NDArray[Any]],
    constant: Callable[[str], onnx.TensorProto | None],
) -> Iterator[tuple[list[onnx.NodeProto], dict[str, onnx.TensorProto] | None]]:
    """Yield groups of nodes for onnxruntime to compute, each with the constants that the nodes read.

    A result of one group is a constant of the next group.

    A node that is too large for a message comes alone and without constants: nothing confirms it.
    """
    taken: list[onnx.NodeProto] = []
    leaves: dict[str, onnx.TensorProto] = {}
    size = 0
    for node in nodes:
        if node.op_type in SAME_EVERYWHERE:
            continue
        inputs = {name: constant(name) for name in node.input if name and name not in values}
        around = sum(byte_size(tensor) or 0 for tensor in inputs.values() if tensor is not None)
        around += sum(values[name].nbytes for name in (*node.input, *node.output) if name in values)
        if around > _LARGEST_MESSAGE:
            yield [node], None
            continue
        if taken and size + around > _BATCH:
            yield taken, leaves
            taken, leaves, size = [], {}, 0
        inside = {name for earlier in taken for name in earlier.output}
        for name in {*filter(None, node.input)} - inside - leaves.keys():
            tensor = inputs.get(name) or numpy_helper.from_array(values[name], name)
            leaves[name] = with_values(tensor)
        taken.append(node)
        size += around
    if taken:
        yield taken, leaves


def _by_onnxruntime(
    nodes: Sequence[onnx.NodeProto],
    leaves: Mapping[str, onnx.TensorProto],
    values: Mapping[str, NDArray[Any]],
    opset: int,
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of `nodes` as onnxruntime computes them; None if the child process failed.

    Outputs of types that NumPy lacks, such as BF16, are returned as FP32.
    """
    names = [name for node in nodes for name in node.output if name]
    foreign = {name: f"{name}/as FP32" for name in names if not _is_native(values[name].dtype)}
    graph = helper.make_graph(
        [step for node in nodes for step in (node, *_casts(node, foreign))],
        "constants",
        [],
        [onnx.ValueInfoProto(name=foreign.get(name, name)) for name in names],
        list(leaves.values()),
    )
    imports = [helper.make_opsetid("", opset)]
    version = max(_OLDEST_IR, helper.find_min_ir_version_for(imports))
    model = helper.make_model(graph, opset_imports=imports, ir_version=version)
    try:
        content = run_pass("compute", model)
    except (PassRefused, PassExceeded) as error:
        _log.info("onnxruntime did not compute constants: %s", error)
        return None
    computed = onnx.GraphProto.FromString(content).initializer
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in computed}
    return {name: arrays[foreign.get(name, name)] for name in names if foreign.get(name, name) in arrays}


def _casts(node: onnx.NodeProto, foreign: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return a Cast to FP32 for each output of a node in `foreign`, which maps outputs to Cast results."""
    names = [name for name in node.output if name in foreign]
    return [helper.make_node("Cast", [name], [foreign[name]], to=onnx.TensorProto.FLOAT) for name in names]


def _agree(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Return True if two results of a node are equal; floats may differ by rounding."""
    if ours.shape != theirs.shape or (_is_native(ours.dtype) and ours.dtype != theirs.dtype):
        return False
    try:
        step = float(ml_dtypes.finfo(ours.dtype).eps)  # type: ignore[no-untyped-call]
    except ValueError:  # no floats
        return bool(np.array_equal(ours.astype(theirs.dtype), theirs))
    share = min(_STEPS * step, max(2 * step, _STEPS * _FP32_STEP))
    left, right = ours.astype(np.float64), theirs.astype(np.float64)
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0))
    return bool(np.allclose(left, right, rtol=share, atol=share / 4 * largest, equal_nan=True))


def _is_native(dtype: np.dtype[Any]) -> bool:
    """Return True if NumPy itself has the type; onnxruntime returns no other types."""
    return dtype.isbuiltin == 1
