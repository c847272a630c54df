"""Walks through protobufs: every tensor, every body of If, Loop and Scan, and what bodies read from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.message import Message


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a control-flow node holds."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Outer tensors that the bodies of an If, Loop or Scan read, repeats included."""
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            yield from (name for name in (*inner.input, *captured(inner)) if name and name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every tensor a node needs, its bodies' needs included; absent optional inputs are left out."""
    yield from (name for name in node.input if name)
    yield from captured(node)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in a graph: initializers, attributes, and those of all bodies."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from tensors(body)


def misspelt(message: Message) -> bool:
    """Whether any name inside is not UTF-8: protobuf lets damaged ones pass and hands them out as bytes."""
    waiting: list[Any] = [message]
    while waiting:
        part = waiting.pop()
        if isinstance(part, onnx.TensorProto):
            # Listing all fields would copy the values.
            waiting.extend((*part.external_data, *part.metadata_props))
            words: tuple[Any, ...] = (part.name, part.doc_string)
            if not all(isinstance(word, str) for word in words):
                return True
            continue
        for field, value in part.ListFields():
            if field.message_type is not None:
                waiting.extend((value,) if isinstance(value, Message) else value)
            elif field.type == field.TYPE_STRING:
                words = (value,) if isinstance(value, (str, bytes)) else tuple(value)
                if not all(isinstance(word, str) for word in words):
                    return True
    return False
