"""A private copy of a model's main graph that may be changed, and becomes a `Model` again when done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.graph.canonical.naming import TakenNames
from qdqtool.graph.canonical.order import sort
from qdqtool.graph.canonical.shapes import infer
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.skeleton import copy_fields
from qdqtool.graph.onnx_io.walk import captured, copied, reads

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Edit:
    """The nodes, constants, inputs and outputs of a model, open for changes.

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
        self._nodes = [copied(node) for node in graph.node]
        self._gone: set[int] = set()
        self._unknown: set[str] = set()
        self._readers: dict[str, list[onnx.NodeProto]] | None = None
        self._makers: dict[str, onnx.NodeProto] | None = None
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = [copied(value) for value in graph.input]
        self.outputs = [copied(value) for value in graph.output]
        self.notes = list(model.notes)
        self.imports: dict[str, int] = {}
        tensors = {value.name for value in (*self.inputs, *self.outputs)} | set(self.constants)
        tensors |= {name for node in self._nodes for name in (*node.output, *reads(node))}
        self._tensors = TakenNames(tensors)
        self._names = TakenNames({node.name for node in self._nodes})
        self._captured = frozenset(name for node in self._nodes for name in captured(node))

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Private copies of the nodes and the new ones, in any order; `finish` sorts them."""
        if self._gone:
            self._nodes = [node for node in self._nodes if id(node) not in self._gone]
            self._gone = set()
        return self._nodes

    @property
    def pinned(self) -> frozenset[str]:
        """Tensors whose names must not change: model outputs, and what bodies of control flow read."""
        return self._captured | {value.name for value in self.outputs}

    def producers(self) -> dict[str, onnx.NodeProto]:
        """The maker of each tensor, as things stand now."""
        return {name: node for node in self.nodes for name in node.output if name}

    def consumers(self) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
        """The readers of each tensor with the input number, as things stand now; bodies are not looked into."""
        found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for index, name in enumerate(node.input):
                if name:
                    found.setdefault(name, []).append((node, index))
        return found

    def readers(self, tensor: str) -> list[tuple[onnx.NodeProto, int]]:
        """The readers of one tensor with the input number, after every change so far; bodies are not looked into."""
        found = {id(node): node for node in self._reading().get(tensor, ()) if id(node) not in self._gone}
        return [
            (node, index)
            for node in found.values()
            for index, name in enumerate(node.input)
            if name == tensor
        ]

    def maker(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes a tensor, after every change so far; None for inputs and constants."""
        if self._makers is None:
            self._makers = self.producers()
        node = self._makers.get(tensor)
        return node if node is not None and id(node) not in self._gone and tensor in node.output else None

    def value(self, tensor: str) -> NDArray[Any] | None:
        """The value of a constant; None for other tensors."""
        proto = self.constants.get(tensor)
        return None if proto is None else array(proto)

    def fresh(self, base: str) -> str:
        """A tensor name that nobody has, as near to `base` as possible."""
        return self._tensors.take(base)

    def forget_shapes(self, tensors: Iterable[str]) -> None:
        """Believe nothing that the model notes of these shapes: they are inferred anew."""
        self._unknown.update(tensors)
        for value in self.outputs:
            if value.name in self._unknown:
                value.type.tensor_type.ClearField("shape")

    def constant(self, base: str, value: NDArray[Any]) -> str:
        """A new constant under a fresh name, which is returned."""
        name = self.fresh(base)
        self.put(name, value)
        return name

    def put(self, name: str, value: NDArray[Any]) -> None:
        """Make `name` a constant with this value, or give the constant a new value."""
        self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str, **attributes: Any
    ) -> onnx.NodeProto:
        """A new node under a fresh name, as near to `name` as possible."""
        return self.add(onnx.helper.make_node(op, list(inputs), list(outputs), **attributes), name=name)

    def add(self, node: onnx.NodeProto, *, name: str) -> onnx.NodeProto:
        """A node that was made elsewhere, from now on part of this graph, under a fresh name as near to `name` as possible."""
        node.name = self._names.take(name)
        self._nodes.append(node)
        if self._readers is not None:
            _register(self._readers, node)
        if self._makers is not None:
            self._makers |= dict.fromkeys(node.output, node)
        return node

    def remove(self, gone: Iterable[onnx.NodeProto]) -> None:
        """Take these nodes out."""
        self._gone |= {id(node) for node in gone}

    def connect(self, node: onnx.NodeProto, index: int, tensor: str) -> None:
        """Let input `index` of a node read `tensor`."""
        node.input[index] = tensor
        if self._readers is not None:
            self._readers.setdefault(tensor, []).append(node)

    def rewire(self, node: onnx.NodeProto, inputs: Sequence[str]) -> None:
        """Let a node read these tensors, and no others."""
        del node.input[:]
        node.input.extend(inputs)
        if self._readers is not None:
            _register(self._readers, node)

    def write(self, node: onnx.NodeProto, index: int, tensor: str) -> None:
        """Let output `index` of a node be called `tensor`."""
        node.output[index] = tensor
        if self._makers is not None:
            self._makers[tensor] = node

    def redirect(self, old: str, new: str) -> None:
        """Let every node that reads `old` now read `new`; inputs changed by hand since the first call are missed."""
        for node in self._reading().pop(old, []):
            for index, name in enumerate(node.input):
                if name == old:
                    self.connect(node, index, new)

    def _reading(self) -> dict[str, list[onnx.NodeProto]]:
        """Nodes by the tensors that they read, or have read once."""
        if self._readers is None:
            self._readers = {}
            for node in self.nodes:
                _register(self._readers, node)
        return self._readers

    def prune(self) -> int:
        """Drop nodes that no output needs, then constants that no node reads; returns how many nodes went."""
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
        """The changed model: sorted, with shapes; `retyped` says that tensors may have new element types.

        Without `shapes` none are inferred, for models that only a runtime will see: it infers them itself.

        Raises:
            InputFileError: the changes left a graph with a hole or a cycle.
        """
        old = self._model.proto
        proto = onnx.ModelProto()
        copy_fields(old, proto, skip={"graph"})
        known = {entry.domain for entry in proto.opset_import}
        proto.opset_import.extend(
            onnx.helper.make_opsetid(domain, version)
            for domain, version in self.imports.items()
            if domain not in known
        )
        copy_fields(old.graph, proto.graph, skip={"node", "initializer", "input", "output", "value_info"})
        given = [value.name for value in self.inputs] + list(self.constants)
        given += [tensor.values.name for tensor in old.graph.sparse_initializer]
        proto.graph.node.extend(sort(self.nodes, given, self._model.path))
        proto.graph.initializer.extend(self.constants.values())
        proto.graph.input.extend(self.inputs)
        proto.graph.output.extend(self.outputs)
        if not retyped:
            made = {name for node in self.nodes for name in node.output} - self._unknown
            proto.graph.value_info.extend(value for value in old.graph.value_info if value.name in made)
        note = infer(proto, self._model.path, keep=not retyped) if shapes else None
        if note and note not in self.notes:
            self.notes.append(note)
        return Model(proto=proto, path=self._model.path, notes=tuple(self.notes))


def _register(readers: dict[str, list[onnx.NodeProto]], node: onnx.NodeProto) -> None:
    for name in node.input:
        readers.setdefault(name, []).append(node)
