"""What the fused INT8 kernel of an attention wants to find in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdqtool.core.engine import EngineLayer
from qdqtool.core.wiring import Wiring
from qdqtool.graph.qdq.find import QUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import NodeEvidence
from qdqtool.trt.ops import value_preserving


def unquantized_results(
    wiring: Wiring, nodes: Iterable[NodeEvidence], softmax: EngineLayer
) -> Iterator[tuple[Node, str]]:
    """Every product behind a softmax whose result somebody reads in float, and that result."""
    behind = {name for layer in wiring.compute_after(softmax) for name in layer.onnx_nodes}
    for case in nodes:
        node = case.node
        if node.name in behind and len(case.activations) > 1 and not _quantized(case.view, node.outputs[0]):
            yield node, node.outputs[0]


def _quantized(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is read by quantizers only, directly or behind operators that move values."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        name = waiting.pop()
        uses = view.uses(name)
        if not uses or view.is_output(name):
            return False
        for use in uses:
            if use.node.op != "Concat" and value_preserving(view, use.node):
                fresh = use.node.outputs[0]
                if fresh not in seen:
                    seen.add(fresh)
                    waiting.append(fresh)
            elif use.node.op != QUANTIZE:
                return False
    return True
