"""Differences between two engines of the same model: layers aligned by ONNX node, and the causes in words."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from math import fsum

from qdqtool.core.difference import DifferenceCause, EngineDiff, EngineTotals, LayerPair, Side
from qdqtool.core.engine import Certainty, Engine, EngineLayer, Role, Wiring, count_formats
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun, list_names
from qdqtool.engine.roles import weight
from qdqtool.trt.names import parts, stem

# --- two engines side by side ----------------------------------------------------------------------------------------
# Compares two engines side by side.


def compare(left: Explored, right: Explored) -> EngineDiff:
    """Compare the second engine with the first. Times are used if both engines have a profile."""
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
    """Return total time, bytes and number of kernels of one engine."""
    kernels = side.engine.kernels
    compute = computing(kernels)
    conversions = [layer for layer in kernels if layer.role is Role.QDQ]
    counts = count_formats(compute)
    return EngineTotals(
        name=side.name,
        kernels=len(kernels),
        compute=len(compute),
        int8=counts.pop(str(DType.INT8), 0),
        others=counts,
        conversions=len(conversions),
        ms=side.view.total_ms,
        conversion_ms=side.ms(conversions) if conversions or side.view.total_ms is None else 0.0,
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
        notes.append("no layers of the two engines match: they belong to different models")
    return tuple(notes)


# --- one side --------------------------------------------------------------------------------------------------------
# One side of a comparison.


@dataclass(frozen=True, kw_only=True)
class Explored:
    """An engine to compare: its layers with costs and times, and the user's name for it."""

    name: str
    engine: Engine
    view: EngineView

    def of(self, layers: Iterable[EngineLayer]) -> list[LayerView]:
        """Return the views of `layers`, which have the costs and times."""
        return [self._views[id(layer)] for layer in layers]

    @cached_property
    def _views(self) -> dict[int, LayerView]:
        pairs = zip(self.engine.layers, self.view.layers, strict=True)
        return {id(layer): view for layer, view in pairs}

    def ms(self, layers: Iterable[EngineLayer]) -> float | None:
        """Return the sum of the measured milliseconds of `layers`; None if one of them is unknown."""
        return _ms(self.of(layers))

    def bytes(self, layers: Iterable[EngineLayer]) -> int | None:
        """Return the sum of the bytes that `layers` read and write; None if one of them is unknown."""
        return _bytes(self.of(layers))


def _ms(views: list[LayerView]) -> float | None:
    times = [view.ms for view in views if view.ms is not None]
    return fsum(times) if len(times) == len(views) and times else None


