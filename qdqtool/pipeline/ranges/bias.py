"""Bias correction: moves the bias of each layer so that rounding and clipping do not change its mean output.

Rounding errors of weights do not cancel if the inputs have a mean, as after ReLU. Each output channel shifts by the
sum of error x mean. This alone costs depthwise networks such as MobileNet points of accuracy. The shift is a
constant, so the bias can carry it, at no cost in the engine.

Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
4.2, in its empirical form: layer after layer in graph order, each measured with all layers before it corrected
already. Correcting many layers at once from one measurement overshoots so far that the model is destroyed. A channel
whose shift is no larger than its own uncertainty over the samples is left alone (positive-part James-Stein shrinkage).

If the model accepts a batch of any size, all samples run as one batch, and the shifts are computed on the way from
the means of the float layers (`graph.instrumented.corrected`). This is one run, in the session in which `auto`
evaluates tables. Otherwise every layer is run once, from the corrected outputs of the layers before it, and these are
dropped as soon as no later layer needs them.
"""

from __future__ import annotations

from dataclasses import replace

from qdqtool.calibration.collect import OnProgress
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.qdq.changes import shiftable, undo_rounding
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.layer_walk import LayerWalk, believed_shifts, float_means
from qdqtool.pipeline.ranges.reference import Budget, FloatPass, Reference
from qdqtool.pipeline.ranges.samples import TAKEN


def correct_biases(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: SampleSource,
    on_progress: OnProgress | None = None,
    float_pass: FloatPass | None = None,
) -> CalibrationTable:
    """Add shifts of biases to the table, so that each layer's mean output is that of the float model.

    The samples are the evaluation samples of the tables, from all over the source; fewer than 2 samples change
    nothing.
    """
    if not shiftable(model.view) or not len(samples):
        return table
    budget = Budget(most=2 * TAKEN, on_progress=on_progress)
    reference = Reference(undo_rounding(model, table), samples, budget, bias=True, earlier=float_pass)
    judged = None
    if reference.together:
        trial = TrialSession(model, placement, table, reference, budget)
        judges = trial.at_once()
        judged = trial.settled(trial.candidate("", table, judges), judges).table
    return add_shifts(model, placement, judged or table, reference, on_progress)


def add_shifts(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    reference: Reference,
    on_progress: OnProgress | None = None,
) -> CalibrationTable:
    """Add bias shifts to a table as `correct_biases` does, for samples that the float model has already run.

    If the model accepts batches, the table has already been evaluated on the samples, and has its shifts from there.
    """
    if reference.together:
        return replace(table, shifts=tuple(entry for entry in table.shifts if any(entry.shift)))
    feeds = [sample.feeds for sample in reference.samples]
    layers = shiftable(model.view)
    if len(feeds) < 2 or not layers:
        return table
    quantized = with_emulated_blocks(insert(model, placement, replace(table, shifts=()), InsertOptions()))

    def on_layer(done: int) -> None:
        if on_progress is not None:
            on_progress(done, len(layers))

    # a graph with a fixed batch cannot run several samples together
    means = float_means(undo_rounding(model, table), layers, feeds)
    shifts = believed_shifts(LayerWalk(quantized, layers), means, feeds, on_layer)
    return replace(table, shifts=tuple(entry for entry in shifts if any(entry.shift)))
