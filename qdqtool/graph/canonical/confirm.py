"""Confirms with onnxruntime the results that onnx's reference computed from constants.

The reference ignores attributes of some operators (LSTM, GRU, MaxPool, LRN, Resize), and a computed constant takes the place
of what a runtime would compute. So a value counts only if onnxruntime computes the same from the same constants. It does that
in the child process of `onnx_io.passes`, within the bounds there: an untrusted model may ask for any amount of memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.canonical.constants import compute
from qdqtool.graph.onnx_io.deferred import with_values
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.weight import byte_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


_log = logging.getLogger(__name__)

Computed = tuple[onnx.NodeProto, Mapping[str, "NDArray[Any]"]]
"""A node and its outputs by name."""

_BATCH = 64 << 20
"""Bytes of constants sent to the child process at once."""
_LARGEST = 1 << 30
"""Most bytes around one node that is to be confirmed; a protobuf message holds 2 GiB."""
_STEPS = 64
"""Largest difference of two correct results, in steps of FP32 and FP64 (2 for shorter types); kernels add in different orders."""
_FP32_STEP = 2.0**-23
"""Distance from 1 to the next FP32 number; kernels of shorter types add in FP32."""
_OLDEST_IR = 8
"""First IR version of all opsets up to 18; initializers are not inputs there."""


def unconfirmed(
    made: Sequence[Computed], constant: Callable[[str], onnx.TensorProto | None], opset: int
) -> frozenset[str]:
    """Return the outputs that onnxruntime computes differently, and all outputs computed from them.

    What it cannot run at all, for want of a kernel, has no other value: left in the model it would not run either.

    Args:
        made: nodes in graph order, with their computed outputs.
        constant: the tensor of a name that none of the nodes makes.
        opset: version of the operators.
    """
    values = {name: value for _, outputs in made for name, value in outputs.items()}
    bad: set[str] = set()
    for nodes, leaves in _batches([node for node, _ in made], values, constant):
        theirs = None if leaves is None else _by_onnxruntime(nodes, leaves, values, opset)
        for node in nodes:
            names = [name for name in node.output if name and (theirs is None or name in theirs)]
            wrong = [name for name in names if theirs is None or not _agree(values[name], theirs[name])]
            if wrong:
                _log.info(
                    "left %s %r unchanged: onnxruntime does not confirm the change", node.op_type, node.name
                )
            bad.update(wrong)
    for node, outputs in made:
        if not bad.isdisjoint((*node.input, *outputs)):
            bad |= outputs.keys()
    return frozenset(bad)


def compute_confirmed(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of one node by name; None if they cannot be computed, or if onnxruntime does not confirm them."""
    made = compute(node, inputs, opset)
    if made is None:
        return None
    tensors = {name: numpy_helper.from_array(value, name) for name, value in inputs.items()}
    return None if unconfirmed([(node, made)], tensors.get, opset) else made


def _batches(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, NDArray[Any]],
    constant: Callable[[str], onnx.TensorProto | None],
) -> Iterator[tuple[list[onnx.NodeProto], dict[str, onnx.TensorProto] | None]]:
    """Yield groups of nodes to confirm, with the constants that they read. An output of one group is a constant of the next.

    A node that is too large for a message comes alone and without constants: nothing confirms it.
    """
    taken: list[onnx.NodeProto] = []
    leaves: dict[str, onnx.TensorProto] = {}
    size = 0
    for node in nodes:
        if node.op_type in SAME_EVERYWHERE:
            continue
        given = {name: constant(name) for name in node.input if name and name not in values}
        around = sum(byte_size(tensor) or 0 for tensor in given.values() if tensor is not None)
        around += sum(values[name].nbytes for name in (*node.input, *node.output) if name in values)
        if around > _LARGEST:
            yield [node], None
            continue
        if taken and size + around > _BATCH:
            yield taken, leaves
            taken, leaves, size = [], {}, 0
        inside = {name for other in taken for name in other.output}
        for name in {*filter(None, node.input)} - inside - leaves.keys():
            tensor = given.get(name) or numpy_helper.from_array(values[name], name)
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
    """Return the outputs that onnxruntime can compute, as FP32 if NumPy lacks the type; None if the child process was ended."""
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
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in computed}
    return {name: found[foreign.get(name, name)] for name in names if foreign.get(name, name) in found}


def _casts(node: onnx.NodeProto, foreign: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return Casts to FP32 for the outputs of a node that `foreign` renames."""
    names = [name for name in node.output if name in foreign]
    return [helper.make_node("Cast", [name], [foreign[name]], to=onnx.TensorProto.FLOAT) for name in names]


def _agree(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Return True if two results are equal; floats may differ by rounding."""
    if ours.shape != theirs.shape or (_is_native(ours.dtype) and ours.dtype != theirs.dtype):
        return False
    try:
        step = float(ml_dtypes.finfo(ours.dtype).eps)  # type: ignore[no-untyped-call]
    except ValueError:  # no floats
        return bool(np.array_equal(ours.astype(theirs.dtype), theirs))
    share = min(_STEPS * step, max(2 * step, _STEPS * _FP32_STEP))
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    largest = float(np.abs(other[np.isfinite(other)]).max(initial=0))
    return bool(np.allclose(one, other, rtol=share, atol=share / 4 * largest, equal_nan=True))


def _is_native(dtype: np.dtype[Any]) -> bool:
    """Return True if NumPy itself has the type; onnxruntime returns no other types."""
    return dtype.isbuiltin == 1
