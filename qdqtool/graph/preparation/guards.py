"""Removes a Where that replaces NaN after the Softmax of an attention, and gives masked scores a finite number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.graph.edit import Edit
from qdqtool.graph.preparation.attention import FLOATS, LOWEST
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import SHAPE_READERS

#     MatMul ─ Add mask ─ Softmax ─┬─────────┬─ Where ─ MatMul          MatMul ─ Where ─ Softmax ─ MatMul
#                                  └─ IsNaN ─┘
#
# PyTorch writes the guard for every attention with a mask, because a row of only -inf has no probabilities. The
# builder fuses no INT8 or FP8 attention with it. The guard has no effect if the mask is a constant that leaves a score
# in every row, or if the mask has the lowest FP32 number, as torch.onnx writes with dynamo. Without dynamo it writes
# -inf; then the rows without a key get zeros in another place: after the MatMul that reads the attention, where the
# Where is part of an existing kernel, or else after the attention.
#
# Masked scores are replaced by -30000 instead of adding a mask to them. So all scores of a row without a key are
# equal, as after adding the lowest FP32 number, and FP16 can store them.
#
# Evidence: RTX 1.7.1. A constant mask: HuBERT of two blocks in INT8, SM86: 32 kernels and 10.8 MiB of activations instead of 46 and
# 17.1 MiB. A computed mask: MiniLM of six blocks in INT8, SM86: 56 kernels and 15.3 MiB instead of 73 and 18.5 MiB; 62 kernels with the
# zeros directly after the attention.

_LARGE: Final = 1 << 26
"""Most values of a mask that are read."""
_ABSORBS: Final = -1e30
"""A number from here on swallows any score that is added to it in FP32, so that masked scores are equal."""
_RANK: Final = 4
"""Dimensions of scores: (batch, heads, queries, keys)."""


def drop_guards(edit: Edit, view: GraphView) -> int:
    """Remove each guard after a Softmax if every row of the Softmax has a finite score; return the number of removed guards."""
    dropped = 0
    for guard, softmax in _guards(edit, view):
        if _has_scores(edit, view, softmax.inputs[0]):
            _remove(edit, guard, softmax)
            dropped += 1
    return dropped


def _guards(edit: Edit, view: GraphView) -> Iterator[tuple[onnx.NodeProto, Node]]:
    """Yield each Where that replaces NaN after a Softmax along the last axis, together with this Softmax."""
    for node in tuple(edit.nodes):
        if node.op_type != "Where" or node.domain or node.output[0] in edit.pinned:
            continue
        test, softmax = view.producer(node.input[0]), view.producer(node.input[2])
        if test is None or softmax is None or (test.op, softmax.op) != ("IsNaN", "Softmax"):
            continue
        if test.inputs[0] == node.input[2] and _is_along_keys(view, softmax):
            yield node, softmax


def _remove(edit: Edit, guard: onnx.NodeProto, softmax: Node) -> None:
    """Remove a Where after a Softmax. The Softmax then writes its output, because ranges and placements use this name."""
    old, new = softmax.outputs[0], guard.output[0]
    maker = edit.maker(old)
    if maker is None or old in edit.pinned:
        edit.redirect(new, old)
        return
    edit.remove([guard])
    edit.redirect(old, new)
    edit.write(maker, 0, new)


def _is_along_keys(view: GraphView, softmax: Node) -> bool:
    rank = len(view.info(softmax.inputs[0]).shape or ())
    return rank > 0 and softmax.integer("axis", -1) % rank == rank - 1


def _has_scores(edit: Edit, view: GraphView, tensor: str) -> bool:
    """Return True if `tensor` is a MatMul result that constants scale and mask, with a finite number in each row."""
    node = view.producer(tensor)
    kept, masks, is_finite = np.ones(1, bool), 0, True
    while node is not None and node.op in {"Add", "Cast", "Div", "Mul", "Where"}:
        constants = [value for name in node.inputs if (value := _small(edit, name)) is not None]
        varying = [name for name in node.inputs if name not in edit.constants]
        if len(varying) != 1 or len(constants) != len(node.inputs) - 1:
            return False
        place, is_choice = node.inputs.index(varying[0]), node.op == "Where"
        if is_choice or node.op == "Add":
            if is_choice and not place:
                return False
            value = constants[-1]  # the other constant of a Where is its condition
            hidden = constants[0] == (place == 2) if is_choice else value <= LOWEST
            masks += bool(hidden.any())
            is_finite &= bool(np.isfinite(value).all())
            if (value >= -LOWEST).any() or np.prod(np.broadcast_shapes(kept.shape, hidden.shape)) > _LARGE:
                return False
            kept = kept & ~hidden
        elif (place and node.op == "Div") or not all(
            (np.isfinite(value) & (value > 0)).all() for value in constants
        ):
            return False
        node = view.producer(varying[0])
    is_scored = bool(kept.any(axis=-1).all()) or (is_finite and masks < 2)
    return node is not None and node.op == "MatMul" and is_scored


def _small(edit: Edit, tensor: str) -> NDArray[Any] | None:
    proto = edit.constants.get(tensor)
    return None if proto is None or np.prod(proto.dims, dtype=float) > _LARGE else edit.value(tensor)


# --- computed masks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mask:
    """A Where that hides scores under a computed condition.

    Attributes:
        node: the Where, which reads scores, or zeros that are added to them.
        low: the number of the input that hides scores.
        value: that input, -inf or the lowest FP32 number.
        masked: the tensor of masked scores.
        scores: the tensor of all scores.
    """

    node: Node
    low: int
    value: NDArray[Any]
    masked: str
    scores: str


def bound_masks(edit: Edit, view: GraphView) -> int:
    """Write computed masks as a choice between scores and -30000, without guards; return the number of changed masks.

    The result is equal if all scores are above -29 000. A mask stays if another node reads masked scores, or if it
    adds a float tensor that is not computed from a condition.
    """
    guards = {softmax.name: guard for guard, softmax in _guards(edit, view)}
    rows: dict[tuple[str, int, bool], str] = {}
    bounded = 0
    for softmax in view.nodes:
        if softmax.op != "Softmax" or not _is_along_keys(view, softmax):
            continue
        mask, guard = _mask(edit, view, softmax.inputs[0]), guards.get(softmax.name)
        if mask is None:
            continue
        if guard is None:
            if np.isneginf(mask.value).any():
                continue  # a row without a key has NaN
        elif not _drop(edit, view, guard, softmax, mask, rows):
            continue
        maker = edit.maker(mask.masked)
        lowest = edit.constant(
            f"{mask.node.name}_lowest", np.full(mask.value.shape, LOWEST, mask.value.dtype)
        )
        if maker is not None:
            maker.op_type = "Where"
            pair = (lowest, mask.scores) if mask.low == 1 else (mask.scores, lowest)
            edit.rewire(maker, (mask.node.inputs[0], *pair))
            bounded += 1
    return bounded


def _mask(edit: Edit, view: GraphView, tensor: str) -> _Mask | None:
    """Return the Where that masks attention scores with a computed condition; None if there is none."""
    node = view.producer(tensor)
    is_choice = node is not None and node.op == "Where"
    if node is None or not (is_choice or node.op == "Add") or not _is_private(edit, view, tensor, 1):
        return None
    for index in range(len(node.inputs)):
        maker = node if is_choice else view.producer(node.inputs[index])
        if maker is None or maker.op != "Where" or maker.inputs[0] in edit.constants:
            continue
        for low in (1, 2):
            value, kept = (_small(edit, maker.inputs[number]) for number in (low, 3 - low))
            if value is None or not bool((value <= _ABSORBS).all()):
                continue
            scores = maker.inputs[3 - low] if is_choice else node.inputs[1 - index]
            is_kept = is_choice or (kept is not None and not kept.any())
            if is_kept and _is_product(edit, view, scores):
                return _Mask(node=maker, low=low, value=value, masked=tensor, scores=scores)
    return None


def _is_product(edit: Edit, view: GraphView, tensor: str) -> bool:
    """Return True if `tensor` is a MatMul result, scaled and shifted by constants of magnitude <= 10000."""
    node = view.producer(tensor)
    while node is not None and node.op in {"Add", "Cast", "Div", "Mul"}:
        varying = [name for name in node.inputs if name not in edit.constants]
        constants = [_small(edit, name) for name in node.inputs if name in edit.constants]
        if len(varying) != 1 or any(value is None or np.abs(value).max() > 1e4 for value in constants):
            return False
        node = view.producer(varying[0])
    return node is not None and node.op == "MatMul"


def _drop(
    edit: Edit,
    view: GraphView,
    guard: onnx.NodeProto,
    softmax: Node,
    mask: _Mask,
    rows: dict[tuple[str, int, bool], str],
) -> bool:
    """Remove a Where after a Softmax, and zero rows without a key if the mask is -inf. Return False if it must stay."""
    product, zero = _only_reader(edit, view, guard.output[0]), _small(edit, guard.input[1])
    is_private = _is_private(edit, view, softmax.outputs[0], 2) and _is_private(edit, view, guard.input[0], 1)
    if np.isneginf(mask.value).any():
        if product is None or product.op != "MatMul" or zero is None or zero.any() or not is_private:
            return False
        reader = _projection(edit, view, product, mask.node.inputs[0])
        cleared = reader or product
        dtype = FLOATS.get(view.info(cleared.outputs[0]).dtype)
        if dtype is None:
            return False
        key = (mask.node.inputs[0], mask.low, reader is not None)
        if key not in rows:
            rows[key] = _write_answered(edit, mask, in_rows=reader is not None)
        _clear(edit, cleared, rows[key], dtype)
    _remove(edit, guard, softmax)
    return True


def _is_private(edit: Edit, view: GraphView, tensor: str, uses: int) -> bool:
    return tensor not in edit.pinned and len(view.uses(tensor)) == uses


def _only_reader(edit: Edit, view: GraphView, tensor: str) -> Node | None:
    """Return the only node that reads a tensor, if it reads it as its first input; else None."""
    uses = [use for use in view.uses(tensor) if use.node.op not in SHAPE_READERS]
    return uses[0].node if len(uses) == 1 and not uses[0].index and tensor not in edit.pinned else None


def _projection(edit: Edit, view: GraphView, product: Node, condition: str) -> Node | None:
    """Return the output projection of an attention (a MatMul); None if there is none, or if masks differ by head."""
    shape = view.info(condition).shape or ()
    turn = _only_reader(edit, view, product.outputs[0])
    if len(shape) != _RANK or shape[1] != 1 or turn is None or turn.op != "Transpose":
        return None
    flat = _only_reader(edit, view, turn.outputs[0])
    if flat is None or flat.op != "Reshape" or tuple(turn.attribute("perm", ())) != (0, 2, 1, 3):
        return None
    apart, joined = (view.info(node.outputs[0]).shape or () for node in (turn, flat))
    if len(joined) != _RANK - 1 or None in {*apart[1:], *joined[1:]} or apart[1] != joined[1]:
        return None
    reader = _only_reader(edit, view, flat.outputs[0])
    if reader is None or reader.op != "MatMul" or len(view.constant_shape(reader.inputs[1]) or ()) != 2:
        return None
    return reader


def _write_answered(edit: Edit, mask: _Mask, *, in_rows: bool) -> str:
    """Return a tensor that is true for queries with a key: (batch, queries, 1) if `in_rows`, else (..., queries, 1)."""
    name = f"{mask.node.name}_answered"
    numbers = [
        edit.constant(f"{name}_{word}", np.asarray(index != mask.low, np.float32))
        for index, word in ((1, "yes"), (2, "no"))
    ]
    keys, best, turned, answered = (edit.fresh(f"{name}_{word}") for word in ("keys", "best", "rows", "flag"))
    edit.node("Where", [mask.node.inputs[0], *numbers], [keys], name=keys)
    keep = int(not in_rows)
    if edit.opset < 18:  # in older opsets the axes are an attribute
        edit.node("ReduceMax", [keys], [best], name=best, axes=[-1], keepdims=keep)
    else:
        last = edit.constant(f"{name}_axes", np.asarray([-1], np.int64))
        edit.node("ReduceMax", [keys, last], [best], name=best, keepdims=keep)
    if in_rows:
        edit.node("Transpose", [best], [turned], name=turned, perm=[0, 2, 1])
    edit.node("Cast", [turned if in_rows else best], [answered], name=answered, to=onnx.TensorProto.BOOL)
    return answered


def _clear(edit: Edit, node: Node, answered: str, dtype: np.dtype[Any]) -> None:
    """Write zeros into the rows of a result whose query has no key."""
    maker, result = edit.maker(node.outputs[0]), node.outputs[0]
    if maker is not None:
        full = edit.fresh(f"{result}_all")
        edit.write(maker, 0, full)
        zero = edit.constant(f"{node.name}_zero", np.zeros((), dtype))
        edit.node("Where", [answered, full, zero], [result], name=f"{node.name}_answered")
