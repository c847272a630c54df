"""A type of Q/DQ that the model's opset does not know yet.

    opset 17: Q (FP16 scale)      not valid before opset 19
    opset 19: DQ (INT4)           not valid before opset 21
    opset 21: DQ (FP4)            not valid before opset 23

onnxruntime refuses such a file, so its accuracy cannot be checked on the CPU; TensorRT for RTX reads it.

Evidence: ONNX operator reference, QuantizeLinear 13, 19, 21 and 23; RTX 1.7.1 (half_old_opset).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import FORMATS, INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation

_SCALES = {DType.FLOAT16: 19, DType.BFLOAT16: 19}
_VALUES = {**{entry.dtype: entry.opset for entry in FORMATS.values() if entry is not INT8}, DType.INT16: 21}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewType:
    """A type that the opset does not know: at which node, of what, and the first opset that does."""

    node: str
    what: str
    dtype: DType
    opset: int


def match(flow: Flow) -> Iterator[NewType]:
    """ONNX's own Q/DQ with a scale or integers of a type newer than the opset."""
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        scale = flow.view.info(flow.view.by_name[name].inputs[1]).dtype
        for what, dtype, first in (
            ("the scale is", scale, _SCALES.get(scale, 0)),
            ("the values between Q and DQ are", pair.dtype, _VALUES.get(pair.dtype, 0)),
        ):
            if not pair.domain and flow.view.opset < first:
                yield NewType(node=name, what=what, dtype=dtype, opset=first)


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for found in match(flow):
        yield Violation(
            node=found.node,
            reason=f"{found.what} {str(found.dtype).upper()} in opset {flow.view.opset}",
            effect="not valid ONNX: onnxruntime refuses it and parsers may",
            fix=f"raise the opset to {found.opset}; `qdqtool repair` does",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Convert the model to the first opset that knows all of them."""
    found = tuple(match(context.flow))
    needed = max((each.opset for each in found), default=0)
    raised = context.require_opset(needed)
    if raised is not None:
        kinds = {str(each.dtype).upper() for each in found if each.opset == needed}
        yield Change(
            subject=context.path.name,
            what=raised,
            reason=f"Q and DQ of {' and '.join(sorted(kinds))} are valid ONNX from opset {needed} on",
            error=0.0,
        )


PLUGIN = Rule(code="QDQ113", severity=Severity.WARNING, stage=Stage.WRITE_OUT, check=check, fix=fix)
