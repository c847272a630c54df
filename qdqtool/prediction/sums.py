"""Along which axes a node sums: one kernel sums along one set of axes only.

Along one short axis nothing is summed: the compiler writes slices and adds them, in whatever kernel that is.

Evidence: RTX 1.7.1, Relu ─ reduction along one axis ─ ReduceMean along two others: one kernel for 2 to 6 values of
ReduceSum and ReduceL2 and for 2 to 4 of ReduceMean, ReduceMax, ReduceMin and Softmax, the first or the last axis; two
kernels for more, and along two axes of 1 and 2 values.

A float product of one row with a single column, as networks end in that give one number, is such a sum as well: it is in one
kernel with the bias and the activation in front of it. Products with more columns are kernels that nothing in front of them
shares (chains of two and three Gemm with 8 to 1024 rows and 1 to 512 columns). But with a constant matrix of up to 4 rows, for one
row of floats of 2 to 6, a product is slices that are multiplied and added, in the kernel of what is around them (Gemm and MatMul of 1 to 8 rows
with 2 to 128 summed values between Relu and Q).
"""

from __future__ import annotations

from qdqtool.graph.row_sums import ADDED_OUT, WRITTEN_OUT
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.silent_float import columns_of, rows_of
from qdqtool.trt.ops import ADDING, MATRIX_PRODUCTS, QDQ, REDUCTIONS, SPATIAL_SUMS

Axes = tuple[int, ...]
_MATRIX = 2


def shrinks(view: GraphView, node: Node) -> bool:
    """Whether a node sums, and makes fewer values than it reads."""
    return (node.op in REDUCTIONS or node.op == "GlobalAveragePool") and not _is_written_out(view, node)


def is_scalar_product(view: GraphView, node: Node) -> bool:
    """Whether a node multiplies one row of floats with a single constant column; a free batch counts as 1."""
    if node.op not in MATRIX_PRODUCTS or not view.is_constant(node.inputs[1]) or not is_row(view, node):
        return False
    maker = view.producer(node.inputs[0])
    quantized = maker is not None and maker.op in QDQ
    return not quantized and columns_of(node, view.info(node.inputs[1]).shape or ()) == 1


def is_written_out(view: GraphView, node: Node) -> bool:
    """Whether a product of floats with a constant matrix of a few rows is slices that are multiplied and added."""
    if node.op not in MATRIX_PRODUCTS or not view.is_constant(node.inputs[1]):
        return False
    maker = view.producer(node.inputs[0])
    shape = view.info(node.inputs[1]).shape or ()
    if (maker is not None and maker.op in QDQ) or len(shape) != _MATRIX:
        return False
    turned = node.op == "Gemm" and node.attribute("transB", 0)
    summed, columns = shape[::-1] if turned else shape
    if not isinstance(summed, int):
        return False
    row = is_row(view, node)
    return (1 if row or columns == 1 else 0) < summed <= (ADDED_OUT if row else WRITTEN_OUT)


def is_row(view: GraphView, product: Node) -> bool:
    """Whether the first factor of a matrix product is one row; a free batch counts as 1, for which engines are built."""
    shape = view.info(product.inputs[0]).shape or ()
    free = len(shape) > 1 and isinstance(shape[0], str)
    return rows_of(view, product) == 1 or (
        free and set(shape[1:-1]) <= {1} and not product.attribute("transA", 0)
    )


def axes(view: GraphView, node: Node) -> Axes:
    """The axes that `node` sums along, from the front; () for nodes that sum nothing or of unknown rank."""
    return () if _is_written_out(view, node) else _named(view, node)


def _is_written_out(view: GraphView, node: Node) -> bool:
    if node.op != "Softmax" and node.op not in REDUCTIONS:
        return False
    named = _named(view, node)
    shape = view.info(node.inputs[0]).shape or ()
    size = shape[named[0]] if len(named) == 1 else None
    return isinstance(size, int) and 1 < size <= (ADDED_OUT if node.op in ADDING else WRITTEN_OUT)


def _named(view: GraphView, node: Node) -> Axes:
    shape = view.info(node.inputs[0]).shape if node.inputs else None
    if not shape:
        return ()
    rank = len(shape)
    if is_scalar_product(view, node):
        return (rank - 1,)
    if node.op in SPATIAL_SUMS:
        return tuple(range(2, rank))
    if node.op == "Softmax":
        return (node.integer("axis", -1) % rank,)
    if node.op == "LayerNormalization":
        return tuple(range(node.integer("axis", -1) % rank, rank))
    if node.op not in REDUCTIONS:
        return ()
    given = node.attribute("axes", ())
    if not given and len(node.inputs) > 1:
        constant = view.constant(node.inputs[1])
        given = () if constant is None else constant.ravel().tolist()
    return tuple(sorted(int(axis) % rank for axis in given)) or tuple(range(rank))
