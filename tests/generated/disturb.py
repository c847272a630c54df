"""Q/DQ models as other tools write them: our own, written in another way that computes the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE


class _Disturbed:
    """A Q/DQ model in the making."""

    def __init__(self, proto: onnx.ModelProto, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.graph = onnx.shape_inference.infer_shapes(proto).graph
        self.values = {tensor.name: tensor for tensor in self.graph.initializer}
        self.ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*self.graph.value_info, *self.graph.input)
            if value.type.tensor_type.HasField("shape")
        }
        self.nodes: list[onnx.NodeProto] = []
        self.count = 0

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}/disturbed_{self.count}"

    def constant(self, base: str, value: object) -> str:
        name = self.name(base)
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name


_Way = Callable[[_Disturbed, onnx.NodeProto, onnx.NodeProto], None]


def _unsigned(draft: _Disturbed, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> None:
    """UINT8 with zero point 128."""
    scale = numpy_helper.to_array(draft.values[quantize.input[1]])
    zero = draft.constant(quantize.input[2], np.full(scale.shape, 128, np.uint8))
    for node in (quantize, dequantize):
        node.input[2] = zero


def _of_rank_one(draft: _Disturbed, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> None:
    """A scale per tensor that is a vector of one value."""
    for index in (1, 2):
        value = numpy_helper.to_array(draft.values[quantize.input[index]])
        if value.ndim == 0:
            name = draft.constant(quantize.input[index], value.reshape(1))
            quantize.input[index] = dequantize.input[index] = name


def _twice(draft: _Disturbed, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> None:
    """Another pair of the same scale behind the pair."""
    first, integers = draft.name(dequantize.output[0]), draft.name(quantize.output[0])
    nodes = [
        helper.make_node(QUANTIZE, [first, *quantize.input[1:]], [integers], name=draft.name("again_Q")),
        helper.make_node(
            DEQUANTIZE, [integers, *dequantize.input[1:]], [dequantize.output[0]], name=draft.name("again_DQ")
        ),
    ]
    dequantize.output[0] = first
    for node in nodes:
        node.attribute.extend(dequantize.attribute)
    draft.nodes += nodes


def _moved(draft: _Disturbed, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> None:
    """A Transpose of the integers, and one back of the floats."""
    rank = draft.ranks.get(quantize.input[0], 0)
    if rank < 2 or numpy_helper.to_array(draft.values[quantize.input[1]]).ndim:
        return
    there = [0, *draft.chosen.sample(range(1, rank), rank - 1)]
    back = [there.index(axis) for axis in range(rank)]
    turned, floats = draft.name(quantize.output[0]), draft.name(dequantize.output[0])
    draft.nodes += [
        helper.make_node("Transpose", [quantize.output[0]], [turned], name=draft.name("turn"), perm=there),
        helper.make_node("Transpose", [floats], [dequantize.output[0]], name=draft.name("back"), perm=back),
    ]
    dequantize.input[0], dequantize.output[0] = turned, floats


def _apart(draft: _Disturbed, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> None:
    """A second DequantizeLinear that the first of two readers reads."""
    readers = [
        (node, index)
        for node in draft.graph.node
        for index, name in enumerate(node.input)
        if name == dequantize.output[0]
    ]
    if len(readers) < 2:
        return
    other = draft.name(dequantize.output[0])
    twin = helper.make_node(DEQUANTIZE, list(dequantize.input), [other], name=draft.name("apart"))
    twin.attribute.extend(dequantize.attribute)
    draft.nodes.append(twin)
    readers[0][0].input[readers[0][1]] = other


WAYS: tuple[_Way, ...] = (_unsigned, _of_rank_one, _twice, _moved, _apart)


def disturbed(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with about half of its INT8 pairs written in other ways, some in several."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    draft = _Disturbed(made, seed)
    makers = {name: node for node in draft.graph.node for name in node.output}
    for dequantize in [node for node in draft.graph.node if node.op_type == DEQUANTIZE]:
        quantize = makers.get(dequantize.input[0])
        if quantize is None or quantize.op_type != QUANTIZE or draft.chosen.random() < 0.4:
            continue
        readers = sum(list(node.input).count(quantize.output[0]) for node in draft.graph.node)
        if readers == 1:
            for way in draft.chosen.sample(WAYS, draft.chosen.choice([1, 1, 2, 3])):
                way(draft, quantize, dequantize)
                draft.values = {tensor.name: tensor for tensor in draft.graph.initializer}
    draft.graph.node.extend(draft.nodes)
    made.graph.CopyFrom(draft.graph)
    del made.graph.value_info[:]
    return _sorted(made)


def _sorted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes in an order in which each reads only what is there."""
    graph = proto.graph
    there = {value.name for value in (*graph.input, *graph.initializer)} | {""}
    waiting, ordered = list(graph.node), []
    while waiting:
        ready = [node for node in waiting if there.issuperset(_reads(node) - _inner(node))]
        assert ready, "a cycle"
        ordered += ready
        there |= {name for node in ready for name in node.output}
        waiting = [node for node in waiting if not any(node is other for other in ready)]
    copies = onnx.GraphProto(node=ordered).node
    del graph.node[:]
    graph.node.extend(copies)
    return proto


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [entry.g for entry in node.attribute if entry.type == onnx.AttributeProto.GRAPH]


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = {name for body in _bodies(node) for other in body.node for name in _reads(other)}
    return {*node.input} | inner


def _inner(node: onnx.NodeProto) -> set[str]:
    """Tensors that bodies have themselves."""
    found: set[str] = set()
    for body in _bodies(node):
        found |= {value.name for value in (*body.input, *body.initializer)}
        for other in body.node:
            found |= {*other.output} | _inner(other)
    return found
