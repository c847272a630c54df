"""Softmax, LogSoftmax and Hardmax of opsets before 13, which flattened their input to a matrix.

The version converter leaves a Hardmax as it is, although its meaning changed: `write_out_hardmax` does by hand what the converter
does to Softmax. `unflatten` undoes that: four nodes where one says the same.

Before opset 13, Softmax flattened its input to a matrix from `axis` on. The converter writes that out as Shape,
Flatten, Softmax and Reshape, which hides the softmax of an attention from every pattern. If all dimensions after one
axis are 1 (always so for the last axis), a single Softmax along that axis computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from qdqtool.graph.canonical.order import TakenNames
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.walk import captured, copied, names, parts
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import SOFTMAXES


def write_out_hardmax(graph: onnx.GraphProto) -> None:
    """Preserve the meaning of every Hardmax of a graph that came from an opset before 13, including bodies.

    x -> Shape, Flatten(axis) -> Hardmax(-1) -> Reshape -> y: the largest of a whole row of the flattened matrix is 1.
    """
    taken = TakenNames(name for part in parts(graph) for name in names(part))
    for part in [part for part in parts(graph) if isinstance(part, onnx.GraphProto)]:
        if not any(node.op_type == "Hardmax" for node in part.node):
            continue
        nodes = [made for node in part.node for made in _written_out(node, taken)]
        del part.node[:]
        part.node.extend(nodes)


def _written_out(node: onnx.NodeProto, taken: TakenNames) -> Iterator[onnx.NodeProto]:
    if node.op_type != "Hardmax" or node.domain not in {"", "ai.onnx"}:
        yield copied(node)
        return
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
    for part in held:
        if not isinstance(part, onnx.GraphProto):
            continue
        read = {name for node in part.node for name in captured(node)}
        nodes = []
        for node in map(copied, part.node):
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
    """Remove the nodes that `shield_readers` added; its result is `moved`."""
    for part in [part for part in parts(graph) if moved and isinstance(part, onnx.GraphProto)]:
        nodes = [copied(node) for node in part.node if node.op_type != "Identity" or node.name not in moved]
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
        found = _flattened(node, model.view) if node.op in SOFTMAXES else None
        if found is None:
            continue
        flatten, reshape, axis = found
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


def _flattened(node: Node, view: GraphView) -> tuple[Node, Node, int] | None:
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
