"""Writes a nearest Resize of TensorFlow's converter in a mode that TensorRT's parser accepts.

    Resize(tf_half_pixel_for_nn, floor)      Resize(half_pixel, round_prefer_ceil)

The first takes the pixel floor((i + 0.5) / scale), the second rounds (i + 0.5) / scale - 0.5 half up: the same pixel. For whole
scales no value is near a whole number, so that float rounding cannot tell them apart; others stay as they are. TensorRT's
parser refuses the first, ONNX dropped its name after opset 12, and onnxruntime warns of it.
"""

from __future__ import annotations

import numpy as np
import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView

_GIVEN = (b"nearest", b"tf_half_pixel_for_nn", b"floor")
_SCALES, _SIZES = 2, 3
"""Input numbers of the scales and sizes, which determine the size of the result."""


def write_half_pixels(edit: Edit, view: GraphView) -> int:
    """Rewrite every Resize with tf_half_pixel_for_nn to a whole multiple of its input; return how many."""
    found = [node for node in edit.nodes if node.op_type == "Resize" and node.domain in {"", "ai.onnx"}]
    return sum(_rewritten(node, edit, view) for node in found)


def _rewritten(node: onnx.NodeProto, edit: Edit, view: GraphView) -> bool:
    given = {attribute.name: attribute for attribute in node.attribute}
    mode = given["mode"].s if "mode" in given else b"nearest"
    transformed, rounded = (given.get(name) for name in ("coordinate_transformation_mode", "nearest_mode"))
    if transformed is None or rounded is None or (mode, transformed.s, rounded.s) != _GIVEN:
        return False
    if not _is_whole(node, edit, view):
        return False
    transformed.s, rounded.s = b"half_pixel", b"round_prefer_ceil"
    return True


def _is_whole(node: onnx.NodeProto, edit: Edit, view: GraphView) -> bool:
    """Return True if the length of every axis is multiplied by a whole number."""
    scales, sizes = (
        edit.value(node.input[at]) if len(node.input) > at and node.input[at] else None
        for at in (_SCALES, _SIZES)
    )
    if sizes is not None and sizes.size:
        shape = view.info(node.input[0]).shape or ()
        known = len(shape) == sizes.size and all(isinstance(size, int) and size > 0 for size in shape)
        return known and not np.mod(sizes, np.asarray(shape, np.int64)).any()
    return (
        scales is not None
        and scales.size > 0
        and bool((scales == np.round(scales)).all() and (scales >= 1).all())
    )
