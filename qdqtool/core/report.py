"""The public shape of `report.json`: what scripts may rely on."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.comparison import Comparison
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Finding, NodeVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracySummary:
    """The headline metric: a task metric where there are labels, else SQNR of the first output."""

    metric: str
    unit: str
    reference: float | None
    int8: float | None
    samples: int
    meaningful: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Ten seconds of reading.

    Attributes:
        model: file name of the float model.
        builder: builder, its version and its targets in words; "" when nothing was built.
        nodes_total: compute nodes (Conv, ConvTranspose, Gemm, MatMul, attention); None when nothing was audited.
        nodes_int8: those that run INT8 in the engine.
        nodes_requested: those that placement asked for.
        kernels: kernels in the engine.
        compute_kernels: those that hold a compute node.
        qdq_kernels: those that only quantize, dequantize, cast or reformat.
        activation_bytes_dumped: bytes written and read between kernels, as dumped.
        activation_bytes_fused: the same with conv and gemm epilogues fused (estimated).
        engine_bytes: size of the plan; None when nothing was built.
        findings: count by severity.
        accuracy: None when nothing was compared.
    """

    model: str
    builder: str
    nodes_total: int | None
    nodes_int8: int | None
    nodes_requested: int | None
    kernels: int | None
    compute_kernels: int | None
    qdq_kernels: int | None
    activation_bytes_dumped: int | None
    activation_bytes_fused: int | None
    engine_bytes: int | None
    findings: dict[str, int]
    accuracy: AccuracySummary | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """A compute node that does not run INT8, with the reason and the fix."""

    node: str
    op: str
    precision: str
    reason: str
    fix: str
    requested: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow:
    """One activation range for the report."""

    tensor: str
    amax: float
    low: float | None
    high: float | None
    method: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRow:
    """A tensor at the border of an engine layer; what the dump does not say is None, UNKNOWN or ""."""

    name: str
    shape: tuple[int, ...] | None
    dtype: DType
    format: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRow:
    """One engine layer for the report.

    Attributes:
        name: as dumped.
        kind: LayerType in the dump's own words.
        tactic: kernel name, or "".
        onnx_nodes: names of the ONNX nodes inside.
        inputs: run-time inputs.
        constants: weights and other constants.
        outputs: results.
        precision: "int8", "fp16", ... of its floating-point and INT8 inputs, "mixed" where they differ, "unknown".
        bytes: run-time inputs and outputs together; None where a shape or type is unknown.
    """

    name: str
    kind: str
    tactic: str
    onnx_nodes: tuple[str, ...]
    inputs: tuple[TensorRow, ...]
    constants: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    precision: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything the report page shows; HTML is made from this and nothing else."""

    summary: Summary
    fallbacks: tuple[Fallback, ...]
    verdicts: tuple[NodeVerdict, ...]
    findings: tuple[Finding, ...]
    comparison: Comparison | None
    ranges: tuple[RangeRow, ...]
    layers: tuple[LayerRow, ...]
    notes: tuple[str, ...]
