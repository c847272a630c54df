"""Folds BatchNormalization into the Conv, ConvTranspose or Gemm before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.graph.edit import Edit
from qdqtool.trt.ops import BIASED

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The default of the ONNX operator.
_EPSILON = 1e-5


def fold_batchnorm(edit: Edit) -> int:
    """Fold each foldable BatchNormalization into the weight and bias before it; return how many.

    Foldable: inference mode, constant statistics, and alone in reading the output of a Conv, ConvTranspose or Gemm
    with constant weight and bias. The weighted node takes over the output name. Computed in float64:
    w' = w * g / sqrt(var + eps) per output channel, b' = (b - mean) * g / sqrt(var + eps) + shift.
    """
    pinned = edit.pinned
    several = {name for name, readers in edit.consumers().items() if len(readers) > 1} | pinned
    folded = []
    for norm in tuple(edit.nodes):
        if norm.op_type != "BatchNormalization" or norm.domain:
            continue
        before = edit.maker(norm.input[0])
        if before is None or before.op_type not in BIASED or before.domain:
            continue
        alone = len(edit.readers(norm.input[0])) == 1 and norm.input[0] not in pinned
        affine = _affine(norm, edit) if alone else None
        if affine is None or not _rescale(before, affine, edit, several.intersection(before.input[1:])):
            continue
        edit.remove([norm])
        edit.write(before, 0, norm.output[0])
        folded.append(norm)
    return len(folded)


def _affine(norm: onnx.NodeProto, edit: Edit) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return factor and offset per channel in float64; None in training mode, or if they are not constant vectors."""
    attributes = {attribute.name: attribute for attribute in norm.attribute}
    training = "training_mode" in attributes and attributes["training_mode"].i
    values = [edit.value(name) for name in norm.input[1:5]]
    if training or len([name for name in norm.output if name]) != 1:
        return None
    gain, shift, mean, var = (None if value is None else value.astype(np.float64) for value in values)
    if gain is None or shift is None or mean is None or var is None:
        return None
    if gain.ndim != 1 or not gain.shape == shift.shape == mean.shape == var.shape:
        return None  # no channels: what runs the model refuses it
    epsilon = attributes["epsilon"].f if "epsilon" in attributes else _EPSILON
    if not (var + epsilon > 0).all():
        return None
    factor = gain / np.sqrt(var + epsilon)
    return factor, shift - mean * factor


def _rescale(
    node: onnx.NodeProto, affine: tuple[NDArray[Any], NDArray[Any]], edit: Edit, shared: set[str]
) -> bool:
    """Give `node` a new weight and bias that include `affine`; return False if that is impossible."""
    factor, offset = affine
    weight = edit.value(node.input[1])
    bias_name = node.input[2] if len(node.input) > 2 else ""
    bias = edit.value(bias_name) if bias_name else np.zeros(1)
    if weight is None or bias is None:
        return False
    attributes = {attribute.name: attribute for attribute in node.attribute}
    shape = _channel_shape(node.op_type, weight, attributes, len(factor))
    if shape is None or bias.size not in {1, len(factor)} or bias.shape[-1:] not in {(), (bias.size,)}:
        return False
    beta = attributes["beta"].f if "beta" in attributes else 1.0
    scaled = weight.astype(np.float64) * _spread(factor, shape, weight, attributes)
    moved = bias.astype(np.float64).reshape(-1) * beta * factor + offset
    if not (np.isfinite(scaled.astype(weight.dtype)).all() and np.isfinite(moved.astype(weight.dtype)).all()):
        return False
    names = [node.input[1], bias_name or f"{node.name}_bias"]
    inputs = [node.input[0]]
    for name, value in zip(names, (scaled, moved), strict=True):
        fresh = name in shared or name == f"{node.name}_bias"
        inputs.append(edit.fresh(name) if fresh else name)
        edit.put(inputs[-1], value.astype(weight.dtype))
    edit.rewire(node, inputs)
    if "beta" in attributes:
        attributes["beta"].f = 1.0
    return True


def _channel_shape(
    op: str, weight: NDArray[Any], attributes: dict[str, onnx.AttributeProto], channels: int
) -> tuple[int, ...] | None:
    """Return the shape that broadcasts one value per output channel over the weight; None if the counts do not fit."""
    if weight.ndim < 2:
        return None
    rest = (1,) * (weight.ndim - 2)
    if op == "Conv":
        return (channels, 1, *rest) if weight.shape[0] == channels else None
    if op == "Gemm":
        transposed = "transB" in attributes and attributes["transB"].i
        shape = (channels, 1) if transposed else (1, channels)
        return shape if weight.shape[0 if transposed else 1] == channels else None
    group = attributes["group"].i if "group" in attributes else 1
    fits = weight.shape[1] * group == channels and weight.shape[0] % group == 0
    return (group, 1, channels // group, *rest) if fits else None


def _spread(
    factor: NDArray[Any],
    shape: tuple[int, ...],
    weight: NDArray[Any],
    attributes: dict[str, onnx.AttributeProto],
) -> NDArray[Any]:
    """Reshape `factor` to multiply the weight; for ConvTranspose every input channel belongs to one group."""
    shaped = factor.reshape(shape)
    if len(shape) == weight.ndim:
        return shaped
    group = attributes["group"].i if "group" in attributes else 1
    repeated = np.broadcast_to(shaped, (group, weight.shape[0] // group, *shape[2:]))
    return repeated.reshape(weight.shape[0], *shape[2:])
