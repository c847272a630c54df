"""Meaning of a Q/DQ model: its float graph, the quantization of each slot, and the nodes that write it.

Patterns are matched on the float graph (`plain`). Which quantized values an input reads, directly or after operators
that only move values, is answered here once for all rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import cached_property

from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import NAMES
from qdqtool.core.tensors import DType
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.kv_caches import detach_caches
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph
from qdqtool.graph.qdq.other_tools import is_spelled_apart, standard
from qdqtool.graph.qdq.unquantize import unquantize
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    KEEPS_AXES,
    PRODUCTS,
    QDQ,
    carried_inputs,
    carried_outputs,
    find_computed_once,
    holds_dequantize_back,
)


class Flow:
    """A Q/DQ model as written, and what it means; all questions together take time linear in the number of nodes.

    Attributes:
        view: the graph with its Q and DQ nodes, in the operators of ONNX; caches that are stored in few bits are float.
        spelled_apart: names of the nodes that were written in TensorRT's own spelling.
        file: the one that the model came from, for commands.
        pairs: Q/DQ nodes, without the nodes in `scales`.
        scales: pairs that only make scales of others, as formats with two levels of scales are written.
    """

    def __init__(self, model: Model) -> None:
        self.file = str(model.path)
        self.spelled_apart = tuple(
            node.name for node in model.view.nodes if is_spelled_apart(node.op, node.domain)
        )
        self._model = model = detach_caches(standard(model))[0]
        self.view = model.view
        pairs = find(model)
        self.scales = tuple(pair for pair in pairs if _makes_scales(model.view, pair))
        self.pairs = tuple(pair for pair in pairs if not _makes_scales(model.view, pair))

    @cached_property
    def lifted(self) -> QuantizedGraph:
        """Float graph without the regular Q/DQ, and the quantization of each slot; nodes keep their names."""
        return lift(self._model)[0]

    @cached_property
    def plain(self) -> GraphView:
        """Float graph alone, with irregular Q/DQ removed as well."""
        model = self.lifted.model
        return unquantize(model, (node.name for node in model.view.nodes)).view

    @cached_property
    def _computed_once(self) -> frozenset[str]:
        return find_computed_once(self.plain)

    def is_fixed(self, node: Node, index: int) -> bool:
        """Return True if input `index` of a node depends on constants only, as weights do."""
        pair, plain = self.origin(node, index), self.plain.by_name.get(node.name, node)
        tensor = plain.inputs[index]
        constant = self.plain.is_constant(tensor) or tensor in self._computed_once
        return pair.kind is SlotKind.WEIGHT if pair is not None and not constant else constant

    @cached_property
    def by_dequantize(self) -> dict[str, QdqPair]:
        """Pairs by the name of their DequantizeLinear."""
        return {pair.dequantize: pair for pair in self.pairs if pair.dequantize is not None}

    @cached_property
    def by_tensor(self) -> dict[str, tuple[QdqPair, ...]]:
        """Pairs by the float tensor they quantize."""
        pairs_of: dict[str, list[QdqPair]] = {}
        for pair in self.pairs:
            if pair.quantize is not None:
                pairs_of.setdefault(pair.tensor, []).append(pair)
        return {tensor: tuple(pairs) for tensor, pairs in pairs_of.items()}

    @cached_property
    def by_dequantized(self) -> dict[str, QdqPair]:
        """Pairs by the result of their DequantizeLinear."""
        return {self.view.by_name[name].outputs[0]: pair for name, pair in self.by_dequantize.items()}

    @cached_property
    def by_slot(self) -> dict[Slot, QdqPair]:
        """Pairs by the slots that read them directly."""
        return {slot: pair for pair in self.pairs if pair.dequantize for slot in pair.slots}

    @cached_property
    def carried(self) -> dict[str, Slot]:
        """Slot whose quantized values each tensor of the float graph holds, for tensors made by nodes that keep values.

        Values go through a Concat or a Where whose branches have equal scales.
        """
        slots: dict[str, Slot] = {}
        for node in self.plain.nodes:
            slot = self._hand_on(node, slots)
            if slot is not None:
                for output in carried_outputs(node):
                    slots[output] = slot
        return slots

    def _hand_on(self, node: Node, carried: dict[str, Slot]) -> Slot | None:
        numbers = carried_inputs(self.plain, node)
        slots = [self._read(node, index, carried) for index in numbers]
        if not slots or slots[0] is None:
            return None
        if len(slots) == 1:
            return slots[0]
        first = self._scales(slots[0])
        is_shared = all(slot is not None and self._scales(slot) == first for slot in slots)
        return slots[0] if is_shared else None

    def _scales(self, slot: Slot) -> object:
        pair = self.by_slot.get(slot)
        return self.lifted.assignment[slot].key if pair is None else pair.scale

    def _read(self, node: Node, index: int, carried: dict[str, Slot]) -> Slot | None:
        slot = Slot(node=node.name, index=index)
        direct = slot in self.by_slot or slot in self.lifted.assignment
        return slot if direct else carried.get(node.inputs[index])

    def quantizers(self, formats: AbstractSet[str]) -> tuple[str, ...]:
        """Return the nodes that begin a pair of one of these formats, in graph order: its Q, or a DQ alone."""
        begins = [
            pair.quantize or pair.dequantize or ""
            for pair in self.pairs
            if NAMES.get(pair.dtype, "") in formats
        ]
        slots = (slot for slot, entry in self.lifted.assignment.items() if entry.format.name in formats)
        alone = (
            self.view.by_name[slot.node].inputs[slot.index] for slot in slots if slot not in self.by_slot
        )
        makers = (self.view.producer(tensor) for tensor in alone)
        return tuple(dict.fromkeys((*begins, *(maker.name for maker in makers if maker is not None))))

    def source(self, node: Node, index: int) -> Slot | None:
        """Return the slot whose quantized values input `index` of a node holds; None for float values."""
        plain = self.plain.by_name.get(node.name)
        if plain is None or index >= len(plain.inputs):  # it leads to no output
            slot = Slot(node=node.name, index=index)
            return slot if slot in self.by_slot else None
        return self._read(plain, index, self.carried)

    def origin(self, node: Node, index: int) -> QdqPair | None:
        """Return the pair whose values input `index` of `node` holds; None if there is none."""
        slot = self.source(node, index)
        return None if slot is None else self.by_slot.get(slot)

    def moves(self, node: Node, index: int) -> tuple[Node, ...]:
        """Return the nodes between input `index` of `node` and the slot whose values it holds, nearest first."""
        slot = self.source(node, index)
        movers: list[Node] = []
        if slot is None or slot == Slot(node=node.name, index=index):
            return ()
        tensor = self.plain.by_name[node.name].inputs[index]
        while (mover := self.plain.producer(tensor)) is not None:
            movers.append(mover)
            if mover.name == slot.node:
                break
            tensor = mover.inputs[carried_inputs(self.plain, mover)[0]]
        return tuple(movers)

    def quantization(self, node: Node, index: int) -> Quantization | None:
        """Return the quantization of the values that input `index` of `node` holds; None for float and irregular Q/DQ."""
        slot = self.source(node, index)
        return None if slot is None else self.lifted.assignment.get(slot)

    @cached_property
    def origins(self) -> dict[str, QdqPair]:
        """Pair whose values each tensor of either graph holds."""
        moved = {tensor: self.by_slot.get(slot) for tensor, slot in self.carried.items()}
        return {tensor: pair for tensor, pair in moved.items() if pair is not None} | self.by_dequantized

    @cached_property
    def readers_of(self) -> dict[str, tuple[Slot, ...]]:
        """Inputs of compute nodes that hold the values of each pair, by the name of the pair's DequantizeLinear."""
        readers: dict[str, list[Slot]] = {}
        for node in self.products():
            for index in (0, 1):
                pair = self.origin(node, index)
                if pair is not None and pair.dequantize is not None:
                    readers.setdefault(pair.dequantize, []).append(Slot(node=node.name, index=index))
        return {name: tuple(slots) for name, slots in readers.items()}

    def products_of(self, pair: QdqPair) -> tuple[str, ...]:
        """Return the names of the compute nodes that multiply the values of a pair."""
        return tuple(dict.fromkeys(slot.node for slot in self.readers_of.get(pair.dequantize or "", ())))

    @cached_property
    def held_back(self) -> frozenset[str]:
        """Tensors with the values of a pair whose DequantizeLinear TensorRT for RTX does not move past the nodes in between."""
        held: set[str] = set()
        for node in self.plain.nodes:
            moved = bool(node.outputs) and node.outputs[0] in self.carried
            if moved and (holds_dequantize_back(self.plain, node) or self._is_behind(node, held)):
                held.update(carried_outputs(node))
        return frozenset(held)

    def _is_behind(self, node: Node, held: set[str]) -> bool:
        direct = Slot(node=node.name, index=0) in self.by_slot
        return not direct and not held.isdisjoint(node.inputs)

    def is_held_back(self, node: Node, index: int) -> bool:
        """Return True if a node on the way prevents input `index` from being read in quantized form."""
        slot, plain = Slot(node=node.name, index=index), self.plain.by_name.get(node.name)
        return slot not in self.by_slot and plain is not None and plain.inputs[index] in self.held_back

    @cached_property
    def _moved_axes(self) -> dict[str, int | None]:
        """Channel axis of scales by tensor, followed through Transposes; None after nodes that reshape."""
        axes: dict[str, int | None] = {}
        for node in self.plain.nodes:
            if not node.outputs or node.outputs[0] not in self.carried:
                continue
            first = carried_inputs(self.plain, node)[0]
            slot = self._read(node, first, self.carried)
            direct = slot is not None and slot.node == node.name
            axis = self._written_axis(slot) if direct and slot is not None else axes.get(node.inputs[first])
            axes[node.outputs[0]] = _move_axis(self.plain, node, axis)
        return axes

    def _written_axis(self, slot: Slot) -> int | None:
        quantization = self.lifted.assignment.get(slot)
        return self.by_slot[slot].axis if quantization is None else quantization.axis

    def channel_axis(self, node: Node, index: int) -> int | None:
        """Return the axis of input `index` along which its scales differ.

        None for a single scale, and after nodes that reshape.
        """
        slot = self.source(node, index)
        if slot is None or slot == Slot(node=node.name, index=index):
            return None if slot is None else self._written_axis(slot)
        return self._moved_axes.get(self.plain.by_name[node.name].inputs[index])

    def products(self) -> Iterator[Node]:
        """Yield the nodes that multiply their first two inputs."""
        for node in self.view.nodes:
            if node.op in PRODUCTS and len(node.inputs) >= 2:
                yield node

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """Return the consumers of `tensor`, each once."""
        return tuple({use.node.name: use.node for use in self.view.uses(tensor)}.values())


def _move_axis(view: GraphView, node: Node, axis: int | None) -> int | None:
    if node.op == "Transpose":
        rank = len(view.info(node.inputs[0]).shape or ())
        order = node.attribute("perm", tuple(reversed(range(rank))))
        return order.index(axis) if axis in order else None
    return axis if node.op in KEEPS_AXES else None


def _makes_scales(view: GraphView, pair: QdqPair) -> bool:
    """Return True if a pair only makes scales of another pair."""
    last = view.by_name[pair.dequantize or pair.quantize or ""]
    uses = view.uses(last.outputs[0])
    return bool(uses) and all(use.node.op in QDQ and use.index == 1 for use in uses)


def is_int8(pair: QdqPair | None) -> bool:
    """Return True if a pair makes INT8 values (UINT8 with zero point 0 is read as INT8)."""
    return pair is not None and pair.dtype in {DType.INT8, DType.UINT8}
