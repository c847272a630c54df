"""Operators that only move or pick values, so that quantizing before or after them is the same.

The builder pushes Q backward and DQ forward through them (B3 of NVIDIA's placement rules names MaxPool; the verbose
logs name Slice and Concat; RTX builds show Split, Reshape, Transpose, Pad and nearest Resize too).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.graph.view import GraphView, Node

_ALWAYS = frozenset(
    {
        "DepthToSpace",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)

_MOST_PADS = 8
"""Pads in a row that one Conv takes along; nobody writes more."""


def commutes(view: GraphView, node: Node) -> bool:
    """Whether Q(op(x)) = op(Q(x)) for the first input of `node`."""
    if node.domain not in {"", "ai.onnx"} or not node.inputs:
        return False
    if node.op in {"Resize", "Upsample"}:
        return bool(node.attribute("mode", "nearest") == "nearest")
    if node.op == "Pad":
        return _pads_with_zero(view, node)
    return node.op in _ALWAYS


def is_partial(node: Node) -> bool:
    """Whether a commuting operator picks a part: the parts of one tensor may well have scales of their own."""
    return node.op in {"Gather", "Slice", "Split"}


def moved(node: Node) -> tuple[str, ...]:
    """The outputs of a commuting node that hold values of its first input."""
    return node.outputs if node.op == "Split" else node.outputs[:1]


def holds_back(view: GraphView, node: Node) -> bool:
    """Whether TensorRT for RTX carries no DequantizeLinear forward through this commuting node.

    It does not through a nearest Resize, nor through a Pad with zeros unless that is the own Pad of one Conv: height
    and width only, right in front of it (found by building; a QuantizeLinear moves backward through all of them).
    """
    if node.op != "Pad":
        return node.op in {"Resize", "Upsample"}
    if node.attribute("mode", "constant") != "constant":
        return False
    for _ in range(_MOST_PADS):
        uses = view.uses(node.outputs[0])
        if len(uses) != 1 or view.is_output(node.outputs[0]) or not _is_around(view, node):
            return True
        node = uses[0].node
        if node.op != "Pad":
            return node.op != "Conv"
    return True


def _is_around(view: GraphView, pad: Node) -> bool:
    """Whether a Pad leaves batch and channels, the first two dimensions, as they are."""
    given = pad.attribute("pads", ())
    if len(pad.inputs) > 1:
        constant = view.constant(pad.inputs[1])
        given = () if constant is None or len(pad.inputs) > 3 else constant.reshape(-1).tolist()
    half = len(given) // 2
    return half > 2 and not any((*given[:2], *given[half : half + 2]))


def upstream(view: GraphView, tensor: str) -> Iterator[str]:
    """`tensor` and everything before it that differs only by commuting operators, nearest first."""
    yield tensor
    node = view.producer(tensor)
    while node is not None and commutes(view, node) and tensor in moved(node):
        tensor = node.inputs[0]
        yield tensor
        node = view.producer(tensor)


def _pads_with_zero(view: GraphView, node: Node) -> bool:
    if node.attribute("mode", "constant") != "constant":
        return True
    if len(node.inputs) > 2 and node.inputs[2]:
        value = view.constant(node.inputs[2])
        return value is not None and not value.any()
    return float(node.attribute("value", 0.0)) == 0.0
