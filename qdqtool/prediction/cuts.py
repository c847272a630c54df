"""Where the compiler of TensorRT for RTX cuts a stretch between two products into several kernels.

    Add ─ LayerNormalization ─ Q                         one kernel
    Add ─ LayerNormalization │ ─ Transpose ─ Q           two: the sums, then the normalized values and the Transpose

A kernel that normalizes height and width ends with the sums too where an INT8 convolution reads the result, unless the
channels are summed with them and are a power of two from 16 on: its values lie plane by plane then, and those of the
convolution channel by channel. It ends so, too, in front of a float product of one row with several columns.

A kernel that sums along rows computes on with the same rows only. Where something behind the sum puts values elsewhere
(Transpose, Slice, Concat, Expand) or there are more of them (broadcasting), it ends with the sum, and what is left of a
normalization is done by the next one, so that both hold it; so it is where the next sum goes along other axes. Rows of 16384 and more are summed in several kernels, and so
are lengths along height and width of 64 and more if there are 49152 values. In front of a sum a kernel ends behind a
Transpose of 73728 values and more, unless it leaves the last axis where it is (windows of tokens: whole pieces of rows move), or is
one from pixels to tokens (which leaves values in their place) to which others are added and which no Concat takes; behind a Split into parts of unequal size (but not in front of an InstanceNormalization)
and a Slice of a 16th or less that nothing joins with the rest again (rolled windows are); behind a Resize, or where a Reshape stands between it and the sum, behind what is computed
element by element on its result. Behind an InstanceNormalization it ends with the sums
where the INT8 convolution that reads the result has groups, or a number of channels that four do not divide. TopK and ArgMax are the last of their kernel.

Evidence: RTX 1.7.1, some 300 stretches between two products: LayerNormalization, Softmax, ReduceL2, ReduceMean,
ReduceSum and InstanceNormalization before and behind ten kinds of nodes; the first two bounds by bisection (16320 values
in a row are summed in one kernel, a Transpose of 73712 is done with the sum); 4 of 64 and 16 of 256 rows are sliced
apart, 8 of 64 and 64 of 256 are not; 8 pictures of 10, 20, 24, 40 and 48
channels are normalized in two kernels, of 16, 32, 64 and 128 in one; 768 lengths of 8x8 have a kernel apart, 768 of 7x7 and 64 of 14x14 have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from qdqtool.graph.products import has_weights
from qdqtool.graph.row_sums import LONG_ROW
from qdqtool.graph.view import GraphView, Node
from qdqtool.prediction.sums import axes, is_row
from qdqtool.trt.ops import (
    CONVOLUTIONS,
    ELEMENTWISE_SUMS,
    LAST_IN_KERNEL,
    LAYOUT,
    MATRIX_PRODUCTS,
    NORMALIZES,
    PICKING,
    POINTWISE,
    QDQ,
    QUANTIZE,
    REARRANGING,
    REDUCTIONS,
    RESAMPLING,
    RESHAPING,
    SHAPE_READERS,
    keeps_order,
    moves_ones,
)

# The bounds of this file's docstring, by bisection over builds.
_LARGE_TRANSPOSE = 73728
_LENGTH, _MANY_LENGTHS = 64, 49152
_SMALL_PART = 16
_PLANE, _VECTOR, _TOGETHER = 2, 16, 4
"""Axes of a plane, the fewest channels that a convolution reads as they are, and how many INT8 values are read together."""
_FARTHEST = 64
"""Nodes behind a sum that are looked at."""

Levels = Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Nodes at which a kernel ends.

    Attributes:
        ends: nodes behind which the next kernel begins.
        shared: those of them that the next kernel works on too.
        apart: those whose sums are a kernel between the two.
    """

    ends: frozenset[str]
    shared: frozenset[str]
    apart: frozenset[str]


def cuts(view: GraphView, level: Levels) -> Cuts:
    """The cuts of all stretches; nodes of one `level` that follow each other would share a kernel without them.

    The last ones come first: what is behind them is in another kernel than the sums in front of them.
    """
    ends, shared, apart = set(), set(), set()
    level = dict(level)
    for node in reversed(view.nodes):
        if node.name not in level:
            continue
        if axes(view, node):
            long = _is_long(view, node)
            if node.op in NORMALIZES and _is_summed_across(view, node, level):
                ends.add(node.name)
                shared.add(node.name)
            if long or _leaves_rows(view, node, level):
                ends.add(node.name)
                if node.op in NORMALIZES:
                    shared.add(node.name)
            if long:
                apart.add(node.name)
            if _meets_others(view, node):
                shared.add(node.name)
        elif _is_apart(view, node, level):
            ends.add(node.name)
        if node.name in ends:
            for behind in tuple(_behind(view, node, level, lambda _: False)):
                level.pop(behind.name, None)
    return Cuts(ends=frozenset(ends), shared=frozenset(shared), apart=frozenset(apart))


