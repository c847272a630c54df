"""Collects nodes into the layers of a classic TensorRT engine.

A product takes along what follows it on a straight way: BatchNormalization, bias, activation, the residual Add of the
last of two branches, and its Q. What is left over runs alone; neighbouring pointwise nodes run as one.

Learned from the engine layers of TensorRT 8.4 to 8.6 (ResNet, MobileNet, YOLO necks, BEVFusion) beside their graphs.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.prediction.demand import Demands
from qdqtool.trt.ops import AFFINE, EPILOGUE_ACTIVATIONS, GATES, POINTWISE, PRODUCTS, QDQ


class LayerGroup:
    """Nodes of one layer while it grows.

    Attributes:
        host: its product, if it has one.
        tail: the tensor it hands on.
        shortcut: what a residual Add in it reads besides the product's branch; "" without one.
    """

    __slots__ = ("host", "nodes", "shortcut", "tail")

    def __init__(self, node: Node, host: Node | None) -> None:
        self.nodes = [node]
        self.host = host
        self.tail = node.outputs[0] if node.outputs else ""
        self.shortcut = ""

    def take(self, *nodes: Node) -> None:
        """Append nodes; the last one's result is what the layer hands on."""
        for node in nodes:
            others = [tensor for tensor in node.inputs if tensor != self.tail]
            if node.op == "Add" and self.host is not None and others:
                self.shortcut = others[0]
        self.nodes.extend(nodes)
        self.tail = nodes[-1].outputs[0]


class Groups:
    """The layers of a classic engine, without Q/DQ.

    Attributes:
        of: the group of each node by name.
    """

    def __init__(self, flow: Flow, demands: Demands, precision: dict[str, DType]) -> None:
        self._flow = flow
        self._demands = demands
        self._precision = precision
        self._hosts = dict(self._residuals())
        self.of: dict[str, LayerGroup] = {}
        for node in flow.products():
            self._grow(node)
        prepared = []
        for node in flow.view.nodes:
            if node.name in self.of or node.op in QDQ | {"Constant"}:
                continue
            if (
                node.inputs
                and all(map(flow.view.is_constant, node.inputs))
                and flow.view.uses(node.outputs[0])
            ):
                prepared.append(node)
            else:
                self._leave(node)
        for node in prepared:
            self._fold(node)

    def _residuals(self) -> Iterator[tuple[str, str]]:
        """Add -> the convolution that takes it: of two candidates the one defined last."""
        for node in self._flow.view.nodes:
            if node.op == "Add" and not any(map(self._flow.view.is_constant, node.inputs)):
                found = [self._straight_product(tensor) for tensor in node.inputs]
                convs = [conv for conv in found if conv is not None and conv.op == "Conv"]
                if convs:
                    yield node.name, max(convs, key=lambda conv: conv.position).name

    def _straight_product(self, tensor: str) -> Node | None:
        """The product that makes `tensor`, past what fuses into it and nobody else reads."""
        while True:
            node = self._flow.view.producer(tensor)
            if node is None or len(self._flow.view.uses(tensor)) != 1 or self._flow.view.is_output(tensor):
                return None
            if node.op in PRODUCTS:
                return node
            if not self._is_affine(node):
                return None
            tensor = node.inputs[0]

    def _grow(self, node: Node) -> None:
        group = LayerGroup(node, node)
        while more := self._next(group):
            group.take(*more)
        for member in group.nodes:
            self.of[member.name] = group

    def _next(self, group: LayerGroup) -> tuple[Node, ...]:
        if self._flow.view.is_output(group.tail):
            return ()
        readers = self._flow.readers(group.tail)
        if is_swish(readers):
            return readers
        if len(readers) != 1 or readers[0].name in self.of:
            return ()
        reader = readers[0]
        if reader.op in EPILOGUE_ACTIVATIONS or self._is_affine(reader):
            return (reader,)
        if reader.op == "Add" and group.host is not None and self._hosts.get(reader.name) == group.host.name:
            return (reader,)
        return (reader,) if self._is_stem_pool(group, reader) else ()

    def _is_affine(self, node: Node) -> bool:
        """A BatchNormalization, bias or factor whose parameters are constants."""
        if node.op not in AFFINE:
            return False
        return all(map(self._flow.view.is_constant, node.inputs[1:]))

    def _is_stem_pool(self, group: LayerGroup, reader: Node) -> bool:
        """An INT8 stem (few input channels) takes the MaxPool behind its activation along, if it can hand on INT8."""
        host = group.host
        if reader.op != "MaxPool" or host is None or self._precision.get(host.name) is not DType.INT8:
            return False
        shape = self._flow.view.info(host.inputs[1]).shape or ()
        narrow = len(shape) == 4 and isinstance(shape[1], int) and shape[1] <= 4
        return narrow and self._demands.of(reader.outputs[0]).closed

    def _leave(self, node: Node) -> None:
        """A node that no product took: with the pointwise node in front of it, or alone."""
        before = [self._flow.view.producer(tensor) for tensor in node.inputs]
        if node.op in POINTWISE:
            for producer in before:
                group = self.of.get(producer.name) if producer is not None else None
                if (
                    group is not None
                    and group.host is None
                    and producer is not None
                    and producer.op in POINTWISE
                ):
                    group.take(node)
                    self.of[node.name] = group
                    return
        self.of[node.name] = LayerGroup(node, None)

    def _fold(self, node: Node) -> None:
        """A node that works on constants belongs to the layer that reads it."""
        reader = self._flow.view.uses(node.outputs[0])[0].node
        group = self.of.get(reader.name) or LayerGroup(node, None)
        if node not in group.nodes:
            group.nodes.append(node)
        self.of[node.name] = group


def is_swish(readers: tuple[Node, ...]) -> bool:
    """Whether two nodes are the gate and the product of x * sigmoid(x)."""
    if len(readers) != 2:
        return False
    gate, product = sorted(readers, key=lambda node: node.op == "Mul")
    return gate.op in GATES and product.op == "Mul" and gate.outputs[0] in product.inputs
