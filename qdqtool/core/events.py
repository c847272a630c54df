"""Events that a builder's log reports: messages, optimizer events, and how every Q and DQ ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qdqtool.core.tensors import DType


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRecord:
    """One message of a build log.

    Attributes:
        line: number of its line, from 1.
        severity: V, I, W, E or F; "" if the log does not print it.
        text: the message without its prefix.
        topic: the topic in our words ("tactic-skipped", ...); "" if it is unknown.
        count: how many messages of this wording the log holds; `line` is the first.
    """

    line: int
    severity: str
    text: str
    topic: str = ""
    count: int = 1


class EventKind(str, Enum):
    """The kind of event that a line of the optimizer reports. An attempt and its effect are different events."""

    ATTEMPT = "attempt"
    FUSED = "fused"
    QUANTIZED = "quantized"
    SWAPPED = "swapped"
    DUPLICATE = "duplicate"
    REMOVED = "removed"
    RETYPED = "retyped"
    MERGED = "merged"
    SLICE = "slice"
    CONCAT = "concat"
    RETARGETED = "retargeted"
    COPIED = "copied"
    SPLIT = "split"
    BANNER = "banner"
    LAYERS = "layers"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerEvent:
    """One action that the graph optimizer tried or performed.

    Attributes:
        line: number of the log line, from 1.
        kind: kind of the event.
        pass_name: the pass, "" if the line names none.
        nodes: the nodes it is about, in the order of the line.
        into: the node, tensor or stage that results or receives; "" if there is none.
        detail: the remaining facts of the line (types, reason, number of layers).
    """

    line: int
    kind: EventKind
    pass_name: str = ""
    nodes: tuple[str, ...] = ()
    into: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassCount:
    """Number of attempts of a pass, and number of attempts that changed the graph.

    Attributes:
        attempts: `Running: X on Y` lines.
        effects: attempts in which the pass changed the graph. If another pass calls it, or an old release reports no
            attempt, an effect counts without an attempt.
        first_line: line of its first message.
    """

    attempts: int
    effects: int
    first_line: int


class End(str, Enum):
    """How a Q or DQ node of the model ended in the engine: folded, fused, merged, a separate kernel, ..."""

    FOLDED = "constant-folded"
    INPUT = "fused-input"
    WEIGHT = "fused-weight"
    OUTPUT = "fused-output"
    MERGED = "merged"
    SPLIT = "split"
    CANCELLED = "cancelled"
    COPY = "runtime-copy"
    KERNEL = "inside-kernel"
    MOVED = "moved"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStep:
    """One step in the history of a Q or DQ node, with its line number in the log."""

    line: int
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """How one Q or DQ node of the model, or a copy that the optimizer made, ended in the engine.

    Attributes:
        node: its name.
        kind: "Q" or "DQ".
        end: how the node ended. FOLDED: computed at build time. INPUT, WEIGHT, OUTPUT: part of the compute node `into`.
            MERGED: its duplicate `into` replaces it. SPLIT: its clones before the Concat `into` replace it.
            CANCELLED: removed together with its opposite `into`, or merged with `into` into one rescaling. COPY: the
            layer `into` runs it. KERNEL: somewhere inside the generated kernel or region `into`. MOVED: it moved
            through `into`; the log shows no more. UNKNOWN: the log does not show it.
        into: the other node of `end`; "" without another node.
        lines: numbers of the log lines with its history.
        steps: its history.
        clone_of: the node of the model that it was cloned from; "" for nodes of the model.
    """

    node: str
    kind: str
    end: End
    into: str = ""
    lines: tuple[int, ...] = ()
    steps: tuple[LedgerStep, ...] = ()
    clone_of: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSummary:
    """Counts of Q and DQ nodes.

    Counted are the nodes of the model, the optimizer's copies, both by the way in which they ended, and the nodes
    of the model whose end is known.
    """

    q: int
    dq: int
    clones: int
    ends: dict[str, int]
    accounted: int


FLOAT_OUT = "-in"
"""Suffix of `precision` for a kernel that reads a low-bit type and writes floats: int8-in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeNode:
    """Precision of one convolution or matrix product of the model, as the build log shows it.

    Attributes:
        node: its name in the model.
        op: its ONNX operator.
        precision: "int8" (INT8 in and out), "int8-in" (INT8 in, float out), equally with "fp8" and "fp4"; "float"; or
            "unknown".
        asked: the format that Q/DQ before it asks for, as in `NodeVerdict`; "" if the log does not show it.
        reason: why, in words.
        lines: log lines that show it.
        layer: the engine layer that runs it, "" if the log names none.
        contradiction: how the tensors of that layer disagree; "" if they agree or are not printed.
    """

    node: str
    op: str
    precision: str
    reason: str
    asked: str = ""
    lines: tuple[int, ...] = ()
    layer: str = ""
    contradiction: str = ""

    @property
    def reads(self) -> DType:
        """The type of the multiplied values; UNKNOWN for floats, because the log may not print their width."""
        dtype = DType.parse(self.precision.removesuffix(FLOAT_OUT))
        return dtype if dtype.is_quantized else DType.UNKNOWN

    @property
    def is_quantized(self) -> bool:
        """True if both input and output are in a low-bit type."""
        return DType.parse(self.precision).is_quantized
