"""Walks through protobufs: every tensor, every body of If, Loop and Scan, and the outer tensors that bodies read."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Return the names that one message of a graph defines or reads; () for messages without names."""
    if isinstance(part, onnx.NodeProto):
        return (*part.input, *part.output, part.name)
    return (part.name,) if isinstance(part, onnx.ValueInfoProto | onnx.TensorProto) else ()


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield outer tensors that the bodies of an If, Loop or Scan read, with repeats."""
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in (*inner.input, *captured(inner)) if name and name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def reads(node: onnx.NodeProto) -> list[str]:
    """Return every tensor that a node needs, including the needs of its bodies, without absent optional inputs."""
    names = [name for name in node.input if name]
    # Asked of every node many times: attributes are looked into only where one is a graph.
    return [*names, *captured(node)] if any(field.type in _GRAPHS for field in node.attribute) else names


def copied(message: Any) -> Any:
    """Return a copy of a message that is independent of its list."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def parts(message: Message) -> Iterator[Any]:
    """Yield a message and all messages inside it, in the order of the file; does not look inside tensors."""
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
    """Return True if a text field directly in this message is not UTF-8; protobuf accepts damaged text and returns bytes."""
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
