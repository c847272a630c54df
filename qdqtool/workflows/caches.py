"""Implicit INT8 (a float model and a calibration cache) becomes explicit (a Q/DQ model), and back."""

from __future__ import annotations

from pathlib import Path

from qdqtool.calibration.caches import Cache
from qdqtool.calibration.caches.cache import cache_of
from qdqtool.calibration.caches.converting import explicit, scales_of
from qdqtool.calibration.caches.header import Header
from qdqtool.core.recipe import Recipe
from qdqtool.errors import UsageError
from qdqtool.graph.find import find, quantized_ops
from qdqtool.graph.insert import insert
from qdqtool.graph.load import load
from qdqtool.graph.model import Model
from qdqtool.graph.prepare import prepare
from qdqtool.graph.unquantize import unquantize
from qdqtool.placement.decide import decide


def to_qdq(path: Path, cache: Cache, recipe: Recipe) -> tuple[Model, tuple[str, ...]]:
    """The Q/DQ model of a float model with the scales of a cache, and what a reader must know of it.

    Raises:
        InputFileError: the model is unreadable.
        UsageError: no slot of the model has a scale in the cache, or the model is quantized already.
    """
    model = prepare(load(path), recipe.prepare)
    found = explicit(cache, decide(model.view, recipe.place), model.view, recipe.calibrate)
    if not found.placement.quantized:
        raise UsageError(
            "the cache has no scale for any tensor that would be quantized",
            fix="take the ONNX file that was calibrated; `qdqtool cache lint --model` compares the two",
            where=str(path),
        )
    return insert(model, found.placement, found.table, recipe.insert), found.notes


def from_qdq(path: Path, header: Header) -> tuple[Model, Cache, tuple[str, ...]]:
    """The float model behind a Q/DQ model, the cache with its scales, and what a reader must know of them.

    Raises:
        InputFileError: the model is unreadable.
        UsageError: the model has no Q/DQ, or pairs that no cache can express.
    """
    model = load(path)
    pairs = find(model)
    if not pairs:
        raise UsageError("has no Q/DQ nodes", fix="pass a Q/DQ model", where=str(path))
    plain = unquantize(model, (node.name for node in model.view.nodes))
    scales, notes = scales_of(pairs, plain.view)
    left = quantized_ops(plain)
    if left:
        notes.append(f"still in the model, because an output needs them: {', '.join(left)}")
    return plain, cache_of(scales, header), tuple(notes)
