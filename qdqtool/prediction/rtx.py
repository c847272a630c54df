"""Layers and ledger of a TensorRT for RTX engine.

Everything goes to one compiler. A product is a kernel of its own, products of one input are merged, an attention that
is INT8 as a whole is one kernel. What lies between products, Q and DQ included, becomes one generated kernel per
stretch; max and average pools and recurrences are kernels of their own.

Learned from layer dumps of RTX 1.7.1; `benchmarks/prediction.py` says how often it is right.
"""

from __future__ import annotations

from collections import defaultdict

from qdqtool.core.dtypes import DType
from qdqtool.core.equivalence import classes
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedLayer
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.patterns import attentions, between, int8_obstacle, readers
from qdqtool.prediction.cuts import cuts
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.epilogues import Epilogues
from qdqtool.prediction.kernels import why_alone, why_dequantized_apart
from qdqtool.prediction.naming import layer_name
from qdqtool.prediction.qkv import split_products
from qdqtool.prediction.sums import Axes, axes, shrinks
from qdqtool.trt.ops import CONVOLUTIONS, OWN_KERNELS, POOLS, PRODUCTS, QDQ, averages_in_int8, keeps_order

_AGAIN = "\0"
"""Before the name of a node that the kernel behind a cut works on again."""
_CHAIN = 4
"""Q and DQ that are looked through in front of a sum."""


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
        self._first = _first_twins(flow)
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
        for scores, values in attentions(self._flow.plain):
            behind = [use.node for use in readers(self._flow.view, values.outputs[0])]
            whole = all(self._precision.get(node.name) is DType.INT8 for node in (scores, values))
            fused = whole and not int8_obstacle(self._flow.view, scores, Target())
            if fused and all(node.op == "QuantizeLinear" for node in behind):
                inside = (scores, *between(self._flow.view, scores, values), values, *behind)
                self._put(list(dict.fromkeys(n.name for n in inside if self._is_run_time(n))))
        epilogues = Epilogues(self._flow, self._precision)
        merged: dict[tuple[str, str, tuple[float, ...]], list[str]] = defaultdict(list)
        for node in self._flow.products():
            if node.name not in self._home:
                own = tuple(taken.name for taken in epilogues.of(node) if self._is_run_time(taken))
                merged[self._merge_key(node, own)].extend((node.name, *own))
        for names in merged.values():
            self._put(names)
        for branches in split_products(self._flow):
            for branch in branches:
                self._put([node.name for node in branch.nodes if self._is_run_time(node)])

    def _merge_key(self, node: Node, own: tuple[str, ...]) -> tuple[str, str, tuple[float, ...]]:
        """Matrix products of one input and one scale are merged; what takes more along is alone."""
        pair = self._flow.origin(node, 0)
        convolves = node.op in CONVOLUTIONS
        if convolves or own or self._is_weight(node, 0) or not self._is_weight(node, 1):
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
        kept = {name for node in self._flow.view.nodes for name in self._kept(node)}
        links: list[tuple[str, ...]] = []
        for node in self._flow.view.nodes:
            if node.name not in level or node.op in OWN_KERNELS or node.name in kept:
                continue
            links.append((node.name,))
            for tensor in node.inputs:
                maker = self._maker(node, tensor)
                while (
                    maker is not None
                    and keeps_order(self._flow.view, maker)
                    and level.get(maker.name, -1) > level[node.name]
                ):
                    maker = self._flow.view.producer(maker.inputs[0])
                if (
                    maker is not None
                    and maker.op not in OWN_KERNELS
                    and level.get(maker.name) == level[node.name]
                ):
                    links.append((maker.name, node.name))
                elif (
                    maker is not None
                    and maker.name in self._cuts.shared
                    and level[maker.name] + 1 == level[node.name]
                ):
                    links.append((_AGAIN + maker.name, node.name))
        for names in classes(links):
            self._put(sorted({name.removeprefix(_AGAIN) for name in names}))
        self._members.extend([name] for name in sorted(self._cuts.apart))
        for node in self._flow.view.nodes:
            if node.name in level and node.op in OWN_KERNELS:
                self._put([node.name, *self._kept(node)])

    def _kept(self, pool: Node) -> tuple[str, ...]:
        """The Q in the kernel of a pool."""
        readers = self._flow.readers(pool.outputs[0]) if pool.op in POOLS else ()
        alone = len(readers) == 1 and readers[0].op == "QuantizeLinear" and self._is_first_twin(readers[0])
        kept = alone and (pool.op == "AveragePool" or self._demands.passes(pool)) and self._keeps(pool)
        return (readers[0].name,) if kept else ()

    def _levels(self) -> dict[str, int]:
        """How many products, pools and changes of the axes of sums are on the longest way to each node between them."""
        first = self._counted(frozenset())
        self._cuts = cuts(self._flow.view, first)
        ending = self._cuts.ends | {
            node.name for node in self._flow.view.nodes if shrinks(node) and self._shares(node, first)
        }
        return self._counted(ending) if ending else first

    def _counted(self, ending: frozenset[str]) -> dict[str, int]:
        """The levels; behind nodes that are `ending` their kernel the next one begins."""
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
            barrier = node.name in self._home or node.op in OWN_KERNELS or node.name in ending
            depth[node.name] = start + barrier
            summed[node.name] = () if barrier else own or next(iter(sorted(before)), ())
            if node.name not in self._home and self._is_run_time(node):
                level[node.name] = start
        for node in reversed(self._flow.view.nodes):
            if node.name not in ending:
                self._delay(node, level)
        return level

    def _shares(self, total: Node, level: dict[str, int]) -> bool:
        """Whether a later kernel wants what `total` sums up too: one that writes all of it computes no further."""
        here = level.get(total.name)
        tensor = total.inputs[0]
        for _ in range(_CHAIN):
            maker = self._flow.view.producer(tensor)
            if maker is None or level.get(maker.name) != here:
                return False  # another kernel wrote it
            if self._leaves(tensor, here, level):
                return True
            if maker.op not in QDQ:
                return False
            tensor = maker.inputs[0]
        return False

    def _leaves(self, tensor: str, here: int | None, level: dict[str, int]) -> bool:
        """Whether a kernel but that of `here` reads a tensor, or its INT8 values."""
        for use in self._flow.view.uses(tensor):
            if level.get(use.node.name) != here:
                return True
            if use.node.op == "QuantizeLinear" and self._leaves(use.node.outputs[0], here, level):
                return True
        return self._flow.view.is_output(tensor)

    def _delay(self, node: Node, level: dict[str, int]) -> None:
        """What only one later stretch reads is made there, from the result of the product in front of it."""
        if node.name not in level or node.op in OWN_KERNELS or not self._may_wait(node):
            return
        uses = self._readers_of_floats(node)
        wanted = {level.get(use.name, -1) for use in uses if use.op not in OWN_KERNELS}
        if len(wanted) == 1 and all(use.op not in OWN_KERNELS for use in uses):
            level[node.name] = max(level[node.name], *wanted)

    def _readers_of_floats(self, node: Node) -> list[Node]:
        """Who reads a node; a Q behind what leaves the order in memory is done in front of it."""
        uses = [use.node for output in node.outputs for use in self._flow.view.uses(output)]
        if keeps_order(self._flow.view, node):
            return [use for use in uses if use.op != "QuantizeLinear"] or uses
        behind = [use for use in uses if keeps_order(self._flow.view, use)]
        return [
            *uses,
            *(q for use in behind for q in self._flow.readers(use.outputs[0]) if q.op == "QuantizeLinear"),
        ]

    def _may_wait(self, node: Node) -> bool:
        """Whether a node can work later: no sum, and a Q only if it alone reads a product."""
        if node.op != "QuantizeLinear":
            return not axes(self._flow.view, node)
        maker = self._flow.view.producer(node.inputs[0])
        return maker is not None and maker.op in PRODUCTS and len(self._flow.view.uses(node.inputs[0])) == 1

    def _maker(self, node: Node, tensor: str) -> Node | None:
        """The producer of a tensor; a Q that moves in front of a pool is made there."""
        found = maker = self._flow.view.producer(tensor)
        if node.op != "QuantizeLinear":
            return maker
        while maker is not None and maker.op != "Concat" and self._demands.passes(maker):
            if self._keeps(maker):
                return maker
            pooled = maker.op in OWN_KERNELS
            maker = self._flow.view.producer(maker.inputs[0])
            found = maker if pooled else found
        return found

    def _keeps(self, node: Node) -> bool:
        """Whether a pool keeps the Q behind it, as INT8 values come in."""
        maker = self._flow.view.producer(node.inputs[0])
        alike = node.op == "MaxPool" or averages_in_int8(node)
        return alike and maker is not None and maker.op == "DequantizeLinear"

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
                and any(use.node.op not in PRODUCTS for use in consumers)
            )
        return node.op != "Constant" and not all(map(self._flow.view.is_constant, node.inputs))

    def _is_first_twin(self, node: Node) -> bool:
        """Whether no earlier Q does the same; weights are quantized at build time."""
        first = self._first.get(node.name)
        if first is not None and first != node.name:
            self._twins[node.name] = first
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
            if use.node.op in PRODUCTS and self._precision.get(use.node.name) is DType.INT8:
                return End.INPUT, use.node.name
        return self._kernel(name)

    def _weight(self, pair: QdqPair) -> tuple[End, str]:
        taker = next((s.node for s in pair.slots if self._precision.get(s.node) is DType.INT8), "")
        return (End.WEIGHT, taker) if taker else (End.FOLDED, pair.slots[0].node if pair.slots else "")

    def _kernel(self, name: str) -> tuple[End, str]:
        layer = self._holder.get(name)
        if layer is None:
            return End.KERNEL, ""
        return (End.COPY if layer.nodes == (name,) else End.KERNEL), layer.name


def _first_twins(flow: Flow) -> dict[str, str]:
    """For every Q of an activation the first one of the same tensor and scale."""
    found: dict[str, str] = {}
    for pairs in flow.by_tensor.values():
        firsts: dict[tuple[float, ...], str] = {}
        for pair in pairs:
            if pair.kind is SlotKind.ACTIVATION:
                first = firsts.setdefault(pair.scale, pair.quantize or "")
                found.setdefault(pair.quantize or "", first)
    return found


def _row(node: str, kind: str, end: End, into: str, why: str) -> LedgerRow:
    """One fate; a kernel of its own says why."""
    told = [why] if end is End.COPY else []
    steps = tuple(LedgerStep(line=0, what=what) for what in (*told, f"{end.value} {into}".strip()))
    return LedgerRow(node=node, kind=kind, end=end, into=into, steps=steps)
