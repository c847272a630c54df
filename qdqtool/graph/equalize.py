"""Scales the channels of a tensor by constants before and after it, so that the network computes the same function.

    W1 / s -> Relu -> x / s -> W2 * s        divide the constants before x, multiply the weights that read x
    x -> Mul(1 / s) -> W2 * s                if no constant before x can be divided

Positive factors pass through activations with f(s x) = s f(x) (Relu, LeakyRelu, PRelu) and through pools. Sources: Nagel et
al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section 4.1, for layers that follow
each other; Xiao et al., "SmoothQuant" (ICML 2023), and Lin et al., "AWQ" (MLSys 2024), for factors from activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.tensors import INT8
from qdqtool.core.weights import ScaledInput, WeightChanges
from qdqtool.graph.products import WeightedLayer, product_of
from qdqtool.trt.ops import (
    AVERAGE_POOLS,
    CLAMPS,
    CONV_ACTIVATIONS,
    ELEMENTWISE_SUMS,
    MAXIMUM_POOLS,
    POINTWISE,
    STANDARD_DOMAINS,
    SWISHES,
)

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node

    Factors = NDArray[np.float64]

HOMOGENEOUS = frozenset({"LeakyRelu", "PRelu", "Relu"})
"""Activations with f(s x) = s f(x) for every positive s."""


_CHANNELWISE: Final = HOMOGENEOUS | AVERAGE_POOLS | MAXIMUM_POOLS
# Branches that cannot agree would loop forever.
_SWEEPS: Final = 20
_SETTLED: Final = 1e-3
"""Relative change of factors below which equalization of consecutive layers has converged."""
TAIL: Final = 4.0
"""Estimated largest magnitude of a channel with a normal distribution, in standard deviations."""
_WIDEST: Final = 2.0**16
"""Largest factor; its inverse is the smallest. A larger factor would move a channel that never fires out of the range of FP16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalable:
    """A tensor whose channels can be scaled.

    Attributes:
        tensor: its name.
        channels: how many.
        divided: constants before it with their channel axis, which take 1 / factor: the first multiplies, the others
            are added. () if none can.
        weight: the constant that is the weight of a low-bit layer; "" if there is none.
        readers: layers that read it, all with weights of their own.
    """

    tensor: str
    channels: int
    divided: tuple[tuple[str, int], ...]
    weight: str
    readers: tuple[WeightedLayer, ...]


def scalables(view: GraphView) -> tuple[Scalable, ...]:
    """Return all tensors whose readers are all layers with constant weights, in graph order."""
    names = [info.name for info in view.inputs]
    names += [name for node in view.nodes for name in node.outputs if name]
    candidates = (_scalable(view, name) for name in names)
    return tuple(scalable for scalable in candidates if scalable is not None)


def shared_scalables(view: GraphView) -> tuple[Scalable, ...]:
    """Return every tensor that matrix products with constant weights and other nodes read, in graph order.

    No constant before the tensor can take the factors, because other nodes need the tensor unchanged. A Mul before
    the matrix products takes the factors instead.
    """
    names = [name for node in view.nodes for name in node.outputs if name]
    candidates = (_find_shared(view, name) for name in names if len(view.uses(name)) > 1)
    return tuple(scalable for scalable in candidates if scalable is not None)


def cross_layer(view: GraphView, among: Iterable[Scalable]) -> WeightChanges:
    """Return weights scaled to equal ranges per channel before and after each tensor; needs no samples."""
    values: dict[str, NDArray[Any]] = {}
    chosen = [scalable for scalable in among if scalable.divided and scalable.weight]
    for _ in range(_SWEEPS):
        largest = 0.0
        for scalable in chosen:
            axis = dict(scalable.divided)[scalable.weight]
            before = _ranges(_value(view, values, scalable.weight), axis)
            after = behind(view, scalable, values)
            factors = _bound_factors(
                np.sqrt(before / np.where(after > 0, after, 1)), (before > 0) & (after > 0)
            )
            rescale_tensor(view, values, scalable, factors)
            largest = max(largest, float(np.abs(np.log(factors)).max()))
        if largest < _SETTLED:
            break
    return WeightChanges(values=values)


def scale_tensors(view: GraphView, factors: Mapping[Scalable, Factors]) -> WeightChanges:
    """Divide tensors per channel, in constants before or by a Mul after; multiply their readers' weights."""
    values: dict[str, NDArray[Any]] = {}
    inputs: list[ScaledInput] = []
    for scalable, each in factors.items():
        rescale_tensor(view, values, scalable, each)
        if not scalable.divided:
            inputs.append(scaled_input(scalable, each))
    return WeightChanges(values=values, scaled=tuple(inputs))


