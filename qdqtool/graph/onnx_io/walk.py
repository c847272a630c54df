"""Walks through protobufs: every tensor, every body of If, Loop and Scan, and what bodies read from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import onnx
from google.protobuf.message import Message

_GRAPHS: Final = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a control-flow node holds."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def names(part: Any) -> tuple[str, ...]:
    """The names that one message of a graph gives or reads; empty for messages without any."""
    if isinstance(part, onnx.NodeProto):
        return (*part.input, *part.output, part.name)
    return (part.name,) if isinstance(part, onnx.ValueInfoProto | onnx.TensorProto) else ()


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Outer tensors that the bodies of an If, Loop or Scan read, repeats included."""
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in (*inner.input, *captured(inner)) if name and name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def reads(node: onnx.NodeProto) -> list[str]:
    """Every tensor a node needs, its bodies' needs included; absent optional inputs are left out."""
    names = [name for name in node.input if name]
    # Asked of every node many times: attributes are looked into only where one is a graph.
    return [*names, *captured(node)] if any(field.type in _GRAPHS for field in node.attribute) else names


def copied(message: Any) -> Any:
    """A copy of a message that outlives the list it is in."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def parts(message: Message) -> Iterator[Any]:
    """A message and all messages inside it, in the order of the file; what a tensor holds is not looked into."""
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
    """Every tensor stored anywhere in a model, a graph or a node: bodies, functions and sparse tensors included."""
    yield from (part for part in parts(message) if isinstance(part, onnx.TensorProto))


def misspelt(part: Message) -> bool:
    """Whether a text field of this very message is not UTF-8: protobuf lets damaged ones pass and hands out bytes."""
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
