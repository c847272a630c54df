"""Placement of Q/DQ: which inputs are quantized, by which rule and why. Also the Q/DQ pairs in a graph of any tool.

The unit is a slot, which is one input of one node: a residual branch may be quantized for one consumer only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeVar

from pydantic import Field

from qdqtool.core.claims import Claim
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import INT8, DType, NamedFormat


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Slot:
    """One input of a node: the node's name and the number of the input."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}[{self.index}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantSpec:
    """Storage format of the values of a node input.

    Attributes:
        format: the number format; artefacts call it "dtype".
        axis: the channel axis of per-channel scales, or the axis that blocks divide; None for one scale per tensor.
        block: values along `axis` that share one scale; None without blocks.
        stored: whether a constant is stored in the format, or its floats stay after Q and DQ; None: as the recipe says.
    """

    format: Annotated[NamedFormat, Field(alias="dtype")] = INT8
    axis: int | None = None
    block: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    stored: Annotated[bool | None, Field(exclude_if=lambda value: value is None)] = None


class RequestOrVeto(str, Enum):
    """Whether a rule requests or refuses to quantize an input."""

    REQUEST = "request"
    VETO = "veto"


class SlotKind(str, Enum):
    """Kind of a node input's value: a run-time value or a constant."""

    ACTIVATION = "activation"
    WEIGHT = "weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotStatement:
    """A rule's request to quantize one input of a node, or its veto, with the reason.

    A REQUEST may have a `spec`; all requests for an input must agree on it. `fix` is the change that would remove a
    VETO ("" if none). A REQUEST with `only_if_shared` counts only if another consumer also reads these values in
    quantized form. `claim` is the part of the reason that a build can contradict.
    """

    slot: Slot
    rule: str = ""
    stance: RequestOrVeto
    reason: str
    fix: str = ""
    spec: QuantSpec | None = None
    only_if_shared: bool = False
    claim: Annotated[Claim | None, Field(exclude_if=lambda value: value is None)] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedScale:
    """Tensors that must have the same scale, and the reason.

    Attributes:
        tensors: all tensors of the group.
        rule: name of the rule that states this.
        reason: purpose of the shared scale.
        apart: tensors whose scale is written one representable step larger. This changes no integer, but the builder
            then does not treat a pair as a repetition of the pair before.
    """

    tensors: tuple[str, ...]
    rule: str = ""
    reason: str
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JointSlots:
    """Node inputs that are quantized together or not at all. If only some are quantized, the builder computes in float.

    Attributes:
        slots: all of them or none.
        rule: name of the rule that states this.
        reason: consequence if only some are quantized.
        requires: slots of other nodes that must be quantized for these to be; the reverse does not hold.
    """

    slots: tuple[Slot, ...]
    rule: str = ""
    reason: str
    requires: tuple[Slot, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision whether one input of a node is quantized, and the requests and refusals of all rules.

    Attributes:
        slot: the input in question.
        tensor: the tensor that feeds it.
        op: operator type of the consuming node.
        kind: run-time value or constant.
        quantize: the verdict: at least one request and no veto.
        spec: the format, if `quantize` is true.
        opinions: all requests and vetoes, requests first, then by rule name.
    """

    slot: Slot
    tensor: str
    op: str
    kind: SlotKind
    quantize: bool
    spec: QuantSpec | None
    opinions: tuple[SlotStatement, ...]

    @property
    def is_refused(self) -> bool:
        """True if a rule refuses to quantize the input."""
        return any(opinion.stance is RequestOrVeto.VETO for opinion in self.opinions)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Placement(Displayable):
    """All decisions for one model, in graph order, and the groups of tensors that share one scale."""

    decisions: tuple[Decision, ...]
    ties: tuple[SharedScale, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[Decision, ...]:
        """The decisions to quantize an input."""
        return tuple(decision for decision in self.decisions if decision.quantize)


T = TypeVar("T", bound=Hashable)


def classes(groups: Iterable[Iterable[T]]) -> tuple[frozenset[T], ...]:
    """Merge groups that share members until all groups are disjoint. The order of the result is not defined."""
    parent: dict[T, T] = {}

    def root(item: T) -> T:
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for group in groups:
        members = list(group)
        for member in members:
            parent[root(member)] = root(members[0])
    members_of: dict[T, set[T]] = {}
    for item in parent:
        members_of.setdefault(root(item), set()).add(item)
    return tuple(frozenset(members) for members in members_of.values())


# --- pairs in a graph ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class QdqPair:
    """A QuantizeLinear and the DequantizeLinear after it, or only one of the two.

    Attributes:
        tensor: the float tensor that is quantized; for a DequantizeLinear alone, the integers it reads.
        quantize: node name of the QuantizeLinear; None if integers come from elsewhere.
        dequantize: node name of the DequantizeLinear; None if there is none.
        kind: whether `tensor` is a constant.
        dtype: type of the integers between the two.
        scale: quantization steps; empty if they are computed at run time.
        scale_shape: shape of the scale, () for a scalar; None if it is computed.
        zero_point: one value per scale, zeros if the node has none; empty if computed, or not a number.
        axis: channel axis of a scale with one dimension or more; not negative if the rank is known.
        slots: the inputs that read the result.
        returned: whether the model returns the result.
        domain: operator domain of the nodes ("" or "com.microsoft").
    """

    tensor: str
    quantize: str | None
    dequantize: str | None
    kind: SlotKind
    dtype: DType
    scale: tuple[float, ...]
    scale_shape: tuple[int, ...] | None
    zero_point: tuple[int, ...]
    axis: int | None
    slots: tuple[Slot, ...]
    returned: bool = False
    domain: str = ""
