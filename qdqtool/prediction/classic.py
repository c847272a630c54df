"""Layers and ledger of a classic TensorRT engine (8.x to 10.x)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.prediction import PredictedLayer
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.trt.ops import (
    AFFINE,
    EPILOGUE_ACTIVATIONS,
    GATES,
    MAXIMUM_POOLS,
    POINTWISE,
    PRODUCTS,
    QDQ,
    carried_outputs,
    quantization_commutes,
)

# --- demand ----------------------------------------------------------------------------------------------------------
# The place of each Q after it has moved backward, and the forms in which each tensor is then needed.


Scale = tuple[DType, tuple[float, ...]]


@dataclass(slots=True)
class Demand:
    """The forms in which the readers of a tensor need it: low-bit types with scales, a float value, or both."""

    scales: set[Scale] = field(default_factory=set)
    float: bool = False

    @property
    def closed(self) -> bool:
        """True if all readers need the same low-bit form: then the Q can fuse with the producer, or move before it."""
        return len(self.scales) == 1 and not self.float


class Demands:
    """The demand for every tensor, with each Q as far upstream as it can move."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._scales = {
            pair.quantize: (pair.dtype, pair.scale) for pair in flow.pairs if pair.quantize is not None
        }
        self._found: dict[str, Demand] = {}
        for node in reversed(flow.view.nodes):
            self._pass_on(node)

    def of(self, tensor: str) -> Demand:
        """Return the forms in which the readers of `tensor` need it."""
        demand = self._found.get(tensor)
        if demand is None:
            view = self._flow.view
            inside = any(view.is_inside(use.node.name, use.index) for use in view.uses(tensor))
            demand = self._found[tensor] = Demand(float=inside or view.is_output(tensor))
        return demand

    def passes(self, node: Node) -> bool:
        """Return True if the Q after `node` moves to the input of `node`."""
        if node.op == "Concat":
            return self.of(node.outputs[0]).closed
        if not quantization_commutes(self._flow.view, node):
            return False
        demands = [self.of(output) for output in carried_outputs(node) if self._flow.view.uses(output)]
        scales = {scale for demand in demands for scale in demand.scales}
        # RTX 1.7.1 has pools for INT8 values; before FP8 tensors, pools work on floats.
        if node.op in MAXIMUM_POOLS and any(dtype is DType.FLOAT8 for dtype, _ in scales):
            return False
        return bool(demands) and len(scales) == 1 and all(demand.closed for demand in demands)

    def _pass_on(self, node: Node) -> None:
        if node.name in self._scales:
            self.of(node.inputs[0]).scales.add(self._scales[node.name])
        elif self.passes(node):
            scale = next(scale for output in carried_outputs(node) for scale in self.of(output).scales)
            count = len(node.inputs) if node.op == "Concat" else 1
            for tensor in node.inputs[:count]:
                self.of(tensor).scales.add(scale)
        else:
            for tensor in node.inputs:
                self.of(tensor).float = True


# --- naming ----------------------------------------------------------------------------------------------------------
# Names of predicted layers.


_SPELT_OUT = 32
"""Most nodes that a layer name lists; every node of a layer repeats the name of the layer."""


def layer_name(nodes: Sequence[str]) -> str:
    """Join the nodes of a layer by " + "; long lists are shortened in the middle."""
    if len(nodes) <= _SPELT_OUT:
        return " + ".join(nodes)
    shown = " + ".join(nodes[: _SPELT_OUT - 1])
    return f"{shown} + ... + {nodes[-1]} ({count_noun(len(nodes), 'node')})"


# --- layers ----------------------------------------------------------------------------------------------------------
# Collects nodes into the layers of a classic TensorRT engine.
#
# A compute node fuses the nodes that directly follow it: BatchNormalization, bias, activation, the residual Add of the
# later of two branches, and its Q. All other nodes run alone; adjacent pointwise nodes are one layer.
#
# Evidence: engine layers of TensorRT 8.4 to 8.6 (ResNet, MobileNet, YOLO necks, BEVFusion) compared with their graphs.


