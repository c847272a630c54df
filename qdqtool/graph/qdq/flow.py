"""Interprets a Q/DQ model: its float graph, and the quantization of each node input. Also opens it for fixes.

Patterns are matched on the float graph (`plain`). Which quantized values an input reads, directly or after operators
that only move values, is answered here once for all rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import NAMES, DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.integer_form import attribute
from qdqtool.graph.provenance import provenance
from qdqtool.graph.qdq.encode import storable
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.kv_caches import detach_caches
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph
from qdqtool.graph.qdq.other_tools import is_spelled_apart, standard
from qdqtool.graph.qdq.unquantize import typed_source, unquantize
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import (
    KEEPS_AXES,
    PRODUCTS,
    QDQ,
    STANDARD_DOMAINS,
    WRITES,
    carried_inputs,
    carried_outputs,
    find_computed_once,
    holds_dequantize_back,
)

# --- meaning ---------------------------------------------------------------------------------------------------------


class Flow:
    """A Q/DQ model, and its interpretation: which values each node input reads in which format.

    Attributes:
        view: the graph with its Q and DQ nodes, in the operators of ONNX; caches that are stored in few bits are float.
        spelled_apart: names of the nodes that were written in TensorRT's own spelling.
        file: the one that the model came from, for commands.
        chosen: whether a recipe of qdqtool chose the float nodes and their type.
        pairs: Q/DQ nodes, without the nodes in `scales`.
        scales: pairs that only make scales of others, as formats with two levels of scales are written.
    """

    def __init__(self, model: Model) -> None:
        self.file = str(model.path)
        self.chosen = provenance(model) is not None
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
        """The float graph without Q/DQ that has a standard form, and the quantization of each node input."""
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
        """Return True if input `index` of a node depends only on constants, as a weight does."""
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
        """Pairs by the float tensor that they quantize."""
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
        """Pairs by the node inputs that read them directly."""
        return {slot: pair for pair in self.pairs if pair.dequantize for slot in pair.slots}

    @cached_property
    def carried(self) -> dict[str, Slot]:
        """The node input whose quantized values a tensor holds, by tensor; nodes between only move values.

        Values go through a Concat or a Where whose branches have equal scales. Weights stay weights if a node writes
        other values into them.
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
        writes = WRITES.get(node.op, ()) if node.domain in STANDARD_DOMAINS else ()
        slots = [self._read(node, index, carried) for index in numbers or writes]
        read = [slot for slot in slots if slot is not None]
        if numbers and len(read) == len(slots) and len(set(map(self._scales, read))) == 1:
            return read[0]
        return next(filter(self._is_weight, read), None) if writes else None

    def _carried_input(self, node: Node) -> int:
        """Return the number of the input whose quantized values a node passes to its outputs."""
        slot = self.carried[carried_outputs(node)[0]]
        numbers = carried_inputs(self.plain, node) or WRITES[node.op]
        return next(number for number in numbers if self._read(node, number, self.carried) == slot)

    def _is_weight(self, slot: Slot) -> bool:
        pair = self.by_slot.get(slot)
        return pair is not None and pair.kind is SlotKind.WEIGHT

    def _scales(self, slot: Slot) -> object:
        pair = self.by_slot.get(slot)
        return self.lifted.assignment[slot].key if pair is None else pair.scale

    def _read(self, node: Node, index: int, carried: dict[str, Slot]) -> Slot | None:
        slot = Slot(node=node.name, index=index)
        direct = slot in self.by_slot or slot in self.lifted.assignment
        return slot if direct else carried.get(node.inputs[index])

    def quantizers(self, formats: AbstractSet[str]) -> tuple[str, ...]:
        """Return the nodes that begin a Q/DQ pair of one of these formats, in graph order: its Q, or a DQ alone."""
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
        """Return the node input whose quantized values input `index` of a node holds; None for float values."""
        plain = self.plain.by_name.get(node.name)
        if plain is None or index >= len(plain.inputs):  # it leads to no output
            slot = Slot(node=node.name, index=index)
            return slot if slot in self.by_slot else None
        return self._read(plain, index, self.carried)

    def origin(self, node: Node, index: int) -> QdqPair | None:
        """Return the Q/DQ pair whose values input `index` of `node` holds; None if there is none."""
        slot = self.source(node, index)
        return None if slot is None else self.by_slot.get(slot)

    def moves(self, node: Node, index: int) -> tuple[Node, ...]:
        """Return the nodes that move values between input `index` of `node` and the pair's consumer, the nearest node first."""
        slot = self.source(node, index)
        movers: list[Node] = []
        if slot is None or slot == Slot(node=node.name, index=index):
            return ()
        tensor = self.plain.by_name[node.name].inputs[index]
        while (mover := self.plain.producer(tensor)) is not None:
            movers.append(mover)
            if mover.name == slot.node:
                break
            tensor = mover.inputs[self._carried_input(mover)]
        return tuple(movers)

    def quantization(self, node: Node, index: int) -> Quantization | None:
        """Return the quantization of the values that input `index` of `node` holds; None for float and irregular Q/DQ."""
        slot = self.source(node, index)
        return None if slot is None else self.lifted.assignment.get(slot)

    @cached_property
    def origins(self) -> dict[str, QdqPair]:
        """For each tensor of the Q/DQ graph and of the float graph: the Q/DQ pair that quantized the values of the tensor."""
        moved = {tensor: self.by_slot.get(slot) for tensor, slot in self.carried.items()}
        return {tensor: pair for tensor, pair in moved.items() if pair is not None} | self.by_dequantized

    @cached_property
    def readers_of(self) -> dict[str, tuple[Slot, ...]]:
        """Inputs of compute nodes that read a DequantizeLinear's values, directly or moved, by its name."""
        readers: dict[str, list[Slot]] = {}
        for node in self.products():
            for index in (0, 1):
                pair = self.origin(node, index)
                if pair is not None and pair.dequantize is not None:
                    readers.setdefault(pair.dequantize, []).append(Slot(node=node.name, index=index))
        return {name: tuple(slots) for name, slots in readers.items()}

    def products_of(self, pair: QdqPair) -> tuple[str, ...]:
        """Return the names of the compute nodes that multiply the values of a Q/DQ pair."""
        return tuple(dict.fromkeys(slot.node for slot in self.readers_of.get(pair.dequantize or "", ())))

    @cached_property
    def held_back(self) -> frozenset[str]:
        """Tensors that hold the values of a Q/DQ pair after nodes past which TensorRT for RTX does not move the DequantizeLinear."""
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
        """Return True if a node between the Q/DQ pair and input `index` prevents a quantized read of this input."""
        slot, plain = Slot(node=node.name, index=index), self.plain.by_name.get(node.name)
        return slot not in self.by_slot and plain is not None and plain.inputs[index] in self.held_back

    @cached_property
    def _moved_axes(self) -> dict[str, int | None]:
        """Channel axis of scales for each tensor, through Transposes; None after nodes that reshape."""
        axes: dict[str, int | None] = {}
        for node in self.plain.nodes:
            if not node.outputs or node.outputs[0] not in self.carried:
                continue
            first = self._carried_input(node)
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
    """Return True if the result of a Q/DQ pair is only used as a scale of other Q/DQ nodes."""
    last = view.by_name[pair.dequantize or pair.quantize or ""]
    uses = view.uses(last.outputs[0])
    return bool(uses) and all(use.node.op in QDQ and use.index == 1 for use in uses)


