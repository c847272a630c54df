"""Channel shuffles (ShuffleNet) in TensorRT for RTX: what each kernel moves once more, and what it rounds ahead.

    left part ──┐                                           ┌─ left part of the next unit
    Conv ─ Relu ┴ Concat ─ Reshape ─ Transpose ─ Reshape ─ Split ─ QDQ ─ Conv ...

The left part of a unit is never written as such: the kernels of the units behind it take it again out of what the Concat
joined. The compiler looks four units back and begins anew behind every fourth; the kernel in front of such a beginning
rounds for all units behind it what they will read of the values before.

Evidence: RTX 1.7.1, stages of 2 to 16 units with Split built for this; of 4 and 8 units with Split (nanodet, an OCR angle
network) and with Gather (YOLO-FastestV2) and Slice (ShuffleNet with a free batch) read from layer dumps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import LAYOUT, PICKING, QUANTIZE, SHAPE_READERS

_PERIOD = 4
"""Units after which the compiler begins anew."""
_FEWEST = 2
"""Units of which the second reads the first one's parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What the kernel of one unit holds besides what its own nodes say.

    Attributes:
        again: nodes of earlier units that it computes once more, and roundings for later units.
        left: its own pick of the left part, which the next unit's kernel does; empty where a Split does both.
    """

    again: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unit:
    """A Concat, what moves its values, and what picks the left part for the Concat of the next unit.

    `rounded` are the Q nodes that read its values.
    """

    concat: Node
    rounded: tuple[str, ...]
    moves: tuple[Node, ...] = ()
    left: Node | None = None
    following: Node | None = None

    @property
    def names(self) -> set[str]:
        return {node.name for node in (self.concat, *self.moves, self.left) if node is not None}

    @property
    def left_apart(self) -> frozenset[str]:
        """The node that picks the left part and nothing else."""
        return frozenset() if self.left is None or self.left.op == "Split" else frozenset({self.left.name})


def shuffles(view: GraphView) -> Mapping[str, Share]:
    """Concat of a unit -> what its kernel holds besides; stages of two units or more."""
    units = {unit.concat.name: unit for unit in _units(view)}
    later = {unit.following.name for unit in units.values() if unit.following is not None}
    found: dict[str, Share] = {}
    for name in units.keys() - later:
        stage = list(_stage(view, units, name))
        if len(stage) >= _FEWEST:
            found.update((unit.concat.name, _share(stage, index)) for index, unit in enumerate(stage, 1))
    return found


def _share(stage: list[_Unit], number: int) -> Share:
    """Of the unit with this number, counted from 1."""
    unit = stage[number - 1]
    before = stage[number - 2] if number > 1 else None
    if before is not None and not unit.moves:
        return Share(again=before.left_apart)
    first = max(1, number - number % _PERIOD) if number != _PERIOD else 1
    again: set[str] = set()
    for earlier in stage[first - 1 : number - 1]:
        again |= earlier.names
    left = stage[first - 2].left if first > 1 else None
    if left is not None and left.op == "Gather":
        again.add(left.name)
    ahead = stage[number:] if number % _PERIOD == _PERIOD - 1 else []
    if ahead and number < _PERIOD and ahead[0].moves:
        ahead = ahead[1:]  # the first four units all look back to the first
    again.update(name for later in ahead for name in later.rounded)
    return Share(again=frozenset(again), left=frozenset() if ahead else unit.left_apart)


def _stage(view: GraphView, units: Mapping[str, _Unit], name: str) -> Iterator[_Unit]:
    """The units from this one on; the last Concat may join without a shuffle."""
    unit: _Unit | None = units[name]
    while unit is not None:
        yield unit
        after = unit.following
        if after is not None and after.name not in units:
            yield _Unit(concat=after, rounded=_rounded(view, after.outputs[0]))
            return
        unit = units[after.name] if after is not None else None


def _units(view: GraphView) -> Iterator[_Unit]:
    """Every Concat whose values are moved by layout operators, a Transpose among them, and then read in parts or whole."""
    for concat in view.nodes:
        if concat.op != "Concat":
            continue
        moves: list[Node] = []
        tensor = concat.outputs[0]
        while len(uses := _values(view, tensor)) == 1 and uses[0].op in LAYOUT:
            moves.append(uses[0])
            tensor = moves[-1].outputs[0]
        if any(node.op == "Transpose" for node in moves):
            left, following = _handed_on(view, tensor)
            yield _Unit(
                concat=concat,
                moves=tuple(moves),
                left=left,
                following=following,
                rounded=_rounded(view, tensor),
            )


def _values(view: GraphView, tensor: str) -> list[Node]:
    """Who reads the values of a tensor; readers of its shape compute nothing where batches are free, and shapes are joined, too."""
    return [use.node for use in view.uses(tensor) if use.index == 0 and use.node.op not in SHAPE_READERS]


def _handed_on(view: GraphView, tensor: str) -> tuple[Node | None, Node | None]:
    """The node that picks a part for another Concat, and that Concat."""
    for use in view.uses(tensor):
        if use.node.op in PICKING:
            for part in use.node.outputs:
                joined = [after.node for after in view.uses(part) if after.node.op == "Concat"]
                if joined:
                    return use.node, joined[0]
    return None, None


def _rounded(view: GraphView, tensor: str) -> tuple[str, ...]:
    """The Q nodes that read a tensor or its parts."""
    read = [
        tensor,
        *(part for use in view.uses(tensor) if use.node.op in PICKING for part in use.node.outputs),
    ]
    return tuple(use.node.name for part in read for use in view.uses(part) if use.node.op == QUANTIZE)
