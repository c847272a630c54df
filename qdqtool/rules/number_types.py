"""Types that are valid for values and scales of Q and DQ, by builder and opset.

# unsigned

UINT8 with zero point 0.

    x ─ Q (s=0.02, zero point 0 UINT8) ─ DQ      meant for 0 to 5.1, holds 0 to 2.54
    x ─ Q (s=0.04, zero point 0 INT8) ─ DQ       0 to 5.1

The builder warns `Defaulting to INT8` and reads the scale as the scale of an INT8 tensor: values above 127 steps, half
of the calibrated UINT8 range, are clipped. Weights that are stored as UINT8 are refused.

Evidence: RTX 1.7.1 builds it, with the warning, as INT8 (chain_uint8_act_zp0).

# integer_type

Types that TensorRT cannot dequantize: INT32 biases, INT16 activations, UINT4 weights, FP8 with other exponents.

    bias INT32 ─ DQ ─ Conv      refused
    bias float ────── Conv      fine

By default onnxruntime writes INT32 biases with a DequantizeLinear; TensorRT needs a float bias, which costs nothing
because it is added after the INT8 multiplication.

Evidence: RTX 1.7.1: `input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8` (bias_int32_dq), failed
import of INT16 zero points (int16_act), of UINT4 and of E5M2 (`Failed to import initializer`). microsoft/onnxruntime issue 14229.

# prequantized

Weights stored as INT8 after a DequantizeLinear alone.

    w (INT8) ─ DQ ─ Conv           10 and newer
    w (FP32) ─ Q ─ DQ ─ Conv       everywhere

The file is about four times smaller. TensorRT 10 and newer and TensorRT for RTX read it; the documentation of 8.x asks
for FP32 weights before QuantizeLinear.

Evidence: RTX 1.7.1 builds chain_prequant as INT8; TensorRT 8 developer guide, explicit quantization.

# opset

A type of Q/DQ that the model's opset does not support yet.

    opset 17: Q (FP16 scale)      not valid before opset 19
    opset 19: DQ (INT4)           not valid before opset 21
    opset 21: DQ (FP4)            not valid before opset 23

onnxruntime refuses such a file, so its accuracy cannot be checked on the CPU; TensorRT for RTX reads it.

Evidence: ONNX operator reference, QuantizeLinear 13, 19, 21 and 23; RTX 1.7.1 (half_old_opset).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import FORMATS, INT8, DType
from qdqtool.core.wording import REPAIR, Command, Setting
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.matching.rule import Rule, Stage, Violation

# --- unsigned --------------------------------------------------------------------------------------------------------


def check_unsigned(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs of UINT8 with zero point 0, and weights stored as UINT8."""
    for pair in flow.pairs:
        if pair.dtype is DType.UINT8 and pair.quantize is None and pair.kind is SlotKind.WEIGHT:
            yield Violation(
                node=pair.dequantize or "",
                reason="the weights are stored as UINT8",
                effect="the parser refuses the model: Found unsupported input type of UINT8",
                fix=f"store the weights as INT8 with zero point 0; {REPAIR} does this",
                severity=Severity.ERROR,
            )
        elif pair.dtype is DType.UINT8 and pair.zero_point and not any(pair.zero_point):
            name = pair.quantize or pair.dequantize or ""
            cast = any(use.node.op == "Cast" for use in flow.view.uses(flow.view.by_name[name].outputs[0]))
            is_refused = cast and name == pair.quantize
            yield Violation(
                node=name,
                reason=f"the integers are UINT8 with zero point 0{', and a Cast reads them' if is_refused else ''}",
                effect="the parser refuses a Cast of such values"
                if is_refused
                else "the builder reads the integers as INT8, so all values above 127 steps are clipped",
                fix=f"use INT8 with twice the scale; {REPAIR} converts the model",
                severity=Severity.ERROR if is_refused else None,
            )


# --- integer_type ----------------------------------------------------------------------------------------------------

