"""Rounds the weights of a model so that the outputs of layers change little; estimates the noise from rounding.

`seqmse` chooses the scale of every channel or block that gives the lowest noise at the layer's output, and rounds to
nearest. `gptq` and `adaround` keep the scales, and choose one of a few neighbouring values for every weight
(`calibrators.weights`). `gptq` works column by column; each column compensates the errors of earlier columns.
`adaround` starts from the nearest values and descends. All methods use the inputs of the layers only through their
second moments (`qdqtool.calibration.moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from calibrators.noise import noise_of, running_moments
from calibrators.weights import channel_max, channel_mse, output_errors, round_columns, up_or_down
from qdqtool.calibration.collect import OnProgress
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.moments import ROOM, Moments, moments, parts
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.grids import get_storage_type, grid_for
from qdqtool.core.placement import Placement, Slot, SlotKind
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import QuantFormat
from qdqtool.core.weights import RoundedWeight, WeightChanges
from qdqtool.graph.products import InputReading, WeightedLayer, products
from qdqtool.graph.qdq.encode import block_scales, decode, effective, encode
from qdqtool.graph.qdq.insert import assignment_of
from qdqtool.graph.qdq.lower import Quantization
from qdqtool.graph.sparse import has_pattern
from qdqtool.graph.view import GraphView
from qdqtool.platform import processors

if TYPE_CHECKING:
    from qdqtool.graph.view import Model


GPTQ, SEQMSE, ADAROUND = "gptq", "seqmse", "adaround"
_FRACTIONS: Final = tuple(float(share) for share in np.linspace(1.0, 0.5, 26))
"""Fractions of a channel's largest magnitude that `seqmse` tries."""

COPIES: Final = 8
"""Size of all arrays that rounding a layer makes from its moments, relative to the moments."""

