"""The float part of a model in FP16 or BF16: its conversion, overflowing tensors, and the accuracy loss of a Q/DQ model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.collect import OnProgress
from qdqtool.calibration.samples import SampleInput
from qdqtool.core.comparison import OutputComparison
from qdqtool.core.preparation import Conversion, DynamicRangeReport, OutOfRangeTensor
from qdqtool.core.protocols import Feeds, SampleSource
from qdqtool.core.recipe import CompareOptions, InsertOptions, Recipe
from qdqtool.core.tensors import DType
from qdqtool.datachecks.evidence import NarrowLoss
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.instrumented.probe import watching, within
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, weight_bytes
from qdqtool.graph.qdq.find import behind_pairs
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.typed.narrow import NARROW, Types
from qdqtool.graph.view import GraphView, Model
from qdqtool.pipeline.comparing import noise_inside
from qdqtool.pipeline.datacheck import CURED, level_against
from qdqtool.pipeline.preparations import input_notes, with_known_inputs
from qdqtool.pipeline.random_shapes import opener, samples_for
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.pipeline.writing import or_without, run_plainly, write
from qdqtool.platform import give_back
from qdqtool.runtime.runner import open_model
from qdqtool.trt.ops import QDQ

# --- dynamic range ---------------------------------------------------------------------------------------------------
# Runs samples to find the tensors that a narrow float type cannot represent.


_MOST_BYTES = 256 << 20
"""Bytes of tensors that are watched in one run; more tensors take another run."""


def measure_reach(
    model: Model, samples: SampleSource, types: Types, *, limit: int, on_progress: OnProgress | None = None
) -> DynamicRangeReport:
    """Measure the largest magnitude of every FP32 tensor on the first `limit` samples.

    Also report tensors whose magnitude is outside the range of the float type `types`.

    Sums inside a kernel are not seen; kernels of TensorRT add in FP32.

    Raises:
        InputFileError: there are no samples, or they do not fit the model.
    """
    feeds = _first(samples, limit)
    largest: dict[str, float] = {}
    groups = list(_groups(model))
    total = len(groups) * len(feeds)
    for turn, names in enumerate(groups):
        runner = open_model(watching(model, names), description="probe")
        for number, feed in enumerate(feeds, start=1):
            # no array may live longer: it would keep all memory of its session
            reached = {name: _magnitude(value) for name, value in runner.run(feed).items()}
            largest |= {name: max(largest.get(name, 0.0), value) for name, value in reached.items()}
            if on_progress is not None:
                on_progress(turn * len(feeds) + number, total)
        del runner  # each session holds all weights
        give_back()
    narrow = NARROW[types]
    strayed = [
        OutOfRangeTensor(
            tensor=name, kind="overflow" if value > narrow.largest else "subnormal", largest=value
        )
        for name, value in largest.items()
        if value > narrow.largest or 0 < value < narrow.normal
    ]
    strayed.sort(key=lambda each: (-each.largest, each.tensor))
    return DynamicRangeReport(
        dtype=narrow.dtype, samples=len(feeds), tensors=len(largest), strayed=tuple(strayed)
    )


def _first(samples: SampleSource, limit: int) -> list[Feeds]:
    feeds = [sample.feeds for sample in islice(iter(samples), limit)]
    if not feeds:
        raise InputFileError(
            "there are no samples", fix="pass at least one sample", where=samples.description
        )
    return feeds


def wants_samples(options: InsertOptions) -> bool:
    """Return True if samples must run before the float type changes. BF16 has the range of FP32 and needs no samples."""
    return options.types == "fp16" and options.overflow != "ignore"


def reach_for(
    model: Model, options: InsertOptions, samples: SampleSource, on_progress: OnProgress | None = None
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Measure the magnitudes of the model's tensors if the options require it; return a note if that was not possible.

    Raises:
        InputFileError: there are no samples, or they do not fit the model.
    """
    if options.types == "fp32" or not wants_samples(options):
        return None, ()
    return reach_or_note(model, options.types, samples, options.overflow_samples, on_progress)


