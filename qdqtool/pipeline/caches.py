"""Implicit INT8 (a float model and a calibration cache) becomes explicit (a Q/DQ model), and back."""

from __future__ import annotations

from pathlib import Path

from qdqtool.calibration.caches import Cache
from qdqtool.calibration.caches.contents import Header, cache_of
from qdqtool.calibration.caches.converting import explicit, reach_of, scales_of
from qdqtool.calibration.caches.linting import impossible, results_without, words_on_results
from qdqtool.calibration.samples import open_samples
from qdqtool.core.commands import Command
from qdqtool.core.preparation import DynamicRangeReport
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.typed.narrow import NARROW
from qdqtool.pipeline.dynamic_range import reach_for, wants_samples
from qdqtool.pipeline.patterns import refuse_unmatched
from qdqtool.placement.decide import decide


def to_qdq(path: Path, cache: Cache, recipe: Recipe, samples: str = "") -> tuple[Model, tuple[str, ...]]:
    """Convert a float model and the scales of a cache to a Q/DQ model, with notes for the reader.

    With a float rest in FP16, what overflows is seen on `samples`; without any, by the ranges of the cache.

    Raises:
        InputFileError: the model or a sample is unreadable.
        UsageError: no slot of the model has a scale in the cache, the model is quantized already, or the scales are
            spelled in another way.
    """
    given = load(path)
    wrong = impossible(cache, given.view)
    if wrong is not None:
        raise UsageError(
            wrong.what,
            fix=f"write amax / 127 for every tensor, or calibrate again; {Command('cache', ('lint', '--model'))} checks the cache",
            where=str(path),
        )
    model = prepare(given, recipe.preparing)
    refuse_unmatched(recipe, model.view, "place", "calibrate", "insert")
    found = explicit(cache, decide(model.view, recipe.placing), model.view, recipe.calibrate)
    if not found.placement.quantized:
        raise UsageError(
            "the cache has no scale for any tensor that would be quantized",
            fix=f"pass the ONNX file that was calibrated; {Command('cache', ('lint', '--model'))} compares the two",
            where=str(path),
        )
    reach, doubts = _reach(model, cache, recipe, samples)
    made = insert(model, found.placement, found.table, recipe.insert, reach)
    return made, (*found.notes, *doubts, *made.notes)


def _reach(
    model: Model, cache: Cache, recipe: Recipe, samples: str
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Return how large tensors get if the float part has a type that may be too small, and a note if that is uncertain."""
    options = recipe.insert
    if options.types == "fp32" or not wants_samples(options):
        return None, ()
    if samples:
        kept = recipe.samples
        source = open_samples(samples, model.view.inputs, kept.preprocess, on_nan=kept.nan)
        return reach_for(model, options, source)
    doubt = "overflows were checked against the ranges of the cache, which may be clipped; pass --samples to find all of them"
    return reach_of(cache, NARROW[options.types].dtype, NARROW[options.types].largest), (doubt,)


def from_qdq(path: Path, header: Header) -> tuple[Model, Cache, tuple[str, ...]]:
    """Convert a Q/DQ model to a float model and a cache with its scales, with notes for the reader.

    Raises:
        InputFileError: the model is unreadable.
        UsageError: the model has no Q/DQ, or pairs that no cache can express.
    """
    model = load(path)
    pairs = find(model)
    if not pairs:
        raise UsageError("has no Q/DQ nodes", fix="pass a Q/DQ model", where=str(path))
    plain = float_graph(model)
    scales, notes = scales_of(pairs, plain.view)
    left = quantized_ops(plain)
    if left:
        notes.append(f"still in the model, because an output needs them: {', '.join(left)}")
    results = results_without(scales, plain.view)
    if results:
        notes.append(words_on_results(results)[0])
    return plain, cache_of(scales, header), tuple(notes)
