"""A type of Q/DQ that the model's opset does not know yet.

    opset 17: Q (FP16 scale)      not valid before opset 19
    opset 19: DQ (INT4)           not valid before opset 21
    opset 21: DQ (FP4)            not valid before opset 23

onnxruntime refuses such a file, so its accuracy cannot be checked on the CPU; TensorRT for RTX reads it.

Evidence: ONNX operator reference, QuantizeLinear 13, 19, 21 and 23; RTX 1.7.1 (half_old_opset).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FORMATS, INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Stage, Violation

_SCALES = {DType.FLOAT16: 19, DType.BFLOAT16: 19}
_VALUES = {**{entry.dtype: entry.opset for entry in FORMATS.values() if entry is not INT8}, DType.INT16: 21}


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """ONNX's own Q/DQ with a scale or integers of a type newer than the opset."""
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        scale = flow.view.info(flow.view.by_name[name].inputs[1]).dtype
        for what, dtype, needed in _needs(pair, scale):
            if not pair.domain and flow.view.opset < needed:
                yield Violation(
                    node=name,
                    reason=f"{what} {str(dtype).upper()} in opset {flow.view.opset}",
                    effect="not valid ONNX: onnxruntime refuses it and parsers may",
                    fix=f"raise the opset to {needed}; `qdqtool repair` does",
                )


def fix(context: RepairContext) -> Iterator[Change]:
    """Convert the model to the first opset that knows the values of all its Q and DQ."""
    pairs = [pair for pair in find(context.model) if not pair.domain]
    needed = max((_VALUES.get(pair.dtype, 0) for pair in pairs), default=0)
    raised = context.require_opset(needed)
    if raised is not None:
        kinds = {str(pair.dtype).upper() for pair in pairs if _VALUES.get(pair.dtype, 0) == needed}
        yield Change(
            subject=context.path.name,
            what=raised,
            reason=f"Q and DQ of {' and '.join(sorted(kinds))} are valid ONNX from opset {needed} on",
            error=0.0,
        )


_SCALE = "the scale is"


def _needs(pair: QdqPair, scale: DType) -> Iterator[tuple[str, DType, int]]:
    yield _SCALE, scale, _SCALES.get(scale, 0)
    yield "the values between Q and DQ are", pair.dtype, _VALUES.get(pair.dtype, 0)


PLUGIN = Rule(code="QDQ113", severity=Severity.WARNING, stage=Stage.WRITE_OUT, check=check, fix=fix)
