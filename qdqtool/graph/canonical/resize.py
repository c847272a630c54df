"""Resize and Upsample of opsets before 11, which use other sample positions.

They read pixel `x / scale`, without an offset of half a pixel, and nearest rounds it down, or up where the image shrinks.
Resize 11 says that in attributes; onnx's version converter leaves them out, so that their defaults apply, which are others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.canonical.order import TakenNames
from qdqtool.graph.onnx_io.walk import copied, names, parts

_SCALES = 2
"""Input number of the scales of a Resize since opset 11."""


def write_out_resizes(graph: onnx.GraphProto) -> None:
    """Preserve the meaning of every Resize of a graph that came from an opset before 11, including bodies."""
    held = list(parts(graph))
    taken = TakenNames(name for part in held for name in names(part))
    known = {part.name: part for part in held if isinstance(part, onnx.TensorProto) and part.name}
    known |= {
        part.output[0]: part.attribute[0].t
        for part in held
        if isinstance(part, onnx.NodeProto) and part.op_type == "Constant" and part.attribute[0].HasField("t")
    }
    for part in held:
        if isinstance(part, onnx.GraphProto) and any(_is_resize(node) for node in part.node):
            nodes = [
                made
                for node in part.node
                for made in (_written_out(node, known, taken) if _is_resize(node) else [copied(node)])
            ]
            del part.node[:]
            part.node.extend(nodes)


def _is_resize(node: onnx.NodeProto) -> bool:
    return node.op_type == "Resize" and node.domain in {"", "ai.onnx"}


def _written_out(
    node: onnx.NodeProto, known: dict[str, onnx.TensorProto], taken: TakenNames
) -> Iterator[onnx.NodeProto]:
    """Yield the node with its attributes; two nodes if nearest shortens one axis and lengthens another."""
    asked = copied(node)
    mode = next((field.s for field in node.attribute if field.name == "mode"), b"nearest")
    asked.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    if mode != b"nearest":
        yield asked
        return
    found = known.get(node.input[_SCALES])
    scales = np.ones(1, np.float32) if found is None else numpy_helper.to_array(found)
    is_shorter, is_longer = bool((scales < 1).any()), bool((scales > 1).any())
    asked.attribute.append(helper.make_attribute("nearest_mode", "ceil" if is_shorter else "floor"))
    if not (is_shorter and is_longer):
        yield asked
        return
    stem = node.name or node.output[0]
    between = taken.take(f"{stem}_shorter")
    for word, factors in (("down", np.minimum(scales, 1)), ("up", np.maximum(scales, 1))):
        name = taken.take(f"{stem}_{word}_scales")
        yield helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(factors))
        part = copied(asked)
        part.input[_SCALES] = name
        if word == "down":
            part.name, part.output[0] = between, between
        else:
            part.input[0] = between
            part.attribute[-1].s = b"floor"
        yield part
