"""Integers that TensorRT cannot dequantize: INT32 biases, INT16 activations.

    bias INT32 ─ DQ ─ Conv      refused
    bias float ────── Conv      fine

onnxruntime writes INT32 biases behind DequantizeLinear by default; TensorRT wants a float bias, which costs nothing
because it is added after the INT8 product.

Evidence: RTX 1.7.1: `input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8` (bias_int32_dq), failed
import of INT16 zero points (int16_act). microsoft/onnxruntime issue 14229.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation

_FIX = {
    DType.INT32: "store the bias as float; onnxruntime: extra option QuantizeBias=False; or `qdqtool repair`",
    DType.INT16: "use INT8, or leave the tensor float; `qdqtool repair` does the first",
}


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs of INT16 and INT32."""
    for pair in flow.pairs:
        if pair.dtype in _FIX:
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the integers are {pair.dtype.value.upper()}",
                effect="the parser refuses the model",
                fix=_FIX[pair.dtype],
            )


PLUGIN = Rule(code="QDQ105", severity=Severity.ERROR, check=check)
