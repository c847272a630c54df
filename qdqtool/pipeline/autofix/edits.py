"""What is requested of a Q/DQ model: an input, how it is to be quantized, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import INT8, QuantFormat
from qdqtool.graph.view import GraphView, Node


class Goal(str, Enum):
    """What a candidate must reach to be kept."""

    INT8 = "the node runs INT8"
    LEANER = "a kernel vanishes"
    CHEAPER = "kernels or bytes go, and none are added"
    CLOSER = "the result comes closer to the float model, at no cost"


class Granularity(str, Enum):
    """How an input is quantized."""

    FLOAT = "float"
    TENSOR = "one scale"
    CHANNEL = "one scale per channel"


@dataclass(frozen=True, kw_only=True, slots=True)
class EditRequest:
    """A request for one input.

    Attributes:
        slot: the input.
        how: how it is quantized.
        scale: the scale, where the graph tells it already; None has it measured.
        axis: the channel axis of CHANNEL.
        most: a measured scale is at most this.
        format: how values are stored.
    """

    slot: Slot
    how: Granularity
    scale: float | None = None
    axis: int | None = None
    most: float | None = None
    format: QuantFormat = INT8


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to fix one finding; `subject` is a node where the goal is INT8, else a node, a layer or tensors."""

    subject: str
    goal: Goal
    text: str
    requests: tuple[EditRequest, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other candidates, also after the graph has changed."""
        return self.subject, self.text


def scale_of(view: GraphView, dequantize: Node | None) -> float | None:
    """The largest scale of a DequantizeLinear; None where it is computed, or there is no such node."""
    value = None if dequantize is None else view.constant(dequantize.inputs[1])
    return None if value is None or not value.size else float(abs(value).max())