class LayerGroup:
    """The nodes of one layer, while they are collected.

    Attributes:
        host: its product, if it has one.
        tail: the tensor that the layer writes.
        shortcut: second input of a residual Add in the layer; "" without one.
    """

    __slots__ = ("host", "nodes", "shortcut", "tail")

    def __init__(self, node: Node, host: Node | None) -> None:
        self.nodes = [node]
        self.host = host
        self.tail = node.outputs[0] if node.outputs else ""
        self.shortcut = ""

    def take(self, *nodes: Node) -> None:
        """Append nodes to the layer. The result of the last node becomes the result of the layer."""
        for node in nodes:
            operands = [tensor for tensor in node.inputs if tensor != self.tail]
            if node.op == "Add" and self.host is not None and operands:
                self.shortcut = operands[0]
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
        """Yield each Add with the convolution that fuses the Add. Of two convolutions, the later one fuses it."""
        for node in self._flow.view.nodes:
            if node.op == "Add" and not any(map(self._flow.view.is_constant, node.inputs)):
                layers = [self._straight_product(tensor) for tensor in node.inputs]
                convs = [conv for conv in layers if conv is not None and conv.op == "Conv"]
                if convs:
                    yield node.name, max(convs, key=lambda conv: conv.position).name

    def _straight_product(self, tensor: str) -> Node | None:
        """Return the compute node that makes `tensor`, directly or with affine nodes after it.

        Return None if there is none, or if a tensor on the way has other readers or is a model output.
        """
        while True:
            node = self._flow.view.producer(tensor)
            if node is None or len(self._flow.view.uses(tensor)) != 1 or self._flow.view.is_output(tensor):
                return None
            if node.op in PRODUCTS:
                return node
            tensor = self._changed_alone(node)
            if not tensor:
                return None

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
        if reader.op in EPILOGUE_ACTIVATIONS or self._changed_alone(reader):
            return (reader,)
        if reader.op == "Add" and group.host is not None and self._hosts.get(reader.name) == group.host.name:
            return (reader,)
        return (reader,) if self._is_stem_pool(group, reader) else ()

    def _changed_alone(self, node: Node) -> str:
        """Return the input of a BatchNormalization, addition or multiplication if all parameters are constant; else ""."""
        varying = [tensor for tensor in node.inputs if not self._flow.view.is_constant(tensor)]
        if node.op not in AFFINE or len(varying) != 1:
            return ""
        return varying[0] if varying[0] == node.inputs[0] or node.op != "Sub" else ""

    def _is_stem_pool(self, group: LayerGroup, reader: Node) -> bool:
        """Return True if an INT8 stem (few input channels) fuses the next MaxPool. It can only if it writes INT8."""
        host = group.host
        if reader.op != "MaxPool" or host is None or self._precision.get(host.name) is not DType.INT8:
            return False
        shape = self._flow.view.info(host.inputs[1]).shape or ()
        narrow = len(shape) == 4 and isinstance(shape[1], int) and shape[1] <= 4
        return narrow and self._demands.of(reader.outputs[0]).closed

    def _leave(self, node: Node) -> None:
        """Add a layer for a node that no compute node fuses: joined with the pointwise node before it, or alone."""
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
        """Add a node that only computes constants to the layer that reads its result."""
        reader = self._flow.view.uses(node.outputs[0])[0].node
        group = self.of.get(reader.name) or LayerGroup(node, None)
        if node not in group.nodes:
            group.nodes.append(node)
        self.of[node.name] = group


def is_swish(readers: tuple[Node, ...]) -> bool:
    """Return True if two nodes are the gate and the product in x * sigmoid(x)."""
    if len(readers) != 2:
        return False
    gate, product = sorted(readers, key=lambda node: node.op == "Mul")
    return gate.op in GATES and product.op == "Mul" and gate.outputs[0] in product.inputs


# --- kernels ---------------------------------------------------------------------------------------------------------
# The reason why a Q or DQ needs a separate kernel.


def why_quantized_apart(flow: Flow, demands: Demands, tensor: str) -> str:
    """Return why the Q whose final place is after `tensor` becomes a separate kernel."""
    maker = flow.view.producer(tensor)
    if maker is None:
        return f"{tensor} is an input of the model and is float"
    if flow.view.is_output(tensor):
        return f"{tensor} is an output of the model too"
    float_readers = [node.name for node in flow.readers(tensor) if node.op not in QDQ]
    demand = demands.of(tensor)
    if demand.float and float_readers:
        return f"{float_readers[0]} reads {tensor} as float"
    if len(demand.scales) > 1:
        return f"{tensor} needs {count_noun(len(demand.scales), 'scale')}"
    return f"{maker.op} {maker.name} before it computes in float"


def why_dequantized_apart(flow: Flow, tensor: str) -> str:
    """Return why the DQ that writes `tensor` becomes a separate kernel."""
    readers = flow.readers(tensor)
    if not readers:
        return f"{tensor} is an output of the model"
    return f"{readers[0].op} {readers[0].name} reads it as float"


# --- ledger ----------------------------------------------------------------------------------------------------------
# The fate of every Q and DQ, in the words of the build log's ledger.


