"""Compute nodes and the two operands that they multiply: the requested format, and what prevents it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from qdqtool.core.advice import setting
from qdqtool.core.claims import Claim
from qdqtool.core.placement import (
    JointSlots,
    QdqPair,
    QuantSpec,
    RequestOrVeto,
    Slot,
    SlotKind,
    SlotStatement,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import (
    FLOAT,
    FORMATS,
    FP8,
    INT4,
    INT8,
    NAMES,
    QUANTIZED_FROM,
    DType,
    describe_request,
)
from qdqtool.graph.beside_attention import is_split
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.lower import Quantization
from qdqtool.graph.row_sums import RowSums
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    FUSES_BEHIND_PRODUCT,
    PRODUCTS,
    carried_outputs,
    quantization_commutes,
    weight_axis,
)

# --- asked -----------------------------------------------------------------------------------------------------------
# The number format that the Q/DQ nodes before a node request.


def format_of(pair: QdqPair | None, quantization: Quantization | None) -> str:
    """Return the format of a Q/DQ pair's values; for an irregular pair, the name of its type."""
    if quantization is not None:
        return quantization.format.name
    if pair is None:
        return FLOAT
    # UINT8 with zero point 0 is read as INT8, and otherwise refused.
    return NAMES.get(DType.INT8 if pair.dtype is DType.UINT8 else pair.dtype, str(pair.dtype))


def find_asked_format(flow: Flow, node: Node, inputs: Iterable[int]) -> str:
    """Return the format that the Q/DQ nodes before these operands request."""
    requests: dict[bool, set[str]] = {True: set(), False: set()}
    for index in inputs:
        requests[flow.is_fixed(node, index)].add(
            format_of(flow.origin(node, index), flow.quantization(node, index))
        )
    return describe_request(requests[True], requests[False])


def arithmetic_word(request: str) -> str:
    """Return the name of the arithmetic for a requested format, for use in a sentence."""
    name = request.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    # INT4 is only a format of weights; UINT8 and wider integers are read as INT8 if they are read at all.
    return name.upper() if name in FORMATS and name != INT4.name else "INT8"


# --- operands --------------------------------------------------------------------------------------------------------


class State(str, Enum):
    """The state of an operand: ready for low-bit arithmetic, or the obstacle."""

    READY = "ready"
    BARE = "bare"
    COMPUTED = "computed scale"
    PER_CHANNEL = "per-channel activation"
    RANK_ONE = "activation scale of rank 1"
    HELD_BACK = "after a Resize or Pad"
    BLOCKS = "block scales"
    WRONG_AXIS = "wrong channel axis"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOperand:
    """An operand of a compute node: its input number, its Q/DQ, and what prevents low-bit arithmetic.

    Attributes:
        index: 0 or 1, and 2 for the values of an attention and the second weight of a recurrence.
        pair: the Q/DQ nodes of ONNX before it; None if there are none, and for MXFP8.
        quantization: the quantization that the pair writes; None for float inputs and irregular pairs.
        format: name of the number format; "float" without Q/DQ.
        fixed: whether it is a constant, as weights are.
        state: whether arithmetic can use it.
    """

    index: int
    pair: QdqPair | None
    quantization: Quantization | None
    format: str
    fixed: bool
    state: State

    @property
    def quantized(self) -> bool:
        """True if the Q/DQ before the operand requests a low-bit format."""
        return self.format != FLOAT


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A compute node with its two operands, as written in the Q/DQ graph."""

    node: Node
    operands: tuple[NodeOperand, NodeOperand]

    @property
    def request(self) -> str:
        """The format that the Q/DQ of the node requests, in the words of an audit: "fp8", "int4-weights", "float"."""
        weights = {operand.format for operand in self.operands if operand.fixed}
        return describe_request(weights, {operand.format for operand in self.operands if not operand.fixed})

    @property
    def arithmetic(self) -> str:
        """The common format of both operands; "" if the formats differ or one operand is float."""
        first, second = (operand.format for operand in self.operands)
        return first if first == second != FLOAT else ""

    @property
    def mixed(self) -> bool:
        """True if the Q/DQ of the two operands requests two different low-bit formats."""
        return all(operand.quantized for operand in self.operands) and not self.arithmetic

    @property
    def weights_alone(self) -> NodeOperand | None:
        """The quantized constant operand if the other operand is float, else None."""
        first, second = self.operands
        for stored, partner in ((first, second), (second, first)):
            if stored.quantized and stored.fixed and not partner.quantized:
                return stored
        return None


def products(flow: Flow, target: Target) -> Iterator[Product]:
    """Yield all compute nodes with their operands, in graph order, as a builder reads them."""
    return (product_of(flow, node, target) for node in flow.products())


def product_of(flow: Flow, node: Node, target: Target) -> Product:
    """Return a compute node and its first two inputs as operands, as a builder reads them."""
    first, second = (read_operand(flow, node, index, target) for index in (0, 1))
    return Product(node=node, operands=(first, second))


def read_operand(flow: Flow, node: Node, index: int, target: Target) -> NodeOperand:
    """Return input `index` of a compute node as an operand, as a builder reads it."""
    pair, quantization = flow.origin(node, index), flow.quantization(node, index)
    return NodeOperand(
        index=index,
        pair=pair,
        quantization=quantization,
        format=format_of(pair, quantization),
        fixed=flow.is_fixed(node, index),
        state=_state(flow, node, index, target),
    )


def _state(flow: Flow, node: Node, index: int, target: Target) -> State:
    pair, quantization = flow.origin(node, index), flow.quantization(node, index)
    if pair is None:
        return State.BARE if quantization is None else State.READY
    shape = pair.scale_shape
    if shape is None:
        # FP4 has two levels of scales: the first is dequantized with the second.
        return State.READY if pair.dtype is DType.FLOAT4 else State.COMPUTED
    if len(shape) > 1:
        return State.BLOCKS if format_of(pair, quantization) in {INT8.name, FP8.name} else State.READY
    if pair.kind is SlotKind.ACTIVATION:
        return _activation(flow, node, index, target, shape)
    axis = flow.channel_axis(node, index)
    rank = len(flow.view.info(node.inputs[index]).shape or ())
    if shape in {(), (1,)} or node.op == "ConvTranspose" or axis is None or not rank:
        return State.READY
    return State.READY if axis == weight_axis(node, index, rank) else State.WRONG_AXIS


def _activation(flow: Flow, node: Node, index: int, target: Target, shape: tuple[int, ...]) -> State:
    if target.is_rtx and flow.is_held_back(node, index):
        return State.HELD_BACK
    if shape == ():
        return State.READY
    if shape == (1,):
        return State.RANK_ONE if target.is_rtx and node.op.startswith("Conv") else State.READY
    return State.PER_CHANNEL


# --- constant blocks -------------------------------------------------------------------------------------------------
# FP4 quantizations with constant block scales that would share a kernel with a sum over rows.


def in_sums(flow: Flow) -> Iterator[tuple[QdqPair, str]]:
    """Yield each FP4 Q/DQ pair with constant block scales whose kernel has a row sum, and the sum's name."""
    sums = RowSums(flow.view)
    constant = {pair.dequantize for pair in flow.scales if pair.kind is SlotKind.WEIGHT}
    for pair in flow.pairs:
        if pair.quantize is None or pair.dtype is not DType.FLOAT4 or pair.kind is SlotKind.WEIGHT:
            continue
        scale = flow.view.producer(flow.view.by_name[pair.quantize].inputs[1])
        total = None if scale is None or scale.name not in constant else sums.in_front(pair.tensor)
        if total is not None:
            yield pair, total.name


