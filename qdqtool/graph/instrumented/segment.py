"""Cuts a piece out of a model: from tensors with known values to one wanted tensor."""

from __future__ import annotations

from collections.abc import Collection

from qdqtool.graph.edit import Edit
from qdqtool.graph.instrumented.probe import Probe
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.onnx_io.skeleton import declaration
from qdqtool.graph.onnx_io.walk import reads


def segment(model: Model, known: Collection[str], wanted: str) -> Probe:
    """Return a model that computes `wanted`; its inputs are the `known` tensors that it depends on."""
    edit = Edit(model)
    makers = edit.producers()
    edit.remove(makers[name] for name in known if name in makers)
    edit.outputs = [declaration(model.proto, wanted)]
    edit.prune()
    needed = {name for node in edit.nodes for name in reads(node)}
    edit.inputs = [declaration(model.proto, name) for name in known if name in needed]
    small = edit.finish()
    return Probe(source=serialize(small), inputs=small.view.inputs, outputs=small.view.outputs)


def boundary(model: Model, known: Collection[str], wanted: str) -> frozenset[str]:
    """Return the `known` tensors that `segment` would have as inputs."""
    makers = {name: node for node in model.proto.graph.node for name in node.output if name}
    found: set[str] = set()
    seen = {wanted}
    waiting = [wanted]
    while waiting:
        maker = makers.get(waiting.pop())
        fresh = set() if maker is None else set(reads(maker)) - seen
        seen |= fresh
        found |= fresh & set(known)
        waiting += fresh - set(known)
    return frozenset(found)
