"""A private copy of a model's main graph that may be changed and then turned into a `Model` again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from qdqtool.core.tensors import DType
from qdqtool.graph.canonical.order import TakenNames, sort
from qdqtool.graph.canonical.shapes import infer
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.walk import bodies, copy_fields, copy_message, find_captured, names, parts, reads
from qdqtool.graph.view import Model


class Edit:
    """A model open for changes: its nodes, constants, inputs and outputs.

    A loop that changes nodes asks `readers` and `maker`, which follow every change made by `connect`, `rewire`, `write`,
    `redirect`, `add` and `remove`. `consumers` and `producers` are copies: they show the nodes as they were when asked.

    Constants are shared with the original until `finish` copies them: replace them, never write into them.

    Attributes:
        constants: initializers by name.
        inputs: private copies of the declared inputs.
        outputs: private copies of the declared outputs.
        notes: sentences for the reader of the result.
        imports: versions of operator domains that new nodes need.
    """

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        self._model = model
        self.opset = default_opset(model.proto)
        self._nodes = [copy_message(node) for node in graph.node]
        self._gone: set[int] = set()
        self._unknown: set[str] = set()
        self._readers: dict[str, list[onnx.NodeProto]] | None = None
        self._makers: dict[str, onnx.NodeProto] | None = None
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = [copy_message(value) for value in graph.input]
        self.outputs = [copy_message(value) for value in graph.output]
        self.notes = list(model.notes)
        self.imports: dict[str, int] = {}
        tensors = {value.name for value in (*self.inputs, *self.outputs)} | set(self.constants)
        tensors |= {name for node in self._nodes for name in (*node.output, *reads(node))}
        inside = {
            name
            for node in self._nodes
            for body in bodies(node)
            for part in parts(body)
            for name in names(part)
        }
        self._tensors = TakenNames(tensors | inside)
        self._names = TakenNames({node.name for node in self._nodes} | inside)
        self._captured = frozenset(name for node in self._nodes for name in find_captured(node))

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Private copies of the model's nodes, and the new nodes, in any order; `finish` sorts them."""
        if self._gone:
            self._nodes = [node for node in self._nodes if id(node) not in self._gone]
            self._gone = set()
        return self._nodes

    @property
    def pinned(self) -> frozenset[str]:
        """Tensors whose names must not change: model outputs, and tensors that bodies of control flow read."""
        return self._captured | {value.name for value in self.outputs}

    def producers(self) -> dict[str, onnx.NodeProto]:
        """Return the node that makes each tensor, at the time of the call."""
        return {name: node for node in self.nodes for name in node.output if name}

    def consumers(self) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
        """Return the consumers of each tensor with the input number, at the time of the call; ignores subgraph bodies."""
        consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for index, name in enumerate(node.input):
                if name:
                    consumers.setdefault(name, []).append((node, index))
        return consumers

    def readers(self, tensor: str) -> list[tuple[onnx.NodeProto, int]]:
        """Return the consumers of one tensor with the input number, after every change so far; ignores subgraph bodies."""
        readers = {id(node): node for node in self._reading().get(tensor, ()) if id(node) not in self._gone}
        return [
            (node, index)
            for node in readers.values()
            for index, name in enumerate(node.input)
            if name == tensor
        ]

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor, after every change so far; None for inputs and constants."""
        if self._makers is None:
            self._makers = self.producers()
        node = self._makers.get(tensor)
        return node if node is not None and id(node) not in self._gone and tensor in node.output else None

    def value(self, tensor: str) -> NDArray[Any] | None:
        """Return the value of a constant; None for other tensors."""
        proto = self.constants.get(tensor)
        return None if proto is None else array(proto)

    def dtype(self, tensor: str) -> DType:
        """Return the element type of a tensor before any change."""
        return self._model.view.info(tensor).dtype

    def fresh(self, base: str) -> str:
        """Return an unused tensor name, as close to `base` as possible."""
        return self._tensors.take(base)

    def forget_shapes(self, tensors: Iterable[str]) -> None:
        """Forget the shapes of these tensors that the model declares, so that they are inferred again."""
        self._unknown.update(tensors)
        for value in self.outputs:
            if value.name in self._unknown:
                value.type.tensor_type.ClearField("shape")

    def constant(self, base: str, value: NDArray[Any]) -> str:
        """Add a constant under an unused name, and return the name."""
        name = self.fresh(base)
        self.put(name, value)
        return name

    def put(self, name: str, value: NDArray[Any]) -> None:
        """Make `name` a constant with this value, or give the constant a new value."""
        self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str, **attributes: Any
    ) -> onnx.NodeProto:
        """Add a node under an unused name, as close to `name` as possible, and return it."""
        return self.add(onnx.helper.make_node(op, list(inputs), list(outputs), **attributes), name=name)

    def add(self, node: onnx.NodeProto, *, name: str) -> onnx.NodeProto:
        """Add an existing node to this graph under an unused name, as close to `name` as possible."""
        node.name = self._names.take(name)
        self._nodes.append(node)
        if self._readers is not None:
            _register(self._readers, node)
        if self._makers is not None:
            self._makers |= dict.fromkeys(node.output, node)
        return node

    def remove(self, gone: Iterable[onnx.NodeProto]) -> None:
        """Remove nodes from the graph."""
        self._gone |= {id(node) for node in gone}

    def connect(self, node: onnx.NodeProto, index: int, tensor: str) -> None:
        """Connect input `index` of a node to `tensor`."""
        node.input[index] = tensor
        if self._readers is not None:
            self._readers.setdefault(tensor, []).append(node)

    def rewire(self, node: onnx.NodeProto, inputs: Sequence[str]) -> None:
        """Replace all inputs of a node by these tensors."""
        del node.input[:]
        node.input.extend(inputs)
        if self._readers is not None:
            _register(self._readers, node)

    def write(self, node: onnx.NodeProto, index: int, tensor: str) -> None:
        """Rename output `index` of a node to `tensor`."""
        node.output[index] = tensor
        if self._makers is not None:
            self._makers[tensor] = node

    def redirect(self, old: str, new: str) -> None:
        """Connect every consumer of `old` to `new` instead.

        Misses inputs that were changed without `connect` after the first call.
        """
        for node in self._reading().pop(old, []):
            for index, name in enumerate(node.input):
                if name == old:
                    self.connect(node, index, new)

    def _reading(self) -> dict[str, list[onnx.NodeProto]]:
        """Return the nodes that read each tensor; nodes that changed since may read another tensor."""
        if self._readers is None:
            self._readers = {}
            for node in self.nodes:
                _register(self._readers, node)
        return self._readers

    def prune(self) -> int:
        """Remove nodes that no output needs, then constants that no node reads; return the number of removed nodes."""
        makers = self.producers()
        needed = {value.name for value in self.outputs}
        waiting = list(needed)
        alive: set[int] = set()
        while waiting:
            node = makers.get(waiting.pop())
            if node is None or id(node) in alive:
                continue
            alive.add(id(node))
            fresh = set(reads(node)) - needed
            needed |= fresh
            waiting += fresh
        before = len(self.nodes)
        self._nodes = [node for node in self.nodes if id(node) in alive]
        self.constants = {name: tensor for name, tensor in self.constants.items() if name in needed}
        return before - len(self._nodes)

    def finish(self, *, retyped: bool = False, shapes: bool = True) -> Model:
        """Return the changed model, sorted and with shapes; `retyped` says that tensors may have new element types.

        Without `shapes`, no shapes are inferred, for models that only a runtime reads.

        Raises:
            InputFileError: the changes left a graph with a hole or a cycle.
        """
        old = self._model.proto
        proto = onnx.ModelProto()
        copy_fields(old, proto, skip={"graph"})
        domains = {entry.domain for entry in proto.opset_import}
        proto.opset_import.extend(
            onnx.helper.make_opsetid(domain, version)
            for domain, version in self.imports.items()
            if domain not in domains
        )
        copy_fields(old.graph, proto.graph, skip={"node", "initializer", "input", "output", "value_info"})
        sources = [value.name for value in self.inputs] + list(self.constants)
        sources += [tensor.values.name for tensor in old.graph.sparse_initializer]
        proto.graph.node.extend(sort(self.nodes, sources, self._model.path))
        proto.graph.initializer.extend(self.constants.values())
        proto.graph.input.extend(self.inputs)
        proto.graph.output.extend(self.outputs)
        if not retyped:
            computed = {name for node in self.nodes for name in node.output} - self._unknown
            proto.graph.value_info.extend(value for value in old.graph.value_info if value.name in computed)
        note = infer(proto, self._model.path, keep=not retyped) if shapes else None
        if note and note not in self.notes:
            self.notes.append(note)
        return Model(proto=proto, path=self._model.path, notes=tuple(self.notes))


def _register(readers: dict[str, list[onnx.NodeProto]], node: onnx.NodeProto) -> None:
    for name in node.input:
        readers.setdefault(name, []).append(node)
