"""Estimates the memory that values inside a network take, for inputs of given shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.canonical.shapes import infer
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.skeleton import skeleton
from qdqtool.graph.onnx_io.weight import byte_size


def peak_bytes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the peak bytes of values computed inside the main graph, without weights.

    Shapes are inferred, nothing is computed. Each value is held from the node that makes it to its last consumer, as
    onnxruntime does. It is a lower bound: tensors of unknown shape, bodies of If and Loop and what kernels take for
    themselves count nothing.
    """
    light, heavy = skeleton(model.proto)
    for value in light.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type
            kind.CopyFrom(onnx.helper.make_tensor_type_proto(kind.elem_type, shapes[value.name]).tensor_type)
    for value in light.graph.output:
        # Numbers that the file states for its own sizes would contradict these.
        value.type.tensor_type.ClearField("shape")
    try:
        infer(light, model.path, keep=False)
    except QdqError:
        return 0
    weights = {tensor.name for tensor in heavy}
    known = (*light.graph.value_info, *light.graph.input, *light.graph.output)
    return _peak(light.graph, {value.name: _bytes(value) for value in known if value.name not in weights})


def _peak(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> int:
    left = Counter(name for node in graph.node for name in node.input)
    left.update(value.name for value in graph.output)
    now = most = sum(sizes.get(value.name, 0) for value in graph.input)
    for node in graph.node:
        now += sum(sizes.get(name, 0) for name in node.output)
        most = max(most, now)
        now -= sum(sizes.get(name, 0) for name in node.output if not left[name])
        for name in node.input:
            left[name] -= 1
            if not left[name]:
                now -= sizes.get(name, 0)
    return most


def _bytes(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim]
    known = kind.HasField("shape") and kind.elem_type and prod(dims)
    return byte_size(onnx.TensorProto(data_type=kind.elem_type, dims=dims)) or 0 if known else 0
