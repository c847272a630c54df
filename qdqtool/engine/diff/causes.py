"""Why the second engine is faster or slower, in words, the largest cause first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import fsum

from qdqtool.core.difference import DifferenceCause, EngineTotals, LayerPair
from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.wiring import Wiring
from qdqtool.core.wording import counted, listed
from qdqtool.engine.diff.explored import Explored

_NAMED = 8
"""Layers that a sentence names; the rest is counted."""
_WORTH = 0.02
"""Share by which a single layer must be slower to be mentioned; less is noise."""
_SHARE = 0.002
"""Share of the whole engine's time that this must be."""


def causes(
    left: Explored, right: Explored, pairs: tuple[LayerPair, ...], before: EngineTotals, after: EngineTotals
) -> tuple[DifferenceCause, ...]:
    """All causes, ranked by milliseconds where they are measured and by bytes elsewhere."""
    found = [
        *_precisions(pairs),
        *_round_trips(left, right),
        *_conversions(before, after),
        *_others(pairs, before, after),
        *_slower(pairs, before.ms),
    ]
    return tuple(sorted(found, key=lambda cause: (-abs(cause.ms or 0.0), -abs(cause.bytes or 0), cause.text)))


def _precisions(pairs: tuple[LayerPair, ...]) -> Iterator[DifferenceCause]:
    """Layers that changed their type, by type."""
    groups: dict[tuple[str, str], list[LayerPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.left.arithmetic, pair.right.arithmetic].append(pair)
    for (source, target), members in groups.items():
        ms, size = _sum_ms(members), _sum_bytes(members)
        change = f"went from {source} to {target}" if source != target else f"stayed {source}"
        if source != target or ms or size:
            yield DifferenceCause(
                text=f"{counted(len(members), 'compute layer')} {change}{_effect(ms, size)}",
                ms=ms,
                bytes=size,
                layers=tuple(name for pair in members for name in pair.right.layers),
            )


def _round_trips(left: Explored, right: Explored) -> Iterator[DifferenceCause]:
    """INT8 kernels whose float result another kernel only turns back into INT8."""
    old, new = _trips(left.engine), _trips(right.engine)
    if len(old) == len(new):
        return
    worse = len(new) > len(old)
    side, other, trips, rest = (right, left, new, old) if worse else (left, right, old, new)
    kernels = [layer for _, layer in trips]
    spent, moved = side.ms(kernels), side.bytes(kernels)
    ms = spent if worse or spent is None else -spent
    size = moved if worse or moved is None else -moved
    types = ", ".join(sorted({str(layer.inputs[0].dtype) for layer in kernels}))
    yield DifferenceCause(
        text=f"{side.name} has {len(trips)} {types} round trips, {other.name} has {len(rest)}: an INT8 kernel writes "
        f"{types} and another kernel only turns it back into INT8{_effect(ms, size)}, behind "
        f"{listed([source.name for source, _ in trips], _NAMED)}",
        ms=ms,
        bytes=size,
        layers=tuple(layer.name for layer in kernels),
    )


def _trips(engine: Engine) -> list[tuple[EngineLayer, EngineLayer]]:
    wiring = Wiring(engine)
    found = ((wiring.round_trip_of(layer), layer) for layer in engine.kernels)
    return [(source, layer) for source, layer in found if source is not None]


def _conversions(before: EngineTotals, after: EngineTotals) -> Iterator[DifferenceCause]:
    if before.conversions == after.conversions:
        return
    known = before.conversion_ms is not None and after.conversion_ms is not None
    ms = (after.conversion_ms or 0.0) - (before.conversion_ms or 0.0) if known else None
    yield DifferenceCause(
        text=f"kernels that only convert: {before.conversions} -> {after.conversions}{_effect(ms, None)}",
        ms=ms,
        bytes=None,
        layers=(),
    )


def _others(
    pairs: tuple[LayerPair, ...], before: EngineTotals, after: EngineTotals
) -> Iterator[DifferenceCause]:
    """Everything that neither multiplies nor converts, by subtraction."""
    compute = _sum_ms(list(pairs))
    spent = (before.ms, after.ms, before.conversion_ms, after.conversion_ms)
    if compute is None or None in spent or not pairs:
        return
    ms = (
        (after.ms or 0.0)
        - (before.ms or 0.0)
        - compute
        - ((after.conversion_ms or 0.0) - (before.conversion_ms or 0.0))
    )
    if abs(ms) > _WORTH * (before.ms or 0.0):
        yield DifferenceCause(text=f"all other layers{_effect(ms, None)}", ms=ms, bytes=None, layers=())


def _slower(pairs: tuple[LayerPair, ...], whole: float | None) -> Iterator[DifferenceCause]:
    for pair in pairs:
        least = max(_WORTH * (pair.left.ms or 0.0), _SHARE * (whole or 0.0))
        if pair.ms is not None and pair.left.ms and pair.ms > least:
            yield DifferenceCause(
                text=f"{listed(pair.right.layers, _NAMED)} takes {pair.right.ms:.4f} ms in {pair.right.arithmetic} instead of "
                f"{pair.left.ms:.4f} ms in {pair.left.arithmetic}",
                ms=pair.ms,
                bytes=pair.bytes,
                layers=pair.right.layers,
            )


def _effect(ms: float | None, size: int | None) -> str:
    if ms is not None:
        return f": {abs(ms):.4f} ms {'lost' if ms > 0 else 'won'}"
    return (
        ""
        if size is None
        else f": {counted(abs(size), 'byte', grouped=True)} {'more' if size > 0 else 'less'}"
    )


def _sum_ms(pairs: list[LayerPair]) -> float | None:
    known = [pair.ms for pair in pairs if pair.ms is not None]
    return fsum(known) if len(known) == len(pairs) else None


def _sum_bytes(pairs: list[LayerPair]) -> int | None:
    known = [pair.bytes for pair in pairs if pair.bytes is not None]
    return sum(known) if len(known) == len(pairs) else None
