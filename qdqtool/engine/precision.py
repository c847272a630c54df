"""What a layer is for, and in which type it computes.

There is no precision field in any layer information: it follows from the types of the tensors. A kernel computes in
INT8 only when its run-time inputs and its weights are Int8; the type of its output says nothing about its arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty, EngineLayer, EngineTensor, Role

_SYNC = frozenset({"signal", "wait", "shape_call"})
_COMPUTE_KINDS = frozenset({"correlation", "gemm", "deconv"})
_FUSION_WORDS = frozenset({"Fc", "Corr", "Deco"})
_MOVES = frozenset({"Tran", "Move", "Resh", "Cast", "Repl"})
_QUANTIZE = _MOVES | {"Mul", "Div", "Min", "Max", "Roun", "Conc"}
_POINTWISE = _QUANTIZE | frozenset(
    {"Add", "Sub", "Silu", "Relu", "Sigm", "Sqrt", "Erf", "Exp", "Tanh", "Pow", "Abs", "Neg"}
)
_SUFFIX = re.compile(r"_myl\d+_\d+$")


def judged(layer: EngineLayer) -> EngineLayer:
    """`layer` with its role and its precision filled in."""
    role = role_of(layer)
    precision, certainty = _arithmetic(layer) if role is Role.COMPUTE else _result(layer)
    return replace(
        layer,
        role=role,
        precision=precision,
        precision_certainty=certainty,
        pointwise=_is_pointwise(layer, role),
    )


def settled(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """`layers` with the roles that only their neighbours can tell.

    The result of an INT8 kernel must be rescaled by somebody, so a kernel that does this and quantizes for the next
    one is an epilogue, not a mere conversion.
    """
    from_int8 = {
        tensor.name
        for layer in layers
        if layer.role is Role.COMPUTE and layer.precision is DType.INT8
        for tensor in layer.outputs
    }
    return tuple(
        replace(layer, role=Role.OTHER)
        if layer.role is Role.QDQ and any(tensor.name in from_int8 for tensor in layer.inputs)
        else layer
        for layer in layers
    )


def words(layer: EngineLayer) -> tuple[str, ...]:
    """The operations a generated kernel is named after: `__myl_MulMinMaxRounCast_myl0_0` has five.

    A last word "Etc" means that the name was cut and further operations are not shown.
    """
    stem = _SUFFIX.sub("", layer.name)
    return (
        tuple(re.findall(r"[A-Z][a-z0-9]*", stem.removeprefix("__myl_"))) if stem.startswith("__myl_") else ()
    )


def role_of(layer: EngineLayer) -> Role:
    """What the layer is for."""
    if layer.kind in _SYNC:
        return Role.SYNC
    named = frozenset(words(layer))
    if layer.kind in _COMPUTE_KINDS or is_attention(layer) or named & _FUSION_WORDS:
        return Role.COMPUTE
    return Role.QDQ if named and _only_converts(layer, named) else Role.OTHER


def is_attention(layer: EngineLayer) -> bool:
    """Whether the kernel is a fused attention."""
    return "_gemm_mha" in layer.name


def dequantizes_first(layer: EngineLayer) -> bool:
    """Whether a compute kernel turns its INT8 input into floats before it multiplies (`CastMul...Fc`)."""
    named = words(layer)
    core = next((at for at, word in enumerate(named) if word in _FUSION_WORDS), 0)
    return "Cast" in named[:core]


def weight(layer: EngineLayer) -> EngineTensor | None:
    """The weight constant: the one with most elements among those of rank 2 and more."""
    ranked = [
        constant for constant in layer.constants if constant.shape is not None and len(constant.shape) > 1
    ]
    return max(ranked, key=lambda constant: prod(constant.shape or ()), default=None)


def _only_converts(layer: EngineLayer, named: frozenset[str]) -> bool:
    if named <= _MOVES:
        return True
    types = {tensor.dtype for tensor in (*layer.inputs, *layer.constants, *layer.outputs)}
    quantizes = "Roun" in named or (DType.INT8 in types and "Cast" in named)
    joins = "Conc" in named and len(layer.inputs) > 1
    return quantizes and named <= _QUANTIZE and not joins


def _is_pointwise(layer: EngineLayer, role: Role) -> bool:
    named = frozenset(words(layer))
    joins = "Conc" in named and len(layer.inputs) > 1
    return role in {Role.OTHER, Role.QDQ} and bool(named) and named <= _POINTWISE and not joins


def _arithmetic(layer: EngineLayer) -> tuple[DType, Certainty]:
    operands = [tensor.dtype for tensor in layer.inputs]
    held = weight(layer)
    if held is not None:
        # Further run-time inputs are residuals or scales: the first one meets the weights.
        operands = [*operands[:1], held.dtype]
    if not operands or DType.UNKNOWN in operands:
        return DType.UNKNOWN, Certainty.UNKNOWN
    if dequantizes_first(layer) or len(set(operands)) > 1:
        floats = [dtype for dtype in (*operands, *(out.dtype for out in layer.outputs)) if dtype.is_float]
        return (floats[0], Certainty.INFERRED) if floats else (DType.UNKNOWN, Certainty.UNKNOWN)
    return operands[0], Certainty.STATED


def _result(layer: EngineLayer) -> tuple[DType, Certainty]:
    types = {tensor.dtype for tensor in layer.outputs}
    known = len(types) == 1 and DType.UNKNOWN not in types
    return (types.pop(), Certainty.STATED) if known else (DType.UNKNOWN, Certainty.UNKNOWN)
