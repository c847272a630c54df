"""Measures what FP16 or BF16 costs a Q/DQ model in addition to quantization, and at which nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from qdqtool.core.comparison import OutputComparison
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import CompareOptions, InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.datachecks.evidence import NarrowLoss
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.typed.narrow import NARROW
from qdqtool.graph.view import GraphView
from qdqtool.pipeline.comparing import noise_inside
from qdqtool.pipeline.datacheck import CURED, level_against
from qdqtool.trt.ops import QDQ

_LOST: Final = 3.0
"""Loss of SQNR, in dB, against the model with an FP32 rest, from which the type makes more noise than quantization does."""
_ENOUGH: Final = 40.0
"""SQNR in dB that is always enough: 1 % of noise."""
_WORST: Final = 3
"""Most nodes that are named."""
_CLEAN: Final = 60.0
"""SQNR in dB that counts for a tensor without noise."""


def narrow_loss(
    models: tuple[Model, Model],
    make: Callable[[InsertOptions], Model],
    samples: SampleSource,
    options: InsertOptions,
    compared: CompareOptions,
) -> NarrowLoss | None:
    """Return the loss if the type costs more than quantization does; None if it does not, or the model is too large.

    Args:
        models: the float model and the Q/DQ model as it was written.
        make: writes the Q/DQ model with other options.
        samples: those of the evaluation.
        options: how the model was written.
        compared: the recipe's options of the comparison.
    """
    if options.types == "fp32" or max(map(weight_bytes, models)) >= SINGLE_FILE_LIMIT:
        return None
    level = level_against(models[0], samples, compared)
    after = level(models[1])
    if after is None or after >= _ENOUGH:
        return None
    wide = make(options.model_copy(update={"types": "fp32"}))
    before = level(wide)
    if before is not None and not after < before - _LOST:
        return None
    inside = noise_inside((wide, models[1]), samples, compared)
    nodes = _costly(models[1].view, inside, NARROW[options.types].dtype)
    kept = None
    if nodes:
        kept = level(make(options.model_copy(update={"keep_nodes": (*options.keep_nodes, *nodes)})))
    return NarrowLoss(
        types=options.types,
        wide_db=before,
        narrow_db=after,
        samples=min(CURED, len(samples)),
        nodes=nodes,
        kept_db=kept,
    )


def _costly(view: GraphView, inside: tuple[OutputComparison, ...], dtype: DType) -> tuple[str, ...]:
    """Rank the nodes in the type by how much noisier their output is than the noisiest of their measured inputs."""
    levels = {entry.output: _level(entry) for entry in inside}
    costs: dict[str, float] = {}
    for node in view.nodes:
        mine = levels.get(node.outputs[0]) if node.outputs and node.op not in QDQ else None
        if mine is not None and any(view.info(name).dtype is dtype for name in (*node.inputs, *node.outputs)):
            costs[node.name] = (
                min([levels[name] for name in node.inputs if name in levels], default=_CLEAN) - mine
            )
    ranked = sorted(costs, key=lambda name: (-costs[name], name))
    return tuple(name for name in ranked[:_WORST] if costs[name] > _LOST)


def _level(entry: OutputComparison) -> float:
    """Return the SQNR in dB; equal tensors count as clean."""
    value = next((each.value for each in entry.measures if each.metric == "sqnr_db"), None)
    return _CLEAN if value is None or math.isinf(value) else min(value, _CLEAN)