Nearest = Callable[["NDArray[np.floating[Any]]", "slice | NDArray[np.intp]"], "NDArray[np.float32]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightRounding:
    """Method of rounding weights.

    Attributes:
        method: "gptq", "seqmse" or "adaround", which is gptq for formats with uneven steps.
        widest: inputs of a layer whose errors may make up for each other, at most; None for all.
    """

    method: str
    widest: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedLayer:
    """A compute node with quantized weights, and the quantization of these weights."""

    product: WeightedLayer
    quantization: Quantization


def layers_of(
    model: Model, placement: Placement, table: CalibrationTable, options: InsertOptions
) -> tuple[QuantizedLayer, ...]:
    """Return the layers whose weights can be rounded, in graph order.

    Only one compute node reads each of these weights, with one quantization.
    """
    assignment = assignment_of(model, placement, table, options)
    layers = {}
    for product in products(model.view):
        quantization = assignment.get(Slot(node=product.node, index=1))
        if (
            quantization is not None
            and len(model.view.uses(product.weight)) == 1
            and _is_plain(product, quantization)
        ):
            layers[product.node] = QuantizedLayer(product=product, quantization=quantization)
    return tuple(layers.values())


def round_weights(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    way: WeightRounding,
    options: InsertOptions,
    samples: Sequence[Sample],
    on_progress: OnProgress | None = None,
) -> CalibrationTable:
    """Return the table with rounded weights, and with new ranges if the method changed ranges.

    Args:
        model: the float model, already with the changes of the table.
        placement: the quantized slots.
        table: ranges; those of the weights give the scales that `gptq` keeps.
        way: how weights are chosen.
        options: how weights will be written: their type decides how exact a scale can be stored.
        samples: calibration samples; `moments` uses as many as necessary.
        on_progress: called with the number of finished layers and their total.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    layers = {layer.product.node: layer for layer in layers_of(model, placement, table, options)}
    if not layers or not samples:
        return table
    rounded: dict[str, RoundedWeight] = {}
    for part in parts([layer.product for layer in layers.values()], widest=way.widest):
        readings = moments(model, part, samples, widest=way.widest)
        readers: dict[InputReading, list[WeightedLayer]] = {}
        for product in part:
            readers.setdefault(product.reading, []).append(product)

        def rounding(
            reading: InputReading,
            readings: dict[InputReading, Moments] = readings,
            readers: Mapping[InputReading, list[WeightedLayer]] = readers,
        ) -> dict[str, RoundedWeight]:
            mine = readings.pop(reading)
            results = {}
            for product in readers[reading]:
                value = model.view.constant(product.weight)
                assert value is not None
                results[product.weight] = _round_layer(layers[product.node], value, mine, way.method)
            return results

        workers = _workers(list(readings.values()))
        # threads inside the many small products of one layer would wait for each other
        limits = threadpool_limits(max(1, processors() // workers), user_api="blas")
        with limits, ThreadPoolExecutor(workers) as pool:
            for some in pool.map(rounding, readers):
                rounded |= some
                if on_progress is not None:
                    on_progress(len(rounded), len(layers))
        del readings
    ranges = tuple(_range(entry, rounded.get(entry.tensor), way.method) for entry in table.ranges)
    changes = (table.weights or WeightChanges()).rounding(rounded)
    return replace(table, ranges=ranges, weights=changes)


def _workers(readings: Sequence[Moments]) -> int:
    """Return how many layers are rounded at once: as many as fit into memory with the copies of their moments."""
    most = max(reading.square.nbytes for reading in readings)
    return max(1, min(processors(), ROOM // (COPIES * most)))


def output_noise(
    layer: QuantizedLayer, value: NDArray[Any], inputs: Moments, factors: NDArray[np.float64], *, search: bool
) -> float:
    """Return the mean squared error of a layer's outputs if weights are scaled per input and rounded to nearest.

    Args:
        layer: a matrix product.
        value: its weights.
        inputs: moments of its input, before the factors divide it.
        factors: one per input channel.
        search: whether scales are searched for the smallest squared error.
    """
    product, quantization = layer.product, layer.quantization
    format_, axis, block = quantization.format, quantization.axis, quantization.block
    spread = factors.reshape([-1 if dim == product.input_axis else 1 for dim in range(value.ndim)])
    scaled = (value * spread).astype(np.float32)
    if block is not None and axis is not None:
        scale, level = block_scales(scaled, format_, axis, block, search=search)
    else:
        amax = channel_mse(scaled, axis, grid_for(format_)) if search else channel_max(scaled, axis)
        scale, level = np.where(amax > 0, amax / format_.qmax, 1).astype(np.float32), None
        scale = scale if axis is not None else scale.reshape(())
    steps = effective(scale, level)
    stored = decode(encode(scaled, steps, format_, axis, block), steps, axis, block)
    missed = np.ascontiguousarray(product.matrix((stored - scaled) / spread))
    return float(output_errors(inputs.sections(missed), inputs.square).sum())


def _range(entry: TensorRange, rounded: RoundedWeight | None, method: str) -> TensorRange:
    if rounded is None:
        return entry
    method = GPTQ if method == ADAROUND and not rounded.format.is_integer else method
    if rounded.block is not None:
        return replace(entry, method=method)
    amax = tuple(float(step) * rounded.format.qmax for step in np.atleast_1d(rounded.scale))
    return replace(entry, method=method, amax=amax)


def _is_plain(product: WeightedLayer, quantization: Quantization) -> bool:
    """Return True if rounding supports the scales: one, one per output channel, or one per block of inputs."""
    axis = quantization.axis
    if quantization.scale is None or axis is None:
        return quantization.scale is not None
    return axis == (product.input_axis if quantization.block is not None else product.output_axis)


def _round_layer(layer: QuantizedLayer, value: NDArray[Any], inputs: Moments, method: str) -> RoundedWeight:
    product, quantization = layer.product, layer.quantization
    weights = np.ascontiguousarray(product.matrix(value), np.float32)
    if method == SEQMSE:
        quantization = _with_best_scales(layer, value, weights, inputs)
    weights, scale = inputs.sections(weights), inputs.sections(_scale_matrix(product, quantization))
    nearest = _nearest(scale, quantization.format)
    if has_pattern(value, product.input_axis):
        nearest = _keeping_zeros(nearest, weights != 0)
    if method == ADAROUND and quantization.format.is_integer:
        chosen = up_or_down(weights, inputs.trusted, nearest, scale)
    elif method in {GPTQ, ADAROUND}:
        chosen = round_columns(weights, inputs.trusted, nearest)
    else:
        chosen = nearest(weights, slice(None))
    values = product.constant(inputs.joined(chosen))
    assert quantization.scale is not None
    steps = effective(quantization.scale, quantization.global_scale)
    return RoundedWeight(
        codes=encode(values, steps, quantization.format, quantization.axis, quantization.block),
        scale=quantization.scale,
        format=quantization.format,
        axis=quantization.axis,
        block=quantization.block,
        global_scale=quantization.global_scale,
    )


def _scale_matrix(product: WeightedLayer, quantization: Quantization) -> NDArray[np.float32]:
    """Return the scale of each weight in matrix form: (groups, rows, columns), or (groups, rows, 1) without blocks."""
    assert quantization.scale is not None
    scale = effective(quantization.scale, quantization.global_scale)
    axis, block = quantization.axis, quantization.block
    if block is not None:
        assert axis is not None
        return np.ascontiguousarray(product.matrix(np.repeat(scale, block, axis=axis)))
    facing = (
        scale
        if axis is None
        else scale.reshape([-1 if dim == axis else 1 for dim in range(len(product.shape))])
    )
    whole = product.matrix(np.broadcast_to(facing, product.shape))
    return np.ascontiguousarray(whole[:, :, :1])


def _nearest(scale: NDArray[np.float32], format_: QuantFormat) -> Nearest:
    """Return a function that rounds columns of weights to the nearest values of the format.

    It needs column numbers, because blocks have separate scales.
    """
    kind = get_storage_type(format_.dtype)

    def nearest(values: NDArray[np.floating[Any]], columns: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        if scale.shape[2] == 1:
            steps = scale
        elif isinstance(columns, slice):
            steps = scale[:, :, columns]
        else:
            steps = np.take_along_axis(scale, columns[:, None, None], axis=2)
        levels = values / steps
        if format_.is_integer:
            levels = np.rint(levels)
        levels = np.clip(levels, format_.qmin, format_.qmax)
        if not format_.is_integer:
            levels = levels.astype(kind)
        nearest_values: NDArray[np.float32] = levels.astype(np.float32) * steps
        return nearest_values

    return nearest


def _keeping_zeros(nearest: Nearest, kept: NDArray[np.bool_]) -> Nearest:
    """Return a function that keeps zeros, for sparse tensor cores, and rounds other weights as `nearest` does."""

    def mask_values(
        values: NDArray[np.floating[Any]], columns: slice | NDArray[np.intp]
    ) -> NDArray[np.float32]:
        own = (
            kept[:, :, columns]
            if isinstance(columns, slice)
            else np.take_along_axis(kept, columns[:, None, None], axis=2)
        )
        return np.where(own, nearest(values, columns), np.float32(0))

    return mask_values


def _with_best_scales(
    layer: QuantizedLayer, value: NDArray[Any], weights: NDArray[np.float32], inputs: Moments
) -> Quantization:
    """Return the quantization with the scales of least output noise, for weights rounded to nearest.

    Errors of different inputs count as independent, each with its input's energy: the cross terms change the choice
    of a scale little (measured on four networks) and cost as much as the rest of calibration together.
    """
    product, quantization = layer.product, layer.quantization
    format_, axis, block = quantization.format, quantization.axis, quantization.block
    energy = product.constant(np.broadcast_to(inputs.energy[:, None, :], weights.shape))
    if block is not None:
        assert axis is not None
        scale, level = block_scales(value, format_, axis, block, search=True, energy=energy)
        return replace(quantization, scale=scale, global_scale=level)
    assert quantization.scale is not None
    if axis is None:
        return quantization
    widest = _scale_matrix(product, quantization)
    best, least = widest, np.full(widest.shape, np.inf, np.float32)
    for fraction in _FRACTIONS:
        tried = (widest * np.float32(fraction)).astype(np.float32)
        missed = _nearest(tried, format_)(weights, slice(None)) - weights
        noise = (missed * missed * inputs.energy[:, None, :]).sum(axis=2, keepdims=True)
        best = np.where(noise < least, tried, best)
        least = np.minimum(noise, least)
    return replace(quantization, scale=best.reshape(-1).astype(np.float32))


# --- noise shares ----------------------------------------------------------------------------------------------------
# Estimates how much of a network's noise comes from rounding weights, and how much from rounding activations.
#
# The relative noise of a layer's output is about the noise of its weights plus the noise of its input. Both are known
# without a run: from the stored weights, and from the histogram of the input.


def weight_share(
    view: GraphView,
    layers: Sequence[QuantizedLayer],
    placement: Placement,
    table: CalibrationTable,
    histograms: Histograms,
) -> float:
    """Return the share of weight rounding in the layers' relative noise, from 0 to 1.

    The rest comes from the quantized inputs of the layers.
    """
    formats = {
        entry.tensor: entry.spec.format
        for entry in placement.quantized
        if entry.kind is SlotKind.ACTIVATION and entry.spec is not None
    }
    ranges = table.by_tensor()
    of_weights = of_inputs = 0.0
    for layer in layers:
        of_weights += _of_weights(view, layer)
        tensor = layer.product.reading.tensor
        histogram = histograms.tensors.get(tensor)
        if (
            tensor in formats
            and tensor in ranges
            and histogram is not None
            and histogram.exponent is not None
        ):
            energy = float(running_moments(histogram)[2, -1]) * histogram.width**2 / histogram.total
            of_inputs += noise_of(histogram, grid_for(formats[tensor]))(ranges[tensor].amax[0]) / energy
    return of_weights / (of_weights + of_inputs) if of_weights else 0.0


def _of_weights(view: GraphView, layer: QuantizedLayer) -> float:
    """Return the energy of the rounding errors relative to the energy of the weights."""
    value, how = view.constant(layer.product.weight), layer.quantization
    assert value is not None
    assert how.scale is not None
    steps = effective(how.scale, how.global_scale)
    stored = decode(encode(value, steps, how.format, how.axis, how.block), steps, how.axis, how.block)
    energy = float(np.square(value, dtype=np.float32).sum(dtype=np.float64))
    return (
        float(np.square(stored - value, dtype=np.float32).sum(dtype=np.float64)) / energy if energy else 0.0
    )
