"""The result of auditing an engine."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCounts:
    """Kernels of an engine and the bytes that move between them.

    Attributes:
        kernels: all kernels; signals, waits and shape calls are not kernels.
        compute: kernels that hold a convolution, a matrix product or an attention.
        qdq: kernels that only quantize, dequantize, cast or reformat.
        activation_bytes_dumped: sum over kernels of run-time inputs and outputs, as dumped.
        activation_bytes_fused: the same when each compute kernel's epilogue is fused into it (estimated);
            both None when a shape or type is unknown or dynamic.
    """

    kernels: int
    compute: int
    qdq: int
    activation_bytes_dumped: int | None
    activation_bytes_fused: int | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Audit(Displayable):
    """Verdicts for every compute node, findings, and counts."""

    verdicts: tuple[NodeVerdict, ...]
    findings: tuple[Finding, ...]
    counts: KernelCounts
    notes: tuple[str, ...] = ()