def _is_long(view: GraphView, node: Node) -> bool:
    """Whether the sums of a node take kernels of their own; a length along height and width does so much earlier."""
    row = _row(view, node)
    if row >= LONG_ROW:
        return True
    wide = _size(view, node.inputs[0]) >= _MANY_LENGTHS
    return node.op == "ReduceL2" and len(axes(view, node)) > 1 and row >= _LENGTH and wide


def _meets_others(view: GraphView, total: Node) -> bool:
    """Whether the root of a sum of squares is summed along other axes, in front of which the root is taken again."""
    own = axes(view, total)
    behind = [axes(view, use.node) for use in view.uses(total.outputs[0])]
    return total.op == "ReduceL2" and any(found not in {(), own} for found in behind)


def _is_summed_across(view: GraphView, total: Node, level: Levels) -> bool:
    """Whether a sum along other axes comes next behind a normalization: the kernel of that sum normalizes."""
    own, here = axes(view, total), level[total.name]
    waiting, seen = [total], {total.name}
    while waiting and len(seen) < _FARTHEST:
        for use in (use for tensor in waiting.pop(0).outputs for use in view.uses(tensor)):
            node, at = use.node, level.get(use.node.name, -1)
            if at == here + 1 and axes(view, node) not in {(), own}:
                return True
            if node.name not in seen and node.op in POINTWISE and at in {here, here + 1}:
                seen.add(node.name)
                waiting.append(node)
    return False


def _row(view: GraphView, node: Node) -> int:
    """Values that one sum of a node adds up."""
    shape = view.info(node.inputs[0]).shape or ()
    return prod(size for axis in axes(view, node) if isinstance(size := shape[axis], int))


def _size(view: GraphView, tensor: str) -> int:
    """Elements of a tensor, free dimensions counted once."""
    return prod(size for size in view.info(tensor).shape or () if isinstance(size, int))


def _leaves_rows(view: GraphView, total: Node, level: Levels) -> bool:
    """Whether something in the kernel of a sum needs its result in another order or more often."""
    most = _size(view, total.inputs[0])

    def leaves(node: Node) -> bool:
        if node.op in REARRANGING and not moves_ones(view, node):
            return not _is_folded(view, node)
        if node.op == QUANTIZE and (_is_turned(view, total, node) or _is_padded(view, total, node)):
            return True
        if _is_multiplied(view, node):
            return True
        return bool(node.outputs) and _size(view, node.outputs[0]) > most

    return any(leaves(node) for node in _behind(view, total, level, lambda node: bool(axes(view, node))))


def _is_multiplied(view: GraphView, node: Node) -> bool:
    """Whether a product of one row of floats reads the result, for each of its columns once."""
    uses = [use for tensor in node.outputs for use in view.uses(tensor)]
    return any(
        use.node.op in MATRIX_PRODUCTS
        and use.index == 0
        and view.is_constant(use.node.inputs[1])
        and is_row(view, use.node)
        and not axes(view, use.node)
        for use in uses
    )


def _is_turned(view: GraphView, total: Node, quantize: Node) -> bool:
    """Whether the sums of a picture are taken of planes, and what is rounded behind them goes channel by channel."""
    own = axes(view, total)
    shape = view.info(total.inputs[0]).shape or ()
    if total.op not in REDUCTIONS or len(own) < _PLANE or own[-1] < len(shape) - 1 or len(shape) <= _PLANE:
        return False
    if _size(view, quantize.inputs[0]) < _size(view, total.inputs[0]):
        return False  # the sums themselves are rounded, and no picture
    read = [use.node for each in view.uses(quantize.outputs[0]) for use in view.uses(each.node.outputs[0])]
    channels = shape[1]
    even = 1 in own and isinstance(channels, int) and channels >= _VECTOR and channels.bit_count() == 1
    return not even and any(node.op in CONVOLUTIONS for node in read)


def _is_padded(view: GraphView, total: Node, quantize: Node) -> bool:
    """Whether what is normalized goes to an INT8 convolution that reads more channels than there are, or one by one."""
    if total.op != "InstanceNormalization":
        return False
    shape = view.info(quantize.inputs[0]).shape or ()
    channels = shape[1] if len(shape) > _PLANE else 0
    read = [use.node for each in view.uses(quantize.outputs[0]) for use in view.uses(each.node.outputs[0])]
    convolutions = [node for node in read if node.op == "Conv"]
    if not isinstance(channels, int) or not convolutions:
        return False
    return channels % _TOGETHER != 0 or any(node.integer("group", 1) > 1 for node in convolutions)


def spreads(view: GraphView, total: Node, level: Levels) -> bool:
    """Whether the result of a sum meets as many values as it sums up in its own kernel."""
    most = _size(view, total.inputs[0])
    behind = _behind(view, total, level, lambda node: bool(axes(view, node)))
    return any(bool(node.outputs) and _size(view, node.outputs[0]) >= most for node in behind)


