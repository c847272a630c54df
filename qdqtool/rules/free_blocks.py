"""Blocks along an axis whose length is free.

    x [1, s, k] ─ TRT_FP4DynamicQuantize (axis -1) ─ DQ ─ MatMul (w [64, 96])      refused
    x [1, s, 64] ─ TRT_FP4DynamicQuantize (axis -1) ─ DQ ─ MatMul (w [64, 96])     NVFP4

How many blocks there are must be known when the engine is built. The weight that is multiplied says how long the axis is; the
fix writes it into the model's input. Other axes may be free.

Evidence: RTX 1.7.1 for SM120: `The input extent in the blocked axis should be known at build time`; pytorch/TensorRT issue 3745.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import DYNAMIC_TYPES, MATRIX_PRODUCTS, PRODUCTS, QUANTIZE, summed_axis


def match(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Nodes that quantize in blocks along a free axis, and the name of that length."""
    for node in view.nodes:
        blocked = node.op in DYNAMIC_TYPES or (node.op == QUANTIZE and node.integer("block_size", 0) > 0)
        shape = view.info(node.inputs[0]).shape if blocked else None
        axis = node.integer("axis", -1)
        if shape and -len(shape) <= axis < len(shape) and isinstance(shape[axis], str):
            yield node, str(shape[axis])


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    view = flow.view
    for node, name in match(view):
        axis, size = node.integer("axis", -1), _said(view, node)
        readers = tuple(reader.name for reader, _ in _readers(view, node)) or (node.name,)
        if size is None:
            way = f"export the model with a fixed length; {repairing(to_float=readers)} takes the Q/DQ off"
        elif _is_input(view, name):
            way = f"make it {size}, as the weight says; `qdqtool repair` does"
        else:
            way = f"make it {size}, as the weight says, where the model is exported; {repairing(to_float=readers)} takes the Q/DQ off"
        yield Violation(
            node=node.name,
            reason=f"it makes blocks along axis {axis} of {node.inputs[0]}, whose length is free",
            effect="the builder refuses it: the input extent in the blocked axis should be known at build time",
            fix=way,
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Give inputs of the model the length that a weight says."""
    view = context.view
    done: set[str] = set()
    for node, name in match(view):
        size = _said(view, node)
        if size is None or name in done or not _is_input(view, name):
            continue
        done.add(name)
        for value in (*context.edit.inputs, *context.edit.outputs):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == name:
                    dim.dim_value = size
        yield Change(
            subject=node.inputs[0],
            what=f"the free length {name!r} of the model's inputs became {size}",
            reason="blocks along a free axis do not build, and the weight takes no other length",
            error=0.0,
        )


def _is_input(view: GraphView, name: str) -> bool:
    """Whether a length is one that an input of the model names."""
    return any(name in (value.shape or ()) and name != "?" for value in view.inputs)


def _readers(view: GraphView, node: Node) -> Iterator[tuple[Node, int]]:
    """The products that read what a quantizer makes, each with the input number."""
    for use in view.uses(node.outputs[0]):
        for found in view.uses(use.node.outputs[0]) if use.index == 0 and use.node.outputs else ():
            if found.node.op in PRODUCTS and found.index < 2:
                yield found.node, found.index


def _said(view: GraphView, node: Node) -> int | None:
    """The length that the other factor of a matrix product says; None where it says none."""
    for product, index in _readers(view, node):
        shape = view.info(product.inputs[1 - index]).shape or ()
        axis = summed_axis(product, 1 - index, len(shape)) if product.op in MATRIX_PRODUCTS else None
        size = shape[axis] if axis is not None and len(shape) > 1 else None
        if isinstance(size, int):
            return size
    return None


PLUGIN = Rule(
    code="QDQ199",
    formats=frozenset({"nvfp4", "mxfp8"}),
    severity=Severity.ERROR,
    stops=True,
    stage=Stage.LEGAL,
    check=check,
    fix=fix,
)
