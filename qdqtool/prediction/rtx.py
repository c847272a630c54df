"""Layers and ledger of a TensorRT for RTX engine.

Everything goes to one compiler. A product is a kernel of its own, products of one input are merged, an attention that
is INT8 as a whole is one kernel. What lies between products, Q and DQ included, becomes one generated kernel per
stretch; max and average pools and recurrences are kernels of their own.

Learned from layer dumps of RTX 1.7.1; `benchmarks/prediction.py` says how often it is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.equivalence import classes
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedLayer
from qdqtool.core.qdq import QdqPair
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.patterns import readers
from qdqtool.prediction.attention import whole_attentions
from qdqtool.prediction.beside import beside, layer_beside
from qdqtool.prediction.block_scales import ordered_scales
from qdqtool.prediction.cuts import cuts, spreads
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.epilogues import Epilogues
from qdqtool.prediction.kernels import why_alone, why_dequantized_apart
from qdqtool.prediction.naming import layer_name
from qdqtool.prediction.normalizations import normalizations
from qdqtool.prediction.qkv import split_products
from qdqtool.prediction.recurrences import kernels
from qdqtool.prediction.rows import rows
from qdqtool.prediction.shuffles import shuffles
from qdqtool.prediction.sums import Axes, axes, is_row, is_scalar_product, is_written_out, shrinks
from qdqtool.prediction.totals import behind_total, is_rounded_apart
from qdqtool.trt.ops import (
    CONVOLUTIONS,
    FP4_DYNAMIC,
    LAYOUT,
    MATRIX_PRODUCTS,
    OWN_KERNELS,
    PICKING,
    POINTWISE,
    POOLS,
    PRODUCTS,
    QDQ,
    QUANTIZE,
    RESAMPLING,
    RESHAPING,
    SHAPE_READERS,
    averages_in_int8,
    keeps_order,
)

_Copy = tuple[str, str]
"""A node, and which of the kernels that compute it each for itself; "" for the one in which it stands."""
_AGAIN, _AHEAD = "again", "ahead"
"""The kernel behind a cut, and the one in front of it."""
_CHAIN = 4
"""Q and DQ that are looked through in front of a sum."""


class RtxPlan:
    """The kernels that the compiler will make, as far as the graph tells.

    Attributes:
        layers: in graph order.
        ledger: the fate of every Q and DQ.
    """

    def __init__(
        self,
        flow: Flow,
        precision: dict[str, DType],
        stored: Collection[str] = frozenset(),
        before: Collection[str] = frozenset(),
    ) -> None:
        """Plan for nodes that compute in these types.

        Those of `stored` dequantize their weights themselves, for those of `before` another kernel does.
        """
        self._flow = flow
        self._precision = precision
        self._stored = stored
        self._demands = Demands(flow)
        self._epilogues = Epilogues(flow, precision)
        self._first = _first_twins(flow)
        self._twins: dict[str, str] = {}
        self._home: dict[str, int] = {}
        self._turned: set[str] = set()
        self._members: list[list[str]] = []
        self._named_again: dict[str, list[str]] = {}
        self._named_before: dict[str, list[str]] = {}
        self._staying: frozenset[str] = frozenset()
        self._place_products()
        self._place_rest()
        self._members.extend([name] for name in ordered_scales(flow, precision))
        self._position = {node.name: node.position for node in flow.view.nodes}
        self._join_folded()
        apart = self._join_rows()
        layers = [
            PredictedLayer(name=layer_name(names), nodes=names, kernels=self._kernels_of(names))
            for names in map(self._sorted, self._members)
        ]
        # Those first, so that a node's layer is the one that computes it.
        layers[:0] = [layer_beside(name, "scales and bias") for name in apart]
        layers[:0] = beside(flow, precision, before, self._members)
        self.layers = tuple(sorted(layers, key=lambda layer: self._position[layer.nodes[0]]))
        self._holder = {node: layer for layer in self.layers for node in layer.nodes}
        self.ledger = tuple(row for pair in flow.pairs for row in self._fates(pair))

    def _kernels_of(self, names: Collection[str]) -> int:
        """As how many kernels a layer runs: one, but for recurrences, whose steps are several."""
        return max(kernels(self._flow.view, self._flow.view.by_name[name]) or 1 for name in names)

    def _place_products(self) -> None:
        for kernel in whole_attentions(self._flow, self._precision):
            self._put(list(dict.fromkeys(node.name for node in kernel if self._is_run_time(node))))
            self._turned.update(node.name for node in kernel if node.op in LAYOUT | {"Expand"})
        for normalized in normalizations(self._flow.view):
            names = [node.name for node in normalized.nodes]
            self._put(names)
            self._named_again.update((reader.name, names) for reader in normalized.behind)
            if normalized.front is not None:
                self._named_before[normalized.front.name] = names
        merged: dict[tuple[str, str, tuple[float, ...]], list[str]] = defaultdict(list)
        for node in self._flow.products():
            view = self._flow.view
            if node.name not in self._home and not (
                is_scalar_product(view, node) or is_written_out(view, node)
            ):
                own = tuple(taken.name for taken in self._epilogues.of(node) if self._is_run_time(taken))
                turned = [before.name for before in self._epilogues.turned(node)]
                self._turned.update(turned)
                merged[self._merge_key(node, own)].extend((node.name, *own, *turned))
        for names in merged.values():
            self._put([*names, *self._relaid(names)])
        for branches in split_products(self._flow):
            if self._precision.get(branches[0].product.name) is DType.FLOAT4:
                continue  # weights in blocks with scales of two levels are not cut
            for branch in branches:
                self._put([node.name for node in branch.nodes if self._is_run_time(node)])

    def _join_folded(self) -> None:
        """Put convolutions of a few values with Q/DQ into the kernel that rounds for them."""
        holder = {name: names for names in self._members for name in names}
        for node in self._flow.products():
            pair = self._flow.origin(node, 0)
            kernel = holder.get(pair.quantize or "") if pair is not None else None
            if kernel is not None and self._epilogues.is_folded(node) and [node.name] in self._members:
                self._members.remove([node.name])
                kernel.append(node.name)

    def _join_rows(self) -> list[str]:
        """Join float products of one row with their neighbours; the products whose result a kernel of its own finishes."""
        low = frozenset(self._stored) | {
            name for name, dtype in self._precision.items() if dtype.is_quantized
        }
        found = rows(self._flow, self._members, low)
        own = {names[0]: names for names in self._members if names[0] in found.joined and len(names) == 1}
        gone: set[int] = set()
        for product, numbers in found.joined.items():
            own[product].extend(name for number in numbers for name in self._members[number])
            gone.update(numbers)
        self._members = [names for number, names in enumerate(self._members) if number not in gone]
        scaled = (
            node.name
            for node in self._flow.products()
            if not self._flow.view.uses(node.outputs[0]) and self._epilogues.is_scaled_behind(node)
        )
        return [*found.apart, *scaled]

    def _relaid(self, products: Collection[str]) -> Iterator[str]:
        """What gives the values of an INT8 pool another order for a product, behind whose Q nothing is left to move."""
        view = self._flow.view
        for name in products:
            pair = self._flow.origin(view.by_name[name], 0)
            maker = view.producer(pair.tensor) if pair is not None and pair.quantize is not None else None
            moved = []
            while maker is not None and maker.op in LAYOUT and self._demands.passes(maker):
                moved.append(maker.name)
                maker = view.producer(maker.inputs[0])
            if maker is not None and maker.op == "MaxPool" and self._demands.passes(maker):
                self._turned.update(moved)
                yield from moved

    def _merge_key(self, node: Node, own: tuple[str, ...]) -> tuple[str, str, tuple[float, ...]]:
        """Matrix products of one input and one scale are merged, whichever side it is; what takes more along is alone."""
        weights = [self._is_weight(node, index) for index in (0, 1)]
        if node.op in CONVOLUTIONS or own or weights[0] == weights[1]:
            return node.name, "", ()
        side = weights.index(False)
        pair, kind = self._flow.origin(node, side), f"{node.op} {side}"
        return (node.inputs[side], kind, ()) if pair is None else (pair.tensor, kind, pair.scale)

    def _is_weight(self, node: Node, index: int) -> bool:
        pair = self._flow.origin(node, index)
        return self._flow.view.is_constant(node.inputs[index]) or (
            pair is not None and pair.kind is SlotKind.WEIGHT
        )

    def _place_rest(self) -> None:
        """Join what lies between products and follows each other."""
        level = self._levels()
        kept = {name for node in self._flow.view.nodes for name in self._kept(node)}
        links: list[tuple[_Copy, ...]] = []
        first_behind = self._first_behind(level)
        for node in self._flow.view.nodes:
            if node.name not in level or node.op in OWN_KERNELS or node.name in kept:
                continue
            if node.op == QUANTIZE and self._is_behind_row(node):
                links.append(((node.name, ""),))
                continue
            if not self._begins_as_parts(node, level):
                links.append(((node.name, ""),))
            links += [((name, _AHEAD), (node.name, "")) for name in self._named_before.get(node.name, ())]
            if level[node.name] == first_behind.get(node.name):
                links += [((name, _AGAIN), (node.name, "")) for name in self._named_again[node.name]]
            for tensor in node.inputs:
                maker = self._maker(node, tensor)
                if maker is not None and maker.name in self._twins:
                    maker = self._flow.view.by_name[self._twins[maker.name]]
                while (
                    maker is not None
                    and keeps_order(self._flow.view, maker)
                    and level.get(maker.name, -1) > level[node.name]
                ):
                    maker = self._flow.view.producer(maker.inputs[0])
                if maker is None or maker.op in OWN_KERNELS or maker.name in kept or maker.name not in level:
                    continue
                if level[maker.name] == level[node.name]:
                    copy = node.name if self._begins_as_parts(maker, level) else ""
                    links.append(((maker.name, copy), (node.name, "")))
                elif maker.name in self._cuts.shared and level[maker.name] + 1 == level[node.name]:
                    links.append(((maker.name, _AGAIN), (node.name, "")))
        links += self._side_by_side(level, kept)
        links += self._rounded_ahead(level)
        shared = shuffles(self._flow.view)
        for copies in classes(links):
            names = {name for name, _ in copies}
            named = names | self._turned_again(names, level)
            for unit in names & shared.keys():
                named = (named - shared[unit].left) | {
                    name for name in shared[unit].again if self._is_run_time(self._flow.view.by_name[name])
                }
            self._put(sorted(named))
        self._members.extend([name] for name in sorted(self._cuts.apart | self._rounded_apart(level)))
        for node in self._flow.view.nodes:
            if node.name in level and node.op in OWN_KERNELS:
                self._put([node.name, *self._kept(node)])

    def _first_behind(self, level: dict[str, int]) -> dict[str, int]:
        """For what reads a normalization whose nodes the next kernel states too: the level of the first such reader."""
        first: dict[str, int] = {}
        for reader, names in self._named_again.items():
            if reader in level:
                first[names[-1]] = min(level[reader], first.get(names[-1], level[reader]))
        return {reader: first.get(names[-1], -1) for reader, names in self._named_again.items()}

    def _rounded_apart(self, level: dict[str, int]) -> set[str]:
        """The Q behind sums whose kernel only scales for it."""
        return {
            node.name
            for node in self._flow.view.nodes
            if node.op == QUANTIZE and node.name in level and is_rounded_apart(self._flow.view, node, level)
        }

    def _is_behind_row(self, node: Node) -> bool:
        """Whether a float product of one row makes what a Q rounds: its kernel adds up products, and rounds nothing."""
        view = self._flow.view
        maker = view.producer(node.inputs[0])
        for _ in range(_CHAIN):
            if maker is None or maker.op not in POINTWISE:
                break
            maker = view.producer(maker.inputs[0])
        if maker is None or maker.op not in MATRIX_PRODUCTS or maker.name in self._stored:
            return False
        if is_written_out(view, maker):
            return False
        return not self._is_low(maker.name) and view.is_constant(maker.inputs[1]) and is_row(view, maker)

    def _begins_as_parts(self, node: Node, level: dict[str, int]) -> bool:
        """Whether a kernel ended in front of a Split for the sake of a sum: each reader of a part then picks it by itself."""
        if node.op != "Split" or node.name not in level or node.name in self._cuts.ends:
            return False
        maker = self._flow.view.producer(node.inputs[0])
        return maker is not None and maker.name in self._cuts.ends

    def _turned_again(self, names: set[str], level: dict[str, int]) -> set[str]:
        """The Transpose behind which the kernel in front ends for the sake of a sum, where this one has no sum.

        It reads the values as they were before, and turns them itself.
        """
        nodes = [self._flow.view.by_name[name] for name in names]
        if any(axes(self._flow.view, node) for node in nodes):
            return set()
        found = set()
        for node in nodes:
            maker = self._maker(node, node.inputs[0]) if node.inputs else None
            if maker is None or maker.op != "Transpose" or maker.name not in self._cuts.ends:
                continue
            while maker is not None and maker.op in LAYOUT and level.get(maker.name) is not None:
                found.add(maker.name)
                maker = self._flow.view.producer(maker.inputs[0])
        return found

    def _side_by_side(self, level: dict[str, int], kept: set[str]) -> Iterator[tuple[_Copy, _Copy]]:
        """Nodes that read all of one result of a product, or of an input of the network: they share a kernel."""
        read = [product.outputs[0] for product in self._flow.products()]
        for tensor in (*read, *(info.name for info in self._flow.view.inputs)):
            first: dict[int, str] = {}
            for use in self._flow.view.uses(tensor):
                name = use.node.name
                if name in level and name not in kept and use.node.op not in OWN_KERNELS | PICKING:
                    yield (first.setdefault(level[name], name), ""), (name, "")

    def _rounded_ahead(self, level: dict[str, int]) -> Iterator[tuple[_Copy, _Copy]]:
        """The Q behind a Concat, in the kernel of a branch that nothing else reads as floats."""
        view = self._flow.view
        for concat in view.nodes:
            readers = self._flow.readers(concat.outputs[0]) if concat.op == "Concat" else ()
            if len(readers) != 1 or readers[0].op != QUANTIZE or readers[0].name not in level:
                continue
            for tensor in concat.inputs:
                maker = view.producer(tensor)
                if maker is None or maker.op in OWN_KERNELS | QDQ or maker.name not in level:
                    continue
                if maker.name in self._cuts.ends:
                    continue
                others = {use.node.op for part in maker.outputs if part != tensor for use in view.uses(part)}
                alone = len(view.uses(tensor)) == 1 and others <= {QUANTIZE}
                if alone and level[maker.name] < level[readers[0].name]:
                    yield (readers[0].name, _AHEAD), (maker.name, "")

    def _kept(self, pool: Node) -> tuple[str, ...]:
        """The Q in the kernel of a pool."""
        readers = self._flow.readers(pool.outputs[0]) if pool.op in POOLS else ()
        alone = len(readers) == 1 and readers[0].op == "QuantizeLinear" and self._is_first_twin(readers[0])
        kept = alone and (pool.op == "AveragePool" or self._demands.passes(pool)) and self._keeps(pool)
        return (readers[0].name,) if kept else ()

    def _levels(self) -> dict[str, int]:
        """How many products, pools and changes of the axes of sums are on the longest way to each node between them."""
        view = self._flow.view
        first = self._counted(frozenset())
        self._cuts = cuts(view, first)
        totals = [
            node
            for node in view.nodes
            if shrinks(view, node) and (node.name in self._cuts.ends or self._shares(node, first))
        ]
        for behind in (behind_total(view, node, first) for node in totals):
            self._staying |= behind.staying
            for reader in behind.readers:
                self._named_again.setdefault(reader, list(behind.again))
        ending = self._cuts.ends | {node.name for node in totals} | self._staying
        return self._counted(ending) if ending else first

    def _counted(self, ending: frozenset[str]) -> dict[str, int]:
        """The levels; behind nodes that are `ending` their kernel the next one begins."""
        depth: dict[str, int] = {}
        level: dict[str, int] = {}
        summed: dict[str, Axes] = {}
        resized: set[str] = set()
        held: set[str] = set()
        for node in self._flow.view.nodes:
            makers = [maker for tensor in node.inputs if (maker := self._maker(node, tensor)) is not None]
            start = max((depth.get(maker.name, 0) for maker in makers), default=0)
            start -= node.name in self._staying  # in the kernel that ends with it
            before = {summed.get(maker.name, ()) for maker in makers if depth.get(maker.name) == start} - {()}
            own = axes(self._flow.view, node)
            if own and before - {own}:
                start, before = start + 1, set()
            here = [maker.name for maker in makers if depth.get(maker.name) == start]
            if node.op in RESAMPLING and not resized.isdisjoint(here):
                held |= resized.intersection(here)
                start, before, here = start + 1, set(), []  # a kernel resamples once
            barrier = node.name in self._home or node.op in OWN_KERNELS or node.name in ending
            depth[node.name] = start + barrier
            if not barrier and (node.op in RESAMPLING or not resized.isdisjoint(here)):
                resized.add(node.name)
            summed[node.name] = () if barrier else own or next(iter(sorted(before)), ())
            if node.name not in self._home and self._is_run_time(node):
                level[node.name] = start
        for node in reversed(self._flow.view.nodes):
            if node.name not in ending and node.name not in held:
                self._delay(node, level)
        return level

    def _shares(self, total: Node, level: dict[str, int]) -> bool:
        """Whether a later kernel wants what `total` sums up too: one that writes all of it computes no further.

        Where the sum meets all values again, as in a normalization, it does.
        """
        here = level.get(total.name)
        if spreads(self._flow.view, total, level):
            return False
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
        if node.op in RESHAPING:
            behind = {each.name for each in self._reshaped_behind(node)}
            uses = [use for use in uses if use.name not in behind] or uses
        wanted = {level.get(use.name, -1) for use in uses if use.op not in OWN_KERNELS}
        if len(wanted) == 1 and all(use.op not in OWN_KERNELS for use in uses):
            level[node.name] = max(level[node.name], *wanted)

    def _readers_of_floats(self, node: Node) -> list[Node]:
        """Who reads a node; a Q behind what leaves the order in memory is done in front of it."""
        uses = [use.node for output in node.outputs for use in self._flow.view.uses(output)]
        uses = [use for use in uses if use.op not in SHAPE_READERS] or uses
        uses += [last for use in uses if use.op in RESHAPING for last in self._reshaped_behind(use)]
        if keeps_order(self._flow.view, node):
            return [use for use in uses if use.op != "QuantizeLinear"] or uses
        behind = [use for use in uses if keeps_order(self._flow.view, use)]
        return [
            *uses,
            *(q for use in behind for q in self._flow.readers(use.outputs[0]) if q.op == "QuantizeLinear"),
        ]

    def _reshaped_behind(self, node: Node) -> list[Node]:
        """What gives values that `node` gave another shape one more: it starts from what `node` reads."""
        readers = [use.node for output in node.outputs for use in self._flow.view.uses(output)]
        return [reader for reader in readers if reader.op in RESHAPING]

    def _may_wait(self, node: Node) -> bool:
        """Whether a node can work later: no sum, no part of what a kernel made, and a Q only if it alone reads a product, or an input."""
        if self._takes_part(node):
            return False
        if node.op != "QuantizeLinear":
            return not axes(self._flow.view, node)
        maker = self._flow.view.producer(node.inputs[0])
        if maker is None:  # an input of the network is there whenever it is read, by whatever else
            return not any(first == node.name != name for name, first in self._first.items())
        return maker.op in PRODUCTS and len(self._flow.view.uses(node.inputs[0])) == 1

    def _takes_part(self, node: Node) -> bool:
        """Whether a node picks values out of what another kernel computes, which then writes that part as well."""
        if node.op not in PICKING or self._flow.view.producer(node.inputs[0]) is None:
            return False
        shape = self._flow.view.info(node.inputs[0]).shape
        return any(self._flow.view.info(part).shape != shape for part in node.outputs)

    def _maker(self, node: Node, tensor: str) -> Node | None:
        """The producer of a tensor; a Q that moves in front of a pool is made there."""
        found = maker = self._flow.view.producer(tensor)
        if node.op != "QuantizeLinear":
            return maker
        while maker is not None and maker.op != "Concat" and self._demands.passes(maker):
            if self._keeps(maker):
                return maker
            pooled = maker.op in OWN_KERNELS or maker.name in self._turned
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
        if node.op in {QUANTIZE, FP4_DYNAMIC}:
            return self._is_first_twin(node)
        if node.op == "DequantizeLinear":
            pair = self._flow.by_dequantize.get(node.name)
            consumers = list(readers(self._flow.view, node.outputs[0]))
            return (
                pair is not None
                and pair.kind is SlotKind.ACTIVATION
                and any(use.node.op not in PRODUCTS for use in consumers)
            )
        if node.op == "Constant" or all(map(self._flow.view.is_constant, node.inputs)):
            return False
        return not self._moves_weights(node)

    def _moves_weights(self, node: Node) -> bool:
        """Whether a node gives stored weights another order behind their DQ, which the compiler does once."""
        plain = self._flow.plain.by_name.get(node.name)
        if node.op not in LAYOUT or plain is None or not self._flow.plain.is_constant(plain.inputs[0]):
            return False
        return all(use.node.op in PRODUCTS for use in self._flow.view.uses(node.outputs[0]))

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
            if use.node.op in PRODUCTS and self._is_low(use.node.name):
                return End.INPUT, use.node.name
        return self._kernel(name)

    def _weight(self, pair: QdqPair) -> tuple[End, str]:
        taker = next((s.node for s in pair.slots if self._is_low(s.node) or self._dequantizes(s.node)), "")
        return (End.WEIGHT, taker) if taker else (End.FOLDED, pair.slots[0].node if pair.slots else "")

    def _is_low(self, node: str) -> bool:
        """Whether a node multiplies values of few bits."""
        return self._precision.get(node, DType.UNKNOWN).is_quantized

    def _dequantizes(self, node: str) -> bool:
        """Whether a node's kernel makes its weights float by itself, as one that picks rows of a table does."""
        return node in self._stored or self._flow.view.by_name[node].op == "Gather"

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
    computing: dict[tuple[object, ...], str] = {}
    for node in reversed(flow.view.nodes):  # of those that compute their scales the compiler keeps the last
        if node.op == FP4_DYNAMIC and len(node.inputs) > 1:
            level = flow.view.constant(node.inputs[1])
            exact = node.inputs[1] if level is None else level.tobytes()
            found[node.name] = computing.setdefault(
                (node.inputs[0], exact, node.attribute("axis", -1)), node.name
            )
    return found


def _row(node: str, kind: str, end: End, into: str, why: str) -> LedgerRow:
    """One fate; a kernel of its own says why."""
    told = [why] if end is End.COPY else []
    steps = tuple(LedgerStep(line=0, what=what) for what in (*told, f"{end.value} {into}".strip()))
    return LedgerRow(node=node, kind=kind, end=end, into=into, steps=steps)
