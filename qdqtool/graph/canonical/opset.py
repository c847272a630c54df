"""Raises a model's opset with onnx's version converter, and lowers one that is newer than onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtool.errors import InputFileError
from qdqtool.graph.canonical.order import TakenNames
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.walk import bodies, copy_message, find_captured, names, parts, restore, skeleton
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import QDQ, SOFTMAXES

# --- resize ----------------------------------------------------------------------------------------------------------
# Resize and Upsample of opsets before 11, which use other sample positions.
#
# They read pixel `x / scale`, without an offset of half a pixel; "nearest" rounds this position down, or up if the
# image shrinks. Resize 11 has attributes for this. onnx's version converter omits them, and their defaults mean
# something else.


_SCALES = 2
"""Input number of the scales of a Resize since opset 11."""


def write_out_resizes(graph: onnx.GraphProto) -> None:
    """Preserve the meaning of every Resize, also in bodies, of a graph whose opset was older than 11."""
    held = list(parts(graph))
    taken = TakenNames(name for part in held for name in names(part))
    constants = {part.name: part for part in held if isinstance(part, onnx.TensorProto) and part.name}
    constants |= {
        part.output[0]: part.attribute[0].t
        for part in held
        if isinstance(part, onnx.NodeProto) and part.op_type == "Constant" and part.attribute[0].HasField("t")
    }
    for part in reversed(held):  # bodies first: a changed graph has copies of its nodes
        if isinstance(part, onnx.GraphProto) and any(_is_resize(node) for node in part.node):
            nodes = [
                replacement
                for node in part.node
                for replacement in (
                    _resize_written_out(node, constants, taken) if _is_resize(node) else [copy_message(node)]
                )
            ]
            del part.node[:]
            part.node.extend(nodes)


def _is_resize(node: onnx.NodeProto) -> bool:
    return node.op_type == "Resize" and node.domain in {"", "ai.onnx"}


def _resize_written_out(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], taken: TakenNames
) -> Iterator[onnx.NodeProto]:
    """Yield a Resize with explicit attributes; two if nearest mode shortens one axis and lengthens another."""
    resize = copy_message(node)
    mode = next((field.s for field in node.attribute if field.name == "mode"), b"nearest")
    resize.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    if mode != b"nearest":
        yield resize
        return
    stored = constants.get(node.input[_SCALES])
    scales = np.ones(1, np.float32) if stored is None else numpy_helper.to_array(stored)
    is_shorter, is_longer = bool((scales < 1).any()), bool((scales > 1).any())
    resize.attribute.append(helper.make_attribute("nearest_mode", "ceil" if is_shorter else "floor"))
    if not (is_shorter and is_longer):
        yield resize
        return
    stem = node.name or node.output[0]
    between = taken.take(f"{stem}_shorter")
    for word, factors in (("down", np.minimum(scales, 1)), ("up", np.maximum(scales, 1))):
        name = taken.take(f"{stem}_{word}_scales")
        yield helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(factors))
        part = copy_message(resize)
        part.input[_SCALES] = name
        if word == "down":
            part.name, part.output[0] = between, between
        else:
            part.input[0] = between
            part.attribute[-1].s = b"floor"
        yield part


# --- softmax ---------------------------------------------------------------------------------------------------------
# Softmax, LogSoftmax and Hardmax of opsets before 13, which flattened their input to a matrix.
#
# The version converter does not change a Hardmax, although its meaning changed: `write_out_hardmax` does what the
# converter does for Softmax. `unflatten` undoes this, because one node can replace the four.
#
# Before opset 13, Softmax flattened its input to a matrix from `axis` on. The converter writes this as Shape, Flatten,
# Softmax and Reshape, and then no pattern recognizes the softmax of an attention. If all dimensions after one axis are
# 1 (always true for the last axis), a single Softmax along that axis computes equal values.


def write_out_hardmax(graph: onnx.GraphProto) -> None:
    """Preserve the meaning of every Hardmax, also in bodies, of a graph whose opset was older than 13.

    x -> Shape, Flatten(axis) -> Hardmax(-1) -> Reshape -> y: the largest of a whole row of the flattened matrix is 1.
    """
    _replace_nodes(graph, "Hardmax", _softmax_written_out)


def _replace_nodes(
    graph: onnx.GraphProto,
    op: str,
    replacement: Callable[[onnx.NodeProto, TakenNames], Iterator[onnx.NodeProto]],
) -> None:
    """Replace every node of an ONNX operator, also in bodies."""
    taken = TakenNames(name for part in parts(graph) for name in names(part))
    for part in reversed([part for part in parts(graph) if isinstance(part, onnx.GraphProto)]):
        if not any(node.op_type == op for node in part.node):
            continue
        nodes: list[onnx.NodeProto] = []
        for node in part.node:
            replaced = node.op_type == op and node.domain in {"", "ai.onnx"}
            nodes += replacement(node, taken) if replaced else [copy_message(node)]
        del part.node[:]
        part.node.extend(nodes)


def _softmax_written_out(node: onnx.NodeProto, taken: TakenNames) -> Iterator[onnx.NodeProto]:
    axis = next((field.i for field in node.attribute if field.name == "axis"), 1)
    stem = node.name or node.output[0]
    shape, flat, chosen = (taken.take(f"{stem}_{word}") for word in ("shape", "flat", "chosen"))
    make = onnx.helper.make_node
    yield make("Shape", [node.input[0]], [shape], name=shape)
    yield make("Flatten", [node.input[0]], [flat], name=flat, axis=axis)
    yield make("Hardmax", [flat], [chosen], name=node.name, axis=-1)
    yield make("Reshape", [chosen, shape], [node.output[0]], name=taken.take(f"{stem}_back"))


def shield_readers(graph: onnx.GraphProto) -> dict[str, str]:
    """Put an Identity after every Softmax that a body reads. Return the old output name by the new name.

    onnx's version converter gives the output of a Softmax to another node, and cannot do so for readers in a body.
    """
    held = list(parts(graph))
    taken = TakenNames(name for part in held for name in names(part))
    moved: dict[str, str] = {}
    for part in reversed(held):
        if not isinstance(part, onnx.GraphProto):
            continue
        read = {name for node in part.node for name in find_captured(node)}
        nodes = []
        for node in map(copy_message, part.node):
            nodes.append(node)
            if node.op_type in SOFTMAXES and node.output[0] in read:
                name, node.output[0] = node.output[0], taken.take(f"{node.output[0]}_unread")
                moved[node.output[0]] = name
                nodes.append(onnx.helper.make_node("Identity", [node.output[0]], [name], name=node.output[0]))
        if len(nodes) > len(part.node):
            del part.node[:]
            part.node.extend(nodes)
    return moved


def unshield_readers(graph: onnx.GraphProto, moved: Mapping[str, str]) -> None:
    """Remove the nodes that `shield_readers` added; `moved` is the result of `shield_readers`."""
    for part in reversed([part for part in parts(graph) if moved and isinstance(part, onnx.GraphProto)]):
        nodes = [
            copy_message(node) for node in part.node if node.op_type != "Identity" or node.name not in moved
        ]
        for node in nodes:
            node.output[:] = [moved.get(name, name) for name in node.output]
        del part.node[:]
        part.node.extend(nodes)


def unflatten(model: Model) -> Model:
    """Return the model with flattened Softmax, LogSoftmax and Hardmax written as one node each."""
    edit = Edit(model)
    nodes = {node.name: node for node in edit.nodes}
    gone: list[onnx.NodeProto] = []
    for node in model.view.nodes:
        match = _find_flattening(node, model.view) if node.op in SOFTMAXES else None
        if match is None:
            continue
        flatten, reshape, axis = match
        proto = nodes[node.name]
        proto.input[0] = flatten.inputs[0]
        proto.output[0] = reshape.outputs[0]
        next(attribute for attribute in proto.attribute if attribute.name == "axis").i = axis
        gone += [nodes[flatten.name], nodes[reshape.name]]
    if not gone:
        return model
    edit.remove(gone)
    edit.prune()
    return edit.finish()


def _find_flattening(node: Node, view: GraphView) -> tuple[Node, Node, int] | None:
    """Return the Flatten before and the Reshape after a Softmax, and the axis that replaces them; None for other neighbors."""
    flatten, uses = view.producer(node.inputs[0]), view.uses(node.outputs[0])
    if flatten is None or flatten.op != "Flatten" or node.attribute("axis") != -1 or len(uses) != 1:
        return None
    reshape = uses[0].node
    target = view.producer(reshape.inputs[1]) if reshape.op == "Reshape" else None
    if target is None or target.op != "Shape" or target.inputs != flatten.inputs:
        return None
    if len(view.uses(flatten.outputs[0])) != 1 or view.is_output(node.outputs[0]):
        return None
    shape = view.info(flatten.inputs[0]).shape
    axis = flatten.integer("axis", 1)
    if shape is None or not 0 <= axis < len(shape):
        return None
    long = [place for place in range(axis, len(shape)) if shape[place] != 1]
    return (flatten, reshape, long[0] if long else axis) if len(long) <= 1 else None


# --- group normalization ---------------------------------------------------------------------------------------------
# GroupNormalization of opsets 18 to 20, which has one scale and one bias per group. onnxruntime and TensorRT read it, but
# onnx's checker and converter refuse it as deprecated.


_PER_CHANNEL = 21
"""The first opset in which GroupNormalization has a scale per channel."""


def write_out_group_norms(proto: onnx.ModelProto) -> int:
    """Replace GroupNormalization with a scale per group by operators of equal result; return the number of nodes.

    x -> Reshape [N, groups, all] -> InstanceNormalization -> Reshape to the shape of x -> y
    """
    old = [part for part in parts(proto.graph) if getattr(part, "op_type", "") == "GroupNormalization"]
    if not old or default_opset(proto) >= _PER_CHANNEL:
        return 0
    _replace_nodes(proto.graph, "GroupNormalization", _group_norm_written_out)
    return len(old)


def _group_norm_written_out(node: onnx.NodeProto, taken: TakenNames) -> Iterator[onnx.NodeProto]:
    fields = {field.name: field for field in node.attribute}
    groups = fields["num_groups"].i if "num_groups" in fields else 0
    stem = node.name or node.output[0]
    words = ("shape", "groups", "grouped", "normal")
    shape, sizes, grouped, normal = (taken.take(f"{stem}_{word}") for word in words)
    make = onnx.helper.make_node
    epsilon = {"epsilon": fields["epsilon"].f} if "epsilon" in fields else {}
    yield make("Shape", [node.input[0]], [shape], name=shape)
    yield make("Constant", [], [sizes], name=sizes, value_ints=[0, groups, -1])
    yield make("Reshape", [node.input[0], sizes], [grouped], name=grouped)
    yield make("InstanceNormalization", [grouped, *node.input[1:]], [normal], name=node.name, **epsilon)
    yield make("Reshape", [normal, shape], [node.output[0]], name=taken.take(f"{stem}_back"))


# --- opset -----------------------------------------------------------------------------------------------------------


LOWEST = 13
"""First opset whose QuantizeLinear and DequantizeLinear have a channel axis."""
HALF_SCALES = 19
"""First opset whose QuantizeLinear and DequantizeLinear take FP16 scales."""
_SCAN_WITHOUT_BATCH = 9
"""First opset whose Scan has no batch dimension and no lengths; onnx's converter does not change the node."""
_PLACED_PIXELS = 11
"""First opset whose Resize states the positions of its pixels."""
_RAISED = "opset raised from"
_LATER = "qdqtool.later"
"""Temporary domain of Q/DQ nodes while a converter runs that does not know their attributes."""


