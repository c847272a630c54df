"""A light copy of a model: structure and small constants; heavy weights are only declared.

onnx's own passes serialize the whole model, which fails above 2 GiB and copies every weight. None of them needs
the values of large tensors, so they get a skeleton.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod
from typing import Any

import onnx
from google.protobuf.message import Message

_HEAVY = 1024
"""Elements from which on a constant is heavy; shapes, axes and scales stay below."""


def skeleton(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[onnx.TensorProto, ...]]:
    """Return the light copy, and the heavy initializers, which the copy declares as inputs."""
    light = onnx.ModelProto()
    copy_fields(proto, light, skip={"graph"})
    copy_fields(proto.graph, light.graph, skip={"initializer"})
    heavy = []
    declared = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if not is_heavy(tensor):
            light.graph.initializer.append(tensor)
            continue
        heavy.append(tensor)
        if tensor.name not in declared:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            light.graph.input.append(value)
    return light, tuple(heavy)


def is_heavy(tensor: onnx.TensorProto) -> bool:
    """Return True if a constant is so large that no pass needs its values."""
    return bool(prod(tensor.dims) >= _HEAVY)


def restore(light: onnx.ModelProto, heavy: tuple[onnx.TensorProto, ...]) -> onnx.ModelProto:
    """Put the heavy initializers back into `light` and return it."""
    names = {tensor.name for tensor in heavy}
    inputs = [value for value in light.graph.input if value.name not in names]
    del light.graph.input[:]
    light.graph.input.extend(inputs)
    light.graph.initializer.extend(heavy)
    return light


def declaration(proto: onnx.ModelProto, tensor: str) -> onnx.ValueInfoProto:
    """Return name, type and shape of a tensor as far as the model declares them; otherwise only the name."""
    copy = onnx.ValueInfoProto(name=tensor)
    for values in (proto.graph.value_info, proto.graph.input, proto.graph.output):
        for value in values:
            if value.name == tensor:
                copy.CopyFrom(value)
    for constant in proto.graph.initializer:
        if constant.name == tensor:
            return onnx.helper.make_tensor_value_info(tensor, constant.data_type, list(constant.dims))
    return copy


def copy_fields(source: Message, target: Message, *, skip: Container[str]) -> None:
    """Copy every field except those in `skip`."""
    for field, value in source.ListFields():
        if field.name in skip:
            continue
        into: Any = getattr(target, field.name)
        if isinstance(value, Message):
            into.CopyFrom(value)
        elif hasattr(into, "extend"):
            into.extend(value)
        else:
            setattr(target, field.name, value)
