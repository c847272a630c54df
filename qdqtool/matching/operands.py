"""The factors of compute nodes: the format that is asked for, and what prevents arithmetic in that format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FLOAT, FORMATS, FP8, INT4, INT8, NAMES, asked_as
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.quantized import Quantization
from qdqtool.graph.row_sums import RowSums
from qdqtool.graph.view import Node
from qdqtool.trt.ops import weight_axis

# --- asked -----------------------------------------------------------------------------------------------------------
# The number format that the Q/DQ nodes before a node ask for.


def format_of(pair: QdqPair | None, quantization: Quantization | None) -> str:
    """Return the format of the values of a pair; an irregular pair is named after its type."""
    if quantization is not None:
        return quantization.format.name
    if pair is None:
        return FLOAT
    # UINT8 is read as INT8 where its zero point is 0, and refused otherwise.
    return NAMES.get(DType.INT8 if pair.dtype is DType.UINT8 else pair.dtype, str(pair.dtype))


def asked_of(flow: Flow, node: Node, inputs: Iterable[int]) -> str:
    """Return the format that the Q/DQ nodes before these inputs ask for."""
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for index in inputs:
        asked[flow.is_fixed(node, index)].add(
            format_of(flow.origin(node, index), flow.quantization(node, index))
        )
    return asked_as(asked[True], asked[False])


def arithmetic_word(asked: str) -> str:
    """Return the name of the arithmetic in a requested format, for use in a sentence."""
    name = asked.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    # INT4 is a format of weights alone; UINT8 and wider integers are read as INT8 where they are read at all.
    return name.upper() if name in FORMATS and name != INT4.name else "INT8"


# --- operands --------------------------------------------------------------------------------------------------------


class State(str, Enum):
    """The state of a factor: ready for low-bit arithmetic, or the obstacle."""

    READY = "ready"
    BARE = "bare"
    COMPUTED = "computed scale"
    PER_CHANNEL = "per-channel activation"
    RANK_ONE = "activation scale of rank 1"
    HELD_BACK = "after a Resize or Pad"
    BLOCKS = "block scales"
    WRONG_AXIS = "wrong channel axis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Input `index` of a compute node.

    Attributes:
        index: 0 or 1, and 2 for the values of an attention and the second weight of a recurrence.
        pair: the Q/DQ nodes of ONNX that its values come from; None without, and for MXFP8.
        quantization: what these mean; None in float and for irregular pairs.
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
        """True if a low-bit format is asked for."""
        return self.format != FLOAT


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A compute node with its two factors, as written in the Q/DQ graph."""

    node: Node
    factors: tuple[Factor, Factor]

    @property
    def asked(self) -> str:
        """The format that its Q/DQ asks for, in the vocabulary of an audit: "fp8", "int4-weights", "float"."""
        weights = {factor.format for factor in self.factors if factor.fixed}
        return asked_as(weights, {factor.format for factor in self.factors if not factor.fixed})

    @property
    def arithmetic(self) -> str:
        """The common format of both factors; "" if they differ or one is float."""
        first, second = (factor.format for factor in self.factors)
        return first if first == second != FLOAT else ""

    @property
    def mixed(self) -> bool:
        """True if the factors ask for two different low-bit formats."""
        return all(factor.quantized for factor in self.factors) and not self.arithmetic

    @property
    def weights_alone(self) -> Factor | None:
        """The quantized constant factor if the other factor is float, else None."""
        first, second = self.factors
        for stored, other in ((first, second), (second, first)):
            if stored.quantized and stored.fixed and not other.quantized:
                return stored
        return None


def products(flow: Flow, target: Target) -> Iterator[Product]:
    """Yield all compute nodes with their factors, in graph order, as a builder sees them."""
    return (product_of(flow, node, target) for node in flow.products())


def product_of(flow: Flow, node: Node, target: Target) -> Product:
    """Return a node with its first two inputs as factors, as a builder sees it."""
    first, second = (factor(flow, node, index, target) for index in (0, 1))
    return Product(node=node, factors=(first, second))


def factor(flow: Flow, node: Node, index: int, target: Target) -> Factor:
    """Return input `index` of a compute node as a factor, as a builder sees it."""
    pair, quantization = flow.origin(node, index), flow.quantization(node, index)
    return Factor(
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
        # FP4 has two levels of scales: the first is made of the second.
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
    """Yield pairs with constant two-level scales, and the sum over rows whose kernel would quantize them."""
    sums = RowSums(flow.view)
    constant = {pair.dequantize for pair in flow.scales if pair.kind is SlotKind.WEIGHT}
    for pair in flow.pairs:
        if pair.quantize is None or pair.dtype is not DType.FLOAT4 or pair.kind is SlotKind.WEIGHT:
            continue
        scale = flow.view.producer(flow.view.by_name[pair.quantize].inputs[1])
        total = None if scale is None or scale.name not in constant else sums.in_front(pair.tensor)
        if total is not None:
            yield pair, total.name
