"""Products that are too small to gain anything from INT8: the bounds, once for what is placed and for what is found."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import channels
from qdqtool.trt.ops import MATRIX_PRODUCTS, PRODUCTS

TILE = 16
"""INT8 matrix kernels work on tiles of this many rows and columns."""
MOST_FOLDED = 4
"""Channels of a convolution that TensorRT for RTX computes with its neighbours; see `is_folded`."""
_LARGE = 1 << 18
"""Weights from which reading them costs more than another kernel does: 768 KiB saved against FP32."""


def is_narrow(weights: Sequence[int]) -> bool:
    """Whether the weights of a matrix product, of at least two dimensions, are less than a tile."""
    return min(weights[-2:]) < TILE


def narrow_weights(view: GraphView, node: Node) -> tuple[int, int] | None:
    """Input and output channels of a matrix product that INT8 is likely to cost a kernel; None for any other node.

    Its weights are one matrix, less than a tile, and its input gets a Q of its own. No Q is added if a wider product reads the same
    values, and a stack of matrices is no layer: learned queries give an attention a constant factor of this form.
    """
    index = 0 if view.is_constant(node.inputs[0]) else 1
    shape, counts = view.constant_shape(node.inputs[index]), channels(view, node)
    if shape is None or counts is None or prod(shape[:-2]) > 1 or not is_narrow(counts):
        return None
    return None if _is_read_in_int8(view, node.inputs[1 - index]) else counts


def _is_read_in_int8(view: GraphView, tensor: str) -> bool:
    """Whether a product of at least a tile reads these values, so that they are quantized anyway."""
    return any(
        use.node.op in MATRIX_PRODUCTS
        and use.index == 0
        and len(shape := view.constant_shape(use.node.inputs[1]) or ()) > 1
        and not is_narrow(shape)
        and not is_one_vector(view, use.node)
        for use in view.uses(tensor)
    )


def is_one_vector(view: GraphView, node: Node) -> bool:
    """Whether a Conv, Gemm or MatMul multiplies small weights by a single vector; False where shapes are not known."""
    if node.op not in PRODUCTS - {"ConvTranspose"}:
        return False
    elements, vectors = view.info(node.inputs[1]).elements, static_shape(view, node.inputs[0])
    return elements is not None and elements < _LARGE and vectors is not None and _count(node, vectors) == 1


def setting_for(view: GraphView, node: Node, skipped: str) -> str:
    """The fix of a small product that stays float: the setting that quantizes it, where it has a kernel that is then INT8.

    A free batch counts as one sample here.
    """
    if node.op == "Conv" and _channels(view, node) <= MOST_FOLDED:
        return f"nothing to do: of {MOST_FOLDED} channels or fewer it is computed with its neighbours"
    return skipped


def is_folded(view: GraphView, node: Node) -> bool:
    """Whether a Conv reads one value of each of so few channels that TensorRT for RTX computes it with its neighbours.

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
    """Whether the first dimension of what a node reads is free.

    A Conv that `is_folded` is an INT8 kernel of its own in an engine for more than one sample: of 1, 4 and 5 channels, by 24 builds of
    RTX 1.7.1 (SM86, 89) for 1 to 64 samples, it was one wherever the range allowed two, and else from 5 channels on.
    """
    shape = view.info(node.inputs[0]).shape or ()
    return bool(shape) and isinstance(shape[0], str)


def _channels(view: GraphView, node: Node) -> float:
    shape = view.info(node.inputs[1]).shape or ()
    return shape[1] if len(shape) > 1 and isinstance(shape[1], int) else inf


def static_shape(view: GraphView, tensor: str) -> tuple[int, ...] | None:
    """A shape of known sizes only; None where one is not known."""
    shape = view.info(tensor).shape
    sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _count(node: Node, sizes: tuple[int, ...]) -> int | None:
    """How many vectors of its first input a node multiplies."""
    if node.op == "Conv":
        return prod(sizes[:1] + sizes[2:])
    if node.op == "MatMul":
        return prod(sizes[:-1])
    # Another rank is no matrix: onnxruntime and TensorRT refuse it.
    return sizes[1 if node.attribute("transA", 0) else 0] if len(sizes) == 2 else None
