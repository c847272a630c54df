"""Convolutions so small that TensorRT for RTX fuses them with their neighbours; used by rules and prediction."""

from __future__ import annotations

from math import inf

from qdqtool.graph.view import GraphView, Node

MOST_FOLDED = 4
"""Most channels of a convolution that TensorRT for RTX fuses with its neighbours; see `is_folded`."""


def setting_for(view: GraphView, node: Node, skipped: str) -> str:
    """Return the setting that quantizes a small compute node, or "nothing to do" if it has no kernel of its own.

    A free batch counts as one sample here.
    """
    if node.op == "Conv" and _channels(view, node) <= MOST_FOLDED:
        return (
            f"nothing to do: with {MOST_FOLDED} channels or fewer it is computed together with its neighbours"
        )
    return skipped


def is_folded(view: GraphView, node: Node) -> bool:
    """Return whether a Conv has one position and so few channels that TensorRT for RTX fuses it with its neighbours.

    That is one generated kernel in float, whatever is quantized. By builds of RTX 1.7.1 (SM86, 89 and 120; 1 to 8 channels; 16, 32
    and 96 outputs): up to 4 channels, and for one sample only: of two or more samples it is an INT8 kernel of its own. A free
    batch counts as 1, for which engines are built unless a range is given; see `has_free_batch`.
    """
    if node.op != "Conv" or _channels(view, node) > MOST_FOLDED:
        return False
    shape = view.info(node.inputs[0]).shape or ()
    return (
        len(shape) > 1 and (shape[0] == 1 or isinstance(shape[0], str)) and all(dim == 1 for dim in shape[2:])
    )


def has_free_batch(view: GraphView, node: Node) -> bool:
    """Return whether the first dimension of the node's input is free.

    A Conv that `is_folded` is an INT8 kernel of its own in an engine for more than one sample: of 1, 4 and 5 channels, by 24 builds of
    RTX 1.7.1 (SM86, 89) for 1 to 64 samples, it was one wherever the range allowed two, and else from 5 channels on.
    """
    shape = view.info(node.inputs[0]).shape or ()
    return bool(shape) and isinstance(shape[0], str)


def _channels(view: GraphView, node: Node) -> float:
    shape = view.info(node.inputs[1]).shape or ()
    return shape[1] if len(shape) > 1 and isinstance(shape[1], int) else inf
