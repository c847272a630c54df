"""Makes the CPU round like a GPU in FP16 and BF16: every tensor between two nodes is rounded to its type.

onnxruntime's CPU has no kernels for BF16 and few for FP16: it computes FP16 nodes in FP32 and drops the casts between
them, so that `x + 2048 - 2048` is exact. Here every node computes in FP32, as the sums inside TensorRT's kernels do, and
a pair of Casts that onnxruntime keeps rounds each result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper

from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.canonical.order import TakenNames, inline_functions, sort
from qdqtool.graph.canonical.shapes import infer_types
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.read import default_opset, parse_in_pieces, read
from qdqtool.graph.onnx_io.walk import bodies, copy_message
from qdqtool.graph.typed.narrow import widen_constant
from qdqtool.graph.view import Model
from qdqtool.trt.ops import CASTS, CLAMPS, MOVING, STANDARD_DOMAINS

EXACT = (
    (MOVING - {"Dropout"})
    | CLAMPS
    | {
        "Abs",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Max",
        "Min",
        "Neg",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "TopK",
        "Where",
    }
)
"""Operators whose results need no rounding. Each value is one of their inputs, a bound, a constant, or one of
these with another sign.
"""


_FLOAT, _HALF, _BRAIN = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
_WORDS: Final[Mapping[int, str]] = {_HALF: "FP16", _BRAIN: "BF16"}
_ELEMENTS: Final = {DType.FLOAT16: _HALF, DType.BFLOAT16: _BRAIN, DType.UNKNOWN: 0}
_CHOICES: Final = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "precision", "stash_type", "softmax_precision"}
)
"""Attributes that name an element type."""
_CASTS: Final = CASTS | {"BitCast"}
_OLDEST: Final = 6
"""First opset whose Cast takes the type as a number."""
_DROPPED: Final = "InsertedPrecisionFreeCast_"
"""Name prefix of Casts that onnxruntime drops; models that it saved contain them."""


EXACT_FORM: Final = "__qdqtool_fp32"
"""End of the name of an FP32 constant whose values are exact in the narrow type that a Cast makes of it."""

Asked = Callable[[Model], Mapping[str, DType]]
"""Function that asks a runtime for the output types of a model."""


def emulate_types(source: Model | Path | bytes, ask: Asked | None = None) -> tuple[Model, str] | None:
    """Return a model that rounds to FP16 and BF16 as its types say, and the names of these types; None if it has neither.

    Inputs and outputs keep their types and names; those in BF16, which NumPy lacks, become FP32. Bodies of If, Loop
    and Scan are rounded, too. Output types of operators outside ONNX come from `ask`. Nodes that touch a tensor of
    unknown type are not changed. None also for a model that our reader rejects; onnxruntime then reports the fault.
    """
    if not holds_narrow(source):
        return None
    try:
        model = source if isinstance(source, Model) else _as_it_stands(source)
    except InputFileError:
        return None
    if default_opset(model.proto) < _OLDEST:
        return None
    kinds = sorted(set(_narrow_types(model.proto.graph)))
    return _round_model(model, ask), " and ".join(_WORDS[kind] for kind in kinds)


def _as_it_stands(source: Path | bytes) -> Model:
    """Return a model with its original opset, inlined functions and sorted nodes; `load` would change more.

    Raises:
        InputFileError: our reader refuses it.
    """
    path = source if isinstance(source, Path) else Path("model.onnx")
    proto = read(source) if isinstance(source, Path) else onnx.load_model_from_string(source)
    if proto.functions:
        proto = inline_functions(proto, path)
    sources = [entry.name for entries in (proto.graph.input, proto.graph.initializer) for entry in entries]
    sources += [tensor.values.name for tensor in proto.graph.sparse_initializer]
    nodes = [copy_message(node) for node in sort(proto.graph.node, sources, path)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return Model(proto=proto, path=path)


def open_model(source: Path | bytes) -> Model | None:
    """Return the model of a file or of its bytes; None if our reader rejects it, even if a runtime accepts it."""
    try:
        if isinstance(source, Path):
            return load(source)
        return Model(proto=onnx.load_model_from_string(source), path=Path("model.onnx"))
    except (DecodeError, InputFileError):
        return None


def holds_narrow(source: Model | Path | bytes) -> bool:
    """Return True if a model contains FP16 or BF16; False if it cannot be read. Does not read heavy weights of a file."""
    if isinstance(source, Model):
        return any(True for _ in _narrow_types(source.proto.graph))
    try:
        proto = parse_in_pieces(source) if isinstance(source, Path) else onnx.load_model_from_string(source)
    except (DecodeError, OSError):
        return False
    graphs = (proto.graph, *(onnx.GraphProto(node=function.node) for function in proto.functions))
    return any(True for graph in graphs for _ in _narrow_types(graph))


def _narrow_types(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield the narrow types that a graph names: in inputs, outputs, constants, attributes and bodies.

    The types of all other tensors follow from them.
    """
    yield from (tensor.data_type for tensor in graph.initializer if tensor.data_type in _WORDS)
    kinds = (value.type.tensor_type.elem_type for value in (*graph.input, *graph.output))
    yield from (kind for kind in kinds if kind in _WORDS)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _CHOICES and attribute.i in _WORDS:
                yield attribute.i
            if attribute.t.data_type in _WORDS:
                yield attribute.t.data_type
        for body in bodies(node):
            yield from _narrow_types(body)


