"""Replaces the arithmetic that dequantizes a model's stored weights by an equivalent DequantizeLinear.

    w (INT8) ─ Cast ─ Sub (zeros) ─ Mul (scales)                        w (INT8) ─ DQ (scale per channel)
    w (INT8) ─ Reshape (blocks) ─ Cast ─ Sub ─ Mul ─ Reshape            w (INT4) ─ DQ (block scales)
    x ─ MatMul (w (INT8) ─ Cast) ─ Mul (scales)                         x ─ MatMul (w (INT8) ─ DQ (scale per channel))

Scales may be laid out in any way: what counts is which stored value they meet. The same integers and scales remain; only in
the last form the product is multiplied in another order. Blocks of integers that four bits hold become INT4, since
TensorRT reads no blocks of INT8 in a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qdqtool.core.fixes import Change
from qdqtool.core.tensors import FP8, INT4, INT8, DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.stored import stored_casts
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import DEQUANTIZE, RESHAPING

DEQUANTIZING = frozenset({"Div", "Mul", "Sub"})
"""Operators by which a model dequantizes stored integers itself: zero point subtracted, times a scale."""


_FP8: Final = np.dtype(ml_dtypes.float8_e4m3fn)
_FLOATS: Final = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_MATRIX: Final = 2
_FARTHEST_ZERO: Final = 255
"""Largest magnitude of a zero point of stored bytes."""


@dataclass
class _Weight:
    """A stored weight on its way through the model: value = (stored - zero) * scale, element by element.

    Attributes:
        cast: the node that makes it float.
        kind: the type of the floats.
        tensor: the tensor that holds the value now.
        stored, zero, scale: all of the tensor's shape.
        into: the product's result and its factor, if the scale comes after the product.
    """

    cast: Node
    kind: np.dtype[Any]
    tensor: str
    stored: NDArray[Any]
    zero: NDArray[Any] = field(init=False)
    scale: NDArray[Any] = field(init=False)
    into: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.zero = np.zeros((1,) * self.stored.ndim)
        self.scale = np.ones((1,) * self.stored.ndim)

    def arranged(self, node: Node, view: GraphView) -> bool:
        """Apply a node that moves values to the weight; return False if its output shape is unknown."""
        shape = self.stored.shape
        moved = [
            _move_value(node, view, np.broadcast_to(part, shape))
            for part in (self.stored, self.zero, self.scale)
        ]
        shaped = [part for part in moved if part is not None]
        if len(shaped) == len(moved):
            self.stored, self.zero, self.scale = shaped
        return len(shaped) == len(moved)

    def computed(self, node: Node, view: GraphView) -> bool:
        """Apply a Sub, Mul or Div with a constant to the weight; return False for other nodes."""
        place = list(node.inputs).index(self.tensor)
        operand = view.constant(node.inputs[1 - place]) if len(node.inputs) == _MATRIX else None
        if operand is None or operand.ndim > self.stored.ndim:
            return False
        operand = operand.astype(np.float64)
        sizes = self.stored.shape[self.stored.ndim - operand.ndim :]
        if any(length not in {1, size} for length, size in zip(operand.shape, sizes, strict=True)):
            return False
        if node.op == "Mul":
            self.scale = self.scale * operand
        elif node.op == "Div" and place == 0 and np.all(operand):
            self.scale = self.scale / operand
        elif node.op == "Sub" and place == 0 and self.scale.size == 1 and float(self.scale.max()) == 1:
            self.zero = self.zero + operand
        else:
            return False
        return True


def with_dequantize(model: Model) -> tuple[Model, tuple[Change, ...]]:
    """Return the model in which DequantizeLinear replaces other dequantization of stored weights, and the changes.

    Weights are not changed if their scales are neither per channel nor in blocks along one axis.
    """
    written = _find_stored_weights(model)
    if not written:
        return model, ()
    version = max(form.opset for _, form in written)
    if version > model.view.opset:
        proto, note = raise_opset(model.proto, version, model.path)
        model = Model(proto=proto, path=model.path, notes=(*model.notes, *([note] if note else ())))
        written = _find_stored_weights(model)
    edit = Edit(model)
    changes = tuple(_write(edit, weight, form) for weight, form in written)
    edit.prune()
    return edit.finish(retyped=True), changes


def _find_stored_weights(model: Model) -> tuple[tuple[_Weight, _StoredForm], ...]:
    """Return the weights that DequantizeLinear can represent."""
    casts = stored_casts(model.view)
    pinned = Edit(model).pinned if casts else frozenset()
    weights = [weight for node in casts if (weight := _follow_weight(model.view, node, pinned)) is not None]
    return tuple((weight, form) for weight in weights if (form := _form(weight)) is not None)


def _follow_weight(view: GraphView, cast: Node, pinned: AbstractSet[str]) -> _Weight | None:
    """Follow a weight through the nodes that change only this weight; None if a model output or a body reads it."""
    stored = _read_stored(view, cast.inputs[0])
    kind = _FLOATS.get(view.info(cast.outputs[0]).dtype)
    if stored is None or kind is None:
        return None
    weight = _Weight(cast, kind, cast.outputs[0], stored)
    while True:
        if weight.tensor in pinned:
            return None
        reader = _only_reader(view, weight.tensor)
        if reader is None:
            return weight
        through = reader.op in RESHAPING | {"Transpose"} and weight.arranged(reader, view)
        if not through and not (reader.op in DEQUANTIZING and weight.computed(reader, view)):
            return _behind_product(view, weight, reader, pinned)
        weight.tensor = reader.outputs[0]


def _behind_product(view: GraphView, weight: _Weight, product: Node, pinned: AbstractSet[str]) -> _Weight:
    """Return the weight with scales that a Mul applies to the result of its MatMul."""
    result = product.outputs[0]
    last = None if result in pinned else _only_reader(view, result)
    is_factor = (
        product.op == "MatMul" and product.inputs[1] == weight.tensor and weight.stored.ndim == _MATRIX
    )
    if not is_factor or last is None or last.op != "Mul" or last.outputs[0] in pinned:
        return weight
    (factor,) = [name for name in last.inputs if name != result] or [result]
    scale = view.constant(factor)
    columns = weight.stored.shape[1]
    if scale is None or scale.size not in {1, columns} or scale.size != (scale.shape or (1,))[-1]:
        return weight
    if scale.ndim > len(view.info(result).shape or ()):
        return weight
    weight.scale = weight.scale * scale.astype(np.float64).reshape(1, -1)
    weight.into = (last.outputs[0], result)
    return weight


def _read_stored(view: GraphView, tensor: str) -> NDArray[Any] | None:
    """Return a tensor's values, moved from a constant; None for a scalar, or if a shape is unknown."""
    path: list[Node] = []
    while (maker := view.producer(tensor)) is not None:
        path.append(maker)
        tensor = maker.inputs[0]
    value = view.constant(tensor)
    for node in reversed(path):
        value = None if value is None else _move_value(node, view, value)
    return value if value is not None and value.ndim and value.size else None


