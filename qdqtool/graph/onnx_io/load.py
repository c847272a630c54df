"""Opens a model file: checked, opset 13 or newer, named, sorted, with shapes. The file itself is never changed."""

from __future__ import annotations

import re
from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import InputFileError
from qdqtool.graph.canonical.constants import densify, drop_default_inputs, drop_repeats, lift_constants
from qdqtool.graph.canonical.opset import (
    LOWEST,
    NEWEST_COMPUTED,
    declare_opset,
    find_written_opset,
    means_the_same_lower,
    raise_opset,
    unflatten,
    write_out_group_norms,
)
from qdqtool.graph.canonical.order import inline_functions, name_nodes, sort
from qdqtool.graph.canonical.shapes import infer_again, settle
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass, warm_up
from qdqtool.graph.onnx_io.read import default_opset, guard_reading, read
from qdqtool.graph.onnx_io.save import disagreement
from qdqtool.graph.onnx_io.walk import bodies, parts, skeleton
from qdqtool.graph.view import Model
from qdqtool.trt.ops import PRODUCTS, QDQ, RECURRENT

WEIGHTED = PRODUCTS | RECURRENT | {"BatchNormalization", "LayerNormalization"}
"""Operators with trained constants."""


# --- loading ---------------------------------------------------------------------------------------------------------

OLDEST_IR, NEWEST_IR = 8, 10
"""IR versions that onnxruntime and every TensorRT from 8.6 on read."""

_UNJUDGED = "qdqtool.unjudged"


def load(path: str | PathLike[str]) -> Model:
    """Return the model at `path`, ready for questions and edits.

    The steps below add a note if they change the model:

    - read weights from files beside the model, and write out sparse weights;
    - inline local functions;
    - raise opsets before 13, and lower opsets after 27;
    - turn Constant nodes into initializers, and remove initializers from the list of inputs;
    - give nodes unique names, and sort them;
    - infer shapes, and fix dynamic dimensions for which the weights allow one length.

    This function does not check whether operators are supported. Bodies of If, Loop and Scan are not changed.

    Raises:
        InputFileError: the file is missing, damaged or not ONNX; external data is missing or outside the folder;
            a weight is NaN or infinite; the graph has a cycle; the opset cannot be raised to 13.
    """
    warm_up()
    path = Path(path)
    with guard_reading(path):
        model = _load_model(path)
        model.view.nodes  # noqa: B018 -- an attribute that cannot be read is found here, not by the first reader
        return model


def _load_model(path: Path) -> Model:
    proto = read(path)
    notes: list[str] = []
    _count(
        notes,
        name_negative(proto),
        "negative dimension is a symbol, or unknown",
        "negative dimensions are symbols, or unknown",
    )
    proto = _inline(proto, notes, path)
    graph = proto.graph
    _count(
        notes,
        densify(graph, path),
        "sparse initializer stored as a plain one: TensorRT reads plain initializers only",
        "sparse initializers stored as plain ones: TensorRT reads plain initializers only",
    )
    _count(
        notes,
        drop_repeats(graph),
        "repeated initializer removed; the last one is kept",
        "repeated initializers removed; the last one of each name is kept",
    )
    _count(
        notes,
        drop_default_inputs(graph),
        "initializer was also an input; it is a constant now",
        "initializers were also inputs; they are constants now",
    )
    _count(
        notes,
        write_out_group_norms(proto),
        "GroupNormalization with a scale per group written as InstanceNormalization",
        "GroupNormalization nodes with a scale per group written as InstanceNormalization",
    )
    lift_constants(graph)
    _count(
        notes,
        name_nodes(graph.node),
        "node without a unique name was named after its output",
        "nodes without a unique name were named after their outputs",
    )
    _sort(proto, notes, path)
    proto, raised = raise_opset(proto, max(LOWEST, find_written_opset(proto)), path)
    graph = proto.graph
    lift_constants(graph)
    name_nodes(graph.node)
    notes += [raised] if raised else _lower(proto)
    proto.ir_version = min(max(proto.ir_version, OLDEST_IR), NEWEST_IR)
    notes += check_values(graph, path)
    _check(proto, path)
    notes += _infer(proto, path)
    notes += body_notes(graph)
    model = Model(proto=proto, path=path, notes=tuple(notes))
    return unflatten(model) if raised else model


def _lower(proto: onnx.ModelProto) -> list[str]:
    """Lower an opset that is too new for onnxruntime, if all nodes keep their meaning. Return notes."""
    opset = default_opset(proto)
    if not means_the_same_lower(proto):
        return []
    declare_opset(proto, NEWEST_COMPUTED)
    if disagreement(proto) is None:
        return [
            f"opset {opset} declared as {NEWEST_COMPUTED}, which onnxruntime supports: all nodes keep their meaning"
        ]
    declare_opset(proto, opset)
    return []