def scaled_input(scalable: Scalable, factors: Factors) -> ScaledInput:
    """Return the Mul that divides a tensor by these factors before its layers read it."""
    return ScaledInput(
        tensor=scalable.tensor,
        nodes=tuple(reader.node for reader in scalable.readers),
        factors=tuple(float(np.float32(1 / factor)) for factor in factors),
        axis=scalable.readers[0].reading.axis,
    )


def migration(amax: NDArray[Any], weights: NDArray[Any], strength: float) -> Factors:
    """Return SmoothQuant's factors: activations are divided, weights multiplied, channel by channel.

    Args:
        amax: largest magnitude of every channel of the activation.
        weights: largest magnitude of the weights that multiply the channel.
        strength: the part of the spread that moves from the activation to the weights, 0 to 1.
    """
    fires = (amax > 0) & (weights > 0)
    both = np.where(fires, amax, 1.0) ** strength / np.where(fires, weights, 1.0) ** (1 - strength)
    return _bound_factors(both / _middle(both, fires), fires)


def protection(energy: NDArray[Any], strength: float) -> Factors:
    """Return AWQ's factors: weights of channels with much energy become larger, so that rounding affects them less."""
    fires = energy > 0
    root = np.where(fires, energy, 1.0) ** (strength / 2)
    return _bound_factors(root / _middle(root, fires), fires)


def behind(
    view: GraphView,
    scalable: Scalable,
    values: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    most: int | None = None,
) -> NDArray[np.float64]:
    """Return the largest magnitude of the weights that multiply each channel, over all outputs or about `most` outputs.

    `values` holds constants that have changed.
    """
    peaks = [np.abs(_rows(view, values, r, most)).max(axis=1).astype(np.float64) for r in scalable.readers]
    largest: NDArray[np.float64] = np.max(peaks, axis=0)
    return largest


def read_energy(
    view: GraphView,
    scalable: Scalable,
    values: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    most: int | None = None,
) -> NDArray[np.float64]:
    """Return the sum of squares of the weights per channel, over all outputs or about `most` outputs.

    `values` holds constants that have changed.
    """
    energies = [_energy(_rows(view, values, r, most)) for r in scalable.readers]
    summed: NDArray[np.float64] = np.sum(energies, axis=0)
    return summed


def largest_in_front(view: GraphView, scalable: Scalable) -> NDArray[np.float64]:
    """Estimate the relative size of each channel of a tensor from the constants before it, up to a common factor.

    Inputs of layers, and results of normalizations, are assumed to be independent with a mean square of 1.
    """
    return _likely(view, *scalable.divided)


def likely_in_front(view: GraphView, scalable: Scalable) -> NDArray[np.float64] | None:
    """Estimate the relative size of channels from the nearest layer before a tensor; None if no layer is found.

    Activations between the layer and the tensor are ignored: a large channel stays large.
    """
    tensor = scalable.tensor
    while (node := view.producer(tensor)) is not None:
        layer = product_of(view, node)
        if layer is not None and not layer.reading.kernel:
            return None
        if layer is not None:
            added = [each for each in _bias(node) if view.is_constant(each[0])]
            likely = _likely(view, (layer.weight, layer.output_axis), *added)
            return likely if len(likely) == scalable.channels else None
        tensor = next((name for name in node.inputs if name and not view.is_constant(name)), "")
    return None


def _likely(view: GraphView, first: tuple[str, int], *added: tuple[str, int]) -> NDArray[np.float64]:
    name, axis = first
    value = np.moveaxis(_value(view, {}, name), axis, 0)
    likely = TAIL * np.sqrt(_energy(np.asarray(value.reshape(len(value), -1), np.float32)))
    for each, _ in added:
        likely += np.abs(_value(view, {}, each))
    return likely


def rescale_tensor(
    view: GraphView, values: dict[str, NDArray[Any]], scalable: Scalable, factors: Factors
) -> None:
    """Divide the channels of a tensor by these factors, in the constants around it.

    Changes `values` in place, starting from the original constant if `values` does not have it.
    """
    changes = [(name, axis, 1 / factors) for name, axis in scalable.divided]
    changes += [(reader.weight, _read_axis(reader), factors) for reader in scalable.readers]
    for name, axis, by in changes:
        old = _value(view, values, name)
        spread = by.reshape([-1 if dim == axis else 1 for dim in range(old.ndim)])
        values[name] = (old.astype(np.float64) * spread).astype(old.dtype)