# --- products ---------------------------------------------------------------------------------------------------------
# Compute nodes: nodes that multiply by weights and are worth computing in INT8.


def is_fused(view: GraphView, reader: Node) -> bool:
    """Return whether the consumer of a compute node runs in the same kernel: an activation, or the Add of a constant bias."""
    bias = reader.op == "Add" and any(view.is_constant(tensor) for tensor in reader.inputs)
    return reader.op in FUSES_BEHIND_PRODUCT or bias


def compute_nodes(view: GraphView, *ops: str) -> Iterator[Node]:
    """Yield the nodes that multiply their first two inputs; with `ops`, only nodes of these operators."""
    types = frozenset(ops) or PRODUCTS
    for node in view.nodes:
        if node.op in types and node.domain in {"", "ai.onnx"} and len(node.inputs) >= 2:
            yield node


def operand_slots(node: Node) -> tuple[Slot, Slot]:
    """Return the two inputs that a compute node multiplies."""
    return Slot(node=node.name, index=0), Slot(node=node.name, index=1)


def veto(node: Node, reason: str, fix: str, claim: Claim | None = None) -> Iterator[SlotStatement]:
    """Yield vetoes on both operands of `node`; `claim` is what a build can contradict in `reason`."""
    for slot in operand_slots(node):
        yield SlotStatement(slot=slot, stance=RequestOrVeto.VETO, reason=reason, fix=fix, claim=claim)


def both_or_neither(
    node: Node, specs: Mapping[str, QuantSpec], *, reason: str, alone: str
) -> Iterator[SlotStatement | JointSlots]:
    """Yield a request to quantize both operands of `node` together, never only one of them.

    `specs` gives the form of constants by tensor name; others get one scale.

    `reason` states what both operands give in low-bit form, `alone` what a single one gives.
    """
    for slot in operand_slots(node):
        yield SlotStatement(
            slot=slot,
            stance=RequestOrVeto.REQUEST,
            reason=reason,
            spec=specs.get(node.inputs[slot.index], QuantSpec()),
        )
    yield JointSlots(slots=operand_slots(node), reason=alone)


def skipping(rule: str, options: PlacementOptions) -> str:
    """Return the setting that skips `rule`, and also the rules that the recipe skips already."""
    return setting("place.skip_rules", (*options.skip_rules, rule))


