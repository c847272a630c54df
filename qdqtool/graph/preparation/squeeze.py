"""Writes the axes of a Squeeze that names none, where the shape says which dimensions have the length 1.

    [frames, 1] ─ Squeeze                       [frames, 1] ─ Squeeze axes=[1]

Without axes the number of dimensions of the result depends on the data: it loses the free one as well where that has the
length 1. TensorRT fixes that number when it builds. RTX 1.7.1 refuses such a Squeeze whenever the profile allows the length 1
("ISqueezeLayer without an axes input requires dimension 0 to not be 1 at runtime"), which is the usual batch: networks of
madmom and DNSMOS end so. With axes the results are the same for every length but 1, where the free dimension stays.

Exporters note the rank of the sample that they traced: of one frame, which is squeezed away as well. What they note of the
result and of all behind it is dropped then: it is wrong for every other length.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView

_AXES_ARE_AN_INPUT = 13
"""Opset from which the axes are an input; before, they are an attribute."""


def write_squeezed_axes(edit: Edit, view: GraphView) -> int:
    """Name the dimensions of length 1 for every Squeeze of a shape with free ones; returns how many there were."""
    changed = 0
    for node in edit.nodes:
        if node.op_type != "Squeeze" or node.domain or any(node.input[1:]) or node.attribute:
            continue
        shape = view.info(node.input[0]).shape or ()
        axes = [axis for axis, dim in enumerate(shape) if dim == 1]
        if not axes or all(isinstance(dim, int) for dim in shape):
            continue
        edit.forget_shapes(_made_of(view, node.output[0]))
        if edit.opset < _AXES_ARE_AN_INPUT:
            node.attribute.append(helper.make_attribute("axes", axes))
        else:
            named = edit.constant(f"{node.name}_axes", np.asarray(axes, np.int64))
            edit.rewire(node, [node.input[0], named])
        changed += 1
    return changed


def _made_of(view: GraphView, tensor: str) -> frozenset[str]:
    """The tensor and all that is computed from it."""
    found, waiting = {tensor}, [tensor]
    while waiting:
        made = {name for use in view.uses(waiting.pop()) for name in use.node.outputs} - found
        waiting += made
        found |= made
    return frozenset(found)
