"""Keys and values that a decoder hands to its next step, stored in few bits on request.

    place.kv_cache: float (default)          place.kv_cache: int8 or fp8
    past ──┐                                 past (INT8) ─ DQ ─┐
           ├ Concat ─┬─ present                                ├ Concat ─ Q ─┬─ present (INT8)
    new ───┘         └─ MatMul               new ─ Q ─ DQ ─────┘             └─ DQ ─ MatMul

A cache is a model input whose values come back in an output beside computed ones, behind operators that only move values
(Concat, ScatterND, ScatterElements, Where, Slice, Transpose ...), whatever its name. All parts of it share one scale,
since the values that were stored in one step are read in all later ones. Inputs and outputs change their type, so the
program that runs the engine keeps the cache in INT8 or FP8 and hands it on as it is.

The format of a cache has nothing to do with the arithmetic: an attention with one query multiplies floats that its
kernel makes of the stored values itself.

Evidence: RTX 1.7.1, 64 tokens, 4 heads of 32, FP32. One query: `_gemv_mha` reads and writes INT8 (SM86) and FP8 (SM89) where
it read and wrote floats: 4 kernels and 38,656 bytes instead of 4 and 137,728. 16 queries: 9 kernels and 282,624 bytes
instead of 8 and 458,752. FP8 below SM89 is refused, like any FP8 value. Classic TensorRT was not built.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion, QuantSpec, Stance, Tie
from qdqtool.core.quant_format import by_name
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.kv_caches import kv_caches
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Tie | Bond]:
    """Request the format of place.kv_cache for everything that enters a cache, with one scale for all of it."""
    if options.kv_cache == "float":
        return
    format_ = by_name(options.kv_cache)
    for cache in kv_caches(view):
        for slot in cache.entries:
            yield Opinion(
                slot=slot,
                stance=Stance.REQUEST,
                reason=f"place.kv_cache asks for {format_} in the cache {' and '.join(cache.outputs)}",
                spec=QuantSpec(format=format_),
            )
        read = (view.by_name[slot.node].inputs[slot.index] for slot in cache.entries)
        yield Tie(
            tensors=tuple(dict.fromkeys((*read, *cache.tensors))),
            reason=f"the cache {' and '.join(cache.outputs)} keeps its values from one step to the next",
        )
        yield Bond(slots=cache.entries, reason="the parts of a cache are stored in one format")


PLUGIN = Rule(code="QDQ194", place=place)
"""Where Q/DQ goes; lint knows stored caches by their inputs and outputs."""
