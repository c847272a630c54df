"""Role of a layer: computing, converting, something else, or nothing at all."""

from __future__ import annotations

import re
from dataclasses import replace

from qdqtool.core.engine import EngineLayer, Role

_NO_KERNEL = frozenset({"signal", "wait", "shape_call", "NoOp", "Constant", "TrainStation"})
_COMPUTE_KIND = re.compile(r"conv|gemm|matrixmultiply|matmul|fullyconnected|correlation", re.IGNORECASE)
_ATTENTION = re.compile(r"_gem[mv]_mha|kgen_mha|fmha|flash_attention|QKVToContext", re.IGNORECASE)
_ATTENTION_WORDS = ("mha", "flash_attention", "qkvtocontext")
"""Words for a quick check: every match of `_ATTENTION` contains one of them."""
_COMPUTE_PLUGIN = re.compile(
    r"QKVToContext|FullyConnected|CustomFC|MultiHead|Attention|DeformableConv", re.IGNORECASE
)
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
_SUFFIX = re.compile(r"_myl\d+_\d+$")


def words(layer: EngineLayer) -> tuple[str, ...]:
    """Return the operations in the name of a generated kernel: `__myl_MulMinMaxRounCast_myl0_0` has five.

    A last word "Etc" means that the name was cut and further operations are not shown.
    """
    if not layer.name.startswith(_GENERATED):
        return ()
    return tuple(_WORD.findall(_SUFFIX.sub("", layer.name).removeprefix(_GENERATED)))


def role_of(layer: EngineLayer) -> Role:
    """Return the role of the layer, as far as the layer alone shows it."""
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
    # The expression alone takes a fifth of the time that judging a layer takes.
    lower = text.lower()
    return any(word in lower for word in _ATTENTION_WORDS) and _ATTENTION.search(text) is not None


def dequantizes_first(layer: EngineLayer) -> bool:
    """Return whether a compute kernel converts its INT8 input to floats before it multiplies (`CastMul...Fc`)."""
    named = words(layer)
    core = next((at for at, word in enumerate(named) if word in _FUSION_WORDS), 0)
    return "Cast" in named[:core]


def is_pointwise(layer: EngineLayer, role: Role) -> bool:
    """Return whether a generated kernel of this role works element by element, so that a compute kernel could fuse it."""
    named = frozenset(words(layer))
    joins = "Conc" in named and len(layer.inputs) > 1
    return role in {Role.OTHER, Role.QDQ} and bool(named) and named <= _POINTWISE and not joins


def settled(layers: tuple[EngineLayer, ...]) -> tuple[EngineLayer, ...]:
    """Return `layers` with the roles that depend on their neighbours.

    The result of a kernel that multiplies quantized numbers must be rescaled by somebody, so a generated kernel that
    does this and quantizes for the next one is an epilogue, not a mere conversion.
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
        # Without an input it moves nothing: it clears a counter or the place of a sum, or begins a recurrence.
        return bool(named) and (narrow or bool(layer.inputs))
    quantizes = bool(named & {"Roun", _DYNAMIC}) or (narrow and "Cast" in named)
    joins = "Conc" in named and len(layer.inputs) > 1
    return quantizes and named <= _QUANTIZE and not joins