def weight_noise(
    view: GraphView,
    scalable: Scalable,
    factors: Factors,
    energy: Factors,
    values: Mapping[str, NDArray[Any]] = MappingProxyType({}),
) -> float:
    """Return the noise energy in the outputs from 8-bit rounding of the scaled weights, one scale per output.

    Args:
        view: the graph.
        scalable: the tensor.
        factors: by which the weights are multiplied, one per channel.
        energy: mean square of each channel before it is divided.
        values: constants that have changed.
    """
    total = 0.0
    for reader in scalable.readers:
        axis, groups = _read_axis(reader), reader.reading.groups
        value = np.moveaxis(np.asarray(_value(view, values, reader.weight), np.float32), axis, 0)
        spread = factors.astype(np.float32).reshape([-1, *([1] * (value.ndim - 1))])
        taps = prod(reader.reading.kernel)
        remaining = energy / factors**2
        if groups > 1:  # each output reads one channel
            steps = _ranges(value * spread, 0) / INT8.qmax
            total += taps * float((steps**2 * remaining).sum()) / 12
            continue
        place = reader.output_axis if reader.output_axis > axis else reader.output_axis + 1
        steps = _ranges(value * spread, place) / INT8.qmax
        total += taps * float((steps**2).sum()) * float(remaining.sum()) / 12
    return total


def _scalable(view: GraphView, tensor: str) -> Scalable | None:
    uses = view.uses(tensor)
    if not uses or view.is_output(tensor) or any(use.index for use in uses):
        return None
    readers = [product_of(view, use.node) for use in uses]
    channels = {_input_channels(reader) for reader in readers if reader is not None}
    if None in readers or len(channels) != 1 or None in channels:
        return None
    whole = tuple(reader for reader in readers if reader is not None)
    if len({reader.reading.axis for reader in whole}) > 1 or any(len(view.uses(r.weight)) > 1 for r in whole):
        return None
    (count,) = channels
    assert count is not None
    axis = whole[0].reading.axis
    constants = _source(view, tensor, count, of_pictures=axis == 1) if axis in {1, -1} else ()
    is_depthwise = axis == 1 and all(reader.reading.groups > 1 for reader in whole)
    if not constants and axis != -1 and not (is_depthwise and view.producer(tensor)):
        return None
    weight = next((name for name, _ in constants if len(view.constant_shape(name) or ()) > 1), "")
    return Scalable(tensor=tensor, channels=count, divided=constants, weight=weight, readers=whole)


def _find_shared(view: GraphView, tensor: str) -> Scalable | None:
    uses = view.uses(tensor)
    if view.is_output(tensor) or any(view.body_ops(use.node) for use in uses):
        return None
    layers = [product_of(view, use.node) for use in uses if use.index == 0]
    readers = tuple(
        layer
        for layer in layers
        if layer is not None and layer.reading.axis == -1 and len(view.uses(layer.weight)) == 1
    )
    channels = {_input_channels(reader) for reader in readers}
    if len(readers) == len(uses) or len(channels) != 1:
        return None
    (count,) = channels
    assert count is not None
    return Scalable(tensor=tensor, channels=count, divided=(), weight="", readers=readers)


def is_free(view: GraphView, scalable: Scalable) -> bool:
    """Return True if scaling breaks no fusion: constants take the factors, or the Mul follows a pointwise node.

    A Mul after a convolution and its Relu or Clip would separate nodes that classic TensorRT fuses.
    """
    node = view.producer(scalable.tensor)
    while node is not None and node.op in {"Identity", *CLAMPS}:
        node = view.producer(node.inputs[0])
    return bool(scalable.divided) or (
        node is not None and node.op in (POINTWISE - CONV_ACTIVATIONS) | SWISHES
    )


def _input_channels(reader: WeightedLayer) -> int | None:
    """Return the number of channels that a layer reads.

    None for groups of several channels, which would need factors per group.
    """
    groups = reader.reading.groups
    if groups == 1:
        return reader.shape[reader.input_axis]
    return groups if reader.shape[1] == 1 and reader.shape[0] == groups else None


