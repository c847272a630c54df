"""Whether the values that a cache claims are possible in its model, or are spelled in another way than amax / 127."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qdqtool.calibration.bounds import bounds
from qdqtool.calibration.caches.cache import Cache
from qdqtool.core.calibration import INT8_LEVELS
from qdqtool.core.wording import counted
from qdqtool.trt.ops import AVERAGE_POOLS, CLAMPS, MAXIMUM_POOLS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView

_SPELLINGS: Final[dict[str, Callable[[float], float]]] = {
    "127 / amax": lambda scale: INT8_LEVELS / scale,
    "amax": lambda scale: scale,
}
"""What else people write as the scale, and the range that it then is."""
_SHRINKING: Final = CLAMPS | MAXIMUM_POOLS | AVERAGE_POOLS
"""Operators whose result is no farther from zero than what they read; a Clip whose limits lie beyond 0 is none in practice."""
_BEYOND = 1.05
"""A calibrator that clips may give a result a range this much wider than that of what it is made of."""
_WIDE = 1.5
"""A bounded tensor with a range this much wider than its bound was not measured."""
_IMAGE = 300.0
"""Pixels of 8 bits end at 255."""
_CHANNELS = frozenset({1, 3, 4})
_PICTURE = 4
"""Dimensions of a batch of images."""
_FEWEST = 2
_SURE = 50.0
"""One tensor this far beyond its bound says the same as two a little beyond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Impossible:
    """Ranges that no run of the model gives, unless the scales are spelled in another way.

    Attributes:
        spelling: what the scales are: "127 / amax" or "amax".
        first: the first tensor of which it can be seen.
        reasons: what is impossible, in words.
    """

    spelling: str
    first: str
    reasons: tuple[str, ...]

    @property
    def what(self) -> str:
        """All of it in one sentence."""
        more = len(self.reasons) - 2
        shown = "; ".join(self.reasons[:2]) + (f"; and {counted(more, 'more tensor')}" if more > 0 else "")
        return f"the scales are {self.spelling} instead of amax / 127: {shown}"


def impossible(cache: Cache, view: GraphView) -> Impossible | None:
    """Whether the ranges of a cache are impossible as written and possible in exactly one other spelling."""
    scales = {name: entry.scale for name, entry in cache.by_tensor().items() if entry.is_usable}
    written = {name: scale * INT8_LEVELS for name, scale in scales.items()}
    found = list(_contradictions(written, view))
    if len(found) < _FEWEST and not any(excess > _SURE for _, _, excess in found):
        return None
    fits = [
        spelling
        for spelling, read in _SPELLINGS.items()
        if not any(_contradictions({name: read(scale) for name, scale in scales.items()}, view))
    ]
    if len(fits) != 1:
        return None
    reasons = tuple(dict.fromkeys(reason for _, reason, _ in found))
    return Impossible(spelling=fits[0], first=found[0][0], reasons=reasons)


def _contradictions(ranges: dict[str, float], view: GraphView) -> Iterator[tuple[str, str, float]]:
    """Tensors with a range that cannot be: name, reason, and how many times too wide it is."""
    for info in view.inputs:
        shape, range_ = info.shape or (), ranges.get(info.name, 0.0)
        is_image = len(shape) == _PICTURE and not _CHANNELS.isdisjoint({shape[1], shape[-1]})
        if is_image and range_ > _IMAGE:
            yield info.name, f"the image {info.name!r} would reach {range_:.4g}", range_ / _IMAGE
    for tensor, bound in bounds(view).items():
        range_ = ranges.get(tensor, 0.0)
        if range_ > _WIDE * bound.amax:
            yield tensor, f"{bound.op} {tensor!r} would reach {range_:.4g}", range_ / bound.amax
    for node in view.nodes:
        if node.op not in _SHRINKING or not node.outputs:
            continue
        read, made = ranges.get(node.inputs[0], 0.0), ranges.get(node.outputs[0], 0.0)
        if read > 0 and made > _BEYOND * read:
            reason = f"{node.op} {node.outputs[0]!r} would reach {made:.4g}, further than the {read:.4g} that it reads"
            yield node.outputs[0], reason, made / read
