"""Connections between the kernels of an engine: the writers and the readers of each tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role

_Step = Callable[[EngineLayer], tuple[EngineLayer, ...]]


class Wiring:
    """Neighbours of kernels by tensor name, for the first optimization profile.

    Layers that launch nothing (NoOp and the like) are passed through.
    """

    def __init__(self, engine: Engine) -> None:
        self._made: dict[str, list[tuple[int, EngineLayer]]] = defaultdict(list)
        self._read: dict[str, list[tuple[int, EngineLayer]]] = defaultdict(list)
        self._place: dict[int, int] = {}
        for place, layer in enumerate(engine.layers):
            if layer.profile == 0:
                self._place[id(layer)] = place
                for tensor in layer.outputs:
                    self._made[tensor.name].append((place, layer))
                for tensor in layer.inputs:
                    self._read[tensor.name].append((place, layer))

    def writers(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the kernels that write the inputs of `layer`."""
        return self._reach(layer, forward=False)

    def readers(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the kernels that read the outputs of `layer`."""
        return self._reach(layer, forward=True)

    def in_parts(self, tensor: EngineTensor) -> bool:
        """Return True if several kernels write parts of `tensor`, as for a concatenation in place."""
        return len(self._made.get(tensor.name, [])) > 1

    def compute_before(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the nearest compute kernels upstream of `layer` on every path, by name."""
        return _first_computing(layer, self.writers)

    def compute_after(self, layer: EngineLayer) -> tuple[EngineLayer, ...]:
        """Return the nearest compute kernels downstream of `layer` on every path, by name."""
        return _first_computing(layer, self.readers)

    def round_trip_of(self, layer: EngineLayer) -> EngineLayer | None:
        """Return the low-bit compute kernel whose float result `layer` only quantizes again; None if there is none."""
        if layer.role is not Role.QDQ or not quantizes(layer):
            return None
        writers = self.writers(layer)
        back = len(writers) == 1 and writers[0].role is Role.COMPUTE and writers[0].precision.is_quantized
        return writers[0] if back else None

    def _reach(self, layer: EngineLayer, *, forward: bool) -> tuple[EngineLayer, ...]:
        found: dict[str, EngineLayer] = {}
        seen: set[str] = set()
        start = self._place.get(id(layer), -1)
        waiting = [tensor.name for tensor in (layer.outputs if forward else layer.inputs)]
        while waiting:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            for other in self._others(name, start, forward=forward):
                if other.role is Role.NONE:
                    waiting += [tensor.name for tensor in (other.outputs if forward else other.inputs)]
                elif other is not layer:
                    found[other.name] = other
        return tuple(found.values())

    def _others(self, name: str, start: int, *, forward: bool) -> list[EngineLayer]:
        """Return the readers after `start`, or the writers before it. If launch order leaves none, return all of them.

        Several kernels may write parts of one tensor in place, and an early one may be read before a late one writes.
        """
        placed = (self._read if forward else self._made).get(name, [])
        in_order = [other for place, other in placed if (place > start) is forward]
        return in_order or [other for _, other in placed]


def quantizes(layer: EngineLayer) -> bool:
    """Return True if a layer reads float and writes a quantized type."""
    return not _quantized(layer.inputs) and _quantized(layer.outputs)


def dequantizes(layer: EngineLayer) -> bool:
    """Return True if a layer reads a quantized type and writes float."""
    return _quantized(layer.inputs) and not _quantized(layer.outputs)


def rounds(layer: EngineLayer) -> bool:
    """Return True if a layer reads float, rounds to a low-bit grid inside, and writes float: a fake-quantize."""
    return "Roun" in layer.name and not _quantized(layer.inputs) and not _quantized(layer.outputs)


def _quantized(tensors: tuple[EngineTensor, ...]) -> bool:
    return any(tensor.dtype.is_quantized for tensor in tensors)


def _first_computing(start: EngineLayer, step: _Step) -> tuple[EngineLayer, ...]:
    found: list[EngineLayer] = []
    seen = {start.name}
    waiting = list(step(start))
    while waiting:
        layer = waiting.pop()
        if layer.name in seen:
            continue
        seen.add(layer.name)
        if layer.role is Role.COMPUTE:
            found.append(layer)
        else:
            waiting.extend(step(layer))
    return tuple(sorted(found, key=lambda layer: layer.name))
