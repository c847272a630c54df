"""The role of a layer: it computes, converts, does other work, or does nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor, Role, largest_weight
from qdqtool.core.tensors import DType
from qdqtool.trt.names import stem
from qdqtool.trt.tactics import math_type, spelled_type, tensor_cores

_NO_KERNEL = frozenset({"signal", "wait", "shape_call", "NoOp", "Constant", "TrainStation"})
_COMPUTE_KIND = re.compile(
    r"conv|gemm|matrixmultiply|matmul|fullyconnected|correlation|^[ihs]\d*cudnn$", re.IGNORECASE
)
"""Kinds of layers that multiply; TensorRT 5 to 7 call some convolutions by their kernels: `i8816cudnn`, `scudnn`."""
_ATTENTION = re.compile(r"_gem[mv]_mha|kgen_mha|fmha|flash_attention|QKVToContext", re.IGNORECASE)
_ATTENTION_WORDS = ("mha", "flash_attention", "qkvtocontext")
"""Words for a quick check: every match of `_ATTENTION` contains one of them."""
_COMPUTE_PLUGIN = re.compile(
    r"QKVToContext|FullyConnected|CustomFC|MultiHead|Attention|DeformableConv", re.IGNORECASE
)
_COPIES = re.compile(r"Reformatt(?:ing|ed)|copy$|\bcopy\b|CopyNode", re.IGNORECASE)
_REFORMAT = frozenset({"Reformat", "MyelinReformat", "Quantize", "Dequantize", "Cast"})
_REARRANGES = frozenset({"SLICE", "CONCAT"})
"""Origins of a Reformat layer that copies for a slice or a concatenation, not to convert."""
_FUSION_WORDS = frozenset({"Fc", "Corr", "Deco"})
_MOVES = frozenset({"Tran", "Move", "Resh", "Cast", "Repl"})
_DYNAMIC = "Dyna"
"""Word of kernels that compute their scales at run time: `TRT_FP4DynamicQuantize`, `TRT_MXFP8DynamicQuantize`."""
_QUANTIZE = _MOVES | {"Mul", "Div", "Min", "Max", "Roun", "Conc", _DYNAMIC}
_POINTWISE = _QUANTIZE | frozenset(
    {"Add", "Sub", "Silu", "Relu", "Sigm", "Sqrt", "Erf", "Exp", "Tanh", "Pow", "Abs", "Neg"}
)
_GENERATED = "__myl_"
_WORD = re.compile(r"[A-Z][a-z0-9]*")


def copies(name: str) -> bool:
    """Return True if a layer's name says that it only copies or converts. Rows of a profile have nothing but names."""
    return _COPIES.search(name) is not None


def words(layer: EngineLayer) -> tuple[str, ...]:
    """Return the operations in the name of a generated kernel: `__myl_MulMinMaxRounCast_myl0_0` has five.

    A last word "Etc" means that the name was cut and further operations are not shown.
    """
    if not layer.name.startswith(_GENERATED):
        return ()
    return tuple(_WORD.findall(stem(layer.name).removeprefix(_GENERATED)))


def role_of(layer: EngineLayer) -> Role:
    """Return the role of the layer, as far as the layer itself shows it."""
    if layer.kind in _NO_KERNEL:
        return Role.NONE
    named = frozenset(words(layer))
    if _computes(layer, named):
        return Role.COMPUTE
    return Role.QDQ if _only_converts(layer, named) else Role.OTHER


def is_attention(layer: EngineLayer) -> bool:
    """Return whether the kernel is a fused attention."""
    return _names_attention(layer.name) or _names_attention(layer.tactic)


def _names_attention(text: str) -> bool:
    # This expression takes a fifth of the time that is needed to judge a layer.
    lower = text.lower()
    return any(word in lower for word in _ATTENTION_WORDS) and _ATTENTION.search(text) is not None


def dequantizes_first(layer: EngineLayer) -> bool:
    """Return True if a compute kernel converts its INT8 input to floats before it multiplies (`CastMul...Fc`)."""
    named = words(layer)
    core = next((at for at, word in enumerate(named) if word in _FUSION_WORDS), 0)
    return "Cast" in named[:core]


