"""Q and DQ in TensorRT's own spelling, which no other runtime knows.

    x ─ trt.TRT_FP8QuantizeLinear ─ trt.TRT_FP8DequantizeLinear ─ MatMul
    x ─ QuantizeLinear (FP8) ─ DequantizeLinear ─ MatMul                      the same kernels

nvidia-modelopt writes them for opsets that lack FP8 or INT4. TensorRT reads both spellings alike; onnxruntime reads the
second, so accuracy can be compared. `TRT_FP4QDQ`, a rounding of float weights to FP4 for training, is read by nobody: the
fix stores the weight as FP4, in blocks of 16 with FP8 scales.

Evidence: RTX 1.7.1 builds an FP8 `gemm` and an INT4 `runtime_fusion` of either spelling, and refuses TRT_FP4QDQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.grids import stored_as
from qdqtool.core.quant_format import INT4, NVFP4
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.encode import block_scales, effective, encode
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.standard import standardise
from qdqtool.matching.rule import Rule, Stage, Violation

if TYPE_CHECKING:
    import onnx

_ROUNDS_WEIGHTS: Final = "TRT_FP4QDQ"


def match(flow: Flow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the nodes that are such spellings, and of those that nobody reads."""
    return flow.spelled_apart, tuple(node.name for node in flow.view.nodes if node.op == _ROUNDS_WEIGHTS)


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    spelled, rounding = match(flow)
    for name in spelled:
        yield Violation(
            node=name,
            reason="it is TensorRT's own spelling of Q or DQ",
            effect="TensorRT reads it; onnxruntime and other readers of ONNX do not",
            fix="use the operators of ONNX; `qdqtool repair` does",
        )
    for name in rounding:
        yield Violation(
            node=name,
            reason=f"{_ROUNDS_WEIGHTS} rounds a float weight to FP4 as training does",
            effect="the parser knows no such operator",
            fix="store the weight as FP4 behind DequantizeLinear; `qdqtool repair` does",
            severity=Severity.ERROR,
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Write both in the operators of ONNX."""
    spelled, rounding = match(context.flow)
    if not rounding and not spelled:
        return
    context.require_opset(NVFP4.opset if rounding else INT4.opset)
    for name, told in standardise(context.edit):
        yield Change(
            subject=name,
            what=f"{told} became the operator of ONNX",
            reason="only TensorRT reads its own spelling",
            error=0.0,
        )
    for node in [context.nodes[name] for name in rounding]:
        if _store(context, node):
            yield Change(
                subject=node.input[0],
                what="float weight behind TRT_FP4QDQ stored as FP4, in blocks of 16 with FP8 scales",
                reason="TensorRT does not import TRT_FP4QDQ",
                error=0.0,
            )


def _store(context: RepairContext, node: onnx.NodeProto) -> bool:
    """Put a stored weight in the place of the operator, whose blocks go along the last axis."""
    edit = context.edit
    value = edit.value(node.input[0]) if node.input else None
    block = NVFP4.block or 0
    if value is None or not value.ndim or value.shape[-1] % block:
        return False
    axis = value.ndim - 1
    scale, level = block_scales(value, NVFP4, axis, block)
    stored = encode(value, effective(scale, level), NVFP4, axis, block)
    stem = node.input[0]
    kind = value.dtype
    low = edit.constant(
        f"{stem}_scale", scale.astype(stored_as(NVFP4.scale_dtype)) if NVFP4.scale_dtype else scale
    )
    high = edit.constant(f"{stem}_global_scale", np.asarray(level, kind))
    scales = edit.fresh(f"{stem}_scales")
    edit.node("DequantizeLinear", [low, high], [scales], name=f"{node.name}_scales_DequantizeLinear")
    edit.node(
        "DequantizeLinear",
        [edit.constant(f"{stem}_nvfp4", stored), scales],
        [node.output[0]],
        name=f"{node.name}_DequantizeLinear",
        axis=axis,
        block_size=block,
    )
    edit.remove([node])
    return True


PLUGIN = Rule(
    code="QDQ189",
    formats=frozenset({"fp8", "int4", "nvfp4", "mxfp8"}),
    severity=Severity.INFO,
    stage=Stage.WRITE_OUT,
    check=check,
    fix=fix,
)
