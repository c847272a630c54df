"""A model, and read-only questions about its graph. The ONNX protobuf stays private to this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.graph.onnx_io.deferred import array
from qdqtool.graph.onnx_io.walk import bodies, find_captured

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Node:
    """One node of the main graph; attributes hold plain Python values, subgraphs only by name."""

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    position: int

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the attribute's value, or `default` if the node does not have the attribute."""
        return self.attributes.get(name, default)

    def integer(self, name: str, default: int) -> int:
        """Return the attribute's number; `default` if it is missing or not a number.

        Nothing checks the types of custom operators.
        """
        value = self.attributes.get(name)
        return value if isinstance(value, int) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One consumer of a tensor: input number `index` of `node`."""

    node: Node
    index: int


class GraphView:
    """Questions about the main graph of a model; If and Loop bodies are opaque nodes.

    The model must have unique node names and inferred shapes, as `qdqtool.graph.onnx_io.load` makes it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._model = model
        self._infos: dict[str, TensorInfo] = {}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order."""
        return tuple(node_of(proto, position) for position, proto in enumerate(self._graph.node))

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """All nodes, by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def opset(self) -> int:
        """Version of the default operator set."""
        return next(
            (entry.version for entry in self._model.opset_import if entry.domain in {"", "ai.onnx"}), 0
        )

    @cached_property
    def functions(self) -> frozenset[tuple[str, str]]:
        """Domain and name of the functions that the model defines itself."""
        return frozenset((entry.domain, entry.name) for entry in self._model.functions)

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs of the model, without initializers."""
        return tuple(_info(value) for value in self._graph.input if value.name not in self._initializers)

    @cached_property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Outputs of the model."""
        return tuple(_info(value) for value in self._graph.output)

    def producer(self, tensor: str) -> Node | None:
        """Return the node that makes `tensor`; None for model inputs and initializers."""
        return self._producers.get(tensor)

    def uses(self, tensor: str) -> tuple[Use, ...]:
        """Return all consumers of `tensor` in graph order.

        A use inside a subgraph counts for the node that holds the subgraph.
        """
        return self._uses.get(tensor, ())

    def is_inside(self, node: str, index: int) -> bool:
        """Return True if this use of a tensor is in a body of `node`, and none of its inputs."""
        return index >= len(self.by_name[node].inputs)

    def body_ops(self, node: Node) -> tuple[str, ...]:
        """Return operator types inside the bodies of an If, Loop or Scan, at any depth; empty for other nodes."""
        return tuple(inner.op_type for inner in _body_nodes(self._graph.node[node.position]))

    def body_names(self, node: Node) -> tuple[str, ...]:
        """Return names of the nodes inside the bodies of an If, Loop or Scan, at any depth; empty for other nodes."""
        return tuple(inner.name for inner in _body_nodes(self._graph.node[node.position]))

    def is_output(self, tensor: str) -> bool:
        """Return True if `tensor` is a model output."""
        return tensor in self._output_names

    def is_constant(self, tensor: str) -> bool:
        """Return True if `tensor` is an initializer or the output of a Constant node."""
        return tensor in self._initializers or tensor in self._constants

    def constant(self, tensor: str) -> NDArray[Any] | None:
        """Return the value of a constant tensor; None if it is not constant."""
        proto = self._initializers.get(tensor) or self._constants.get(tensor)
        return None if proto is None else array(proto)

    def constant_shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return the shape of a constant without reading its values."""
        proto = self._initializers.get(tensor) or self._constants.get(tensor)
        return None if proto is None else tuple(proto.dims)

    def info(self, tensor: str) -> TensorInfo:
        """Return type and shape as far as shape inference knows them."""
        if tensor not in self._infos:
            self._infos[tensor] = self._read(tensor)
        return self._infos[tensor]

    def _read(self, tensor: str) -> TensorInfo:
        proto = self._initializers.get(tensor) or self._constants.get(tensor)
        if proto is not None:
            return TensorInfo(name=tensor, dtype=dtype_of(proto.data_type), shape=tuple(proto.dims))
        value = self._values.get(tensor)
        return TensorInfo(name=tensor) if value is None else _info(value)

    @cached_property
    def _initializers(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self._graph.initializer}

    @cached_property
    def _constants(self) -> dict[str, onnx.TensorProto]:
        return {
            proto.output[0]: attribute.t
            for proto in self._graph.node
            if proto.op_type == "Constant"
            for attribute in proto.attribute
            if attribute.name == "value"
        }

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def _uses(self) -> dict[str, tuple[Use, ...]]:
        uses: dict[str, list[Use]] = {}
        for node, proto in zip(self.nodes, self._graph.node, strict=True):
            for index, tensor in enumerate(node.inputs):
                uses.setdefault(tensor, []).append(Use(node=node, index=index))
            for offset, tensor in enumerate(find_captured(proto)):
                uses.setdefault(tensor, []).append(Use(node=node, index=len(node.inputs) + offset))
        return {tensor: tuple(readers) for tensor, readers in uses.items()}

    @cached_property
    def _values(self) -> dict[str, onnx.ValueInfoProto]:
        graph = self._graph
        return {
            value.name: value for values in (graph.value_info, graph.input, graph.output) for value in values
        }

    @cached_property
    def _output_names(self) -> frozenset[str]:
        return frozenset(value.name for value in self._graph.output)


def node_of(proto: onnx.NodeProto, position: int = 0) -> Node:
    """Return a node of an ONNX protobuf as a `Node` with plain Python values."""
    return Node(
        name=proto.name,
        op=proto.op_type,
        domain=proto.domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={attribute.name: _value(attribute) for attribute in proto.attribute},
        position=position,
    )


def _value(attribute: onnx.AttributeProto) -> Any:
    if attribute.type in {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}:
        return attribute.g.name
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return tuple(value) if isinstance(value, list) else value


def _body_nodes(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    for body in bodies(proto):
        for inner in body.node:
            yield inner
            yield from _body_nodes(inner)


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return TensorInfo(name=value.name)
    shape = tuple(_dim(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
    return TensorInfo(name=value.name, dtype=dtype_of(kind.elem_type), shape=shape)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or "?"


def dtype_of(number: int) -> DType:
    """Return the element type for an ONNX type number; `UNKNOWN` for unknown numbers."""
    return DType.parse(onnx.TensorProto.DataType.Name(number)) if number in _KNOWN else DType.UNKNOWN


_KNOWN = frozenset(onnx.TensorProto.DataType.values())


# --- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """An ONNX model in memory, with its path and with notes about how it was made.

    Every step of this package takes a `Model` and returns another; no step changes its argument.

    Attributes:
        proto: the model; only `qdqtool.graph` reads it, and no code changes it.
        path: the file it came from.
        notes: changes and remarks, one sentence each.
    """

    proto: onnx.ModelProto
    path: Path
    notes: tuple[str, ...] = ()

    @property
    def metadata(self) -> dict[str, str]:
        """Model properties outside the graph, such as the task and the image size."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @cached_property
    def view(self) -> GraphView:
        """Read-only view of the main graph."""
        return GraphView(self.proto)