class Fates:
    """Predicts the fate of each Q and DQ: fused into a layer or a separate kernel. Q move upstream, DQ downstream."""

    def __init__(
        self,
        flow: Flow,
        demands: Demands,
        groups: Groups,
        precision: dict[str, DType],
        stored: Collection[str] = frozenset(),
    ) -> None:
        self._flow = flow
        self._demands = demands
        self._groups = groups
        self._precision = precision
        self._stored = stored
        self._first_at: dict[tuple[str, tuple[float, ...]], str] = {}

    def rows(self) -> tuple[LedgerRow, ...]:
        """Return one row for each Q and DQ of the model. Clones follow the Q from which they were made."""
        return tuple(row for pair in self._flow.pairs for row in self._pair(pair))

    def _pair(self, pair: QdqPair) -> Iterator[LedgerRow]:
        if pair.kind is SlotKind.WEIGHT:
            yield from self._weight(pair)
            return
        if pair.quantize is not None:
            yield from self._quantize(pair, pair.quantize)
        if pair.dequantize is not None:
            end, into = self._find_dequantize_end(pair)
            tensor = self._flow.view.by_name[pair.dequantize].outputs[0]
            why = [why_dequantized_apart(self._flow, tensor)] if end is End.COPY else []
            yield _row(pair.dequantize, "DQ", end, into, why)

    def _weight(self, pair: QdqPair) -> Iterator[LedgerRow]:
        taker = next((slot.node for slot in pair.slots if self._takes(slot.node)), "")
        end = End.WEIGHT if taker else End.FOLDED
        into = taker or (pair.slots[0].node if pair.slots else "")
        if pair.quantize is not None:
            yield _row(pair.quantize, "Q", end, into, ["quantized at build time"])
        if pair.dequantize is not None:
            yield _row(pair.dequantize, "DQ", end, into, [])

    def _quantize(self, pair: QdqPair, name: str) -> Iterator[LedgerRow]:
        before = self._flow.origins.get(pair.tensor)
        if before is not None and before.scale == pair.scale and before.dequantize is not None:
            yield _row(name, "Q", End.CANCELLED, before.dequantize, [f"met {before.dequantize}"])
            return
        yield from self._travel(name, pair, pair.tensor, ())

    def _travel(
        self, name: str, pair: QdqPair, tensor: str, steps_before: tuple[str, ...], clone_of: str = ""
    ) -> Iterator[LedgerRow]:
        """Move a Q upstream from `tensor` as far as possible. At a Concat, it becomes one clone per branch."""
        steps = list(steps_before)
        node = self._flow.view.producer(tensor)
        while node is not None and self._demands.passes(node):
            if node.op == "Concat":
                yield from self._split(name, pair, node, steps, clone_of)
                return
            steps.append(f"moved through {node.name}")
            tensor = node.inputs[0]
            node = self._flow.view.producer(tensor)
        end, into = self._find_end(name, tensor, pair.scale)
        if end is End.COPY:
            steps.append(why_quantized_apart(self._flow, self._demands, tensor))
        yield _row(name, "Q", end, into, steps, clone_of)

    def _split(
        self, name: str, pair: QdqPair, concat: Node, steps: list[str], clone_of: str
    ) -> Iterator[LedgerRow]:
        first = self._first_at.setdefault((concat.outputs[0], pair.scale), name)
        if first != name:
            yield _row(name, "Q", End.MERGED, first, steps, clone_of)
            return
        yield _row(name, "Q", End.SPLIT, concat.name, steps, clone_of)
        for number, tensor in enumerate(concat.inputs):
            origin = (f"created from {name} before {concat.name}",)
            yield from self._travel(f"{name}_clone_{number}", pair, tensor, origin, clone_of=name)

    def _find_end(self, name: str, tensor: str, scale: tuple[float, ...]) -> tuple[End, str]:
        first = self._first_at.setdefault((tensor, scale), name)
        if first != name:
            return End.MERGED, first
        producer = self._flow.view.producer(tensor)
        if producer is not None and producer.op == "DequantizeLinear":
            return End.CANCELLED, producer.name
        group = self._groups.of.get(producer.name) if producer is not None else None
        if group is None or not self._hands_on(group, tensor) or not self._demands.of(tensor).closed:
            return End.COPY, name
        if group.host is None or not self._is_int8(group.host.name):
            return End.COPY, name
        if group.shortcut and not self._is_constant_or_int8(group.shortcut):
            return End.COPY, name  # the sum takes the type of its shortcut
        return End.OUTPUT, group.host.name

    def _hands_on(self, group: LayerGroup, tensor: str) -> bool:
        """Return True if `tensor` is the result of a layer, or the input of its last node.

        The input counts only if the Q moves there, across a last node such as a pool.
        """
        last = self._flow.view.producer(group.tail)
        return tensor == group.tail or (
            last is not None and tensor == last.inputs[0] and self._demands.passes(last)
        )

    def _find_dequantize_end(self, pair: QdqPair) -> tuple[End, str]:
        name = pair.dequantize or ""
        for node, index in self._final_readers(pair):
            if node.op in PRODUCTS and index < 2 and self._takes(node.name):
                return End.INPUT, node.name
            group = self._groups.of.get(node.name)
            if node.op == "Add" and group is not None and group.host is not None:
                if self._is_int8(group.host.name) and self._demands.of(group.tail).closed:
                    return End.INPUT, group.host.name
                return End.COPY, name
            if node.op == "QuantizeLinear":
                return End.CANCELLED, node.name
            if self._demands.passes(node):  # a Q moves backward through it
                behind = self._flow.readers(node.outputs[0])
                return End.CANCELLED, next((n.name for n in behind if n.op == "QuantizeLinear"), node.name)
        return End.COPY, name

    def _final_readers(self, pair: QdqPair) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that read a DQ's values after the DQ has moved downstream past nodes that only move values."""
        waiting = list(pair.slots)
        visited: set[str] = set()
        while waiting:
            slot = waiting.pop(0)
            node = self._flow.view.by_name[slot.node]
            output = node.outputs[0] if node.outputs else ""
            if self._flow.origins.get(output) is pair and node.name not in visited:
                visited.add(node.name)
                for use in self._flow.view.uses(output):
                    yield use.node, use.index
            else:
                yield node, slot.index

    def _is_constant_or_int8(self, tensor: str) -> bool:
        return self._flow.view.is_constant(tensor) or tensor in self._flow.origins

    def _takes(self, node: str) -> bool:
        """Return True if a compute node reads its weight in a low-bit type."""
        return node in self._stored or self._precision.get(node, DType.UNKNOWN).is_quantized

    def _is_int8(self, node: str) -> bool:
        return self._precision.get(node) is DType.INT8


