"""Puts two engines side by side."""

from __future__ import annotations

from qdqtool.core.difference import EngineDiff, EngineTotals, LayerPair, Side
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer, Role, computed_in
from qdqtool.engine.diff.align import align, computing
from qdqtool.engine.diff.causes import causes
from qdqtool.engine.diff.explored import Explored


def compare(left: Explored, right: Explored) -> EngineDiff:
    """How the second engine differs from the first; times count where both have a profile."""
    first, second = computing(left.engine.kernels), computing(right.engine.kernels)
    matches = align(first, second)
    pairs = tuple(
        LayerPair(
            nodes=match.names,
            left=_side(left, [first[index] for index in match.left]),
            right=_side(right, [second[index] for index in match.right]),
            certainty=match.certainty,
        )
        for match in matches
    )
    paired_left = {id(first[index]) for match in matches for index in match.left}
    paired_right = {id(second[index]) for match in matches for index in match.right}
    lonely = (len(first) - len(paired_left), len(second) - len(paired_right))
    return EngineDiff(
        left=totals(left),
        right=totals(right),
        pairs=pairs,
        left_only=_alone(left, paired_left),
        right_only=_alone(right, paired_right),
        causes=causes(left, right, pairs, totals(left), totals(right)),
        notes=_notes(lonely, pairs),
    )


def totals(side: Explored) -> EngineTotals:
    """One engine in figures."""
    kernels = side.engine.kernels
    compute = computing(kernels)
    conversions = [layer for layer in kernels if layer.role is Role.QDQ]
    others = computed_in(compute)
    return EngineTotals(
        name=side.name,
        kernels=len(kernels),
        compute=len(compute),
        int8=others.pop(str(DType.INT8), 0),
        others=others,
        conversions=len(conversions),
        ms=side.view.total_ms,
        conversion_ms=side.ms(conversions),
        bytes=side.bytes(kernels),
    )


def _side(side: Explored, layers: list[EngineLayer]) -> Side:
    types = sorted({layer.precision for layer in layers}, key=str)
    return Side(
        layers=tuple(layer.name for layer in layers),
        precision=types[0] if len(types) == 1 else DType.UNKNOWN,
        types=tuple(types),
        ms=side.ms(layers),
        bytes=side.bytes(layers),
    )


def _alone(side: Explored, paired: set[int]) -> tuple[Side, ...]:
    return tuple(_side(side, [layer]) for layer in side.engine.kernels if id(layer) not in paired)


def _notes(lonely: tuple[int, int], pairs: tuple[LayerPair, ...]) -> tuple[str, ...]:
    notes = []
    if any(lonely):
        notes.append(
            f"{lonely[0]} compute layers of the first and {lonely[1]} of the second engine have no counterpart"
        )
    if not pairs:
        notes.append("no layer of the two engines could be aligned: they belong to different models")
    return tuple(notes)
