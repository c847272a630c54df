"""Iteration over all graphs and tensors of an ONNX protobuf, and copies of a model without its large weights."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import prod
from typing import Any, Final

import onnx
from google.protobuf.message import Message

_GRAPHS: Final = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a control-flow node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def names(part: Any) -> tuple[str, ...]:
    """Return the names that a protobuf message of a graph defines or reads; () for messages without names."""
    if isinstance(part, onnx.NodeProto):
        return (*part.input, *part.output, part.name)
    return (part.name,) if isinstance(part, onnx.ValueInfoProto | onnx.TensorProto) else ()


def find_captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield outer tensors that the bodies of an If, Loop or Scan read; a tensor may appear repeatedly."""
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own.update(tensor.values.name for tensor in body.sparse_initializer)
        for inner in body.node:
            yield from (name for name in (*inner.input, *find_captured(inner)) if name and name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def reads(node: onnx.NodeProto) -> list[str]:
    """Return every tensor that a node or its bodies read. Absent optional inputs are omitted."""
    names = [name for name in node.input if name]
    # Called very often for every node, so it opens only attributes that are graphs.
    return [*names, *find_captured(node)] if any(field.type in _GRAPHS for field in node.attribute) else names


def copy_message(message: Any) -> Any:
    """Return a copy of a protobuf message that does not change when the list of the original changes."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def parts(message: Message) -> Iterator[Any]:
    """Yield a protobuf message and all messages inside it, in the order of the file, but not inside tensors."""
    waiting: list[Any] = [message]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, onnx.TensorProto):
            continue  # listing its fields would copy the values
        inner = [
            (value,) if isinstance(value, Message) else value
            for field, value in part.ListFields()
            if field.message_type is not None
        ]
        waiting.extend(reversed([entry for values in inner for entry in values]))


def tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every tensor stored anywhere in a model, a graph or a node, including bodies, functions and sparse tensors."""
    yield from (part for part in parts(message) if isinstance(part, onnx.TensorProto))


def misspelt(part: Message) -> bool:
    """Return True if a text field of a protobuf message is not UTF-8. Protobuf returns damaged text as bytes."""
    if isinstance(part, onnx.TensorProto):
        entries = (*part.external_data, *part.metadata_props)
        words: tuple[Any, ...] = (part.name, part.doc_string, *(w for e in entries for w in (e.key, e.value)))
        return not all(isinstance(word, str) for word in words)
    for field, value in part.ListFields():
        if field.message_type is None and field.type == field.TYPE_STRING:
            words = (value,) if isinstance(value, (str, bytes)) else tuple(value)
            if not all(isinstance(word, str) for word in words):
                return True
    return False


# --- skeleton --------------------------------------------------------------------------------------------------------
# A light copy of a model: structure and small constants; heavy weights are only declared.
#
# onnx's own passes serialize the whole model, which fails above 2 GiB and copies every weight. No pass needs the
# values of large tensors, so it gets this copy.


_HEAVY = 1024
"""Elements from which on a constant is heavy; shapes, axes and scales stay below."""


def skeleton(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[onnx.TensorProto, ...]]:
    """Return a copy of the model with its heavy initializers declared as inputs, and these initializers."""
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
    """Return True if an initializer is so large that no onnx pass needs its values."""
    return bool(prod(tensor.dims) >= _HEAVY)


def restore(light: onnx.ModelProto, heavy: tuple[onnx.TensorProto, ...]) -> onnx.ModelProto:
    """Put the heavy initializers back into a model that `skeleton` returned, and return it."""
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
    """Copy every field of a protobuf message except those in `skip`."""
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


def at(names: Sequence[str], index: int) -> str:
    """Return the tensor name at a position of a list; "" if the list is shorter."""
    return names[index] if index < len(names) else ""