def _is_folded(view: GraphView, node: Node) -> bool:
    """Whether a matrix product with weights takes a Transpose of its first input along."""
    shape = view.info(node.inputs[0]).shape or ()
    order = list(range(len(shape)))
    order[-2:] = order[:-3:-1]
    if node.op != "Transpose" or list(node.attribute("perm", ())) != order:
        return False
    uses = list(view.uses(node.outputs[0]))
    while len(uses) == 1 and uses[0].node.op in QDQ:
        uses = list(view.uses(uses[0].node.outputs[0]))
    return bool(uses) and all(
        use.node.op in MATRIX_PRODUCTS and use.index == 0 and has_weights(view, use.node) for use in uses
    )


def _is_apart(view: GraphView, node: Node, level: Levels) -> bool:
    """Whether a node that moves values in front of a sum ends its kernel.

    A Transpose that leaves the order in memory does so only where its result becomes part of a larger one.
    """
    if node.op in LAST_IN_KERNEL:
        return True
    behind = tuple(_behind(view, node, level, lambda _: False))
    if not any(axes(view, found) for found in behind):
        return False
    joins = any(found.op == "Concat" for found in behind)
    if node.op in PICKING and all(found.op == "InstanceNormalization" for found in _sums(view, behind)):
        return False
    if node.op in PICKING:
        sizes = {_size(view, part) for part in node.outputs}
        summed = max(_size(view, total.inputs[0]) for total in _sums(view, behind))
        if len(sizes) == 1 and joins and summed >= _size(view, node.inputs[0]):
            return False  # joined with the other parts again
        return len(sizes) > 1 or max(sizes) * _SMALL_PART <= _size(view, node.inputs[0])
    if node.op in RESAMPLING:
        return joins or not _is_reshaped(view, node, level)
    if _ends_resampling(view, node, level):
        return True
    if node.op != "Transpose" or _size(view, node.outputs[0]) < _LARGE_TRANSPOSE or _keeps_rows(node):
        return False
    return joins or not (keeps_order(view, node) and _is_added(view, node))


def _keeps_rows(transpose: Node) -> bool:
    """Whether a Transpose leaves the last axis where it is: a sum along rows reads whole pieces of them."""
    order = list(transpose.attribute("perm", ()))
    return bool(order) and order[-1] == len(order) - 1


def _sums(view: GraphView, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(node for node in nodes if axes(view, node))


def _is_reshaped(view: GraphView, node: Node, level: Levels) -> bool:
    """Whether a Reshape stands between a node and the sums behind it."""
    way = _behind(view, node, level, lambda found: bool(axes(view, found)) or found.op in RESHAPING)
    return any(found.op in RESHAPING for found in way)


def _ends_resampling(view: GraphView, node: Node, level: Levels) -> bool:
    """Whether a node is the last that works on the picture of a Resize, in front of the Reshape for a sum."""
    before = view.producer(node.inputs[0]) if node.inputs else None
    if node.op in RESHAPING:
        return before is not None and before.op in RESAMPLING and level.get(before.name) == level[node.name]
    readers = [use.node for tensor in node.outputs for use in view.uses(tensor)]
    if not any(reader.op in RESHAPING and level.get(reader.name) == level[node.name] for reader in readers):
        return False
    return _has_resized(view, node, level)


def _has_resized(view: GraphView, node: Node, level: Levels) -> bool:
    """Whether a Resize of the same kernel makes what a node computes, element by element."""
    waiting, seen = [node], {node.name}
    while waiting and len(seen) < _FARTHEST:
        for maker in map(view.producer, waiting.pop().inputs):
            if maker is None or maker.name in seen or level.get(maker.name) != level[node.name]:
                continue
            if maker.op in RESAMPLING:
                return True
            if maker.op not in LAYOUT | REARRANGING and not axes(view, maker):
                seen.add(maker.name)
                waiting.append(maker)
    return False


def _is_added(view: GraphView, node: Node) -> bool:
    """Whether the next thing done with the values of a node is to scale them or to add others."""
    return all(use.node.op in ELEMENTWISE_SUMS | LAYOUT for use in view.uses(node.outputs[0]))


def _behind(view: GraphView, first: Node, level: Levels, last: Callable[[Node], bool]) -> Iterator[Node]:
    """The nodes behind `first` in its kernel, nearest first; what is behind a `last` one is not looked at."""
    seen = {first.name}
    waiting = [first]
    own = level.get(first.name)
    while waiting and own is not None and len(seen) < _FARTHEST:
        node = waiting.pop(0)
        for tensor in node.outputs:
            for use in view.uses(tensor):
                found = use.node
                inside = found.op in QDQ or level.get(found.name) == own
                if found.name in seen or not inside or found.op in SHAPE_READERS:
                    continue
                seen.add(found.name)
                yield found
                if not last(found):
                    waiting.append(found)