def _source(view: GraphView, tensor: str, channels: int, *, of_pictures: bool) -> tuple[tuple[str, int], ...]:
    """Return the constants that scale a tensor's channels; () if there are none."""
    divided: list[tuple[str, int]] = []
    while (node := view.producer(tensor)) is not None and node.domain in STANDARD_DOMAINS:
        if node.outputs[0] != tensor:
            return ()
        layer = product_of(view, node)
        if layer is not None:
            if bool(layer.reading.kernel) != of_pictures:
                return ()  # its channels are another axis
            own = _own(view, [(layer.weight, layer.output_axis), *_bias(node)], channels, layer)
            return (*own, *divided) if own else ()
        if node.op == "LayerNormalization" and not of_pictures:
            names = [(name, 0) for name in node.inputs[1:3] if name]
            own = _vectors(view, names, channels)
            return (*own, *divided) if own else ()
        side = _constant_side(view, node, channels) if not of_pictures else None
        if node.op == "Mul" and side is not None:
            return ((node.inputs[side], 0), *divided)
        if node.op == "Mul":
            own = _of_gated(view, node, channels, of_pictures=of_pictures)
            return (*own, *divided) if own else ()
        if node.op == "Add" and side is not None:
            divided.append((node.inputs[side], 0))
            tensor = node.inputs[1 - side]
        elif node.op in HOMOGENEOUS or (of_pictures and node.op in _CHANNELWISE):
            tensor = node.inputs[0]
        else:
            return ()
        if view.is_output(tensor) or len(view.uses(tensor)) != 1:
            return ()
    return ()


def _of_gated(
    view: GraphView, node: Node, channels: int, *, of_pictures: bool
) -> tuple[tuple[str, int], ...]:
    """Return the constants that scale one factor of a Mul of two computed tensors, as in gated layers.

    Scaling one factor is enough, as in gated layers.
    """
    for name in node.inputs:
        if not view.is_output(name) and len(view.uses(name)) == 1:
            own = _source(view, name, channels, of_pictures=of_pictures)
            if own:
                return own
    return ()


def _constant_side(view: GraphView, node: Node, channels: int) -> int | None:
    """Return the index of a constant input of an Add or Mul with `channels` values and no second reader."""
    if node.op not in ELEMENTWISE_SUMS:
        return None
    for side in (0, 1):
        name = node.inputs[side]
        if view.constant_shape(name) == (channels,) and len(view.uses(name)) == 1:
            return side
    return None


def _bias(node: Node) -> list[tuple[str, int]]:
    return [(node.inputs[2], 0)] if len(node.inputs) > 2 and node.inputs[2] else []


def _own(
    view: GraphView, names: list[tuple[str, int]], channels: int, layer: WeightedLayer
) -> tuple[tuple[str, int], ...]:
    """Return the weight and bias of a layer if both have a value per channel and no other consumer; else ()."""
    (weight, axis), *biases = names
    if layer.shape[axis] != channels or len(view.uses(weight)) > 1:
        return ()
    vectors = _vectors(view, biases, channels) if biases else ()
    return ((weight, axis), *vectors) if len(vectors) == len(biases) else ()


def _vectors(view: GraphView, names: list[tuple[str, int]], channels: int) -> tuple[tuple[str, int], ...]:
    fit = all(view.constant_shape(name) == (channels,) and len(view.uses(name)) == 1 for name, _ in names)
    return tuple(names) if fit else ()


def _value(view: GraphView, values: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    value = values.get(name)
    stored = view.constant(name) if value is None else value
    assert stored is not None
    return stored


def _ranges(value: NDArray[Any], axis: int) -> NDArray[np.float64]:
    axes = tuple(dim for dim in range(value.ndim) if dim != axis)
    ranges: NDArray[np.float64] = np.abs(value).max(axis=axes).astype(np.float64)
    return ranges


def _rows(
    view: GraphView, values: Mapping[str, NDArray[Any]], reader: WeightedLayer, most: int | None
) -> NDArray[np.float32]:
    """Return the weights that multiply each channel, (channels, weights), for all or about `most` outputs."""
    axis = _read_axis(reader)
    value = np.moveaxis(_value(view, values, reader.weight), axis, 0)
    if most is not None and reader.reading.groups == 1:
        value = value[:, :: max(1, value.shape[1] // most)]
    return np.asarray(value.reshape(len(value), -1), np.float32)


def _energy(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sum of squares of each row."""
    energies: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    return energies


def _read_axis(reader: WeightedLayer) -> int:
    return reader.input_axis if reader.reading.groups == 1 else 0


def _middle(values: NDArray[Any], fires: NDArray[np.bool_]) -> float:
    """Return the geometric mean of `values` over the channels that are not always zero."""
    return float(np.exp(np.log(values[fires]).mean())) if fires.any() else 1.0


def _bound_factors(factors: NDArray[Any], fires: NDArray[np.bool_]) -> Factors:
    bounded: Factors = np.where(fires, np.clip(factors, 1 / _WIDEST, _WIDEST), 1.0)
    return bounded
