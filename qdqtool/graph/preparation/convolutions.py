"""Folds BatchNormalization into convolutions, and rewrites ConvTranspose, so that TensorRT runs them in INT8.

    stride 1      ConvTranspose ── y        Conv (kernel turned round, channels exchanged) ── y
    stride s      ConvTranspose ── y        Conv (s x s times the channels) ── DepthToSpace ── y

Output pixel s * m + r of a transposed convolution reads inputs near m through every s-th weight, starting at weight
(r + pad) mod s. This is one small convolution for each of the s x s positions r. All of them together are one Conv
with s x s times the output channels. Its kernel covers all inputs that any position reads (1x1 if the kernel is as
large as the stride). DepthToSpace puts the positions side by side. The result is exact: the sums are equal, with
zeros added for positions that read fewer inputs. If the output is not a multiple of the stride (kernel 3, stride 2,
padding 1), the Conv computes a longer output, and a Slice cuts off its end.

TensorRT has INT8 kernels and fusions for Conv that it lacks for ConvTranspose; TensorRT for RTX has no INT8 kernel
for ConvTranspose. Evidence (RTX 1.7.1): Conv, Relu, ConvTranspose, Relu, Conv with 32 channels and stride 1. Before
the rewrite, two of three layers run in INT8; after it, all three. Activation bytes fall from 1,441,792 to 1,245,184,
and a conversion kernel disappears.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView
from qdqtool.trt.ops import BIASED

# --- batchnorm -------------------------------------------------------------------------------------------------------
# Folds BatchNormalization into the Conv, ConvTranspose or Gemm before it.


# The default of the ONNX operator.
_EPSILON = 1e-5


def fold_batchnorm(edit: Edit) -> int:
    """Fold each BatchNormalization into the weight and bias of the layer before it, if possible; return their number.

    A BatchNormalization is foldable in inference mode, with constant statistics, if it is the only reader of a Conv,
    ConvTranspose or Gemm with constant weight and bias. That node takes over the output name. Computed in float64: w'
    = w * g / sqrt(var + eps) per output channel, b' = (b - mean) * g / sqrt(var + eps) + shift.
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
    """Return scale and offset of a BatchNormalization per channel in float64; None if they are not constant."""
    attributes = {attribute.name: attribute for attribute in norm.attribute}
    training = "training_mode" in attributes and attributes["training_mode"].i
    values = [edit.value(name) for name in norm.input[1:5]]
    if training or len([name for name in norm.output if name]) != 1:
        return None
    gain, shift, mean, var = (None if value is None else value.astype(np.float64) for value in values)
    if gain is None or shift is None or mean is None or var is None:
        return None
    if gain.ndim != 1 or not gain.shape == shift.shape == mean.shape == var.shape:
        return None  # no channels: the runtime refuses the model
    epsilon = attributes["epsilon"].f if "epsilon" in attributes else _EPSILON
    if not (var + epsilon > 0).all():
        return None
    factor = gain / np.sqrt(var + epsilon)
    return factor, shift - mean * factor


