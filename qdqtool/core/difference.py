"""Differences between two engines of the same model, or between two logs of its builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from qdqtool.core.engine import Certainty
from qdqtool.core.events import OptimizerEvent
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The layers of one engine that do the same work as layers of the compared engine.

    Attributes:
        layers: names of the layers.
        precision: type of the arithmetic; UNKNOWN if the layers differ.
        ms: measured time, or None.
        bytes: bytes that the layers read and write; None if unknown.
        types: the types of all layers, each once.
    """

    layers: tuple[str, ...]
    precision: DType = DType.UNKNOWN
    types: tuple[DType, ...] = ()
    ms: float | None = None
    bytes: int | None = None

    @property
    def arithmetic(self) -> str:
        """The arithmetic type of the layers in words; all types if they differ."""
        return " and ".join(map(str, self.types)) or str(self.precision)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPair:
    """Layers of two engines that do the same work.

    Attributes:
        nodes: common ONNX nodes or weights.
        left: in the first engine.
        right: in the second engine.
        certainty: aligned by name, or inferred from shapes and order.
    """

    nodes: tuple[str, ...]
    left: Side
    right: Side
    certainty: Certainty = Certainty.STATED

    @property
    def ms(self) -> float | None:
        """Time of the second engine minus that of the first, in milliseconds; negative if the second is faster."""
        return None if self.left.ms is None or self.right.ms is None else self.right.ms - self.left.ms

    @property
    def bytes(self) -> int | None:
        """Bytes moved by the second engine minus those of the first."""
        if self.left.bytes is None or self.right.bytes is None:
            return None
        return self.right.bytes - self.left.bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTotals:
    """Total time, bytes and kernels of one engine in a comparison of engines.

    Attributes:
        name: as the user calls it.
        kernels: layers that launch something.
        compute: number of convolutions, matrix products and attentions.
        int8: number of compute kernels in INT8.
        others: number of compute kernels in formats other than INT8 and float, by format ("fp8", "int4-weights").
        conversions: kernels that only quantize, dequantize, cast or reformat.
        ms: sum of all layers, or None.
        conversion_ms: time of the conversions, or None.
        bytes: bytes that all kernels read and write; None if unknown.
    """

    name: str
    kernels: int
    compute: int
    int8: int
    conversions: int
    ms: float | None
    conversion_ms: float | None
    bytes: int | None
    others: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceCause:
    """One cause of a difference between the second and the first engine, in words.

    Attributes:
        text: the difference in words, with its layers.
        ms: milliseconds it costs (negative: saves), or None.
        bytes: bytes it costs, or None.
        layers: names of the layers in question.
    """

    text: str
    ms: float | None
    bytes: int | None
    layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EngineDiff(Displayable):
    """A comparison of two engines.

    Attributes:
        left: totals of the first.
        right: totals of the second.
        pairs: layers that do the same work, in the order of the first engine.
        left_only: kernels of the first engine that have no counterpart.
        right_only: kernels of the second engine that have no counterpart.
        causes: causes of the difference, the largest first.
        notes: remarks for a reader.
    """

    left: EngineTotals
    right: EngineTotals
    pairs: tuple[LayerPair, ...]
    left_only: tuple[Side, ...]
    right_only: tuple[Side, ...]
    causes: tuple[DifferenceCause, ...]
    notes: tuple[str, ...] = ()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write this comparison of engines as a JSON artefact."""
        return EngineDiffs(diffs=(self,)).save(path)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EngineDiffs(Displayable):
    """Comparisons of several engines with the first engine. In each comparison, the other engine is the second."""

    diffs: tuple[EngineDiff, ...]


# --- logdiff ---------------------------------------------------------------------------------------------------------
# Differences between two builds of a model, read from their logs.


@dataclass(frozen=True, kw_only=True, slots=True)
class PassChange:
    """How often an optimizer pass changed the graph, in the first and in the second log."""

    name: str
    first: int
    second: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeChange:
    """A property of a node that differs: its value in the first and the second log; "" if the log does not have the property."""

    node: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeChange:
    """A time in the first and in the second log, in the unit that `what` names; None if a log does not have it."""

    what: str
    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class LogDiff(Displayable):
    """A comparison of two builds by their logs.

    Attributes:
        versions: of the builders, "8.6.0"; "?" if unknown.
        layers: in the finished engine, by the last count of the funnel; None if there is none.
        passes: passes with different numbers of effects.
        only_first, only_second: effects in only one of the two logs, as often as they occur there.
        parting: the first decision in which the two logs differ; None if they never differ. Its values are None if a
            log has ended before.
        precisions: compute nodes whose precision changed.
        ledger: Q and DQ nodes whose end changed.
        times: phases that both logs time, and whose times differ.
    """

    versions: tuple[str, str]
    layers: tuple[int | None, int | None]
    passes: tuple[PassChange, ...]
    only_first: tuple[OptimizerEvent, ...]
    only_second: tuple[OptimizerEvent, ...]
    parting: tuple[OptimizerEvent | None, OptimizerEvent | None] | None
    precisions: tuple[NodeChange, ...]
    ledger: tuple[NodeChange, ...]
    times: tuple[TimeChange, ...]
