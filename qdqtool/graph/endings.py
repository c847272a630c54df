"""Tensors to compare instead of network outputs, because the last operators can hide network noise.

    x - ... - MatMul - scores - Softmax - Reshape - output

If a softmax is sure of a class, it hides nearly all noise of its scores. The noise that reaches the output comes from
the few samples with an unsure class. The scores before the softmax show the noise of every sample.

    boxes in pixels  -+
                      +- Concat - output
    Sigmoid - scores -+

Quantities of different kinds in one output hide each other. Boxes are a hundred times as large as the scores beside
them, so the noise of the scores is small compared with the noise of the boxes. Each kind is treated as a separate
output. The same quantity of several feature maps is treated as one output: the map of large objects may contain none,
and its noise would be measured on empty values.

    scores - TopK ------+
                        +- GatherElements - output
    boxes --------------+

If two scores change places, a selected and sorted output has another order. A row is then compared with the row of
another object. The fewer objects a picture has, the more the order of empty rows decides. The values before the
selection show the noise of the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from qdqtool.core.tensors import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import declaration
from qdqtool.graph.qdq.find import behind_pairs
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import COMPUTE, GATES, LAYOUT, PLACEABLE, REPEATING, SELECTING, SHAPE_READERS

MAXIMA = frozenset({"Max", "ReduceMax"})
"""Operators whose result a written-out softmax subtracts from its scores. JAX adds a Max with minus infinity
after the reduction.
"""


_MOVES: Final = LAYOUT | REPEATING | {"Cast"}
_BOUNDED: Final = GATES | {"Softmax"}
"""Operators that make scores between 0 and 1."""
_MOST: Final = 64
"""Most parts that an output may be divided into."""

Reading = tuple[str, int]
"""A node name and the number of one of its inputs."""


def endings(view: GraphView, *, softmax: bool = True) -> dict[str, tuple[Reading, ...]]:
    """Return, for each output, the node inputs to compare instead; omit outputs that are compared themselves.

    For a softmax, the result is the input of the softmax, unless `softmax` is False. For a softmax that is written as
    exponentials over their sum, it is the input of the node that subtracts the largest score, or of the exponential.
    Operators that only move or cast values may follow. An output with many softmaxes per sample (a text line, an
    image of classes) is omitted: every sample then contains unsure softmaxes, and a sure softmax has no noise to
    show.

    For an output that joins scores between 0 and 1 with other quantities, the result has all parts. For an output
    that was selected from values (TopK, NonMaxSuppression, ArgMax), the result has these values. The result is empty
    if earlier outputs already cover all values, or if no layer computes the output. For example, a mask that is
    passed on has no noise, and would only halve the noise of the other outputs.
    """
    ends: dict[str, tuple[Reading, ...]] = {}
    covered: set[str] = set()
    idle = {info.name for info in view.outputs if not _is_layered(view, info.name)}
    for info in view.outputs:
        if info.name in idle and len(idle) < len(view.outputs):
            ends[info.name] = ()
            continue
        last = _softmax(view, info.name) if softmax and _is_single(info.shape) else None
        if last is not None:
            ends[info.name] = ((last.name, 0),)
        elif parts := _parts(view, info.name):
            ends[info.name] = parts
        elif chosen := _find_choices(view, info.name):
            ends[info.name] = tuple(reading for reading in chosen if _read(view, reading) not in covered)
            covered |= {_read(view, reading) for reading in chosen}
    return ends


def is_chosen(view: GraphView, output: str) -> bool:
    """Return True if an output holds values in an order that the network chose, such as the best boxes."""
    return not _parts(view, output) and bool(_find_choices(view, output))


def in_front_of(view: GraphView, ops: AbstractSet[str]) -> tuple[str, ...]:
    """Return the tensors to make model outputs, so that the operators `ops` at the end are cut off.

    The result has the tensors from which outputs are selected, and all other outputs.

    Returns () if the operators are not at the end of the model. A tensor after Q/DQ is named as in the float model.
    An output that no layer computes is omitted: it may be a number of selected rows that was folded to a constant.
    """
    cuts: dict[str, None] = {}
    ended: set[str] = set()
    for info in (output for output in view.outputs if _is_layered(view, output.name)):
        tail = {node.name for node in _tail(view, info.name) if node.op in ops}
        ended |= tail
        chosen = _find_choices(view, info.name) if tail else ()
        if tail and not chosen:
            return ()
        cuts |= dict.fromkeys([behind_pairs(view, _read(view, reading)) for reading in chosen] or [info.name])
    return tuple(cuts) if ended == {node.name for node in view.nodes if node.op in ops} else ()


def scores(view: GraphView, ends: Mapping[str, tuple[Reading, ...]]) -> dict[str, str]:
    """Return the tensors to compare, in the order of the outputs: the inputs that `ends` names, or the output itself.

    Each tensor has the name of its output as key, with a number if the output has several parts. `view` may be
    another form of the network with equal node names.
    """
    tensors: dict[str, str] = {}
    for info in view.outputs:
        read = [_read(view, reading) for reading in ends[info.name]] if info.name in ends else [info.name]
        if len(read) == 1:
            tensors[info.name] = read[0]
        else:
            tensors |= {f"{info.name}[{number}]": tensor for number, tensor in enumerate(read)}
    return tensors


def quantities(view: GraphView, ends: Mapping[str, tuple[Reading, ...]]) -> tuple[tuple[str, ...], ...]:
    """Group the names from `scores`; a group measures one quantity.

    Parts at the same input of different Concats of one output are one quantity.
    """
    groups: dict[tuple[str, str, int], list[str]] = {}
    for info in view.outputs:
        read = ends.get(info.name, ((info.name, 0),))
        for number, (node, index) in enumerate(read):
            name = f"{info.name}[{number}]" if len(read) > 1 else info.name
            joined = node in view.by_name and view.by_name[node].op == "Concat"
            groups.setdefault((info.name, "" if joined else node, index), []).append(name)
    return tuple(map(tuple, groups.values()))


def returning(model: Model, tensors: Mapping[str, str]) -> Model:
    """Return the model with these tensors as its only outputs; they keep their tensor names."""
    if all(name == tensor for name, tensor in tensors.items()):
        return model
    edit = Edit(model)
    edit.outputs = [declaration(model.proto, name) for name in dict.fromkeys(tensors.values())]
    edit.prune()
    return edit.finish(shapes=False)


def returning_too(model: Model, tensors: Mapping[str, str]) -> Model:
    """Return the model with these tensors as additional outputs, named by the keys of `tensors`."""
    edit = Edit(model)
    for name, tensor in tensors.items():
        edit.node("Identity", [tensor], [name], name=name)
        output = declaration(model.proto, tensor)
        output.name = name
        edit.outputs.append(output)
    return edit.finish(shapes=False)


def _is_single(shape: tuple[int | str | None, ...] | None) -> bool:
    """Return True if each sample of an output is a single row of values."""
    return shape is not None and sum(dim != 1 for dim in shape[1:]) == 1


def _parts(view: GraphView, output: str) -> tuple[Reading, ...]:
    """Return the parts of an output that holds quantities of different kinds; () for other outputs."""
    whole = view.info(output).shape
    if whole is None:
        return ()
    parts: list[Reading] = []
    kinds: set[bool] = set()
    for node, index in _find_joined_parts(view, output):
        tensor = view.by_name[node].inputs[index]
        shape = view.info(tensor).shape
        if view.is_constant(tensor) or not shape or shape[0] != whole[0]:
            return ()  # its samples could not be distinguished
        maker = _source(view, tensor)
        kinds.add(maker is not None and maker.op in _BOUNDED)
        parts.append((node, index))
    return tuple(parts) if len(kinds) > 1 and len(parts) <= _MOST else ()


def _find_joined_parts(view: GraphView, output: str) -> Iterator[Reading]:
    """Yield the parts that one Concat, or several consecutive Concats, joins into a tensor."""
    node = _source(view, output)
    if node is None or node.op != "Concat":
        return
    for index, tensor in enumerate(node.inputs):
        maker = _source(view, tensor)
        if maker is not None and maker.op == "Concat":
            yield from _find_joined_parts(view, tensor)
        else:
            yield node.name, index


def _find_choices(view: GraphView, output: str) -> tuple[Reading, ...]:
    """Return the values after the last layers from which an output was selected; () if none was selected."""
    tail = _tail(view, output)
    behind: set[str] = set()
    for node in tail:
        if node.op in SELECTING or any(_is_made_in(view, name, behind) for name in node.inputs):
            behind.add(node.name)
    maker = view.producer(output)
    if maker is None or maker.name not in behind:
        return ()
    # Integers and flags (a score is above a threshold) are judged by the float values before them.
    for node in reversed(tail):
        if node.name not in behind and node.op not in SHAPE_READERS:
            read = [use.node.name in behind for name in node.outputs for use in view.uses(name)]
            if any(read) and all(_is_discrete(view, name) for name in node.outputs):
                behind.add(node.name)
    front = {
        name: (node.name, index)
        for node in tail
        if node.name in behind and node.op not in SHAPE_READERS
        for index, name in enumerate(node.inputs)
        if name and not _is_made_in(view, name, behind) and not _is_discrete(view, name)
    }
    own = [reading for name, reading in front.items() if _is_computed(view, name, front.keys() - {name})]
    readings = tuple(part for reading in own for part in _parts(view, _read(view, reading)) or (reading,))
    ranks = [view.info(_read(view, reading)).shape for reading in readings]
    return readings if len(readings) <= _MOST and all(ranks) else ()


def _tail(view: GraphView, output: str) -> list[Node]:
    """Return the nodes between the last layers of a network and an output, in graph order."""
    tail: dict[str, Node] = {}
    left = [output]
    while left:
        node = view.producer(left.pop())
        if node is not None and node.name not in tail and node.op not in COMPUTE:
            tail[node.name] = node
            left += node.inputs
    return sorted(tail.values(), key=lambda node: node.position)


def _is_computed(view: GraphView, tensor: str, apart_from: AbstractSet[str]) -> bool:
    """Return True if a layer or a model input feeds `tensor` on a path that avoids `apart_from`.

    For example, a mask of anchors depends on neither.
    """
    fed = {info.name for info in view.inputs}
    return any(
        name in fed or (node is not None and node.op in COMPUTE)
        for name, node in _trace_sources(view, tensor, apart_from)
    )


def _is_layered(view: GraphView, tensor: str) -> bool:
    """Return True if a layer, or another node that may be quantized, computes a tensor."""
    return any(
        node.op in COMPUTE
        or view.body_ops(node)
        or (node.op in PLACEABLE and not _is_discrete(view, node.outputs[0]))
        for _, node in _trace_sources(view, tensor)
        if node is not None
    )


def _trace_sources(
    view: GraphView, tensor: str, apart_from: AbstractSet[str] = frozenset()
) -> Iterator[tuple[str, Node | None]]:
    """Yield a tensor and all tensors from which its values come, each with its producer.

    Skips the tensors in `apart_from`, and shapes.
    """
    left, visited = [tensor], {tensor}
    while left:
        name = left.pop()
        node = view.producer(name)
        if node is not None and node.op in SHAPE_READERS:
            continue
        yield name, node
        more = set(() if node is None else node.inputs) - visited - apart_from
        visited |= more
        left += more


def _is_made_in(view: GraphView, tensor: str, nodes: AbstractSet[str]) -> bool:
    node = view.producer(tensor)
    return node is not None and node.name in nodes


def _is_discrete(view: GraphView, tensor: str) -> bool:
    """Return True if a tensor is constant, or holds integers or flags."""
    dtype = view.info(tensor).dtype
    return view.is_constant(tensor) or (dtype is not DType.UNKNOWN and not dtype.is_float)


def _read(view: GraphView, reading: Reading) -> str:
    """Return the tensor that a node reads at this input."""
    return view.by_name[reading[0]].inputs[reading[1]]


def _softmax(view: GraphView, output: str) -> Node | None:
    node = _source(view, output)
    if node is None or node.op == "Softmax":
        return node
    if node.op != "Div":
        return None
    power, summed = (_source(view, name) for name in node.inputs)
    if power is None or power.op != "Exp" or summed is None or summed.op != "ReduceSum":
        return None
    if _source(view, summed.inputs[0]) is not power:
        return None
    shifted = _source(view, power.inputs[0])
    if shifted is not None and shifted.op == "Sub":
        largest = _source(view, shifted.inputs[1])
        if largest is not None and largest.op in MAXIMA:
            return shifted
    return power


def _source(view: GraphView, tensor: str) -> Node | None:
    """Return the node that computes the values of a tensor. Skip operators that only move or cast values."""
    node = view.producer(tensor)
    while node is not None and node.op in _MOVES:
        node = view.producer(node.inputs[0])
    return node