def _row(node: str, kind: str, end: End, into: str, steps: list[str], clone_of: str = "") -> LedgerRow:
    all_steps = (*steps, f"{end.value} {into}".strip())
    return LedgerRow(
        node=node,
        kind=kind,
        end=end,
        into=into,
        steps=tuple(LedgerStep(line=0, what=step) for step in all_steps),
        clone_of=clone_of,
    )


class ClassicPlan:
    """The predicted layers of a classic TensorRT engine, and the predicted fate of its Q/DQ.

    Attributes:
        layers: in graph order; each product with the weight's Q and the Q of its result.
        ledger: how every Q and DQ ends.
    """

    def __init__(
        self, flow: Flow, precision: dict[str, DType], stored: Collection[str] = frozenset()
    ) -> None:
        """Predict the layers if nodes compute in the types of `precision`.

        Nodes in `stored` dequantize their weights inside their kernels.
        """
        demands = Demands(flow)
        self._groups = Groups(flow, demands, precision)
        self.ledger = Fates(flow, demands, self._groups, precision, stored).rows()
        self._position = {node.name: node.position for node in flow.view.nodes}
        self.layers = self._layers()

    def _layers(self) -> tuple[PredictedLayer, ...]:
        """Return the layers: each group with the Q that fuse into it, and each Q or DQ that is a kernel."""
        taken: dict[str, list[str]] = {}
        layers = []
        for row in self.ledger:
            if row.end in {End.WEIGHT, End.OUTPUT} and row.kind == "Q":
                taken.setdefault(row.into, []).append(row.node)
            elif row.end is End.COPY:
                layers.append(PredictedLayer(name=row.node, nodes=(row.node,)))
        for group in {id(group): group for group in self._groups.of.values()}.values():
            extra = taken.get(group.host.name, []) if group.host is not None else []
            names = sorted({*extra, *(node.name for node in group.nodes)}, key=self._place)
            layers.append(PredictedLayer(name=layer_name(names), nodes=tuple(names)))
        return tuple(sorted(layers, key=lambda layer: (self._place(layer.nodes[0]), layer.name)))

    def _place(self, node: str) -> tuple[int, str]:
        """Return the sort key of a node for graph order. A cloned Q has the key of its original."""
        of = self._position.get(node)
        return self._position.get(node.rpartition("_clone_")[0], -1) if of is None else of, node
