"""Lets onnxruntime return tensors in the layout in which it computed them.

For convolutions onnxruntime keeps tensors in blocks of channels (NCHWc) and turns every tensor that somebody fetches
back into NCHW, which for small networks costs as much as the network itself. Who only counts values needs no order.

Source: the operators of the domain com.microsoft.nchwc in a model that onnxruntime saved after optimizing it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import helper

from qdqtool.graph.view import GraphView
from qdqtool.io.files import write_bytes
from qdqtool.trt.ops import BLOCKED, BLOCKED_ELEMENTWISE

DOMAIN: Final = "com.microsoft.nchwc"


def may_be_blocked(view: GraphView, tensors: Iterable[str]) -> bool:
    """Return True if a convolution, followed only by operators that keep its layout, computes any of `tensors`.

    Where none is, as in most transformers, rewriting the model gains nothing.
    """
    waiting, seen = list(tensors), set[str]()
    while waiting:
        name = waiting.pop()
        node = view.producer(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op == "Conv":
            return True
        if node.op in BLOCKED:
            waiting.extend(node.inputs)
    return False


def return_blocked(path: Path, ordered: Collection[str] = ()) -> dict[str, str]:
    """Rewrite an optimized model so that outputs are returned before reordering; return their new names.

    An output is left as it is where it is one of `ordered`, or its blocks are filled up with channels that nobody asked
    for. The file does not change when the answer is empty.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    channels = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    wanted = {value.name for value in graph.output}.difference(ordered)
    found = {}
    for node in graph.node:
        is_reordering = node.op_type == "ReorderOutput" and node.domain == DOMAIN
        if is_reordering and node.output[0] in wanted and node.input[0] not in wanted:
            asked = {field.name: field.i for field in node.attribute}
            whole = _channels(makers.get(node.input[0]), makers, channels)
            if whole == asked.get("channels") and not asked.get("channels_last", 0):
                found[node.output[0]] = node.input[0]
    if found:
        read = {name for node in graph.node for name in node.input}
        for node in list(graph.node):
            if node.output[0] in found and node.output[0] not in read:
                graph.node.remove(node)
        for value in graph.output:
            value.name = found.get(value.name, value.name)
        write_bytes(path, model.SerializeToString(deterministic=True), lasting=False)
    return found


def example_model() -> bytes:
    """Return a one-channel convolution, to find out to how many channels onnxruntime pads it."""
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 4, 4])
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [1, 1, 1, 1], [1.0])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1, 4, 4])
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "blocks", [image], [result], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def filled_up(path: Path) -> int:
    """Return the channels of the example after onnxruntime optimized it."""
    (weight,) = onnx.load(str(path)).graph.initializer
    return int(weight.dims[0])


def _channels(node: Any, makers: dict[str, Any], channels: dict[str, int]) -> int | None:
    """Return the number of channels of a blocked tensor, including those that pad its last block; None if unknown."""
    while node is not None:
        if node.domain == DOMAIN and node.op_type == "Conv":
            return channels.get(node.input[1])
        if node.op_type not in BLOCKED_ELEMENTWISE or not node.input:
            return None
        node = makers.get(node.input[0])
    return None
