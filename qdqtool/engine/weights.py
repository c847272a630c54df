"""Weights that a layer states as parameters (`Weights`, `Kernel`, `OutMaps`, `Groups`) instead of listing constants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from qdqtool.core.engine import EngineLayer, EngineTensor
from qdqtool.trt.tensor_formats import dtype_of

RESULT = "ConvDimensions"
"""Attribute that a log adds to a layer: the output shape of its convolution, before any pooling."""
_PREFIXES = ("", "Conv")
"""Prefixes of parameter names. A fused convolution, activation and pooling writes `ConvKernel`, `ConvWeights`, ..."""


def stated_constants(fields: Mapping[str, Any]) -> tuple[EngineTensor, ...]:
    """Return weight and bias as constants; the weight's shape is (output channels, input channels / groups, *kernel)."""
    for prefix in _PREFIXES:
        weights = _parameter(fields.get(f"{prefix}Weights"))
        if weights is not None:
            bias = _parameter(fields.get(f"{prefix}Bias"))
            found = [_weight(fields, prefix, weights)]
            found += [_tensor("bias", bias, (bias[1],))] if bias is not None else []
            return tuple(found)
    return ()


def before_pooling(layer: EngineLayer, source: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the convolution's output shape in a fused convolution and pooling, from its parameters or from a log.

    Args:
        layer: the fused layer.
        source: shape of its input.
    """
    stated = dict(layer.attributes)
    if RESULT in stated:
        return integers(stated[RESULT])
    maps, kernel, stride, before, after, dilation = (
        integers(stated.get(f"Conv{name}", ""))
        for name in ("OutMaps", "Kernel", "Stride", "PrePadding", "PostPadding", "Dilation")
    )
    sides = len(source) - 2
    if len(maps) != 1 or {len(kernel), len(stride), len(before), len(after), len(dilation)} != {sides}:
        return None
    if min((*stride, *kernel)) < 1:
        return None
    spread = (step * (size - 1) + 1 for step, size in zip(dilation, kernel, strict=True))
    return (
        source[0],
        maps[0],
        *(
            (side + first + last - window) // step + 1
            for side, first, last, window, step in zip(source[2:], before, after, spread, stride, strict=True)
        ),
    )


def _weight(fields: Mapping[str, Any], prefix: str, weights: tuple[str, int]) -> EngineTensor:
    kernel = integers(fields.get(f"{prefix}Kernel"))
    maps = integers(fields.get(f"{prefix}OutMaps"))
    volume = prod(kernel) * prod(maps)
    if not kernel or len(maps) != 1 or volume < 1 or weights[1] % volume:
        return _tensor("weights", weights, None)
    return _tensor("weights", weights, (maps[0], weights[1] // volume, *kernel))


def integers(value: Any) -> tuple[int, ...]:
    """Parse a number or a list of numbers, as JSON or as text; () if it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if type(value) is int:
        return (value,)
    if isinstance(value, list) and all(type(number) is int for number in value):
        return tuple(value)
    return ()


def _parameter(value: Any) -> tuple[str, int] | None:
    """Parse type and count of `{"Type": "Int8", "Count": 864}`, as JSON or as text; None if there is nothing."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, Mapping):
        return None
    words, count = value.get("Type"), value.get("Count")
    return (words, count) if isinstance(words, str) and type(count) is int and count > 0 else None


def _tensor(name: str, parameter: tuple[str, int], shape: tuple[int, ...] | None) -> EngineTensor:
    return EngineTensor(name=name, shape=shape, dtype=dtype_of(parameter[0]), format=parameter[0])