def was_raised(notes: Iterable[str]) -> bool:
    """Return True if the notes of a model say that its opset was converted."""
    return any(note.startswith(_RAISED) for note in notes)


def find_written_opset(proto: onnx.ModelProto) -> int:
    """Return the opset of the newest Q/DQ attributes; 0 if the opset of the model has them all.

    NVIDIA's modelopt writes blocks of INT4 (block_size, opset 21) into models of opset 17, and TensorRT reads them.
    """
    opset = default_opset(proto)
    return max((_needs(part) for part in _late(proto, opset)), default=0)


def _late(proto: onnx.ModelProto, opset: int) -> Iterator[onnx.NodeProto]:
    for part in parts(proto.graph):
        is_qdq = isinstance(part, onnx.NodeProto) and part.op_type in QDQ and part.domain in {"", "ai.onnx"}
        if is_qdq and _needs(part) > opset:
            yield part


def _needs(node: onnx.NodeProto) -> int:
    """Return the first opset that knows all attributes of a Q/DQ node; 0 if none does, which the checker reports."""
    names = {attribute.name for attribute in node.attribute}
    return min((since for since, attributes in _versions(node.op_type) if names <= attributes), default=0)


@cache
def _versions(op: str) -> tuple[tuple[int, frozenset[str]], ...]:
    """Return the versions of an operator, newest first: each is an opset and its attribute names."""
    versions = []
    schema = onnx.defs.get_schema(op)
    while True:
        versions.append((schema.since_version, frozenset(schema.attributes)))
        try:
            schema = onnx.defs.get_schema(op, schema.since_version - 1, "")
        except onnx.defs.SchemaError:  # the operator is not older
            return tuple(versions)