def _move_value(node: Node, view: GraphView, value: NDArray[Any]) -> NDArray[Any] | None:
    """Return a value after a node that moves values; None if the output shape is unknown or does not fit."""
    if node.op == "Transpose":
        order = node.attribute("perm", tuple(reversed(range(value.ndim))))
        return value.transpose(order) if sorted(order) == list(range(value.ndim)) else None
    shape = view.info(node.outputs[0]).shape
    sizes = [size for size in shape or () if isinstance(size, int)]
    if shape is None or len(sizes) != len(shape) or math.prod(sizes) != value.size:
        return None
    return value.reshape(sizes)


def _only_reader(view: GraphView, tensor: str) -> Node | None:
    uses = view.uses(tensor)
    return uses[0].node if len(uses) == 1 else None


@dataclass(frozen=True)
class _StoredForm:
    """A weight as DequantizeLinear stores it; `block` is 0 without blocks, `axis` is None for a single scale.

    `exact` says that no scale had to be rounded to the type of the model.
    """

    stored: NDArray[Any]
    scale: NDArray[Any]
    zero: NDArray[Any] | None
    axis: int | None
    block: int
    opset: int
    words: str
    exact: bool


def _form(weight: _Weight) -> _StoredForm | None:
    """Return the form of a weight with the fewest scales and zero points; None if DequantizeLinear has no such form."""
    shape = weight.stored.shape
    scale, zero = (np.broadcast_to(part, shape) for part in (weight.scale, weight.zero))
    sharing = _sharing(scale, zero)
    if sharing is None or not np.isfinite(scale).all():
        return None
    axis, block = sharing
    scale, zero = (_short(part, axis, block) for part in (scale, zero))
    stored, words, opset, zeros = weight.stored, "FP8", FP8.opset, None
    if stored.dtype == _FP8:
        if zero.any() or block:
            return None
    else:
        if np.any(np.rint(zero) != zero) or not _fits(zero, -_FARTHEST_ZERO, _FARTHEST_ZERO):
            return None
        shifted = stored.astype(np.int16) - np.broadcast_to(weight.zero, shape).astype(np.int16)
        if _fits(
            shifted, INT8.qmin - 1, INT8.qmax
        ):  # zero points are part of the stored values; -128 may be one of them
            stored = shifted
        elif block or not _fits(zero, INT8.qmin - 1, INT8.qmax):
            return None
        else:
            zeros = zero.astype(np.int8)
        is_int4 = _fits(stored, INT4.qmin, INT4.qmax) and (block > 0 or weight.stored.dtype != np.int8)
        stored = stored.astype(ml_dtypes.int4 if is_int4 else np.int8)
        words, opset = ("INT4" if is_int4 else "INT8"), (INT4.opset if is_int4 or block else INT8.opset)
    words += f" in blocks of {block}" if block else "" if axis is None else " with a scale per channel"
    held = scale.astype(weight.kind)
    exact = np.array_equal(held.astype(np.float64), scale)
    return _StoredForm(stored, held, zeros, axis, block, opset, words, exact)