def _rescale(
    node: onnx.NodeProto, affine: tuple[NDArray[Any], NDArray[Any]], edit: Edit, shared: set[str]
) -> bool:
    """Fold `affine` into the weight and bias of `node`; return False if that is impossible."""
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
    """Return the shape in which values per output channel broadcast over a weight; None if the counts do not fit."""
    if weight.ndim < 2:
        return None
    spatial = (1,) * (weight.ndim - 2)
    if op == "Conv":
        return (channels, 1, *spatial) if weight.shape[0] == channels else None
    if op == "Gemm":
        transposed = "transB" in attributes and attributes["transB"].i
        shape = (channels, 1) if transposed else (1, channels)
        return shape if weight.shape[0 if transposed else 1] == channels else None
    group = attributes["group"].i if "group" in attributes else 1
    fits = weight.shape[1] * group == channels and weight.shape[0] % group == 0
    return (group, 1, channels // group, *spatial) if fits else None


def _spread(
    factor: NDArray[Any],
    shape: tuple[int, ...],
    weight: NDArray[Any],
    attributes: dict[str, onnx.AttributeProto],
) -> NDArray[Any]:
    """Reshape a factor per channel so that it multiplies the weight of a Conv or ConvTranspose."""
    shaped = factor.reshape(shape)
    if len(shape) == weight.ndim:
        return shaped
    group = attributes["group"].i if "group" in attributes else 1
    repeated = np.broadcast_to(shaped, (group, weight.shape[0] // group, *shape[2:]))
    return repeated.reshape(weight.shape[0], *shape[2:])


# --- conv transpose --------------------------------------------------------------------------------------------------


_STANDARD = {"", "ai.onnx"}
_DEPTH_TO_SPACE = 11
"""First opset whose DepthToSpace can read the positions of one channel side by side."""


def write_convolutions(edit: Edit, view: GraphView, *, strided: bool) -> int:
    """Turn ConvTranspose nodes with constant weights into Conv nodes; return their number.

    A node stays if it has an output shape instead of paddings, automatic paddings, paddings larger than the kernel
    reaches (which a Conv cannot have), strides with dilations, or strides that differ along axes of unknown size.

    Args:
        edit: what is changed.
        view: the graph as it is before the edit, for the sizes of tensors.
        strided: also those with strides; without, only those of stride 1, which become nothing but a Conv.
    """
    transposed = [node for node in edit.nodes if node.op_type == "ConvTranspose"]
    return sum(_rewritten(node, edit, view if strided else None) for node in transposed)


def as_convolution(
    weight: NDArray[Any], strides: tuple[int, ...], pads: tuple[int, ...], extra: tuple[int, ...], group: int
) -> NDArray[Any] | None:
    """Return the weight of the Conv that replaces a ConvTranspose with this weight; None if it cannot be replaced.

    Args:
        weight: [inputs, outputs/group, kernel...], of any type.
        strides: steps along each axis of the kernel.
        pads: before all axes, then after them.
        extra: output padding of each axis.
        group: groups of channels.
    """
    if prod(strides) == 1:
        return _turn_kernel(weight, group)
    axes = _axes(weight.shape[2:], strides, pads, extra)
    return None if axes is None else _of_places(weight, axes, group)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """How one spatial axis of a ConvTranspose becomes an axis of a convolution.

    Attributes:
        taps: for every place and every input that the kernel covers, which weight is read; -1 for none.
        pads: zeros before and behind the input.
        cut: values at the end that are no part of the result.
    """

    taps: tuple[tuple[int, ...], ...]
    pads: tuple[int, int]
    cut: int


def _rewritten(node: onnx.NodeProto, edit: Edit, view: GraphView | None) -> bool:
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    weight = edit.value(node.input[1])
    if weight is None or weight.ndim < 3 or node.domain not in _STANDARD:
        return False
    rank = weight.ndim - 2
    strides = tuple(attributes.get("strides", [1] * rank))
    if attributes.get("auto_pad", b"NOTSET") not in {b"NOTSET", b""} or "output_shape" in attributes:
        return False
    dilations = tuple(attributes.get("dilations", [1] * rank))
    pads = tuple(attributes.get("pads", [0] * 2 * rank))
    extra = tuple(attributes.get("output_padding", [0] * rank))
    group = int(attributes.get("group", 1))
    if [len(strides), len(dilations), len(pads), len(extra)] != [rank, rank, 2 * rank, rank]:
        return False  # another convolution also reads the weight
    if prod(strides) == 1:
        reach = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        turned = [way - pad for way, pad in zip(reach * 2, pads, strict=True)]
        if min(turned) < 0 or any(extra):
            return False
        edit.connect(node, 1, edit.constant(f"{node.input[1]}_turned", _turn_kernel(weight, group)))
        _convolve(node, weight.shape[2:], turned, group=group, dilations=dilations)
        return True
    if view is None or prod(dilations) != 1 or edit.opset < _DEPTH_TO_SPACE:
        return False
    sizes = _sizes(view, node.input[0], rank)
    if sizes is None and not _is_plain(strides):
        return False
    axes = _axes(weight.shape[2:], strides, pads, extra)
    if axes is None or (len(node.input) > 2 and node.input[2] and edit.value(node.input[2]) is None):
        return False
    _interleave(node, edit, axes, _of_places(weight, axes, group), strides, sizes)
    return True


def _convolve(
    node: onnx.NodeProto, kernel: tuple[int, ...], pads: list[int], *, group: int, dilations: tuple[int, ...]
) -> None:
    node.op_type = "Conv"
    del node.attribute[:]
    attributes = {"dilations": list(dilations), "group": group, "kernel_shape": list(kernel), "pads": pads}
    node.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in sorted(attributes.items())
    )


def _turn_kernel(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """Convert a weight [inputs, outputs/group, ...] to [outputs, inputs/group, ...], and rotate the kernel by 180 degrees."""
    return np.flip(_exchange_channels(weight, group), tuple(range(2, weight.ndim)))


def _exchange_channels(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """Convert a weight [inputs, outputs/group, ...] to [outputs, inputs/group, ...]."""
    inputs, outputs = weight.shape[:2]
    parts = weight.reshape(group, inputs // group, outputs, *weight.shape[2:])
    return parts.swapaxes(1, 2).reshape(group * outputs, inputs // group, *weight.shape[2:])


def _is_plain(strides: tuple[int, ...]) -> bool:
    """Return True if DepthToSpace or one Reshape can interleave the results for these strides, for any input size."""
    return len(strides) == 1 or (len(strides) == 2 and strides[0] == strides[1])


def _sizes(view: GraphView, tensor: str, rank: int) -> tuple[int, ...] | None:
    """Return the spatial sizes of a tensor; None if one of them is unknown."""
    sizes = (view.info(tensor).shape or ())[2:]
    fixed = tuple(size for size in sizes if isinstance(size, int))
    return fixed if len(fixed) == rank else None


def _axes(
    kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], extra: tuple[int, ...]
) -> list[_Axis] | None:
    """Return how a ConvTranspose becomes a convolution along each axis; None if it cannot."""
    rank = len(kernel)
    axes = [
        _axis(size, stride, (pads[index], pads[rank + index]), extra[index])
        for index, (size, stride) in enumerate(zip(kernel, strides, strict=True))
    ]
    possible = [axis for axis in axes if axis is not None]
    return possible if len(possible) == rank else None


def _axis(size: int, stride: int, pads: tuple[int, int], extra: int) -> _Axis | None:
    """Return how a ConvTranspose becomes a convolution along one axis; None if pads would be negative.

    Position r reads x[m + q - a] through weight t + a * stride; q and t are quotient and remainder of (r + pad) /
    stride.
    """
    length = size - sum(pads) + extra
    cut = -length % stride
    beyond = (length + cut) // stride
    starts = [divmod(place + pads[0], stride) for place in range(stride)]
    counts = [-(-(size - first) // stride) if first < size else 0 for _, first in starts]
    low = min(shift - max(count, 1) + 1 for (shift, _), count in zip(starts, counts, strict=True))
    high = max(shift for shift, _ in starts)
    taps = tuple(
        tuple(first + (shift - at) * stride if 0 <= shift - at < count else -1 for at in range(low, high + 1))
        for (shift, first), count in zip(starts, counts, strict=True)
    )
    around = (-low, high + beyond - 1)
    return None if min(around) < 0 else _Axis(taps=taps, pads=around, cut=cut)


def _of_places(weight: NDArray[Any], axes: list[_Axis], group: int) -> NDArray[Any]:
    """Return Conv weights for a ConvTranspose: a set of channels per output position modulo the stride."""
    places_of = _exchange_channels(weight, group)
    for index, axis in enumerate(axes):
        position = 2 + 2 * index  # each earlier axis added its positions and its taps
        taps = np.array(axis.taps)
        missing = (taps < 0).reshape((1,) * position + taps.shape + (1,) * (places_of.ndim - position - 1))
        places_of = np.where(missing, 0, np.take(places_of, np.maximum(taps, 0), axis=position)).astype(
            weight.dtype
        )
    rank = len(axes)
    places, taps_at = [2 + 2 * index for index in range(rank)], [3 + 2 * index for index in range(rank)]
    apart = places_of.transpose(0, *places, 1, *taps_at)
    return apart.reshape(-1, *apart.shape[rank + 1 :])


def _whole(edit: Edit, name: str, result: str, cuts: list[int]) -> str:
    """Add a Slice that makes `result`, and return its input; if nothing is cut off, return `result` itself."""
    if not any(cuts):
        return result
    longer = edit.fresh(f"{result}_longer")
    numbers = [(2 + index, -cut) for index, cut in enumerate(cuts) if cut]
    rows = {
        "begin": [0] * len(numbers),
        "end": [end for _, end in numbers],
        "axes": [axis for axis, _ in numbers],
    }
    bounds = [edit.constant(f"{result}_{key}", np.array(row, np.int64)) for key, row in rows.items()]
    edit.node("Slice", [longer, *bounds], [result], name=f"{name}_cut")
    return longer


def _interleave(
    node: onnx.NodeProto,
    edit: Edit,
    axes: list[_Axis],
    weight: NDArray[Any],
    strides: tuple[int, ...],
    sizes: tuple[int, ...] | None,
) -> None:
    """Replace a ConvTranspose by a Conv with a set of channels per output position modulo the stride.

    Further nodes interleave the sets.
    """
    rank, places = len(axes), prod(strides)
    channels, kernel = weight.shape[0] // places, weight.shape[2:]
    group = int(next((a.i for a in node.attribute if a.name == "group"), 1))
    edit.connect(node, 1, edit.constant(f"{node.input[1]}_places", weight))
    if len(node.input) > 2 and node.input[2]:
        bias = edit.value(node.input[2])
        repeated = np.repeat(bias, places)  # type: ignore[arg-type]
        edit.connect(node, 2, edit.constant(f"{node.input[2]}_places", repeated))
    pads = [axis.pads[0] for axis in axes] + [axis.pads[1] for axis in axes]
    _convolve(node, kernel, pads, group=group, dilations=(1,) * rank)
    result, apart = node.output[0], edit.fresh(f"{node.output[0]}_places")
    edit.write(node, 0, apart)
    result = _whole(edit, node.name, result, [axis.cut for axis in axes])
    if rank == 2 and strides[0] == strides[1]:
        name = f"{node.name}_side_by_side"
        edit.node("DepthToSpace", [apart], [result], name=name, blocksize=strides[0], mode="CRD")
        return
    grown = [
        size - 1 + sum(axis.pads) - len(axis.taps[0]) + 2
        for size, axis in zip(sizes or (0,), axes, strict=True)
    ]
    inner, outer = (
        ([0, channels, places, -1], [0, channels, -1])
        if rank == 1
        else (
            [0, channels, *strides, *grown],
            [0, channels, *(size * stride for size, stride in zip(grown, strides, strict=True))],
        )
    )
    order = [0, 1, *(axis for index in range(rank) for axis in (2 + rank + index, 2 + index))]
    split, turned = edit.fresh(f"{result}_split"), edit.fresh(f"{result}_turned")
    shapes = [edit.constant(f"{result}_shape", np.array(shape, np.int64)) for shape in (inner, outer)]
    edit.node("Reshape", [apart, shapes[0]], [split], name=f"{node.name}_split")
    edit.node("Transpose", [split], [turned], name=f"{node.name}_side_by_side", perm=order)
    edit.node("Reshape", [turned, shapes[1]], [result], name=f"{node.name}_joined")