def _infer(proto: onnx.ModelProto, path: Path) -> list[str]:
    """Infer the shapes of all tensors; sets dynamic dimensions for which the weights allow one length. Returns notes."""
    notes: list[str] = []
    while True:
        note = infer_again(proto, path)
        settled = settle(proto.graph)
        if not settled:
            return [*notes, *([note] if note else [])]
        notes += [
            f"the dynamic dimension {name!r} is {length}: no other length matches the weights"
            for name, length in settled.items()
        ]


def _inline(proto: onnx.ModelProto, notes: list[str], path: Path) -> onnx.ModelProto:
    """Inline local functions, so that every node of the model is an operator."""
    if not proto.functions:
        return proto
    result = inline_functions(proto, path)
    gone = len(proto.functions) - len(result.functions)
    _count(notes, gone, "local function inlined", "local functions inlined")
    _count(
        notes,
        len(result.functions),
        "local function of a plug-in kept: TensorRT uses the plug-in if it exists",
        "local functions of plug-ins kept: TensorRT uses the plug-ins if they exist",
    )
    return result


def _sort(proto: onnx.ModelProto, notes: list[str], path: Path) -> None:
    graph = proto.graph
    sources = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    ordered = sort(list(graph.node), sources, path)
    available = {output for node in ordered for output in node.output} | set(sources)
    for value in graph.output:
        if value.name not in available:
            raise InputFileError(
                f"the model returns {value.name!r}, which no node produces",
                fix="export the model again",
                where=str(path),
            )
    if [id(node) for node in ordered] != [id(node) for node in graph.node]:
        notes.append("nodes sorted into topological order")
        copies = onnx.GraphProto(node=ordered).node
        del graph.node[:]
        graph.node.extend(copies)


def _check(proto: onnx.ModelProto, path: Path) -> None:
    """Check attributes and number of inputs of every node with onnx; ignore unknown operators."""
    light, _ = skeleton(proto)
    for value in (*light.graph.input, *light.graph.output, *light.graph.value_info):
        # onnx's checker requires a shape, which runners do not need.
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    _hide_unknown(light)
    try:
        run_pass("check", light)
    except (PassRefused, PassExceeded) as error:
        reason = str(error).split("\n", 1)[0]
        reason, fix = _too_early(light, reason) or (reason, "export the model again")
        raise InputFileError(f"the model is not valid ONNX: {reason}", fix=fix, where=str(path)) from error


def _too_early(proto: onnx.ModelProto, reason: str) -> tuple[str, str] | None:
    """Return the problem and the fix if a node has an attribute of a later opset; else None."""
    match = re.match(r"Unrecognized attribute: (\w+) for operator (\w+)", reason)
    opset = default_opset(proto)
    if match is None:
        return None
    attribute, op = match.groups()
    node = next(
        (
            each
            for each in proto.graph.node
            if each.op_type == op and attribute in {a.name for a in each.attribute}
        ),
        None,
    )
    later = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.name, schema.domain) == (op, "")
        and schema.since_version > opset
        and attribute in schema.attributes
    ]
    if node is None or not later:
        return None
    return (
        f"{op} {node.name!r} has the attribute {attribute}, which came with opset {min(later)}; the model declares opset {opset}",
        f"export with opset {min(later)} or newer, or set the opset number in the model, if it was written for that opset",
    )


def _hide_unknown(light: onnx.ModelProto) -> None:
    """Move operators without a schema to a domain that onnx's checker ignores: it would stop at them."""
    opsets = {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in light.opset_import
    }
    for part in parts(light.graph):
        if isinstance(part, onnx.NodeProto):
            domain = "" if part.domain == "ai.onnx" else part.domain
            if domain not in opsets or not onnx.defs.has(part.op_type, opsets[domain], domain):
                part.domain = _UNJUDGED
    light.opset_import.add(domain=_UNJUDGED, version=1)


UNCHANGED = "bodies are not changed"
"""Words of the notes on nodes with bodies."""


