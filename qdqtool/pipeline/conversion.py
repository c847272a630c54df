"""Changes the type of the float part of a model file to FP16 or BF16, with or without Q/DQ in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qdqtool.calibration.samples import SampleInput, open_samples
from qdqtool.core.preparation import Conversion
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.typed.convert import convert
from qdqtool.pipeline.dynamic_range import OnProgress, reach_or_note
from qdqtool.pipeline.patterns import refuse_unmatched
from qdqtool.pipeline.random_shapes import opener, shaped
from qdqtool.pipeline.writing import write


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
        given = shaped(
            samples,
            opened.view.inputs,
            recipe.build.opt_shapes,
            opener(opened),
        )
        source = open_samples(given, opened.view.inputs, recipe.samples.preprocess, on_nan=recipe.samples.nan)
        reach, notes = reach_or_note(opened, options.types, source, options.overflow_samples, on_progress)
    result, found = convert(opened, options, reach)
    write(result, out, step="convert")
    return replace(found, notes=(*found.notes, *notes))
