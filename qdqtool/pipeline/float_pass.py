"""What judging needs of the float network, taken from the pass that collects histograms.

Tables are judged against the outputs of the float network for some of the samples, and biases against the means of its
layers. The pass over all samples computes both, which saves a pass of their own and its session.
"""

from __future__ import annotations

from typing import Final

from qdqtool.calibration.collect import activations
from qdqtool.calibration.samples import Samples
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.watch import WatchedValues
from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Placement
from qdqtool.graph.endings import endings, scores
from qdqtool.graph.instrumented.corrected import channel_means
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.pipeline.channels import SAMPLES, depthwise_inputs
from qdqtool.pipeline.judges import taken
from qdqtool.pipeline.trial import FloatPass, may_be_batched
from qdqtool.trt.ops import BLOCKED, LAYOUT, PICKING, PRODUCTS, SOFTMAXES

FUSED_EXACTLY = PRODUCTS | BLOCKED | LAYOUT | PICKING | SOFTMAXES | {"Pad", "ReduceMean"}
"""What onnxruntime fuses, if at all, to the same bits: they do not depend on which tensors are returned beside.

A written-out or skipped normalization does not belong to them: fused, its last bits are others.
"""


_FEW: Final = 4
"""Where fewer than one of so many samples judge, means that are computed for all of them cost more than a pass for these."""


def float_pass(
    model: Model, placement: Placement, samples: Samples, *, bias: bool
) -> tuple[Model, FloatPass] | None:
    """The model that is to be run in the place of the float model, and what is kept of it; None where nothing is saved.

    `bias` says that biases will be corrected. Other networks than convolutional ones are left alone: what is returned
    besides may end a fusion, which changes the last bits of what is counted (an Add in front of a LayerNormalization).
    """
    view, whole = model.view, len(samples)
    count = taken(view, whole)
    if (
        _FEW * count < whole
        or fixed_batch(view.inputs) not in {None, 1}
        or weight_bytes(model) >= SINGLE_FILE_LIMIT
    ):
        return None
    fed = {info.name for info in view.inputs}
    if not {node.op for node in view.nodes} <= FUSED_EXACTLY:
        return None
    judged = scores(view, endings(view))
    outputs = tuple(dict.fromkeys(judged.values()))
    if any(view.info(name).dtype is DType.UNKNOWN or name in fed for name in outputs):
        return None
    layers = tuple(node.name for node in shiftable(view)) if bias else ()
    free = bool(layers) and may_be_batched(view, layers)
    counted = set(activations(placement)).difference(outputs)
    means = channel_means(model, layers if free else (), free=free, averaged=counted)
    averaged = counted.intersection(means.outputs.values())
    returned = {*outputs, *means.outputs.values()} - averaged
    numbers = range(0, whole, max(1, whole // count))[:count]
    peaked = counted.intersection(depthwise_inputs(model, placement))
    watch = WatchedValues(returned, averaged, outputs if free else (), numbers, peaked=peaked, first=SAMPLES)
    return means.model, FloatPass(watch=watch, means=means.without(model))
