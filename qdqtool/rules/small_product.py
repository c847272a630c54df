"""A product that is too small to gain anything from INT8.

    x [1, 64] ─ Q ─ DQ ─ MatMul [64, 96]      3 kernels
    x [1, 64] ─ MatMul [64, 96]               1 kernel

The Q in front of it is a kernel, and the arithmetic was next to nothing: a small matrix times one vector, or weights
narrower than a tile of 16. The bounds, and the exception for heads behind a global average, are those of the placement
rules `gemv` and `narrow`, which leave such products float.

    x [1, 4, 1, 1] ─ Q ─ DQ ─ Conv [32, 4, 1, 1]      no INT8 kernel: computed in float, with its neighbours

A Conv that reads one value of four channels or fewer is no kernel of its own, so that its Q/DQ only round. With a free batch that
holds for an engine of one sample; in a range that allows two it is an INT8 kernel.

Evidence: RTX 1.7.1 (one_row, narrow_head; 24 gates of 1 to 8 channels for SM86, 89 and 120). nvidia-modelopt leaves them float too.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.patterns import is_pooled
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.small import (
    MOST_FOLDED,
    TILE,
    has_free_batch,
    is_folded,
    is_narrow,
    is_one_vector,
    narrow_weights,
    static_shape,
)
from qdqtool.trt.ops import MATRIX_PRODUCTS


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """INT8 products with constant weights that placement would leave float for their size."""
    for node in flow.products():
        activation, weight = flow.origin(node, 0), flow.origin(node, 1)
        if activation is None or weight is None or not (is_int8(activation) and is_int8(weight)):
            continue
        if target.is_rtx and weight.kind is SlotKind.WEIGHT and is_folded(flow.view, node):
            yield Violation(
                node=node.name,
                reason=f"it reads one value of each of {MOST_FOLDED} channels or fewer",
                effect="it is computed in float, in one kernel with its neighbours"
                + (", in an engine for one sample" if has_free_batch(flow.view, node) else ""),
                fix=f"{repairing(to_float=[node.name])} takes Q/DQ off both of its inputs",
                products=(node.name,),
                no_kernel=True,
            )
            continue
        small = _smallness(flow.view, flow.plain, node)
        if weight.kind is SlotKind.WEIGHT and small and not is_pooled(flow.plain, activation.tensor):
            yield Violation(
                node=node.name,
                reason=small,
                effect="INT8 saves no time, and its Q is a kernel more",
                fix=f"{repairing(to_float=[node.name])} takes Q/DQ off both of its inputs",
            )


def _smallness(view: GraphView, plain: GraphView, node: Node) -> str:
    """What is small about a product; "" where nothing is, or shapes are not known."""
    weights = static_shape(view, node.inputs[1])
    if weights is None or len(weights) < 2:
        return ""
    shown = " x ".join(map(str, weights))
    if node.op in MATRIX_PRODUCTS and is_narrow(weights):
        if narrow_weights(plain, plain.by_name[node.name]) is None:
            return ""
        return f"its weights are {shown}, less than a tile of {TILE}"
    return f"it multiplies small weights, {shown}, by one vector" if is_one_vector(view, node) else ""


PLUGIN = Rule(code="QDQ147", severity=Severity.INFO, check=check)
