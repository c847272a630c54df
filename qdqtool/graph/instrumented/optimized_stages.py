"""Stages of a model cut from what onnxruntime made of the whole of it.

A stage that is optimized by itself takes tensors from NumPy in NCHW and gives them back so; convolutions compute in blocks
of channels (NCHWc), so each cut costs two reorderings, and each form of a stage reads, folds and reorders its weights
again. So the model is optimized once per form, float and quantized, with everything that a cut hands on among its outputs,
and the stages are cut from the two graphs that onnxruntime saved, in the layout that stands there:

    x - Reorder - Conv - Reorder - | - Reorder - Conv - Reorder - y        x - Reorder - Conv - | - Conv - Reorder - y

Q and DQ of one scale per tensor compute element by element, in whatever order: between convolutions they are taken into
blocks too, which the optimizer leaves (what fills up the last block is zero, and stays it).

They are opened as they stand. What weights they hold lies in one file per form, which all of them map into memory.

Source: the operators of the domain com.microsoft.nchwc in a model that onnxruntime saved after optimizing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import onnx
from onnx import helper

from qdqtool.graph.instrumented.blocked import DOMAIN
from qdqtool.graph.onnx_io.skeleton import copy_fields
from qdqtool.graph.onnx_io.walk import copied, reads
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE

_TO_BLOCKS: Final = "ReorderInput"
_FROM_BLOCKS: Final = "ReorderOutput"
_REPEATED: Final = frozenset({QUANTIZE, DEQUANTIZE, _TO_BLOCKS, _FROM_BLOCKS})
"""What each stage that reads a tensor may do to it for itself."""
_SUFFIX: Final = ".blocked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Edges:
    """What a part of a model reads and makes, by the names of the model."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OptimizedForms:
    """The float and the quantized form of a model as onnxruntime computes them, to be cut at tensors that both return.

    Attributes:
        blocked: tensors that cuts hand on in blocks of channels, as the first form computes them, with the name that they
            have then.
    """

    def __init__(
        self, forms: Sequence[Path], declared: Mapping[str, onnx.ValueInfoProto], kept: Collection[str]
    ) -> None:
        """Read both forms, whose outputs are all tensors `declared`; those that are `kept` stay in NCHW."""
        self._forms = tuple(_Form(path) for path in forms)
        self._declared = declared
        first = self._forms[0]
        names = sorted((declared.keys() & first.blocks.keys()).difference(kept))
        self._reorderings = {name: first.made_by(name) for name in names}
        self.blocked = {name: f"{name}{_SUFFIX}" for name in names}

    def can_be_cut(self, stages: Sequence[Edges]) -> bool:
        """Whether each of these stages is computed from what it reads, and no node is computed in two of them."""
        for form in self._forms:
            taken: set[int] = set()
            for stage in stages:
                nodes = form.between(stage, self.blocked)
                if nodes is None:
                    return False
                own = {number for number in nodes if form.nodes[number].op_type not in _REPEATED}
                if taken & own:
                    return False
                taken |= own
        return True

    def part(self, form: int, edges: Edges) -> bytes:
        """What lies between these edges in a form, as an ONNX file that belongs beside that form.

        Raises:
            ValueError: it cannot be cut there.
        """
        source = self._forms[form]
        numbers = source.between(edges, self.blocked)
        if numbers is None:
            raise ValueError(f"nothing in form {form} is cut at {', '.join(edges.inputs)}")
        # Inside, what is handed on in blocks is called as it is outside.
        names = {source.blocks[name]: self.blocked[name] for name in self.blocked if name in source.blocks}
        nodes = [_renamed(source.nodes[number], names) for number in sorted(numbers)]
        made = onnx.ModelProto()
        copy_fields(source.model, made, skip={"graph"})
        made.graph.name = "part"
        made.graph.node.extend(self._between_edges(nodes, edges, source.blocks))
        self._declare(made.graph, edges)
        used = {name for node in nodes for name in reads(node)}
        made.graph.initializer.extend(
            source.constants[name] for name in sorted(used & source.constants.keys())
        )
        return bytes(made.SerializeToString())

    def adapted(self, source: bytes, edges: Edges) -> bytes:
        """A model that reads and makes these tensors in NCHW, with reorderings around it where cuts hand on blocks."""
        model = onnx.load_model_from_string(source)
        nodes = self._between_edges([copied(node) for node in model.graph.node], edges, {})
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        self._declare(model.graph, edges)
        if all(entry.domain != DOMAIN for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        return bytes(model.SerializeToString())

    def names(self, tensors: Iterable[str]) -> frozenset[str]:
        """What these tensors are called where cuts hand them on."""
        return frozenset(self.blocked.get(name, name) for name in tensors)

    def _between_edges(
        self, nodes: Sequence[onnx.NodeProto], edges: Edges, blocks: Mapping[str, str]
    ) -> list[onnx.NodeProto]:
        """The nodes, with reorderings where they want another layout than they are given, or make another than is wanted.

        `blocks` are the tensors that they know in blocks of channels.
        """
        used = {name for node in nodes for name in reads(node)}
        made = {name for node in nodes for name in node.output}
        before = []
        for name in edges.inputs:
            if name in self.blocked and name in used - made:
                old = self._reorderings[name]
                # onnxruntime names the reorderings of every form alike.
                before.append(_anew(old, {old.input[0]: self.blocked[name]}))
            elif name not in self.blocked and blocks.get(name) in used:
                before.append(helper.make_node(_TO_BLOCKS, [name], [blocks[name]], domain=DOMAIN))
        behind = [
            helper.make_node(_TO_BLOCKS, [name], [self.blocked[name]], domain=DOMAIN)
            for name in edges.outputs
            if name in self.blocked and self.blocked[name] not in made
        ]
        return [*before, *nodes, *behind]

    def _declare(self, graph: onnx.GraphProto, edges: Edges) -> None:
        for values, names in ((graph.input, edges.inputs), (graph.output, edges.outputs)):
            del values[:]
            values.extend(self._edge(name) for name in names)

    def _edge(self, name: str) -> onnx.ValueInfoProto:
        if name in self.blocked:
            return helper.make_tensor_value_info(self.blocked[name], onnx.TensorProto.FLOAT, [None] * 4)
        return self._declared[name]


class _Form:
    """One graph that onnxruntime saved.

    Attributes:
        model: without the values of its weights.
        nodes: in an order in which they can be computed.
        constants: by name.
        blocks: by tensor in NCHW the one in blocks that it, and no other, is made of.
    """

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(str(path), load_external_data=False)
        graph = self.model.graph
        self.nodes: list[onnx.NodeProto] = _with_blocked_pairs(graph)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {
            name: number for number, node in enumerate(self.nodes) for name in node.output if name
        }
        reorderings = [node for node in self.nodes if node.domain == DOMAIN and node.op_type == _FROM_BLOCKS]
        times = Counter(node.input[0] for node in reorderings)
        self.blocks = {node.output[0]: node.input[0] for node in reorderings if times[node.input[0]] == 1}

    def made_by(self, tensor: str) -> onnx.NodeProto:
        """The node that makes a tensor."""
        return self.nodes[self._makers[tensor]]

    def between(self, edges: Edges, blocked: Collection[str]) -> set[int] | None:
        """The nodes that make the outputs of the inputs; None where these do not suffice.

        Those that are `blocked` are handed on in blocks where this form knows these; of the others blocks can be made.
        """
        known = {*self.constants}
        for name in edges.inputs:
            known |= {self.blocks.get(name, name)} if name in blocked else {name, self.blocks.get(name, name)}
        found: set[int] = set()
        waiting = [self.blocks.get(name, name) if name in blocked else name for name in edges.outputs]
        while waiting:
            name = waiting.pop()
            if name in known:
                continue
            number = self._makers.get(name)
            if number is None:
                return None
            if number not in found:
                found.add(number)
                waiting.extend(reads(self.nodes[number]))
        return found


def _with_blocked_pairs(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph, in which no tensor leaves its blocks only to be quantized and dequantized as a whole."""
    makers = {name: node for node in graph.node for name in node.output if name}
    scalars = {tensor.name for tensor in graph.initializer if prod(tensor.dims) == 1}
    found: list[onnx.NodeProto] = []
    quantized: dict[str, str] = {}
    for node in graph.node:
        back = makers.get(node.input[0]) if node.op_type == _TO_BLOCKS else None
        forth = makers.get(back.input[0]) if back is not None and back.op_type == DEQUANTIZE else None
        source = makers.get(forth.input[0]) if forth is not None and forth.op_type == QUANTIZE else None
        if (
            back is None
            or forth is None
            or source is None
            or source.op_type != _FROM_BLOCKS
            or any(
                field.name == "channels_last" and field.i for one in (node, source) for field in one.attribute
            )
            or not scalars.issuperset(name for pair in (forth, back) for name in pair.input[1:] if name)
        ):
            found.append(node)
            continue
        inner = quantized.get(forth.output[0])
        if inner is None:
            inner = quantized[forth.output[0]] = f"{forth.output[0]}{_SUFFIX}"
            found.append(_anew(forth, {forth.input[0]: source.input[0], forth.output[0]: inner}))
        found.append(_anew(back, {back.input[0]: inner, back.output[0]: node.output[0]}))
    return found


def _anew(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy that may stand beside the node: onnxruntime opens no model in which a node's name stands twice."""
    copy = _renamed(node, names)
    copy.name = ""
    return copy


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy: onnx.NodeProto = copied(node)
    for own in (copy.input, copy.output):
        own[:] = [names.get(name, name) for name in own]
    return copy