def is_int8(pair: QdqPair | None) -> bool:
    """Return True if a Q/DQ pair makes INT8 or UINT8 values, whatever its zero point."""
    return pair is not None and pair.dtype in {DType.INT8, DType.UINT8}


# --- repairs ---------------------------------------------------------------------------------------------------------


STORED_INTEGERS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of integers that a pair may store and a fix may store again."""
_INTEGERS = frozenset(np.dtype(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32))


class RepairContext:
    """A Q/DQ model that fixes change.

    Attributes:
        target: the builder whose abilities count; None for all of them.
        model: the model before any change.
        edit: the changes.
        path: the file it came from, for messages.
        view: the model before them.
        pairs: its Q/DQ pairs of 8, 16 or 32 bit integers; block scales, INT4 and FP8 are not our business.
        nodes: the private copies of its nodes, by name.
    """

    def __init__(self, model: Model, target: Target | None = None) -> None:
        self.target = target
        self._open(model)

    def _open(self, model: Model) -> None:
        self.model = model
        self.edit = Edit(model)
        self.path = model.path
        self.view: GraphView = model.view
        self.nodes = {node.name: node for node in self.edit.nodes}
        self.pairs = tuple(pair for pair in find(model) if self.is_plain(pair))
        self._pinned = self.edit.pinned
        self._flow: Flow | None = None

    @property
    def flow(self) -> Flow:
        """The interpretation of the model before any change; made on first use."""
        if self._flow is None:
            self._flow = Flow(self.model)
        return self._flow

    def is_plain(self, pair: QdqPair) -> bool:
        """Return True if a Q/DQ pair is one of `pairs`: integers of 8, 16 or 32 bits, without blocks."""
        # A Q without a zero point does not state its type; without this line, FP8 scales of FP4 blocks would count as
        # UINT8.
        narrow = pair.dtype.bits is not None and pair.dtype not in STORED_INTEGERS
        return not narrow and self.integers(pair) in _INTEGERS and len(pair.scale_shape or ()) <= 1

    def finish(self) -> Model:
        """Return the changed model, without nodes and constants that no output needs."""
        self.edit.prune()
        return self.edit.finish(retyped=True)

    def require_opset(self, version: int) -> str | None:
        """Reopen the model in this opset, before any other change. Return a note, or None if the opset is high enough."""
        if self.edit.opset >= version:
            return None
        proto, note = raise_opset(self.model.proto, version, self.path)
        self._open(Model(proto=proto, path=self.path, notes=self.model.notes))
        return note

    @property
    def pinned(self) -> frozenset[str]:
        """Tensors that keep their names: model outputs, and tensors that bodies of control flow read."""
        return self._pinned

    def result(self, pair: QdqPair) -> str:
        """Return the output tensor of a Q/DQ pair."""
        return self.view.by_name[pair.dequantize or pair.quantize or ""].outputs[0]

    def consumer(self, pair: QdqPair) -> Node | None:
        """Return the only consumer of a Q/DQ pair; None if there are more, or if the result is a model output."""
        if len(pair.slots) != 1 or self.result(pair) in self.pinned:
            return None
        return self.view.by_name[pair.slots[0].node]

    def maker(self, tensor: str) -> str:
        """Return the operator type of the node that makes a tensor; "" for inputs and constants."""
        node = self.view.producer(tensor)
        return "" if node is None else node.op

    def redirect(self, old: str, new: str) -> None:
        """Connect every consumer of `old` to `new`."""
        self.edit.redirect(old, new)

    def restate(self, pair: QdqPair, scale: NDArray[Any]) -> None:
        """Give both nodes of a Q/DQ pair this scale and an INT8 zero point of 0."""
        nodes = [self.nodes[name] for name in (pair.quantize, pair.dequantize) if name]
        self.restate_nodes(nodes, pair.tensor, scale)

    def restate_nodes(self, nodes: Iterable[onnx.NodeProto], stem: str, scale: NDArray[Any]) -> None:
        """Give Q and DQ nodes this scale and an INT8 zero point of 0; the names of the constants begin with `stem`."""
        scale = np.asarray(scale)
        for node in nodes:
            kind = self.scale_type(node)
            exact = storable(scale, kind)
            stored = self.edit.constant(f"{stem}_scale", exact.astype(kind))
            zero = self.edit.constant(f"{stem}_zero_point", np.zeros(scale.shape, np.int8))
            del node.input[1:]
            node.input.extend([stored, zero])
            set_axis(node, None, drop=("output_dtype",))

    def integers(self, pair: QdqPair) -> np.dtype[Any]:
        """Return the NumPy type of a Q/DQ pair's integers: of the zero point, else the stated one, else uint8."""
        node = self.nodes[pair.quantize or pair.dequantize or ""]
        stored = self.edit.constants.get(node.input[2]) if len(node.input) > 2 else None
        if stored is None and pair.quantize is None:
            stored = self.edit.constants.get(pair.tensor)
            types = {DType.INT8: np.int8, DType.UINT8: np.uint8, DType.INT32: np.int32}
            return np.dtype(types.get(pair.dtype, np.uint8)) if stored is None else _numpy_type(stored)
        element = attribute(node, "output_dtype", 0) or onnx.TensorProto.UINT8
        return onnx.helper.tensor_dtype_to_np_dtype(element) if stored is None else _numpy_type(stored)

    def span(self, pair: QdqPair) -> tuple[float, float]:
        """Return the smallest and largest real value that a Q/DQ pair can represent, over all channels."""
        limits = np.iinfo(self.integers(pair))
        scale, zero = np.asarray(pair.scale, np.float64), np.asarray(pair.zero_point, np.float64)
        ends = np.stack([(limits.min - zero) * scale, (limits.max - zero) * scale])
        return float(ends.min()), float(ends.max())

    def stored_type(self, tensor: str) -> np.dtype[Any] | None:
        """Return the NumPy type of a constant; None for other tensors."""
        stored = self.edit.constants.get(tensor)
        return None if stored is None else _numpy_type(stored)

    def is_known(self, pair: QdqPair) -> bool:
        """Return True if scale and zero point of a Q/DQ pair are constants."""
        return bool(pair.scale) and bool(pair.zero_point)

    def symmetric(self, pair: QdqPair) -> bool:
        """Return True if a Q/DQ pair is INT8 with zero point 0, as TensorRT requires."""
        return self.integers(pair) == np.int8 and bool(pair.zero_point) and not any(pair.zero_point)

    def scale_type(self, node: onnx.NodeProto) -> Any:
        """Return the NumPy type of a Q or DQ node's scale: float16 or bfloat16 if it is that now, otherwise float32."""
        stored = self.stored_type(node.input[1])
        return stored.type if stored is not None and stored.name in {"float16", "bfloat16"} else np.float32

    def dissolve(self, pair: QdqPair) -> None:
        """Remove a Q/DQ pair with a QuantizeLinear; its consumers then read the input of the QuantizeLinear."""
        quantize = self.nodes[pair.quantize or ""]
        dequantize = self.nodes[pair.dequantize] if pair.dequantize else quantize
        self.redirect(self.result(pair), typed_source(self.edit, quantize, dequantize))
        self.edit.remove([self.nodes[name] for name in (pair.quantize, pair.dequantize) if name])

    def removed(self, pair: QdqPair, reason: str) -> Iterator[Change]:
        """Remove an activation's Q/DQ pair and yield the change.

        Yield nothing if a node of the pair is missing, or if the result of the pair must keep its name.
        """
        if is_whole(pair) and pair.kind is SlotKind.ACTIVATION and self.result(pair) not in self.pinned:
            self.dissolve(pair)
            yield Change(subject=pair.quantize or "", what="removed: the tensor stays float", reason=reason)


def is_whole(pair: QdqPair) -> bool:
    """Return True if a Q/DQ pair has both nodes."""
    return pair.quantize is not None and pair.dequantize is not None


def set_axis(node: onnx.NodeProto, axis: int | None, *, drop: Sequence[str] = ()) -> None:
    """Set or remove the axis of a Q or DQ node; also remove the attributes in `drop`."""
    kept = [attribute for attribute in node.attribute if attribute.name not in {"axis", *drop}]
    del node.attribute[:]
    node.attribute.extend(kept)
    if axis is not None:
        node.attribute.append(onnx.helper.make_attribute("axis", axis))


def cast_to(kind: np.dtype[Any] | type[np.generic]) -> int:
    """Return ONNX's type number of a NumPy type, as Cast takes it."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


def _numpy_type(tensor: onnx.TensorProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
