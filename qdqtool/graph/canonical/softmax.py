"""Undoes what the version converter does to Softmax: four nodes where one says the same.

Before opset 13, Softmax flattened its input to a matrix from `axis` on. The converter writes that out as
Shape, Flatten, Softmax and Reshape, which hides the softmax of an attention from every pattern. Where all dimensions
behind one axis are 1 (always so for the last axis), a single Softmax along that axis computes the same.
"""

from __future__ import annotations

import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import SOFTMAXES


def unflatten(model: Model) -> Model:
    """The same model with flattened Softmax, LogSoftmax and Hardmax written as one node each."""
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
    """Flatten before and Reshape behind a Softmax, and the axis that replaces them; None for other surroundings."""
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
