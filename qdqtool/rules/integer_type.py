"""Types that TensorRT cannot dequantize: INT32 biases, INT16 activations, UINT4 weights, FP8 with other exponents.

    bias INT32 ─ DQ ─ Conv      refused
    bias float ────── Conv      fine

onnxruntime writes INT32 biases behind DequantizeLinear by default; TensorRT wants a float bias, which costs nothing
because it is added after the INT8 product.

Evidence: RTX 1.7.1: `input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8` (bias_int32_dq), failed
import of INT16 zero points (int16_act), of UINT4 and of E5M2 (`Failed to import initializer`). microsoft/onnxruntime issue 14229.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation

_FIX = {
    DType.INT32: "store the bias as float; onnxruntime: extra option QuantizeBias=False; or `qdqtool repair`",
    DType.INT16: "use INT8, or leave the tensor float; `qdqtool repair` does the first",
    DType.FLOAT8_E5M2: "use E4M3, which is what TensorRT calls FP8",
    DType.UNKNOWN: "use INT8, INT4 with zero point 0, or FP8 E4M3; `qdqtool repair` makes INT4 of UINT4",
}


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs of such types; of a type that has no name here, where a constant says so."""
    for pair in flow.pairs:
        if pair.dtype in _FIX and (pair.dtype is not DType.UNKNOWN or _says_its_type(flow, pair)):
            what = "of another type" if pair.dtype is DType.UNKNOWN else pair.dtype.value.upper()
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the values between Q and DQ are {what}",
                effect="the parser refuses the model",
                fix=_FIX[pair.dtype],
            )


def _says_its_type(flow: Flow, pair: QdqPair) -> bool:
    """Whether a constant, the stored values or a zero point, has the type, so that it is not merely unknown."""
    node = flow.view.by_name[pair.dequantize or pair.quantize or ""]
    return any(flow.view.is_constant(tensor) for tensor in (node.inputs[0], *node.inputs[2:3]))


PLUGIN = Rule(code="QDQ105", severity=Severity.ERROR, check=check)