def reach_or_note(
    model: Model, types: Types, samples: SampleSource, limit: int, on_progress: OnProgress | None = None
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Run `measure_reach`. Return None and a note if the model runs only without inner tensors as outputs."""

    def plainly() -> None:
        run_plainly(model, _first(samples, limit))

    return or_without(
        f"the search for tensors that overflow {types.upper()}",
        partial(measure_reach, model, samples, types, limit=limit, on_progress=on_progress),
        plainly,
    )


def _groups(model: Model) -> Iterator[Sequence[str]]:
    """Yield the FP32 tensors of inputs and nodes, in groups that fit into memory.

    Quantized weights are not among them: `convert` judges constants by their values.
    """
    view = model.view
    names = [info.name for info in view.inputs]
    names += [
        name
        for node in view.nodes
        for name in node.outputs
        if name and not (node.op in QDQ and view.is_constant(behind_pairs(view, name)))
    ]
    return within(model, (name for name in names if view.info(name).dtype is DType.FLOAT32), _MOST_BYTES)


def _magnitude(value: NDArray[Any]) -> float:
    """Return the largest magnitude of an array, ignoring NaN."""
    if not value.size:
        return 0.0
    largest = max(-float(np.fmin.reduce(value, axis=None)), float(np.fmax.reduce(value, axis=None)))
    return 0.0 if math.isnan(largest) else largest


# --- narrow loss -----------------------------------------------------------------------------------------------------
# Measures what FP16 or BF16 costs a Q/DQ model in addition to quantization, and at which nodes.


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
    """Return the loss from FP16 or BF16 if it exceeds quantization's and SQNR is below 40 dB; else None.

    Large models are not measured: None.

    Args:
        models: the float model and the Q/DQ model as it was written.
        make: writes the Q/DQ model with other options.
        samples: the evaluation samples.
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
        kept = level(
            make(options.model_copy(update={"keep_nodes": (*options.keep_nodes, *map(escape, nodes))}))
        )
    return NarrowLoss(
        types=options.types,
        wide_db=before,
        narrow_db=after,
        samples=min(CURED, len(samples)),
        nodes=nodes,
        kept_db=kept,
    )


def _costly(view: GraphView, inside: tuple[OutputComparison, ...], dtype: DType) -> tuple[str, ...]:
    """Return the nodes in FP16 or BF16 that raise the noise most from inputs to outputs, the worst first."""
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
    """Return the SQNR of a tensor in dB. Equal tensors get a high value."""
    value = next((each.value for each in entry.measures if each.metric == "sqnr_db"), None)
    return _CLEAN if value is None or math.isinf(value) else min(value, _CLEAN)


# --- conversion ------------------------------------------------------------------------------------------------------


def convert_file(
    model: Path, out: Path, recipe: Recipe, samples: SampleInput = "", on_progress: OnProgress | None = None
) -> Conversion:
    """Write the model with `recipe.insert.types` to `out`. With `samples`, report or keep tensors that overflow.

    Raises:
        UsageError: FP32 was asked for, or `out` is `model`.
        InputFileError: the model or the samples cannot be read.
    """
    options = recipe.insert
    if options.types == "fp32":
        raise UsageError("the model already is FP32", fix="use --types fp16 or bf16")
    opened = load(model)
    refuse_unmatched(recipe, opened.view, "insert")
    reach, notes = None, tuple[str, ...]()
    if samples and options.overflow != "ignore":
        recipe = with_known_inputs(recipe, samples, model, opened=lambda: opened)
        source = samples_for(samples, opened.view.inputs, recipe, opener(opened))
        reach, notes = reach_or_note(opened, options.types, source, options.overflow_samples, on_progress)
        notes = (*input_notes(recipe), *notes)
    result, conversion = convert(opened, options, reach)
    write(result, out, step="convert")
    return replace(conversion, notes=(*conversion.notes, *notes))
