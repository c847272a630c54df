"""Layers and ledger of a TensorRT for RTX engine.

Everything goes to one compiler. A product is a kernel of its own, products of one input are merged, an attention that
is INT8 as a whole is one kernel. What lies between products, Q and DQ included, becomes one generated kernel per
stretch; max and average pools and recurrences are kernels of their own.

Learned from layer dumps of RTX 1.7.1; `benchmarks/prediction.py` says how often it is right.
"""

from __future__ import annotations

from collections import defaultdict

from qdqtool.core.dtypes import DType
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedLayer
from qdqtool.core.qdq import QdqPair
from qdqtool.graph.view import Node
from qdqtool.placement.equivalence import classes
from qdqtool.placement.flow import Flow
from qdqtool.placement.patterns import attentions, between, int8_obstacle, readers
from qdqtool.placement.predict.demand import Demands
from qdqtool.placement.predict.kernels import why_alone, why_dequantized_apart
from qdqtool.placement.predict.layers import is_swish
from qdqtool.placement.predict.naming import layer_name
from qdqtool.placement.predict.sums import Axes, axes
from qdqtool.placement.weighted import COMPUTE

_ALONE = frozenset({"AveragePool", "GRU", "LSTM", "MaxPool", "RNN"})
_ACTIVATIONS = frozenset({"Clip", "Relu", "Sigmoid"})
_PAIR = frozenset({"DequantizeLinear", "QuantizeLinear"})


