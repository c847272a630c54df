"""Type in which a layer computes, and the evidence for it.

There is no precision field in any layer information: it follows from the types of the tensors and from the name of the
kernel. A kernel computes in INT8 (FP8, FP4) only when its run-time input and its weights are; the type of its output says
nothing about its arithmetic, and a layer called "int8" is not INT8 for that.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor, Role
from qdqtool.engine.roles import dequantizes_first, is_attention, is_pointwise, role_of
from qdqtool.trt.tactics import math_type, spelled_type, tensor_cores

_Known = tuple[DType, Certainty]
_FACTORS_OF_ATTENTION = 3
"""Number of factors: query, key and value."""
_BLOCK_SCALES = frozenset({DType.FLOAT8, DType.FLOAT8_E8M0})
_UNKNOWN: _Known = (DType.UNKNOWN, Certainty.UNKNOWN)


def judged(layer: EngineLayer) -> EngineLayer:
    """Return `layer` with its role and its precision filled in."""
    role = role_of(layer)
    precision, certainty = _arithmetic(layer) if role is Role.COMPUTE else _result(layer)
    return replace(
        layer,
        role=role,
        precision=precision,
        precision_certainty=certainty,
        pointwise=is_pointwise(layer, role),
        tensor_cores=_on_tensor_cores(layer),
    )


def weight(layer: EngineLayer) -> EngineTensor | None:
    """Return the weight constant: the largest among those of rank 2 and more, or one of unknown shape.

    Where the weight comes from another kernel, a constant that only spreads along the channels is its scale.
    """
    constants = without_block_scales(layer.constants, layer.inputs)
    ranked = [constant for constant in constants if constant.shape is None or len(constant.shape) > 1]
    if _multiplies_two_inputs(layer):
        ranked = [constant for constant in ranked if not _spreads(constant)]
    # The FP8 scales of a small FP4 weight are padded to 128 columns and may be larger than the weight.
    ranked = [constant for constant in ranked if constant.dtype is DType.FLOAT4] or ranked
    return max(ranked, key=lambda constant: prod(constant.shape or ()), default=None)


def without_block_scales(
    tensors: tuple[EngineTensor, ...], beside: tuple[EngineTensor, ...] = ()
) -> tuple[EngineTensor, ...]:
    """Return the tensors without their block scales, and without the block scales of the tensors `beside` them.

    Such are FP8 beside FP4 (NVFP4) and powers of two beside FP8 (MXFP8).
    """
    types = {tensor.dtype for tensor in (*tensors, *beside)}
    if not types & _BLOCK_SCALES:
        return tensors
    scales = {DType.FLOAT8_E8M0} | ({DType.FLOAT8} if DType.FLOAT4 in types else set())
    kept = tuple(tensor for tensor in tensors if tensor.dtype not in scales)
    return kept if kept and any(tensor.dtype.is_quantized for tensor in (*kept, *beside)) else tensors


def _multiplies_two_inputs(layer: EngineLayer) -> bool:
    """Return whether a second run-time input can be a factor. An added tensor would have the shape of the result."""
    results = {tensor.shape for tensor in layer.outputs}
    second = without_block_scales(layer.inputs)[1:2]
    return any(tensor.shape is not None and tensor.shape not in results for tensor in second)


def _spreads(constant: EngineTensor) -> bool:
    """Return whether a constant holds one number per channel, as [1, C, 1, 1] does: it has no dimension to sum over."""
    shape = constant.shape or ()
    return bool(shape) and shape[0] == 1 and sum(dim != 1 for dim in shape) < 2


def _arithmetic(layer: EngineLayer) -> _Known:
    factors = operands(layer)
    types = {tensor.dtype for tensor in factors}
    by_name = math_type(layer.tactic)
    if len(types) == 1 and DType.UNKNOWN not in types and not dequantizes_first(layer):
        return _agreed(types.pop(), len(factors) > 1, layer.tactic)
    if by_name is not None:
        return by_name, Certainty.INFERRED
    floats = [tensor.dtype for tensor in (*factors, *layer.outputs) if tensor.dtype.is_float]
    return (floats[0], Certainty.INFERRED) if floats and DType.UNKNOWN not in types else _UNKNOWN


def _agreed(dtype: DType, both_seen: bool, tactic: str) -> _Known:
    """Return the type if all factors have `dtype`. Only a kernel name that spells out its types can overrule them."""
    exact, hinted = spelled_type(tactic), math_type(tactic)
    if exact not in {None, dtype}:
        return exact or dtype, Certainty.INFERRED
    if hinted not in {None, dtype}:
        return dtype, Certainty.INFERRED
    return dtype, Certainty.STATED if both_seen or hinted else Certainty.INFERRED


def operands(layer: EngineLayer) -> tuple[EngineTensor, ...]:
    """Return the tensors that are multiplied: input and weight, or the first two inputs, or all inputs of an attention."""
    inputs = without_block_scales(layer.inputs)
    if is_attention(layer) and len(inputs) >= _FACTORS_OF_ATTENTION:
        # Anything else, at run time or constant, is added to the scores: a mask, a position bias.
        quantized = tuple(tensor for tensor in inputs if tensor.dtype.is_quantized)
        return quantized if len(quantized) >= _FACTORS_OF_ATTENTION else inputs
    held = weight(layer)
    if held is not None:
        return (*_met_by(held, inputs), held)
    if is_attention(layer):
        return inputs
    return inputs[:1] if "conv" in layer.kind.lower() else inputs[:2]


def _met_by(held: EngineTensor, inputs: tuple[EngineTensor, ...]) -> tuple[EngineTensor, ...]:
    """Return the input that is multiplied with the weights: the first one, others being residuals or scales.

    A residual of another float type may stand first (`FcAddCastAdd`): float factors are of one type.
    """
    first = inputs[:1]
    if held.dtype.is_float and first and first[0].dtype.is_float and first[0].dtype is not held.dtype:
        return tuple(tensor for tensor in inputs if tensor.dtype is held.dtype)[:1] or first
    return first


def _on_tensor_cores(layer: EngineLayer) -> bool | None:
    # CudaDepthwiseConvolution is a runner of its own without a kernel name; it has no tensor-core kernels.
    return False if layer.kind == "CudaDepthwiseConvolution" else tensor_cores(layer.tactic)


def _result(layer: EngineLayer) -> _Known:
    types = {tensor.dtype for tensor in without_block_scales(layer.outputs)}
    known = len(types) == 1 and DType.UNKNOWN not in types
    return (types.pop(), Certainty.STATED) if known else _UNKNOWN