def raise_opset(proto: onnx.ModelProto, target: int, path: Path) -> tuple[onnx.ModelProto, str | None]:
    """Return the model at opset `target` or above, and a note if it had to be converted.

    Raises:
        InputFileError: the converter does not know how.
    """
    opset = default_opset(proto)
    if opset >= target:
        return proto, None
    if opset < _SCAN_WITHOUT_BATCH and any(
        isinstance(part, onnx.NodeProto) and part.op_type == "Scan" for part in parts(proto.graph)
    ):
        raise InputFileError(
            f"the model holds a Scan of opset {opset}: its inputs have a batch dimension, and newer opsets do not allow that",
            fix=f"export the model again with opset {target} or newer",
            where=str(path),
        )
    light, heavy = skeleton(proto)
    light.ir_version = max(light.ir_version, 4)
    later = {part.name for part in _late(light, opset)}
    _move(light, later, _LATER)
    moved = shield_readers(light.graph) if opset < LOWEST else {}
    old = {name for part in parts(light.graph) for name in names(part)}
    try:
        raised = onnx.ModelProto.FromString(run_pass("convert", light, target=target))
    except (PassRefused, PassExceeded) as error:
        reason = str(error).strip().splitlines()[0].rpartition("failed: ")[2]
        raise InputFileError(
            f"the model has opset {opset} and cannot be converted to {target}: {reason}",
            fix=f"export the model again with opset {target} or newer",
            where=str(path),
        ) from error
    # Only graph and version are used, because the converter loses metadata and other domains.
    light.graph.CopyFrom(raised.graph)
    _rename_added(light.graph, old, TakenNames(old), {})
    unshield_readers(light.graph, moved)
    if opset < _PLACED_PIXELS <= target:
        write_out_resizes(light.graph)
    if opset < LOWEST <= target:
        write_out_hardmax(light.graph)
    _move(light, later, "")
    declare_opset(light, target)
    return restore(light, heavy), f"{_RAISED} {opset} to {target}"