class RtxPlan:
    """The kernels that the compiler will make, as far as the graph tells.

    Attributes:
        layers: in graph order.
        ledger: the fate of every Q and DQ.
    """

    def __init__(self, flow: Flow, precision: dict[str, DType]) -> None:
        self._flow = flow
        self._precision = precision
        self._demands = Demands(flow)
        self._twins: dict[str, str] = {}
        self._home: dict[str, int] = {}
        self._members: list[list[str]] = []
        self._place_products()
        self._place_rest()
        self._position = {node.name: node.position for node in flow.view.nodes}
        self.layers = tuple(
            PredictedLayer(name=layer_name(members), nodes=members)
            for members in sorted(
                map(self._sorted, self._members), key=lambda names: self._position[names[0]]
            )
        )
        self._holder = {node: layer for layer in self.layers for node in layer.nodes}
        self.ledger = tuple(row for pair in flow.pairs for row in self._fates(pair))

    def _place_products(self) -> None:
        for scores, values in attentions(self._flow.view):
            behind = [use.node for use in readers(self._flow.view, values.outputs[0])]
            whole = all(self._precision.get(node.name) is DType.INT8 for node in (scores, values))
            fused = whole and not int8_obstacle(self._flow.view, scores, "rtx")
            if fused and all(node.op == "QuantizeLinear" for node in behind):
                inside = (scores, *between(self._flow.view, scores, values), values, *behind)
                self._put(list(dict.fromkeys(n.name for n in inside if self._is_run_time(n))))
        merged: dict[tuple[str, str, tuple[float, ...]], list[str]] = defaultdict(list)
        for node in self._flow.products():
            if node.name not in self._home:
                merged[self._merge_key(node)].extend((node.name, *self._activation(node)))
        for names in merged.values():
            self._put(names)

    def _activation(self, node: Node) -> tuple[str, ...]:
        """The activation that a float convolution does itself, and the residual Add in front of it."""
        if not node.op.startswith("Conv") or self._precision[node.name] is DType.INT8:
            return ()
        readers = self._flow.readers(node.outputs[0])
        taken: tuple[Node, ...] = ()
        if len(readers) == 1 and readers[0].op == "Add" and self._is_last_branch(node, readers[0]):
            taken, readers = readers, self._flow.readers(readers[0].outputs[0])
        if is_swish(readers) or (len(readers) == 1 and readers[0].op in _ACTIVATIONS):
            taken += readers
        return tuple(reader.name for reader in taken)

    def _is_last_branch(self, node: Node, add: Node) -> bool:
        """Whether everything else that an Add of two values sums is made before `node` is."""
        makers = [self._flow.view.producer(tensor) for tensor in add.inputs]
        return all(maker is None or maker.position <= node.position for maker in makers)

    def _merge_key(self, node: Node) -> tuple[str, str, tuple[float, ...]]:
        """Matrix products of one input and one scale are merged; everything else is alone."""
        pair = self._flow.origin(node, 0)
        convolves = node.op in {"Conv", "ConvTranspose"}
        if convolves or self._is_weight(node, 0) or not self._is_weight(node, 1):
            return node.name, "", ()
        return (node.inputs[0], node.op, ()) if pair is None else (pair.tensor, node.op, pair.scale)

    def _is_weight(self, node: Node, index: int) -> bool:
        pair = self._flow.origin(node, index)
        return self._flow.view.is_constant(node.inputs[index]) or (
            pair is not None and pair.kind is SlotKind.WEIGHT
        )

    def _place_rest(self) -> None:
        """Join what lies between products and follows each other."""
        level = self._levels()
        links: list[tuple[str, ...]] = []
        for node in self._flow.view.nodes:
            if node.name not in level or node.op in _ALONE:
                continue
            links.append((node.name,))
            for tensor in node.inputs:
                maker = self._maker(node, tensor)
                if maker is not None and maker.op not in _ALONE and level.get(maker.name) == level[node.name]:
                    links.append((maker.name, node.name))
        for names in classes(links):
            self._put(sorted(names))
        for node in self._flow.view.nodes:
            if node.name in level and node.op in _ALONE:
                self._put([node.name])

    def _levels(self) -> dict[str, int]:
        """How many products, pools and changes of the axes of sums are on the longest way to each node between them."""
        depth: dict[str, int] = {}
        level: dict[str, int] = {}
        summed: dict[str, Axes] = {}
        for node in self._flow.view.nodes:
            makers = [maker for tensor in node.inputs if (maker := self._maker(node, tensor)) is not None]
            start = max((depth.get(maker.name, 0) for maker in makers), default=0)
            before = {summed.get(maker.name, ()) for maker in makers if depth.get(maker.name) == start} - {()}
            own = axes(self._flow.view, node)
            if own and before - {own}:
                start, before = start + 1, set()
            barrier = node.name in self._home or node.op in _ALONE
            depth[node.name] = start + barrier
            summed[node.name] = () if barrier else own or next(iter(sorted(before)), ())
            if node.name not in self._home and self._is_run_time(node):
                level[node.name] = start
        for node in reversed(self._flow.view.nodes):
            self._delay(node, level)
        return level

    def _delay(self, node: Node, level: dict[str, int]) -> None:
        """What only one later stretch reads is made there, from the result of the product in front of it."""
        if node.name not in level or node.op in _ALONE or not self._may_wait(node):
            return
        uses = [use.node for output in node.outputs for use in self._flow.view.uses(output)]
        wanted = {level.get(use.name, -1) for use in uses if use.op not in _ALONE}
        if len(wanted) == 1 and all(use.op not in _ALONE for use in uses):
            level[node.name] = max(level[node.name], *wanted)

    def _may_wait(self, node: Node) -> bool:
        """Whether a node can work later: no sum, and a Q only if it alone reads a product."""
        if node.op != "QuantizeLinear":
            return not axes(self._flow.view, node)
        maker = self._flow.view.producer(node.inputs[0])
        return maker is not None and maker.op in COMPUTE and len(self._flow.view.uses(node.inputs[0])) == 1

    def _maker(self, node: Node, tensor: str) -> Node | None:
        """The producer of a tensor; a Q that moves in front of a pool is made there."""
        found = maker = self._flow.view.producer(tensor)
        if node.op != "QuantizeLinear":
            return maker
        while maker is not None and maker.op != "Concat" and self._demands.passes(maker):
            pooled = maker.op in _ALONE
            maker = self._flow.view.producer(maker.inputs[0])
            found = maker if pooled else found
        return found

    def _is_run_time(self, node: Node) -> bool:
        """Whether a node leaves work for run time: no constant, no twin of another Q, no DQ that only products read."""
        if node.op == "QuantizeLinear":
            return self._is_first_twin(node)
        if node.op == "DequantizeLinear":
            pair = self._flow.by_dequantize.get(node.name)
            consumers = list(readers(self._flow.view, node.outputs[0]))
            return (
                pair is not None
                and pair.kind is SlotKind.ACTIVATION
                and any(use.node.op not in COMPUTE for use in consumers)
            )
        return node.op != "Constant" and not all(map(self._flow.view.is_constant, node.inputs))

    def _is_first_twin(self, node: Node) -> bool:
        """Whether no earlier Q does the same; weights are quantized at build time."""
        pairs = [
            pair for pair in self._flow.by_tensor.get(node.inputs[0], ()) if pair.kind is SlotKind.ACTIVATION
        ]
        own = next((pair for pair in pairs if pair.quantize == node.name), None)
        if own is None:
            return False
        first = next(pair.quantize for pair in pairs if pair.scale == own.scale)
        if first != node.name:
            self._twins[node.name] = first or ""
        return first == node.name

    def _put(self, names: list[str]) -> None:
        if names:
            self._home.update(dict.fromkeys(names, len(self._members)))
            self._members.append(names)

    def _sorted(self, names: list[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: self._position[name]))

    def _fates(self, pair: QdqPair) -> list[LedgerRow]:
        rows = []
        if pair.quantize is not None:
            end, into = self._quantized(pair, pair.quantize)
            rows.append(_row(pair.quantize, "Q", end, into, why_alone(self._flow, pair.tensor)))
        if pair.dequantize is not None:
            end, into = self._dequantized(pair, pair.dequantize)
            tensor = self._flow.view.by_name[pair.dequantize].outputs[0]
            rows.append(_row(pair.dequantize, "DQ", end, into, why_dequantized_apart(self._flow, tensor)))
        return rows

    def _quantized(self, pair: QdqPair, name: str) -> tuple[End, str]:
        if pair.kind is SlotKind.WEIGHT:
            return self._weight(pair)
        if name in self._twins:
            return End.MERGED, self._twins[name]
        return self._kernel(name)

    def _dequantized(self, pair: QdqPair, name: str) -> tuple[End, str]:
        if pair.kind is SlotKind.WEIGHT:
            return self._weight(pair)
        for use in readers(self._flow.view, self._flow.view.by_name[name].outputs[0]):
            if use.node.op in COMPUTE and self._precision.get(use.node.name) is DType.INT8:
                return End.INPUT, use.node.name
        return self._kernel(name)

    def _weight(self, pair: QdqPair) -> tuple[End, str]:
        taker = next((s.node for s in pair.slots if self._precision.get(s.node) is DType.INT8), "")
        return (End.WEIGHT, taker) if taker else (End.FOLDED, pair.slots[0].node if pair.slots else "")

    def _kernel(self, name: str) -> tuple[End, str]:
        layer = self._holder.get(name)
        if layer is None:
            return End.KERNEL, ""
        return (End.COPY if set(layer.nodes) == {name} else End.KERNEL), layer.name


def _row(node: str, kind: str, end: End, into: str, why: str) -> LedgerRow:
    """One fate; a kernel of its own says why."""
    told = [why] if end is End.COPY else []
    steps = tuple(LedgerStep(line=0, what=what) for what in (*told, f"{end.value} {into}".strip()))
    return LedgerRow(node=node, kind=kind, end=end, into=into, steps=steps)
