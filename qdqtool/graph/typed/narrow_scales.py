"""Finds scales that a narrow type would distort, and replaces them together with their integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.core.wording import count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.encode import SMALLEST_HALF, storable_as
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.typed.forms import NARROW, Forms
from qdqtool.graph.typed.narrow import Narrow

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray


# --- scales that must stay -------------------------------------------------------------------------------------------
# Finds the scales that a narrow type may not change on one side of their integers only.

PAIRS = frozenset({QUANTIZE, DEQUANTIZE})


def rounded_scales(edit: Edit, forms: Forms) -> frozenset[str]:
    """Return scales of narrow Q/DQ pairs: both sides must take one value that the narrow type represents.

    Scales of integers that are stored are not among them: they are rounded to the nearest number, which changes the
    constant by less than its own rounding.
    """
    pairs: list[tuple[frozenset[str], bool]] = []
    for node in edit.nodes:
        if node.op_type == QUANTIZE:
            sides = (node, *forms.behind(node))
            narrow = any(_has_narrow(side, forms) for side in sides)
            pairs.append((frozenset(side.input[1] for side in sides), narrow))
    rounded: frozenset[str] = frozenset()
    growing = True
    while growing:
        touched = [scales for scales, narrow in pairs if narrow or scales & rounded]
        grown = rounded.union(*touched)
        growing, rounded = grown != rounded, grown
    return rounded


def _has_narrow(node: onnx.NodeProto, forms: Forms) -> bool:
    if node.op_type == QUANTIZE:
        return forms.read(node, 1) == NARROW
    return NARROW in forms.of(node.output[0])


# --- other scales for stored integers --------------------------------------------------------------------------------
# Stored integers whose scale a narrow type would distort get another scale, and other integers to match.

_COARSE = frozenset({"int8", "uint8"})
"""Integer types for which rounding a scale changes the values by less than their own rounding."""
_FINE = frozenset({"int16", "uint16", "int32"})
"""Integer types that are finer than any narrow scale, so that they follow a changed scale exactly."""


def rescale_integers(model: Model, narrow: Narrow) -> Model:
    """Replace scales of stored integers whose rounding to the narrow type would change the gain.

    That is so for tiny scales in FP16 (below 2**-20), as dead channels have them, and for INT32 biases. Nothing else
    is changed: other scales are rounded to the nearest number when they are stored.
    """
    edit = Edit(model)
    changed = 0
    for node in edit.nodes:
        if node.op_type == DEQUANTIZE:
            changed += _rescale(edit, node, narrow)
    if not changed:
        return model
    edit.prune()
    edit.notes.append(
        f"{count_noun(changed, 'integer constant was', 'integer constants were')} rescaled to scales that {narrow.dtype} holds"
    )
    return edit.finish()


def _rescale(edit: Edit, node: onnx.NodeProto, narrow: Narrow) -> bool:
    integers, scale = edit.value(node.input[0]), edit.value(node.input[1])
    zero = edit.value(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros((), np.int64)
    if integers is None or scale is None or zero is None or scale.dtype != np.float32 or scale.ndim > 1:
        return False
    small = scale < SMALLEST_HALF if str(narrow.dtype) == "fp16" else np.zeros(scale.shape, bool)
    if integers.dtype.name in _FINE:
        small = np.ones(scale.shape, bool)
    elif integers.dtype.name not in _COARSE:
        return False
    if not small.any() or (scale <= 0).any():
        return False
    target = np.where(small, storable_as(scale, narrow.dtype), scale)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    ratio, offset = (_along(value, axis, integers.ndim) for value in (scale / target, zero.astype(np.int64)))
    moved = np.rint((integers.astype(np.int64) - offset) * ratio) + offset
    limits = np.iinfo(integers.dtype)
    node.input[0] = edit.constant(
        f"{node.input[0]}_rescaled", np.clip(moved, limits.min, limits.max).astype(integers.dtype)
    )
    node.input[1] = edit.constant(f"{node.input[1]}_rescaled", target.astype(np.float32))
    return True


def _along(value: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Reshape one value per channel so that it broadcasts to the integers."""
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])