def body_notes(graph: onnx.GraphProto) -> list[str]:
    """Return notes on nodes with bodies, by operator, and on how to quantize the compute nodes in these bodies."""
    holders = [node for node in graph.node if any(True for _ in bodies(node))]
    counts = Counter(node.op_type for node in holders)
    inside = Counter(
        node.op_type
        for node in holders
        for part in parts(node)
        if isinstance(part, onnx.NodeProto) and part.op_type in PRODUCTS
    )
    deciding = _deciding_inputs(graph)
    notes = []
    for op, count in sorted(counts.items()):
        note = count_noun(count, f"{op} node: its {UNCHANGED}", f"{op} nodes: their {UNCHANGED}")
        if inside[op]:
            note += f", so {count_noun(inside[op], 'compute node in them is', 'compute nodes in them are', grouped=True)} not quantized"
        if inside[op] and op == "If" and deciding:
            values = ", ".join(f'"{name}": VALUE' for name in deciding)
            fixed = Setting("prepare.constants", f"{{{values}}}")
            note += f"; if {' and '.join(map(repr, deciding))} never changes, make it a constant: {fixed}"
        notes.append(note)
    return notes


def _deciding_inputs(graph: onnx.GraphProto) -> list[str]:
    """Return the model inputs that decide which branches the Ifs take; [] if other values decide too."""
    makers = {name: node for node in graph.node for name in node.output}
    inputs = [entry.name for entry in graph.input]
    constants = {entry.name for entry in graph.initializer}
    waiting = [node.input[0] for node in graph.node if node.op_type == "If"]
    deciding: set[str] = set()
    visited: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in visited or name in constants or not name:
            continue
        visited.add(name)
        if name in inputs:
            deciding.add(name)
        elif name in makers:
            waiting += makers[name].input
        else:
            return []
    return [name for name in inputs if name in deciding]


def _count(notes: list[str], count: int, singular: str, plural: str) -> None:
    if count:
        notes.append(count_noun(count, singular, plural))


# --- dimensions without a name ---------------------------------------------------------------------------------------
# Dimensions that some exporters (PaddlePaddle, old Keras) write as -1 or "?" become symbols, as do unnamed dimensions
# of inputs.

_ANY = "?"


def name_negative(proto: onnx.ModelProto) -> int:
    """Replace every negative input dimension by a symbol, and clear negative dimensions of other tensors; return their number.

    Dimensions of inputs without a value or a name (spox, or "?") get a separate symbol each: they may differ, and a
    builder assumes that dimensions with one name are equal.

    A dimension of -1 is not a usable number: onnx's converter and its shape inference would compute with it, and
    return negative sizes.
    """
    count = sum(_clear(value, symbols=True) for value in proto.graph.input)
    return count + sum(
        _clear(part, symbols=False) for part in list(parts(proto)) if isinstance(part, onnx.ValueInfoProto)
    )


def _clear(value: onnx.ValueInfoProto, *, symbols: bool) -> int:
    count = 0
    for index, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value < 0:
            count += 1
            dim.Clear()
        if dim.dim_param in {_ANY, ""} and not dim.HasField("dim_value"):
            dim.Clear()
        if symbols and dim.WhichOneof("value") is None:
            dim.dim_param = f"{value.name}_{index}"
    return count


# --- values without a meaning ----------------------------------------------------------------------------------------
# Finds values with which no engine can compute: NaN anywhere, infinity in weights.

_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
)
_PIECE = 1 << 22
"""Number of values that are checked at once."""


def _is_finite(values: NDArray[Any]) -> bool:
    """Return True if all values of a constant are finite.

    Works in pieces: a Boolean for each value would take a quarter of the weights again.
    """
    flat = values.reshape(-1)
    return all(np.isfinite(flat[at : at + _PIECE]).all() for at in range(0, flat.size, _PIECE))


def check_values(graph: onnx.GraphProto, path: Path) -> tuple[str, ...]:
    """Return notes on constants that hold infinity but are no weights, such as masks and bounds.

    Raises:
        InputFileError: a constant holds NaN, or a weight holds infinity.
    """
    readers: dict[str, str] = {
        name: f"{node.op_type} {node.name!r}"
        for node in reversed(graph.node)
        if node.op_type in WEIGHTED
        for name in node.input
    }
    scales = {node.input[1] for node in graph.node if node.op_type in QDQ and len(node.input) > 1}
    notes = []
    for tensor in graph.initializer:
        if tensor.data_type not in _FLOATS or tensor.name in scales:
            continue  # lint reports infinite scales in detail
        values = array(tensor)
        if _is_finite(values):
            continue
        nans, count = int(np.isnan(values).sum()), int((~np.isfinite(values)).sum())
        reader = readers.get(tensor.name)
        if nans or reader:
            used = f", read by {reader}" if reader else ""
            raise InputFileError(
                f"tensor {tensor.name!r} holds {nans} NaN and {count - nans} infinite of {count_noun(values.size, 'value')}{used}",
                fix="train or export the model again; such weights make every output NaN",
                where=str(path),
            )
        notes.append(
            f"constant {tensor.name!r} holds {count_noun(count, 'infinite value')} and was not changed"
        )
    return tuple(notes)
