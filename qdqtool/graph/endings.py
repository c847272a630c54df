"""Softmaxes that end a network, and the network without them: what its candidates are compared by.

    x ─ ... ─ MatMul ─ scores ─ Softmax ─ Reshape ─ output

A softmax that is sure of a class hides nearly all noise of its scores: the little that comes out of a data set comes from the
few samples of which it is unsure. In front of it every sample tells how noisy the network is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.skeleton import declaration
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import LAYOUT, MAXIMA, REPEATING

_MOVES: Final = LAYOUT | REPEATING | {"Cast"}


def endings(view: GraphView) -> dict[str, str]:
    """By output the node that reads the scores of the softmax it comes from; without outputs that come from none.

    Written out as exponentials over their sum, a softmax reads them where it subtracts the largest, or where it takes the
    exponential. What only moves or casts values may stand behind it. An output that holds many softmaxes a sample (a text line, an
    image of classes) is left out: unsure ones are among them in every sample, and where it is sure noise of the scores is none.
    """
    found = {info.name: _softmax(view, info.name) for info in view.outputs if _is_single(info.shape)}
    return {name: node.name for name, node in found.items() if node is not None}


def scores(view: GraphView, ends: Mapping[str, str]) -> dict[str, str]:
    """The tensor to compare by output, in their order: what the node that `ends` names reads, or the output itself.

    The view may be that of another form of the network, as long as nodes kept their names.
    """
    names = [info.name for info in view.outputs]
    return {name: view.by_name[ends[name]].inputs[0] if name in ends else name for name in names}


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