def weight_specs(view: GraphView, options: PlacementOptions) -> dict[str, QuantSpec]:
    """Return how each constant operand is quantized, by tensor name: INT8 per output channel if possible.

    One scale is used for the whole tensor if the recipe requests it, if the constant is a vector, or if two nodes
    with output channels on different axes read the weight. TensorRT for RTX cuts some weights into three parts
    (queries, keys, values), and it cuts only floats. Such a weight gets a Q, or a single scale if only weights are
    quantized.
    """
    axes: dict[str, set[int | None]] = defaultdict(set)
    split: set[str] = set()
    for node in compute_nodes(view):
        for slot in operand_slots(node):
            tensor = node.inputs[slot.index]
            if view.is_constant(tensor):
                axes[tensor].add(
                    weight_axis(node, slot.index, len(view.constant_shape(tensor) or ()), options.builder)
                    if options.per_channel
                    else None
                )
                if options.builder.is_rtx and is_split(view, node):
                    split.add(tensor)
    specs = {
        tensor: QuantSpec(axis=choices.pop() if len(choices) == 1 else None)
        for tensor, choices in axes.items()
    }
    for tensor in split:
        if options.activations == "float":
            specs[tensor] = QuantSpec()
        elif specs[tensor].axis is not None:
            specs[tensor] = replace(specs[tensor], stored=False)
    return specs


OTHER_TYPE = "nothing to do by a command; in the model: export this part in FP32 or FP16"


def of_other_types(view: GraphView, node: Node) -> Iterator[str]:
    """Yield why a compute node stays float in every format: an operand has a type that cannot be quantized."""
    for tensor in node.inputs[:2]:
        dtype = view.info(tensor).dtype
        if dtype not in QUANTIZED_FROM:
            yield f"the input {tensor} is {dtype}, and only FP32 and FP16 values are quantized"


# --- demand ----------------------------------------------------------------------------------------------------------
# Slots that lead to a layer that requests INT8, found from the graph alone.


def wanted_slots(view: GraphView) -> frozenset[Slot]:
    """Return the inputs of compute nodes, and the inputs of commuting nodes and Concats before them."""
    slots: set[Slot] = set()
    for node in reversed(view.nodes):
        if node.op in PRODUCTS:
            slots.update(Slot(node=node.name, index=index) for index in (0, 1))
        elif any(_leads_on(view, output, slots) for output in _find_carried(view, node)):
            count = len(node.inputs) if node.op == "Concat" else 1
            slots.update(Slot(node=node.name, index=index) for index in range(count))
    return frozenset(slots)


def _find_carried(view: GraphView, node: Node) -> tuple[str, ...]:
    if node.op == "Concat":
        return node.outputs
    return carried_outputs(node) if quantization_commutes(view, node) else ()


def _leads_on(view: GraphView, tensor: str, slots: set[Slot]) -> bool:
    return any(Slot(node=use.node.name, index=use.index) in slots for use in view.uses(tensor))


# --- small -----------------------------------------------------------------------------------------------------------
# Convolutions so small that TensorRT for RTX fuses them with their neighbours; used by rules and prediction.


MOST_FOLDED = 4
"""Most channels of a convolution that TensorRT for RTX fuses with its neighbours; see `is_folded`."""


def setting_for(view: GraphView, node: Node, skipped: str) -> str:
    """Return the setting that quantizes a small compute node, or "nothing to do" if the node has no separate kernel.

    A dynamic batch counts as one sample here.
    """
    if node.op == "Conv" and _channels(view, node) <= MOST_FOLDED:
        return f"nothing to do: with {MOST_FOLDED} channels or fewer the convolution is computed together with its neighbours"
    return skipped


def is_folded(view: GraphView, node: Node) -> bool:
    """Return True if a Conv has one position and few channels: TensorRT for RTX then fuses it with its neighbours.

    The result is one generated kernel in float, even if the inputs are quantized. Source: builds with RTX 1.7.1
    (SM86, 89 and 120; 1 to 8 channels; 16, 32 and 96 outputs). This happens up to 4 channels, and only for one
    sample; for two or more samples, the Conv is a separate INT8 kernel. A dynamic batch counts as 1, for which engines
    are built unless a range is given; see `has_free_batch`.
    """
    if node.op != "Conv" or _channels(view, node) > MOST_FOLDED:
        return False
    shape = view.info(node.inputs[0]).shape or ()
    return (
        len(shape) > 1 and (shape[0] == 1 or isinstance(shape[0], str)) and all(dim == 1 for dim in shape[2:])
    )


def has_free_batch(view: GraphView, node: Node) -> bool:
    """Return whether the first dimension of the node's input is free.

    For an engine with more than one sample, a Conv that `is_folded` is a separate INT8 kernel. Source: 24 builds with
    RTX 1.7.1 (SM86, 89) of 1, 4 and 5 channels for 1 to 64 samples. It was separate whenever the range allowed two
    samples, and otherwise from 5 channels on.
    """
    shape = view.info(node.inputs[0]).shape or ()
    return bool(shape) and isinstance(shape[0], str)


def _channels(view: GraphView, node: Node) -> float:
    shape = view.info(node.inputs[1]).shape or ()
    return shape[1] if len(shape) > 1 and isinstance(shape[1], int) else inf
