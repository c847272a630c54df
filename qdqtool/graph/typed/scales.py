"""Finds the scales that a narrow type may not change on one side of their integers only."""

from __future__ import annotations

import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.typed.forms import NARROW, Forms

PAIRS = frozenset({QUANTIZE, DEQUANTIZE})


def rounded_scales(edit: Edit, forms: Forms) -> frozenset[str]:
    """Scales of narrow Q/DQ pairs: both sides must take one value that the narrow type holds.

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
    return NARROW in forms.made(node.output[0])
