"""The fate of every Q and DQ, in the words of the build log's ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.kernels import why_dequantized_apart, why_quantized_apart
from qdqtool.prediction.layers import Groups, LayerGroup
from qdqtool.trt.ops import PRODUCTS


class Fates:
    """Writes the rows: Q backward, DQ forward, fused where a layer takes them, else kernels."""

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
        """One row per Q and DQ of the model, clones behind the Q they come from."""
        return tuple(row for pair in self._flow.pairs for row in self._pair(pair))

    def _pair(self, pair: QdqPair) -> Iterator[LedgerRow]:
        if pair.kind is SlotKind.WEIGHT:
            yield from self._weight(pair)
            return
        if pair.quantize is not None:
            yield from self._quantize(pair, pair.quantize)
        if pair.dequantize is not None:
            end, into = self._dequantized(pair)
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
        self, name: str, pair: QdqPair, tensor: str, told: tuple[str, ...], clone_of: str = ""
    ) -> Iterator[LedgerRow]:
        """Move a Q backward from `tensor` as far as it goes; at a Concat it becomes a clone per branch."""
        steps = list(told)
        node = self._flow.view.producer(tensor)
        while node is not None and self._demands.passes(node):
            if node.op == "Concat":
                yield from self._split(name, pair, node, steps, clone_of)
                return
            steps.append(f"moved through {node.name}")
            tensor = node.inputs[0]
            node = self._flow.view.producer(tensor)
        end, into = self._settled(name, tensor, pair.scale)
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
            told = (f"made from {name} above {concat.name}",)
            yield from self._travel(f"{name}_clone_{number}", pair, tensor, told, clone_of=name)

    def _settled(self, name: str, tensor: str, scale: tuple[float, ...]) -> tuple[End, str]:
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
        """Whether a layer ends with `tensor`, or with a pool behind it that the Q has moved through."""
        last = self._flow.view.producer(group.tail)
        return tensor == group.tail or (
            last is not None and tensor == last.inputs[0] and self._demands.passes(last)
        )

    def _dequantized(self, pair: QdqPair) -> tuple[End, str]:
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
            if self._demands.passes(node):  # a Q comes backward through it
                behind = self._flow.readers(node.outputs[0])
                return End.CANCELLED, next((n.name for n in behind if n.op == "QuantizeLinear"), node.name)
        return End.COPY, name

    def _final_readers(self, pair: QdqPair) -> Iterator[tuple[Node, int]]:
        """Who reads the values of a DQ, moved forward through what only moves values."""
        waiting = list(pair.slots)
        seen: set[str] = set()
        while waiting:
            slot = waiting.pop(0)
            node = self._flow.view.by_name[slot.node]
            output = node.outputs[0] if node.outputs else ""
            if self._flow.origins.get(output) is pair and node.name not in seen:
                seen.add(node.name)
                for use in self._flow.view.uses(output):
                    yield use.node, use.index
            else:
                yield node, slot.index

    def _is_constant_or_int8(self, tensor: str) -> bool:
        return self._flow.view.is_constant(tensor) or tensor in self._flow.origins

    def _takes(self, node: str) -> bool:
        """Whether a node reads its weight in few bits."""
        return node in self._stored or self._precision.get(node, DType.UNKNOWN).is_quantized

    def _is_int8(self, node: str) -> bool:
        return self._precision.get(node) is DType.INT8


def _row(node: str, kind: str, end: End, into: str, steps: list[str], clone_of: str = "") -> LedgerRow:
    told = (*steps, f"{end.value} {into}".strip())
    return LedgerRow(
        node=node,
        kind=kind,
        end=end,
        into=into,
        steps=tuple(LedgerStep(line=0, what=what) for what in told),
        clone_of=clone_of,
    )