def _bytes(parts: Sequence[LayerView | LayerPair]) -> int | None:
    sizes = [part.bytes for part in parts if part.bytes is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


# --- layers that do the same work ------------------------------------------------------------------------------------
# Pairs the layers of two engines that do the same work.
#
# First by name: compute layers with the same ONNX node or the same weight are a pair. Names that several layers of one
# engine share (such as a common dequantize node) count only if a layer has no other name. A pair with results of
# different sizes is rejected, because node numbers change when Q/DQ nodes are inserted. The remaining layers are
# aligned by the sequence of weight and result shapes, and marked as inferred.

_Shape = tuple[int, ...]
_Signature = tuple["_Shape | None", "_Shape | None"]
_Keys = list[frozenset[str]]
_NUMBERED = re.compile(r"[A-Za-z]+_\d+")
"""Numbered names from an exporter (`Conv_84`): inserting Q/DQ nodes shifts them, so they are weak evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedLayers:
    """Layers of the left and right engine that do the same work, as indices into their compute layers."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    names: tuple[str, ...]
    certainty: Certainty


def align(left: list[EngineLayer], right: list[EngineLayer]) -> list[AlignedLayers]:
    """Match two lists of compute layers, in the order of the left list."""
    matches = _by_name(left, right)
    taken_left = {index for match in matches for index in match.left}
    taken_right = {index for match in matches for index in match.right}
    free_left = [index for index in range(len(left)) if index not in taken_left]
    free_right = [index for index in range(len(right)) if index not in taken_right]
    matches += _by_shape(left, right, free_left, free_right)
    return sorted(matches, key=lambda match: match.left)


def _by_name(left: list[EngineLayer], right: list[EngineLayer]) -> list[AlignedLayers]:
    left_keys, right_keys = _matching_names(left, right)
    groups = _components(left_keys, right_keys)
    aligned: list[AlignedLayers] = []
    for lefts, rights, names in groups:
        if _agree([left[index] for index in lefts], [right[index] for index in rights]):
            aligned.append(
                AlignedLayers(
                    left=tuple(lefts), right=tuple(rights), names=tuple(names), certainty=Certainty.STATED
                )
            )
    return aligned


def _matching_names(left: list[EngineLayer], right: list[EngineLayer]) -> tuple[_Keys, _Keys]:
    """Return the names by which layers may be matched: names in both engines, preferably unique ones."""
    all_left, all_right = [_names(layer) for layer in left], [_names(layer) for layer in right]
    count_left, count_right = _count(all_left), _count(all_right)
    both = count_left.keys() & count_right.keys()
    unique = {name for name in both if count_left[name] == count_right[name] == 1}

    def choose_names(names: frozenset[str]) -> frozenset[str]:
        own = names & unique
        strong = frozenset(name for name in own if not _NUMBERED.fullmatch(name))
        return strong or own or names & both

    return [choose_names(names) for names in all_left], [choose_names(names) for names in all_right]


def _names(layer: EngineLayer) -> frozenset[str]:
    return frozenset((*layer.onnx_nodes, *parts(stem(layer.name))))


def _count(keys: _Keys) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for names in keys:
        for name in names:
            counts[name] += 1
    return counts


def _components(left: _Keys, right: _Keys) -> list[tuple[list[int], list[int], list[str]]]:
    """Return connected groups of layers that share names."""
    holders: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, keys in enumerate((left, right)):
        for index, own in enumerate(keys):
            for key in own:
                holders[key][side].append(index)
    groups = []
    visited: set[int] = set()
    for start in range(len(left)):
        if start in visited or not left[start]:
            continue
        lefts: set[int] = {start}
        rights: set[int] = set()
        names: set[str] = set()
        waiting = sorted(left[start])
        while waiting:
            name = waiting.pop()
            if name in names:
                continue
            names.add(name)
            more_left, more_right = holders[name]
            waiting += sorted(
                {key for index in more_left for key in left[index]}
                | {key for index in more_right for key in right[index]}
            )
            lefts.update(more_left)
            rights.update(more_right)
        visited |= lefts
        if rights:
            groups.append((sorted(lefts), sorted(rights), sorted(names)))
    return groups


def _agree(left: list[EngineLayer], right: list[EngineLayer]) -> bool:
    """Return True if two layers' results may have the same size. An unknown size agrees with every size."""
    if len(left) != 1 or len(right) != 1 or any("Pool" in layer.kind for layer in (*left, *right)):
        return True
    first, second = _result(left[0]), _result(right[0])
    if first is None or second is None or len(first) != len(second):
        return True
    sides = zip(first[2:], second[2:], strict=True)
    return all(ours == theirs or min(ours, theirs) < 0 for ours, theirs in sides)


def _result(layer: EngineLayer) -> _Shape | None:
    return layer.outputs[0].shape if layer.outputs else None


def _by_shape(
    left: list[EngineLayer], right: list[EngineLayer], free_left: list[int], free_right: list[int]
) -> list[AlignedLayers]:
    first = [_signature(left[index]) for index in free_left]
    second = [_signature(right[index]) for index in free_right]
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    steps = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    steps += _out_of_order(first, second, steps)
    steps += _only_weights(first, second, steps)
    return [
        AlignedLayers(
            left=(free_left[ours],),
            right=(free_right[theirs],),
            names=(left[free_left[ours]].name,),
            certainty=Certainty.INFERRED,
        )
        for ours, theirs in steps
        if first[ours] != (None, None)
    ]


def _out_of_order(
    first: list[_Signature], second: list[_Signature], steps: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Match layers of equal signature that the sequence match missed, such as two branches in another order."""
    used_first, used_second = {ours for ours, _ in steps}, {theirs for _, theirs in steps}
    waiting: dict[_Signature, deque[int]] = defaultdict(deque)
    for index, signature in enumerate(second):
        if index not in used_second:
            waiting[signature].append(index)
    left_over = [index for index in range(len(first)) if index not in used_first]
    return [(index, waiting[first[index]].popleft()) for index in left_over if waiting[first[index]]]


def _only_weights(
    first: list[_Signature], second: list[_Signature], steps: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Match remaining layers by weight shapes that occur once in each engine.

    Result shapes are ignored, because a fused pooling changes them.
    """
    used_first, used_second = {ours for ours, _ in steps}, {theirs for _, theirs in steps}
    lone_first = _unique(first, used_first)
    lone_second = _unique(second, used_second)
    return [(lone_first[shape], lone_second[shape]) for shape in lone_first if shape in lone_second]


def _unique(signatures: list[_Signature], used: set[int]) -> dict[_Shape, int]:
    """Return the position of each weight shape that occurs once among the unused layers."""
    places_of: dict[_Shape, list[int]] = defaultdict(list)
    for place, (shape, _) in enumerate(signatures):
        if shape is not None and place not in used:
            places_of[shape].append(place)
    return {shape: places[0] for shape, places in places_of.items() if len(places) == 1}


def _signature(layer: EngineLayer) -> _Signature:
    held = weight(layer)
    return (held.shape if held else None), _result(layer)


def computing(layers: tuple[EngineLayer, ...]) -> list[EngineLayer]:
    """Return the compute layers, such as convolutions and matrix products."""
    return [layer for layer in layers if layer.role is Role.COMPUTE]


# --- causes ----------------------------------------------------------------------------------------------------------
# The reasons why the second engine is faster or slower, in words, the largest first.

_NAMED = 8
"""Most layers that a sentence names; the others are counted."""
_WORTH = 0.02
"""Smallest slowdown of a single layer that is mentioned, as a share; less is noise."""
_SHARE = 0.002
"""Smallest slowdown that is mentioned, as a share of the whole engine's time."""


def causes(
    left: Explored, right: Explored, pairs: tuple[LayerPair, ...], before: EngineTotals, after: EngineTotals
) -> tuple[DifferenceCause, ...]:
    """Return all causes of a difference between two engines, by milliseconds if measured, otherwise by bytes."""
    all_causes = [
        *_precisions(pairs),
        *_round_trips(left, right),
        *_conversions(before, after),
        *_others(pairs, before, after),
        *_slower(pairs, before.ms),
    ]
    return tuple(
        sorted(all_causes, key=lambda cause: (-abs(cause.ms or 0.0), -abs(cause.bytes or 0), cause.text))
    )


def _precisions(pairs: tuple[LayerPair, ...]) -> Iterator[DifferenceCause]:
    """Yield the differences of paired compute layers, grouped by their types in both engines."""
    groups: dict[tuple[str, str], list[LayerPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.left.arithmetic, pair.right.arithmetic].append(pair)
    for (source, target), members in groups.items():
        ms, size = _sum_ms(members), _bytes(members)
        change = f"went from {source} to {target}" if source != target else f"stayed {source}"
        if source != target or ms or size:
            yield DifferenceCause(
                text=f"{count_noun(len(members), 'compute layer')} {change}{_effect(ms, size)}",
                ms=ms,
                bytes=size,
                layers=tuple(name for pair in members for name in pair.right.layers),
            )


def _round_trips(left: Explored, right: Explored) -> Iterator[DifferenceCause]:
    """Yield INT8 kernels whose float result another kernel only converts back to INT8."""
    old, new = _trips(left.engine), _trips(right.engine)
    if len(old) == len(new):
        return
    worse = len(new) > len(old)
    side, partner, trips, fewer = (right, left, new, old) if worse else (left, right, old, new)
    kernels = [layer for _, layer in trips]
    spent, moved = side.ms(kernels), side.bytes(kernels)
    ms = spent if worse or spent is None else -spent
    size = moved if worse or moved is None else -moved
    types = ", ".join(sorted({str(layer.inputs[0].dtype) for layer in kernels}))
    yield DifferenceCause(
        text=f"{side.name} has {len(trips)} {types} round trips, {partner.name} has {len(fewer)}: an INT8 kernel writes {types}, and another kernel only converts it back to INT8{_effect(ms, size)}, after {list_names([source.name for source, _ in trips], _NAMED)}",
        ms=ms,
        bytes=size,
        layers=tuple(layer.name for layer in kernels),
    )


def _trips(engine: Engine) -> list[tuple[EngineLayer, EngineLayer]]:
    wiring = Wiring(engine)
    pairs = ((wiring.round_trip_of(layer), layer) for layer in engine.kernels)
    return [(source, layer) for source, layer in pairs if source is not None]


def _conversions(before: EngineTotals, after: EngineTotals) -> Iterator[DifferenceCause]:
    if before.conversions == after.conversions:
        return
    is_timed = before.conversion_ms is not None and after.conversion_ms is not None
    ms = (after.conversion_ms or 0.0) - (before.conversion_ms or 0.0) if is_timed else None
    yield DifferenceCause(
        text=f"kernels that only convert: {before.conversions} -> {after.conversions}{_effect(ms, None)}",
        ms=ms,
        bytes=None,
        layers=(),
    )


def _others(
    pairs: tuple[LayerPair, ...], before: EngineTotals, after: EngineTotals
) -> Iterator[DifferenceCause]:
    """Yield the time difference of all layers that are neither compute nor conversion."""
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
                text=f"{list_names(pair.right.layers, _NAMED)} takes {pair.right.ms:.4f} ms in {pair.right.arithmetic} instead of "
                f"{pair.left.ms:.4f} ms in {pair.left.arithmetic}",
                ms=pair.ms,
                bytes=pair.bytes,
                layers=pair.right.layers,
            )


def _effect(ms: float | None, size: int | None) -> str:
    if ms is not None:
        return f": {abs(ms):.4f} ms {'lost' if ms > 0 else 'gained'}"
    return (
        ""
        if size is None
        else f": {count_noun(abs(size), 'byte', grouped=True)} {'more' if size > 0 else 'less'}"
    )


def _sum_ms(pairs: list[LayerPair]) -> float | None:
    times = [pair.ms for pair in pairs if pair.ms is not None]
    return fsum(times) if len(times) == len(pairs) else None
