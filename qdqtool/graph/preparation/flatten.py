"""Gives the products that read an attention's result an input of two dimensions.

    attention ─ [B, L, K] ─ MatMul                      attention ─ Reshape [B * L, K] ─ MatMul ─ Reshape [B, L, N]

TensorRT for RTX dequantizes stored weights inside the kernel of such a product in the second form only, which needs no more
kernels. Evidence: `qdqtool.graph.beside_attention`.
"""

from __future__ import annotations

import numpy as np

from qdqtool.graph.beside_attention import reads_attention
from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView


def flatten(edit: Edit, view: GraphView) -> int:
    """Rewrite every such MatMul whose weight is a matrix; returns how many there were."""
    changed = 0
    for node in tuple(edit.nodes):
        seen = view.by_name[node.name]
        weight = edit.constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or not reads_attention(view, seen):
            continue
        shape = view.info(node.input[0]).shape or ()
        depth, columns = weight.dims
        flat, made = edit.fresh(f"{node.name}_flat"), edit.fresh(f"{node.name}_rows")
        rows = edit.constant(f"{node.name}_flat_shape", np.asarray([-1, depth], np.int64))
        back = _shape(edit, node.name, node.input[0], shape[:-1], columns)
        edit.node("Reshape", [node.input[0], rows], [flat], name=f"{node.name}_flat")
        edit.node("Reshape", [made, back], [node.output[0]], name=f"{node.name}_back")
        edit.connect(node, 0, flat)
        edit.write(node, 0, made)
        changed += 1
    return changed


def _shape(edit: Edit, name: str, tensor: str, leading: tuple[int | str, ...], columns: int) -> str:
    """The shape of the product: a constant where at most one of the leading dimensions is open."""
    sizes = [size if isinstance(size, int) else -1 for size in leading]
    if sizes.count(-1) < 2:
        return edit.constant(f"{name}_back_shape", np.asarray([*sizes, columns], np.int64))
    whole, kept, joined = (edit.fresh(f"{name}_{word}") for word in ("shape", "leading", "back_shape"))
    begin, end, axis, last = (
        edit.constant(f"{name}_{word}", np.asarray([value], np.int64))
        for word, value in (("begin", 0), ("end", len(leading)), ("axis", 0), ("columns", columns))
    )
    edit.node("Shape", [tensor], [whole], name=f"{name}_shape")
    edit.node("Slice", [whole, begin, end, axis], [kept], name=f"{name}_leading")
    edit.node("Concat", [kept, last], [joined], name=f"{name}_back_shape", axis=0)
    return joined