def _fits(values: NDArray[Any], low: float, high: float) -> bool:
    return bool(low <= values.min(initial=0) and values.max(initial=0) <= high)


def _sharing(scale: NDArray[Any], zero: NDArray[Any]) -> tuple[int | None, int] | None:
    """Return the axis along which scales differ, and how many neighbours on it share one scale.

    None if neither channels nor blocks fit.
    """
    axes = [axis for axis in range(scale.ndim) if _run(scale, zero, axis) != scale.shape[axis]]
    if not axes:
        return None, 0
    if len(axes) == 1:
        return axes[0], 0
    if len(axes) < scale.ndim:
        return None
    runs = {axis: _run(scale, zero, axis) for axis in axes}
    longest = max(runs, key=lambda axis: runs[axis])
    return (longest, runs[longest]) if runs[longest] > 1 else None


def _run(scale: NDArray[Any], zero: NDArray[Any], axis: int) -> int:
    """Return the length of the largest equal groups along an axis in which all neighbors share scale and zero point."""
    changes: set[int] = set()
    for part in (scale, zero):
        turned = np.moveaxis(part, axis, 0)
        differs = (turned[1:] != turned[:-1]).any(axis=tuple(range(1, turned.ndim)))
        changes |= {int(place) + 1 for place in np.flatnonzero(differs)}
    return int(np.gcd.reduce([scale.shape[axis], *changes]))


def _short(values: NDArray[Any], axis: int | None, block: int) -> NDArray[Any]:
    """Return one value for each group of neighbours with one scale, in the shape that DequantizeLinear takes."""
    if axis is None:
        return values.reshape(-1)[:1].reshape(())
    if block:
        every = [slice(None, None, block if place == axis else None) for place in range(values.ndim)]
        return values[tuple(every)]
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)[:, 0]


def _write(edit: Edit, weight: _Weight, form: _StoredForm) -> Change:
    cast = weight.cast
    inputs = [
        edit.constant(f"{weight.tensor}_stored", form.stored),
        edit.constant(f"{weight.tensor}_scale", form.scale),
    ]
    if form.zero is not None:
        inputs.append(edit.constant(f"{weight.tensor}_zero_point", form.zero))
    of = {} if form.axis is None else {"axis": form.axis}
    of |= {"block_size": form.block} if form.block else {}
    value = edit.fresh(f"{weight.tensor}_dequantized")
    edit.redirect(weight.tensor, value)
    edit.node(DEQUANTIZE, inputs, [value], name=cast.name, **of)
    behind = ""
    if weight.into is not None:
        edit.redirect(*weight.into)
        behind = ", including the factor after its product"
    return Change(
        rule="cast_weight",
        subject=cast.name,
        what=f"Cast and what follows became DequantizeLinear of {form.words}{behind}",
        reason="TensorRT accepts stored integers only as input of DequantizeLinear",
        error=0.0 if form.exact and weight.into is None else None,
    )