def _round_model(model: Model, ask: Asked | None) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    _widen_brain_borders(graph)
    inferred = infer_types(proto)
    stored = frozenset(tensor.name for tensor in graph.initializer)
    main = _Scope(inferred, TakenNames(_names(inferred)), None, stored)
    unknown = [name for node in inferred.node for name in node.output if name and not main.kind(name)]
    if unknown and ask is not None:
        main.learn(ask(_returning(proto, unknown, model.path)))
    for node in inferred.node:
        main.add(copy_message(node))
    main.close(graph.output)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(main.nodes)
    return Model(proto=proto, path=model.path, notes=model.notes)


def _returning(proto: onnx.ModelProto, tensors: Iterable[str], path: Path) -> Model:
    """Return the model with additional outputs, whose types the runtime infers."""
    asking = onnx.ModelProto()
    asking.CopyFrom(proto)
    asking.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    return Model(proto=asking, path=path)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every tensor name in a graph and its bodies."""
    yield from (entry.name for entries in (graph.input, graph.output, graph.initializer) for entry in entries)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for body in bodies(node):
            yield from _names(body)


def _widen_brain_borders(graph: onnx.GraphProto) -> None:
    """Change inputs and outputs in BF16 to FP32, with a Cast inside."""
    names = TakenNames(_names(graph))
    borders = [value for value in (*graph.input, *graph.output) if _kind(value) == _BRAIN]
    inside = {value.name: names.take(f"{value.name}_bf16") for value in borders}
    if not inside:
        return
    _rename(graph.node, inside)
    for tensor in graph.initializer:
        tensor.name = inside.get(tensor.name, tensor.name)
    inputs = {value.name for value in graph.input}
    entries = [_cast(name, inside[name], _BRAIN) for name in inside if name in inputs]
    exits = [_cast(inside[name], name, _FLOAT) for name in inside if name not in inputs]
    nodes = [*entries, *map(copy_message, graph.node), *exits]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in borders:
        value.type.tensor_type.elem_type = _FLOAT


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = names.get(name, name)
        for body in bodies(node):
            _rename(body.node, names)
            for value in body.output:
                value.name = names.get(value.name, value.name)


def _kind(value: onnx.ValueInfoProto) -> int:
    """Return the ONNX element type of a value; 0 if it is unknown, or if the value is not a tensor."""
    return int(value.type.tensor_type.elem_type)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=kind)


class _Scope:
    """The rewritten nodes of a graph or of a body of control flow, in order.

    Args:
        graph: the graph with the types of its tensors.
        names: the names that are taken anywhere in the model.
        outer: the graph around a body.
        stored: names of the constants of the graph.
    """

    def __init__(
        self, graph: onnx.GraphProto, names: TakenNames, outer: _Scope | None, stored: frozenset[str]
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._names = names
        self._outer = outer
        self._kinds = {value.name: _kind(value) for value in (*graph.value_info, *graph.input, *graph.output)}
        self._kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        self._stored = stored
        self._own = {entry.name for entries in (graph.input, graph.initializer) for entry in entries}
        self._own.update(name for node in graph.node for name in node.output)
        self._wide: dict[str, str] = {}
        """FP32 tensors with the values of narrow ones."""
        self._unmade: dict[str, str] = {}
        """FP32 tensors with the values of narrow tensors that nothing has read yet, so that the narrow ones do not exist."""

    def learn(self, types: Mapping[str, DType]) -> None:
        """Add element types of tensors that the graph does not declare."""
        self._kinds |= {
            name: _ELEMENTS.get(kind, _FLOAT) for name, kind in types.items() if not self.kind(name)
        }

    def add(self, node: onnx.NodeProto) -> None:
        """Write a node, after the Casts for its inputs."""
        if node.op_type == "Cast" and node.input[0] in self._stored and node.input[0].endswith(EXACT_FORM):
            self._wide[node.output[0]] = self._unmade[node.output[0]] = node.input[0]
            return
        inner = list(bodies(node))
        for body in inner:
            self._rewrite(body)
        if node.op_type in _CASTS and node.name.startswith(_DROPPED):
            node.name = ""
        kinds = {self.kind(name) for name in (*node.input, *node.output) if name}
        if inner or node.op_type in _CASTS or 0 in kinds or kinds.isdisjoint(_WORDS) or self._rounds(node):
            for name in node.input:
                self.narrow(name)
            self.nodes.append(node)
        else:
            self._widen(node)

    def _rounds(self, node: onnx.NodeProto) -> bool:
        """Return True for stored weights that onnxruntime dequantizes to FP16: it keeps one FP32 copy of them instead of two."""
        return (
            node.op_type == "DequantizeLinear"
            and node.input[0] in self._stored
            and self.kind(node.output[0]) == _HALF
        )

    def close(self, outputs: Iterable[onnx.ValueInfoProto]) -> None:
        """Write the Casts for the graph outputs."""
        for value in outputs:
            self.narrow(value.name)

    def narrow(self, name: str) -> None:
        """Write the Cast to a narrow tensor when the first node reads it in the narrow type."""
        if self._outer is not None and name not in self._own:
            self._outer.narrow(name)
        elif name in self._unmade:
            self.nodes.append(_cast(self._unmade.pop(name), name, self._kinds[name]))

    def _rewrite(self, body: onnx.GraphProto) -> None:
        scope = _Scope(body, self._names, self, frozenset())
        for node in body.node:
            scope.add(copy_message(node))
        scope.close(body.output)
        del body.node[:], body.value_info[:]
        body.node.extend(scope.nodes)

    def kind(self, name: str) -> int:
        """Return the ONNX element type of a tensor; 0 if it is unknown, or if the value is not a tensor."""
        if self._outer is not None and name not in self._own:
            return self._outer.kind(name)
        return self._kinds.get(name, 0)

    def wide(self, name: str) -> str:
        """Return the FP32 tensor with the values of a narrow one."""
        if self._outer is not None and name not in self._own:
            return self._outer.wide(name)
        if name not in self._wide:
            self._wide[name] = self._names.take(f"{name}_fp32")
            self.nodes.append(_cast(name, self._wide[name], _FLOAT))
        return self._wide[name]

    def _widen(self, node: onnx.NodeProto) -> None:
        """Write a node that computes in FP32, and the rounding of its results."""
        is_exact = node.op_type in EXACT and node.domain in STANDARD_DOMAINS
        for index, name in enumerate(node.input):
            if self.kind(name) in _WORDS:
                node.input[index] = self.wide(name)
        for attribute in node.attribute:
            if attribute.name in _CHOICES and attribute.i in _WORDS:
                attribute.i = _FLOAT
            if attribute.t.data_type in _WORDS:
                attribute.t.CopyFrom(numpy_helper.from_array(_values(attribute.t)))
        results = [(index, name) for index, name in enumerate(node.output) if self.kind(name) in _WORDS]
        for index, name in results:
            node.output[index] = self._names.take(f"{name}_exact")
        self.nodes.append(node)
        for index, name in results:
            result = node.output[index]
            self._unmade[name] = result
            if is_exact:
                self._wide[name] = result
            else:
                self.narrow(name)


def _values(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    return widen_constant(tensor) if tensor.data_type == _BRAIN else array(tensor).astype(np.float32)


def widened(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return an FP16 or BF16 constant as FP32, under a name that ends with `EXACT_FORM`; other constants as they are."""
    if tensor.data_type not in _WORDS:
        return tensor
    return numpy_helper.from_array(_values(tensor), tensor.name + EXACT_FORM)