def _rename_added(
    graph: onnx.GraphProto, old: AbstractSet[str], taken: TakenNames, outer: Mapping[str, str]
) -> None:
    """Give the tensors that the converter added different names in all graphs: it counts from one number in each body."""
    entries = [*graph.initializer, *graph.value_info, *graph.output]
    tensors = [name for node in graph.node for name in node.output]
    tensors += [tensor.name for tensor in graph.initializer]
    renamed = {**outer, **{name: taken.take(name) for name in tensors if name and name not in old}}
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        for body in bodies(node):
            _rename_added(body, old, taken, renamed)
    for entry in entries:
        entry.name = renamed.get(entry.name, entry.name)


NEWEST_COMPUTED = 27
"""Newest opset whose QuantizeLinear and DequantizeLinear onnxruntime 1.32 computes."""


def means_the_same_lower(proto: onnx.ModelProto) -> bool:
    """Return True if the opset is too new for onnxruntime, but its newest opset has the same operators.

    If a version of an operator only accepts more types, its attributes and its text equal those of the version
    before. The caller checks the types. Local functions declare opsets of their own, so models that hold some count
    as different.
    """
    opset = default_opset(proto)
    if opset <= NEWEST_COMPUTED or proto.functions:
        return False
    ops = {
        part.op_type
        for part in parts(proto.graph)
        if isinstance(part, onnx.NodeProto) and part.domain in {"", "ai.onnx"}
    }
    return all(_is_the_same(op, opset) for op in ops)


def declare_opset(proto: onnx.ModelProto, version: int) -> None:
    """Write another opset number into the model, without changing its nodes."""
    for entry in proto.opset_import:
        if entry.domain in {"", "ai.onnx"}:
            entry.version = version


@cache
def _is_the_same(op: str, opset: int) -> bool:
    """Return True if an operator's text and attributes are the same in the newest opset that onnxruntime supports."""
    try:
        old, new = (onnx.defs.get_schema(op, version) for version in (NEWEST_COMPUTED, opset))
    except onnx.defs.SchemaError:
        return False
    return old.doc == new.doc and old.attributes.keys() == new.attributes.keys()


def _move(proto: onnx.ModelProto, names: AbstractSet[str], domain: str) -> None:
    """Move the named Q/DQ nodes to another operator domain."""
    for part in parts(proto.graph) if names else ():
        if isinstance(part, onnx.NodeProto) and part.op_type in QDQ and part.name in names:
            part.domain = domain
    kept = [entry for entry in proto.opset_import if entry.domain != _LATER]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    if names and domain:
        proto.opset_import.add(domain=domain, version=1)
