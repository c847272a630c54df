"""What ends a network and hides its noise: what its candidates are compared by instead of its outputs.

    x - ... - MatMul - scores - Softmax - Reshape - output

A softmax that is sure of a class hides nearly all noise of its scores: the little that comes out of a data set comes from the
few samples of which it is unsure. In front of it every sample tells how noisy the network is.

    boxes in pixels  -+
                      +- Concat - output
    Sigmoid - scores -+

Quantities of different kinds in one output hide each other: boxes are a hundred times as large as the scores beside them, and all noise
of these is little beside theirs. They count as outputs of their own; the same quantity of several feature maps is one of them, since a map of large
objects may hold none, and its noise would be that of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.skeleton import declaration
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import GATES, LAYOUT, MAXIMA, REPEATING

_MOVES: Final = LAYOUT | REPEATING | {"Cast"}
_BOUNDED: Final = GATES | {"Softmax"}
"""What makes scores between 0 and 1."""
_MOST: Final = 64
"""Parts that an output may fall into."""

Reading = tuple[str, int]
"""A node, and the number of one of its inputs."""


def endings(view: GraphView) -> dict[str, tuple[Reading, ...]]:
    """By output what is compared in its place: what these nodes read; without outputs that are compared as they are.

    Of a softmax it is the scores. Written out as exponentials over their sum, a softmax reads them where it subtracts the largest, or where it takes the
    exponential. What only moves or casts values may stand behind it. An output that holds many softmaxes a sample (a text line, an
    image of classes) is left out: unsure ones are among them in every sample, and where it is sure noise of the scores is none.

    Of an output that is put together of scores between 0 and 1 and of something else it is all of these parts.
    """
    found: dict[str, tuple[Reading, ...]] = {}
    for info in view.outputs:
        softmax = _softmax(view, info.name) if _is_single(info.shape) else None
        if softmax is not None:
            found[info.name] = ((softmax.name, 0),)
        elif parts := _parts(view, info.name):
            found[info.name] = parts
    return found


def scores(view: GraphView, ends: Mapping[str, tuple[Reading, ...]]) -> dict[str, str]:
    """The tensors to compare, in the order of the outputs: what `ends` names, or the output itself.

    Each is under the name of its output, with a number where it is one of several parts. The view may be that of another form of
    the network, as long as nodes kept their names.
    """
    found: dict[str, str] = {}
    for info in view.outputs:
        read = [view.by_name[node].inputs[index] for node, index in ends.get(info.name, ())] or [info.name]
        if len(read) == 1:
            found[info.name] = read[0]
        else:
            found |= {f"{info.name}[{number}]": tensor for number, tensor in enumerate(read)}
    return found


def quantities(view: GraphView, ends: Mapping[str, tuple[Reading, ...]]) -> tuple[tuple[str, ...], ...]:
    """The names that `scores` gives, those of one quantity together: parts that have the same place in their Concat."""
    found: dict[tuple[str, int], list[str]] = {}
    for info in view.outputs:
        read = ends.get(info.name, ())
        for number, (_, index) in enumerate(read if len(read) > 1 else ((info.name, 0),)):
            name = f"{info.name}[{number}]" if len(read) > 1 else info.name
            found.setdefault((info.name, index), []).append(name)
    return tuple(map(tuple, found.values()))


def returning(model: Model, tensors: Mapping[str, str]) -> Model:
    """The model that returns these tensors in the place of its outputs, by which they are named."""
    if all(name == tensor for name, tensor in tensors.items()):
        return model
    edit = Edit(model)
    edit.outputs = [declaration(model.proto, name) for name in dict.fromkeys(tensors.values())]
    edit.prune()
    return edit.finish(shapes=False)


def _is_single(shape: tuple[int | str | None, ...] | None) -> bool:
    """Whether a sample has one row of values, along one axis."""
    return shape is not None and sum(dim != 1 for dim in shape[1:]) == 1


def _parts(view: GraphView, output: str) -> tuple[Reading, ...]:
    """The parts of an output that holds quantities of different kinds; none where it does not."""
    whole = view.info(output).shape
    if whole is None:
        return ()
    found: list[Reading] = []
    kinds: set[bool] = set()
    for node, index in _joined(view, output):
        tensor = view.by_name[node].inputs[index]
        shape = view.info(tensor).shape
        if view.is_constant(tensor) or not shape or shape[0] != whole[0]:
            return ()  # its samples could not be told apart
        maker = _source(view, tensor)
        kinds.add(maker is not None and maker.op in _BOUNDED)
        found.append((node, index))
    return tuple(found) if len(kinds) > 1 and len(found) <= _MOST else ()


def _joined(view: GraphView, output: str) -> Iterator[Reading]:
    """What a tensor is put together of by one Concat or several that follow each other."""
    node = _source(view, output)
    if node is None or node.op != "Concat":
        return
    for index, tensor in enumerate(node.inputs):
        maker = _source(view, tensor)
        if maker is not None and maker.op == "Concat":
            yield from _joined(view, tensor)
        else:
            yield node.name, index


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
    """The node that computes what a tensor holds."""
    node = view.producer(tensor)
    while node is not None and node.op in _MOVES:
        node = view.producer(node.inputs[0])
    return node