_BETTER = "use INT8, INT4 with zero point 0, or FP8 E4M3"
_FIX = {
    DType.INT32: f"store the bias as float (onnxruntime: extra option QuantizeBias=False; or {REPAIR})",
    DType.INT16: f"use INT8 with a range for 8 bits: {Command('run', ('FLOAT_MODEL', '--samples', 'DATA'))}; {REPAIR} makes it INT8 too, but keeps the "
    "range of the INT16, which can be too wide",
    DType.FLOAT8_E5M2: "use E4M3, the only FP8 type that TensorRT quantizes to",
    DType.UINT16: f"use INT8 with a range for 8 bits: {Command('run', ('FLOAT_MODEL', '--samples', 'DATA'))}",
    DType.UINT4: f"{_BETTER}; {REPAIR} converts UINT4 to INT4",
    **dict.fromkeys(
        (DType.FLOAT8_E4M3FNUZ, DType.FLOAT8_E5M2FNUZ, DType.FLOAT6_E2M3, DType.FLOAT6_E3M2), _BETTER
    ),
    **dict.fromkeys((DType.INT2, DType.UINT2), _BETTER),
}


def check_integer_type(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs of types that TensorRT refuses."""
    for pair in flow.pairs:
        if pair.dtype in _FIX:
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the values between Q and DQ are {pair.dtype.value.upper()}",
                effect="the parser refuses the model",
                fix=_FIX[pair.dtype],
            )


# --- prequantized ----------------------------------------------------------------------------------------------------


def check_prequantized(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report INT8 constants without a QuantizeLinear."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and pair.quantize is None and is_int8(pair) and pair.slots:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"the weights {pair.tensor} are stored as INT8",
                effect="some 8.x releases refuse the model",
                fix=f"store FP32 weights with Q and DQ, as {Setting('insert.weights', 'qdq')} does",
            )


# --- opset -----------------------------------------------------------------------------------------------------------

_SCALES = {DType.FLOAT16: 19, DType.BFLOAT16: 19}
_VALUES = {**{entry.dtype: entry.opset for entry in FORMATS.values() if entry is not INT8}, DType.INT16: 21}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewType:
    """A type that the opset does not support: the node, the affected part, and the first opset that supports it."""

    node: str
    what: str
    dtype: DType
    opset: int


def match_opset(flow: Flow) -> Iterator[NewType]:
    """Yield standard ONNX Q/DQ nodes with scales or integers of a type that is newer than the opset."""
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        scale = flow.view.info(flow.view.by_name[name].inputs[1]).dtype
        for words, dtype, first in (
            ("the scale is", scale, _SCALES.get(scale, 0)),
            ("the values between Q and DQ are", pair.dtype, _VALUES.get(pair.dtype, 0)),
        ):
            if not pair.domain and flow.view.opset < first:
                yield NewType(node=name, what=words, dtype=dtype, opset=first)


def check_opset(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ nodes with types newer than the opset."""
    for new_type in match_opset(flow):
        yield Violation(
            node=new_type.node,
            reason=f"{new_type.what} {str(new_type.dtype).upper()} in opset {flow.view.opset}",
            effect="the node is not valid ONNX: onnxruntime refuses it, and parsers may refuse it",
            fix=f"raise the opset to {new_type.opset}; {REPAIR} does this",
        )


def fix_opset(context: RepairContext) -> Iterator[Change]:
    """Convert the model to the first opset that supports all its types."""
    new_types = tuple(match_opset(context.flow))
    needed = max((each.opset for each in new_types), default=0)
    raised = context.require_opset(needed)
    if raised is not None:
        kinds = {str(each.dtype).upper() for each in new_types if each.opset == needed}
        yield Change(
            subject=context.path.name,
            what=raised,
            reason=f"Q and DQ of {' and '.join(sorted(kinds))} are valid ONNX from opset {needed} on",
            error=0.0,
        )


PLUGIN = {
    "unsigned": Rule(
        code="QDQ102", formats=frozenset({"int8"}), severity=Severity.WARNING, check=check_unsigned
    ),
    "integer_type": Rule(code="QDQ105", severity=Severity.ERROR, check=check_integer_type),
    "prequantized": Rule(
        code="QDQ145",
        formats=frozenset({"int8"}),
        severity=Severity.WARNING,
        check=check_prequantized,
        targets=frozenset({"8"}),
    ),
    "opset": Rule(
        code="QDQ113", severity=Severity.WARNING, stage=Stage.WRITE_OUT, check=check_opset, fix=fix_opset
    ),
}
