"""Writes Einsum nodes that are matrix products as Transpose, Reshape and MatMul, which TensorRT can quantize.

    bij,jk->bik        MatMul
    bhid,bhjd->bhij    Transpose of the second operand, MatMul
    bnhd,hdm->bnm      Reshape to b,n,(hd), MatMul with the weights as a matrix
    bnd,dhm->bnhm      MatMul with the weights as a matrix, Reshape to b,n,h,m
    bhwc,hkc->bhwk     Transpose to h,b,w,c, Reshape to h,(bw),c, MatMul, Reshape to h,b,w,k, Transpose

TensorRT takes Q and DQ before MatMul, not before Einsum, so a network written with einsum would stay float. Evidence: RTX 1.7.1, an
attention with relative positions along two axes (bhwc,hkc->bhwk and bhwc,wkc->bhwk), 64 to 256 tokens, FP32 and FP16: 8 of 8
products are INT8 instead of 6, with 11 kernels as before and 0.86 to 0.96 of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.preparation.attention import FLOATS
from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class _Terms:
    """The labels of an Einsum with two operands, in which each operand has each label once.

    Attributes:
        left, right, result: labels of the operands and of the result, in order.
        batch: labels that all three have.
        rows, columns: labels of the result that only the left, only the right operand has.
        summed: labels that both operands have and the result has not.
    """

    left: str
    right: str
    result: str
    batch: str
    rows: str
    columns: str
    summed: str


def write_products(edit: Edit, view: GraphView) -> int:
    """Replace every Einsum that one MatMul can compute; return the number of replaced nodes.

    Not changed: Einsum with one operand or more than two, an ellipsis, diagonals, sums over one operand, and products
    that would need a Reshape of two dimensions of unknown length. An operand that is repeated along a label stays too.
    """
    candidates = [node for node in edit.nodes if node.op_type == "Einsum" and node.domain in {"", "ai.onnx"}]
    written = [node for node in candidates if _write(edit, node, view)]
    edit.remove(written)
    return len(written)


def _write(edit: Edit, node: onnx.NodeProto, view: GraphView) -> bool:
    equation = next(
        attribute.s.decode("utf-8", "replace") for attribute in node.attribute if attribute.name == "equation"
    )
    operands = list(node.input)
    terms = _terms(equation)
    if terms is not None and len(operands) == 2 and operands[0] in edit.constants:
        terms = _terms(f"{terms.right},{terms.left}->{terms.result}")
        operands.reverse()
    if terms is None or len(operands) != 2 or not terms.rows or not terms.columns or not terms.summed:
        return False
    is_joined = len(terms.columns) > 1 or len(terms.summed) > 1 or bool(terms.batch and len(terms.rows) > 1)
    if _is_repeated(view, operands, terms, terms.summed + (terms.batch if is_joined else "")):
        return False
    if not terms.batch and operands[1] in edit.constants:
        return _with_weights(edit, node, operands, terms)
    if is_joined:
        return _with_joined_axes(edit, node, operands, terms, view)
    left = _add_transpose(edit, node, operands[0], terms.left, terms.batch + terms.rows + terms.summed)
    right = _add_transpose(edit, node, operands[1], terms.right, terms.batch + terms.summed + terms.columns)
    _product(edit, node, (left, right), terms)
    return True


def _is_repeated(view: GraphView, operands: Sequence[str], terms: _Terms, labels: str) -> bool:
    """Return True if one operand has length 1 along one of the labels, and the other operand another or unknown length."""
    left, right = (view.info(operand).shape or () for operand in operands)
    left_sizes = dict(zip(terms.left, left, strict=False))
    right_sizes = dict(zip(terms.right, right, strict=False))
    pairs = ({left_sizes.get(label), right_sizes.get(label)} for label in labels)
    return any(1 in pair and len(pair) > 1 for pair in pairs)


# --- Fourier transforms ----------------------------------------------------------------------------------------------
# Writes a DFT of known length as a product with its constant matrix: TensorRT has no importer for the operator.
#
#     DFT of [b, n, f, 2] along n        bnfc,nckd->bkfd, with the cosines and sines of n x k angles
#
# The matrix of real and imaginary parts has 4 n * n values. Long transforms are not changed, because a fast transform
# computes much less.

_MOST_VALUES = 1 << 22
"""Most values of the matrix of a transform; 1024 complex numbers have as many."""
_AXIS_IS_AN_INPUT = 20
"""Opset from which the axis is an input; before, it is an attribute."""
_FEWEST_AXES = 3
"""Fewest axes with rows left for the product: the transformed axis, the axis of real and imaginary parts, and one
more.
"""


def write_transforms(edit: Edit, view: GraphView) -> int:
    """Replace every DFT along an axis of known and moderate length by a MatMul; return how many."""
    candidates = [node for node in edit.nodes if node.op_type == "DFT" and node.domain in {"", "ai.onnx"}]
    written = [node for node in candidates if _write_transform(edit, node, view)]
    edit.remove(written)
    return len(written)


def _write_transform(edit: Edit, node: onnx.NodeProto, view: GraphView) -> bool:
    info, options = view.info(node.input[0]), {field.name: field.i for field in node.attribute}
    shape, inverse, one_sided = info.shape or (), options.get("inverse", 0), options.get("onesided", 0)
    length, place = (edit.value(at(node.input, index)) if at(node.input, index) else None for index in (1, 2))
    if edit.opset < _AXIS_IS_AN_INPUT:
        axis = options.get("axis", 1)
    elif at(node.input, 2) and place is None:
        return False
    else:
        axis = -2 if place is None else int(place)
    axis = axis + len(shape) if axis < 0 else axis
    labels = ascii_lowercase[: len(shape)]
    if not 0 <= axis < len(shape) - 1 or len(shape) < _FEWEST_AXES or info.dtype not in FLOATS:
        return False
    count, parts = shape[axis], shape[-1]
    if not isinstance(count, int) or not isinstance(parts, int) or (inverse and one_sided):
        return False
    if at(node.input, 1) and (length is None or int(length) != count):
        return False
    kept = count // 2 + 1 if one_sided else count
    if 2 * count * parts * kept > _MOST_VALUES:
        return False
    turns = np.outer(np.arange(count), np.arange(kept)) % count / count
    wave = np.exp((2j if inverse else -2j) * np.pi * turns) / (count if inverse else 1)
    # [real, imaginary part of the input, length, kept, real, imaginary part of the output]
    matrix = np.stack([np.stack([w.real, w.imag], -1) for w in (wave, 1j * wave)][:parts])
    weights = edit.constant(f"{node.name}_matrix", matrix.transpose(1, 0, 2, 3).astype(FLOATS[info.dtype]))
    before, after = labels[axis] + labels[-1], "YZ"
    result = labels.replace(labels[axis], "Y").replace(labels[-1], "Z")
    terms = _terms(f"{labels},{before}{after}->{result}")
    return terms is not None and _with_weights(edit, node, [node.input[0], weights], terms)


def _with_weights(edit: Edit, node: onnx.NodeProto, operands: Sequence[str], terms: _Terms) -> bool:
    """Write an Einsum with a constant right operand, which becomes a matrix; return False if this is impossible."""
    weights = edit.value(operands[1])
    if weights is None or weights.ndim != len(terms.right):
        return False
    order = [terms.right.index(label) for label in terms.summed + terms.columns]
    ordered = weights.transpose(order)
    sums, columns = ordered.shape[: len(terms.summed)], ordered.shape[len(terms.summed) :]
    matrix = edit.constant(f"{operands[1]}_matrix", ordered.reshape(math.prod(sums), math.prod(columns)))
    left = _add_transpose(edit, node, operands[0], terms.left, terms.rows + terms.summed)
    kept = [0] * len(terms.rows)
    if len(sums) > 1:
        left = _add_reshape(edit, node, left, [*kept, -1])
    _product(edit, node, (left, matrix), terms, [*kept, *columns] if len(columns) > 1 else None)
    return True


def _with_joined_axes(
    edit: Edit, node: onnx.NodeProto, operands: Sequence[str], terms: _Terms, view: GraphView
) -> bool:
    """Write an Einsum as MatMul: joins several row, column or summed labels into one axis each.

    Return False if lengths are unknown.
    """
    lengths: dict[str, int] = {}
    for operand, labels in zip(operands, (terms.left, terms.right), strict=True):
        shape = view.info(operand).shape or ()
        if len(shape) != len(labels):
            return False
        lengths |= {label: size for label, size in zip(labels, shape, strict=True) if isinstance(size, int)}

    def join_lengths(*groups: str) -> list[int] | None:
        """Return the length of each joined axis, -1 for an unknown length; None if several lengths are unknown."""
        sizes = [
            math.prod(lengths[label] for label in group) if set(group) <= lengths.keys() else -1
            for group in groups
        ]
        return sizes if sizes.count(-1) < 2 else None

    shapes = (
        join_lengths(*terms.batch, terms.rows, terms.summed),
        join_lengths(*terms.batch, terms.summed, terms.columns),
        join_lengths(*terms.batch, *terms.rows, *terms.columns),
    )
    left_shape, right_shape, whole = shapes
    if left_shape is None or right_shape is None or whole is None:
        return False
    left = _add_transpose(edit, node, operands[0], terms.left, terms.batch + terms.rows + terms.summed)
    right = _add_transpose(edit, node, operands[1], terms.right, terms.batch + terms.summed + terms.columns)
    if len(terms.rows) > 1 or len(terms.summed) > 1:
        left = _add_reshape(edit, node, left, left_shape)
    if len(terms.columns) > 1 or len(terms.summed) > 1:
        right = _add_reshape(edit, node, right, right_shape)
    several = len(terms.rows) > 1 or len(terms.columns) > 1
    _product(edit, node, (left, right), terms, whole if several else None)
    return True


def _product(
    edit: Edit, node: onnx.NodeProto, factors: tuple[str, str], terms: _Terms, shape: list[int] | None = None
) -> None:
    """Write the MatMul that replaces an Einsum, and the nodes that restore the order of its result."""
    labels = terms.batch + terms.rows + terms.columns
    if labels == terms.result and shape is None:
        edit.node("MatMul", factors, [node.output[0]], name=f"{node.name}_MatMul")
        return
    product = edit.fresh(f"{node.name}_product")
    edit.node("MatMul", factors, [product], name=f"{node.name}_MatMul")
    if shape is not None:
        ready = node.output[0] if labels == terms.result else edit.fresh(f"{node.name}_shaped")
        to = edit.constant(f"{node.name}_shape", np.asarray(shape, np.int64))
        edit.node("Reshape", [product, to], [ready], name=f"{node.name}_Reshape")
        product = ready
    if labels != terms.result:
        order = [labels.index(label) for label in terms.result]
        edit.node("Transpose", [product], [node.output[0]], name=f"{node.name}_Transpose", perm=order)


def _add_transpose(edit: Edit, node: onnx.NodeProto, tensor: str, labels: str, order: str) -> str:
    if labels == order:
        return tensor
    output = edit.fresh(f"{tensor}_{order}")
    edit.node(
        "Transpose",
        [tensor],
        [output],
        name=f"{node.name}_Transpose",
        perm=[labels.index(label) for label in order],
    )
    return output


def _add_reshape(edit: Edit, node: onnx.NodeProto, tensor: str, shape: list[int]) -> str:
    output = edit.fresh(f"{tensor}_flat")
    to = edit.constant(f"{tensor}_flat_shape", np.asarray(shape, np.int64))
    edit.node("Reshape", [tensor, to], [output], name=f"{node.name}_Reshape")
    return output


def _terms(equation: str) -> _Terms | None:
    """Return the labels of "left,right->result"; None for equations of any other form."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    left, comma, right = operands.partition(",")
    plain = all(part.isalpha() and len(set(part)) == len(part) for part in (left, right, result))
    if not arrow or not comma or not plain or not set(result) <= set(left + right):
        return None
    shared = [label for label in left if label in right]
    lonely = [label for label in left + right if label not in result and label not in shared]
    if lonely:
        return None
    return _Terms(
        left=left,
        right=right,
        result=result,
        batch="".join(label for label in result if label in shared),
        rows="".join(label for label in result if label in left and label not in shared),
        columns="".join(label for label in result if label in right and label not in shared),
        summed="".join(label for label in shared if label not in result),
    )
