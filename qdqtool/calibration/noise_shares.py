"""Estimates how much of a network's noise comes from rounding weights, and how much from rounding activations.

Every layer's output has about the relative noise of its weights plus that of its input. Both can be told without a
run: the one from the stored weights, the other from the histogram of the input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrators.noise import noise_of, running_moments
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.rounding import QuantizedLayer
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.quant_format import grid_for
from qdqtool.graph.qdq.encode import decode, effective, encode
from qdqtool.graph.view import GraphView


def weight_share(
    view: GraphView,
    layers: Sequence[QuantizedLayer],
    placement: Placement,
    table: CalibrationTable,
    histograms: Histograms,
) -> float:
    """Return the share of the layers' relative noise that comes from rounding weights to the nearest, from 0 to 1."""
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
        seen = histograms.tensors.get(tensor)
        if tensor in formats and tensor in ranges and seen is not None and seen.exponent is not None:
            energy = float(running_moments(seen)[2, -1]) * seen.width**2 / seen.total
            of_inputs += noise_of(seen, grid_for(formats[tensor]))(ranges[tensor].amax[0]) / energy
    return of_weights / (of_weights + of_inputs) if of_weights else 0.0


def _of_weights(view: GraphView, layer: QuantizedLayer) -> float:
    """Return the energy of the rounding errors over the energy of the weights."""
    value, how = view.constant(layer.product.weight), layer.quantization
    assert value is not None
    assert how.scale is not None
    steps = effective(how.scale, how.global_scale)
    stored = decode(encode(value, steps, how.format, how.axis, how.block), steps, how.axis, how.block)
    energy = float(np.square(value, dtype=np.float32).sum(dtype=np.float64))
    return (
        float(np.square(stored - value, dtype=np.float32).sum(dtype=np.float64)) / energy if energy else 0.0
    )