def is_pointwise(layer: EngineLayer, role: Role) -> bool:
    """Return True if a generated kernel is elementwise, so that a compute kernel could include it."""
    named = frozenset(words(layer))
    joins = "Conc" in named and len(layer.inputs) > 1
    return role in {Role.OTHER, Role.QDQ} and bool(named) and named <= _POINTWISE and not joins


def settle_roles(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """Return `layers` with the roles that depend on their neighbours.

    Every result of a kernel that multiplies quantized numbers must be rescaled. So a generated kernel that rescales
    and quantizes for the next kernel is an epilogue, not a mere conversion.
    """
    quantized = {
        tensor.name
        for layer in layers
        if layer.role is Role.COMPUTE and layer.precision.is_quantized
        for tensor in layer.outputs
    }
    return tuple(
        replace(layer, role=Role.OTHER)
        if layer.role is Role.QDQ
        and words(layer)
        and any(tensor.name in quantized for tensor in layer.inputs)
        else layer
        for layer in layers
    )


def _computes(layer: EngineLayer, named: frozenset[str]) -> bool:
    if layer.kind in _REFORMAT:
        return False
    if _COMPUTE_KIND.search(layer.kind) or is_attention(layer) or named & _FUSION_WORDS:
        return True
    plugin = next((value for key, value in layer.attributes if key == "PluginType"), "")
    return bool(plugin) and _COMPUTE_PLUGIN.search(plugin) is not None


def _only_converts(layer: EngineLayer, named: frozenset[str]) -> bool:
    types = {tensor.dtype for tensor in (*layer.inputs, *layer.constants, *layer.outputs)}
    narrow = any(dtype.is_quantized for dtype in types)
    if layer.kind in _REFORMAT:
        return dict(layer.attributes).get("Origin", "") not in _REARRANGES
    if layer.kind == "Scale":
        return narrow and len(types) > 1
    if not named or named <= _MOVES:
        # Without an input it moves no data: it clears a counter or a sum, or begins a recurrence.
        return bool(named) and (narrow or bool(layer.inputs))
    quantizes = bool(named & {"Roun", _DYNAMIC}) or (narrow and "Cast" in named)
    joins = "Conc" in named and len(layer.inputs) > 1
    return quantizes and named <= _QUANTIZE and not joins and not _multiplies_inputs(layer)


def _multiplies_inputs(layer: EngineLayer) -> bool:
    """Return True if a quantizing kernel also multiplies two inputs, as in a squeeze-and-excite gate.

    It then has more inputs than outputs, and a factor more than the scale of each output.
    """
    floats = [tensor for tensor in layer.inputs if tensor.dtype.is_float]
    return len(floats) > len(layer.outputs) and words(layer).count("Mul") > len(layer.outputs)


# --- precision -------------------------------------------------------------------------------------------------------
# Type in which a layer computes, and the evidence for it.
#
# Layer information has no precision field: the precision follows from the types of the tensors and the name of the
# kernel. A kernel computes in INT8 (FP8, FP4) only if its run-time input and its weights have this type. The type of
# its output shows nothing about its arithmetic, and "int8" in a layer name proves nothing.


_Known = tuple[DType, Certainty]
_FACTORS_OF_ATTENTION = 3
"""Number of factors: query, key and value."""
_BLOCK_SCALES = frozenset({DType.FLOAT8, DType.FLOAT8_E8M0})
_UNKNOWN: _Known = (DType.UNKNOWN, Certainty.UNKNOWN)


def judge_layer(layer: EngineLayer) -> EngineLayer:
    """Return the layer with role, precision, certainty, and whether it is pointwise or on tensor cores."""
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
    """Return the weight of a layer: its largest constant of two or more dimensions, or of unknown shape.

    If another kernel makes the weight, a constant that only spreads along the channels is its scale.
    """
    constants = without_block_scales(layer.constants, layer.inputs)
    ranked = [constant for constant in constants if constant.shape is None or len(constant.shape) > 1]
    if _multiplies_two_inputs(layer):
        ranked = [constant for constant in ranked if not _spreads(constant)]
    return largest_weight(ranked)


def without_block_scales(
    tensors: tuple[EngineTensor, ...], beside: tuple[EngineTensor, ...] = ()
) -> tuple[EngineTensor, ...]:
    """Return `tensors` without block scales. The types in `tensors` and `beside` identify block scales.

    Examples are FP8 beside FP4 (NVFP4) and powers of two beside FP8 (MXFP8).
    """
    types = {tensor.dtype for tensor in (*tensors, *beside)}
    if not types & _BLOCK_SCALES:
        return tensors
    scales = {DType.FLOAT8_E8M0} | ({DType.FLOAT8} if DType.FLOAT4 in types else set())
    kept = tuple(tensor for tensor in tensors if tensor.dtype not in scales)
    return kept if kept and any(tensor.dtype.is_quantized for tensor in (*kept, *beside)) else tensors


def _multiplies_two_inputs(layer: EngineLayer) -> bool:
    """Return True if the second run-time input may be multiplied: its shape is not the shape of a result.

    An input that is only added (a residual) has the shape of the result.
    """
    results = {tensor.shape for tensor in layer.outputs}
    second = without_block_scales(layer.inputs)[1:2]
    return any(tensor.shape is not None and tensor.shape not in results for tensor in second)


def _spreads(constant: EngineTensor) -> bool:
    """Return True if a constant has one value per channel, as [1, C, 1, 1]: it is not a weight matrix."""
    shape = constant.shape or ()
    return bool(shape) and shape[0] == 1 and sum(dim != 1 for dim in shape) < 2


def _arithmetic(layer: EngineLayer) -> _Known:
    factors = operands(layer)
    types = {tensor.dtype for tensor in factors}
    by_name = math_type(layer.tactic)
    if len(types) == 1 and DType.UNKNOWN not in types and not dequantizes_first(layer):
        return _find_common_type(types.pop(), len(factors) > 1, layer.tactic)
    if by_name is not None:
        return by_name, Certainty.INFERRED
    floats = [tensor.dtype for tensor in (*factors, *layer.outputs) if tensor.dtype.is_float]
    return (floats[0], Certainty.INFERRED) if floats and DType.UNKNOWN not in types else _UNKNOWN


def _find_common_type(dtype: DType, both_seen: bool, tactic: str) -> _Known:
    """Return `dtype` if all operands have it, unless a kernel name that spells out its types states another type."""
    exact, hinted = spelled_type(tactic), math_type(tactic)
    if exact not in {None, dtype}:
        return exact or dtype, Certainty.INFERRED
    if hinted not in {None, dtype}:
        return dtype, Certainty.INFERRED
    return dtype, Certainty.STATED if both_seen or hinted else Certainty.INFERRED


def operands(layer: EngineLayer) -> tuple[EngineTensor, ...]:
    """Return the multiplied tensors: input and weight; the first two inputs; or all inputs of an attention."""
    inputs = without_block_scales(layer.inputs)
    if is_attention(layer) and len(inputs) >= _FACTORS_OF_ATTENTION:
        # Any other operand, computed or constant, is added to the scores: a mask or a position bias.
        quantized = tuple(tensor for tensor in inputs if tensor.dtype.is_quantized)
        return quantized if len(quantized) >= _FACTORS_OF_ATTENTION else inputs
    held = weight(layer)
    if held is not None:
        return (*_find_multiplied_input(held, inputs), held)
    if is_attention(layer):
        return inputs
    return inputs[:1] if "conv" in layer.kind.lower() else inputs[:2]


def _find_multiplied_input(held: EngineTensor, inputs: tuple[EngineTensor, ...]) -> tuple[EngineTensor, ...]:
    """Return the input that is multiplied with the weights: the first input. Other inputs are residuals or scales.

    A residual of another float type may be first (`FcAddCastAdd`): the float factors have one type.
    """
    first = inputs[:1]
    if held.dtype.is_float and first and first[0].dtype.is_float and first[0].dtype is not held.dtype:
        return tuple(tensor for tensor in inputs if tensor.dtype is held.dtype)[:1] or first
    return first


def _on_tensor_cores(layer: EngineLayer) -> bool | None:
    # CudaDepthwiseConvolution is a separate runner without a kernel name; it has no tensor-core kernels.
    return False if layer.kind == "CudaDepthwiseConvolution" else tensor_cores(layer.tactic)


def _result(layer: EngineLayer) -> _Known:
    types = {tensor.dtype for tensor in without_block_scales(layer.outputs)}
    is_one_type = len(types) == 1 and DType.UNKNOWN not in types
    return (types.pop(), Certainty.STATED) if is_one_type else _UNKNOWN
