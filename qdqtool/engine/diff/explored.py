"""One side of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.explore import EngineView, LayerView


@dataclass(frozen=True, kw_only=True)
class Explored:
    """An engine, its layers with costs and times, and what the user calls it."""

    name: str
    engine: Engine
    view: EngineView

    def of(self, layers: Iterable[EngineLayer]) -> list[LayerView]:
        """The views of `layers`."""
        return [self._views[id(layer)] for layer in layers]

    @cached_property
    def _views(self) -> dict[int, LayerView]:
        pairs = zip(self.engine.layers, self.view.layers, strict=True)
        return {id(layer): view for layer, view in pairs}

    def ms(self, layers: Iterable[EngineLayer]) -> float | None:
        """Measured milliseconds of `layers` together, or None where one is not known."""
        return _ms(self.of(layers))

    def bytes(self, layers: Iterable[EngineLayer]) -> int | None:
        """What `layers` read and write together, or None where one is not known."""
        return _bytes(self.of(layers))


def _ms(views: list[LayerView]) -> float | None:
    known = [view.ms for view in views if view.ms is not None]
    return fsum(known) if len(known) == len(views) and known else None


def _bytes(views: list[LayerView]) -> int | None:
    known = [view.bytes for view in views if view.bytes is not None]
    return sum(known) if len(known) == len(views) else None
