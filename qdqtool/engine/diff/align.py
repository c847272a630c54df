"""Which layers of two engines do the same work.

First by name: compute layers that hold the same ONNX node, or the same weight, belong together; names that several
layers of one engine share (a common dequantize node, say) count only where a layer has no name of its own. A pair that
disagrees about the size of its result is not believed: node numbers change when Q/DQ nodes come in. What is left is
aligned by the sequence of weight and result shapes, and marked as inferred.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass
from difflib import SequenceMatcher

from qdqtool.core.engine import Certainty, EngineLayer, Role
from qdqtool.engine.precision import weight
from qdqtool.trt.names import parts, stem

_Shape = tuple[int, ...]
_Signature = tuple["_Shape | None", "_Shape | None"]
_Keys = list[frozenset[str]]
_NUMBERED = re.compile(r"[A-Za-z]+_\d+")
"""Names that an exporter counted up (`Conv_84`): inserting Q/DQ nodes shifts them, so they prove little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedLayers:
    """Layers of the left and the right engine that do the same work, by position among the compute layers."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    names: tuple[str, ...]
    certainty: Certainty


def align(left: list[EngineLayer], right: list[EngineLayer]) -> list[AlignedLayers]:
    """Matches between two lists of compute layers, in the order of the left one."""
    matches = _by_name(left, right)
    taken_left = {index for match in matches for index in match.left}
    taken_right = {index for match in matches for index in match.right}
    free_left = [index for index in range(len(left)) if index not in taken_left]
    free_right = [index for index in range(len(right)) if index not in taken_right]
    matches += _by_shape(left, right, free_left, free_right)
    return sorted(matches, key=lambda match: match.left)


def _by_name(left: list[EngineLayer], right: list[EngineLayer]) -> list[AlignedLayers]:
    left_keys, right_keys = _telling(left, right)
    groups = _components(left_keys, right_keys)
    found: list[AlignedLayers] = []
    for lefts, rights, names in groups:
        if _agree([left[index] for index in lefts], [right[index] for index in rights]):
            found.append(
                AlignedLayers(
                    left=tuple(lefts), right=tuple(rights), names=tuple(names), certainty=Certainty.STATED
                )
            )
    return found


def _telling(left: list[EngineLayer], right: list[EngineLayer]) -> tuple[_Keys, _Keys]:
    """The names by which layers may be matched: known on both sides, unique ones preferred."""
    all_left, all_right = [_names(layer) for layer in left], [_names(layer) for layer in right]
    count_left, count_right = _count(all_left), _count(all_right)
    both = count_left.keys() & count_right.keys()
    unique = {name for name in both if count_left[name] == count_right[name] == 1}

    def chosen(names: frozenset[str]) -> frozenset[str]:
        own = names & unique
        strong = frozenset(name for name in own if not _NUMBERED.fullmatch(name))
        return strong or own or names & both

    return [chosen(names) for names in all_left], [chosen(names) for names in all_right]


def _names(layer: EngineLayer) -> frozenset[str]:
    return frozenset((*layer.onnx_nodes, *parts(stem(layer.name))))


def _count(keys: _Keys) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for names in keys:
        for name in names:
            counts[name] += 1
    return counts


def _components(left: _Keys, right: _Keys) -> list[tuple[list[int], list[int], list[str]]]:
    """Connected groups of layers that share names."""
    holders: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, keys in enumerate((left, right)):
        for index, own in enumerate(keys):
            for key in own:
                holders[key][side].append(index)
    groups = []
    seen: set[int] = set()
    for start in range(len(left)):
        if start in seen or not left[start]:
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
        seen |= lefts
        if rights:
            groups.append((sorted(lefts), sorted(rights), sorted(names)))
    return groups


def _agree(left: list[EngineLayer], right: list[EngineLayer]) -> bool:
    """Whether the results may be of the same size; an unknown size agrees with everything."""
    if len(left) != 1 or len(right) != 1 or any("Pool" in layer.kind for layer in (*left, *right)):
        return True
    first, second = _result(left[0]), _result(right[0])
    return first is None or second is None or len(first) != len(second) or first[2:] == second[2:]


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
            left=(free_left[one],),
            right=(free_right[other],),
            names=(left[free_left[one]].name,),
            certainty=Certainty.INFERRED,
        )
        for one, other in steps
        if first[one] != (None, None)
    ]


def _out_of_order(
    first: list[_Signature], second: list[_Signature], steps: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Equal signatures that the sequence match left over, as where two branches come in another order."""
    used_first, used_second = {one for one, _ in steps}, {other for _, other in steps}
    waiting: dict[_Signature, deque[int]] = defaultdict(deque)
    for index, signature in enumerate(second):
        if index not in used_second:
            waiting[signature].append(index)
    left_over = [index for index in range(len(first)) if index not in used_first]
    return [(index, waiting[first[index]].popleft()) for index in left_over if waiting[first[index]]]


def _only_weights(
    first: list[_Signature], second: list[_Signature], steps: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Layers left over whose weight shape no other layer left over has: a pooling fused into one changes its result."""
    used_first, used_second = {one for one, _ in steps}, {other for _, other in steps}
    lone_first = _unique(first, used_first)
    lone_second = _unique(second, used_second)
    return [(lone_first[shape], lone_second[shape]) for shape in lone_first if shape in lone_second]


def _unique(signatures: list[_Signature], used: set[int]) -> dict[_Shape, int]:
    """Places by weight shape, of shapes that occur once."""
    found: dict[_Shape, list[int]] = defaultdict(list)
    for place, (shape, _) in enumerate(signatures):
        if shape is not None and place not in used:
            found[shape].append(place)
    return {shape: places[0] for shape, places in found.items() if len(places) == 1}


def _signature(layer: EngineLayer) -> _Signature:
    held = weight(layer)
    return (held.shape if held else None), _result(layer)


def computing(layers: tuple[EngineLayer, ...]) -> list[EngineLayer]:
    """The compute layers among `layers`."""
    return [layer for layer in layers if layer.role is Role.COMPUTE]
