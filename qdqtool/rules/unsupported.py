"""What the builder cannot compute in INT8 stays float, with the reason.

- Products of integers (shape arithmetic) and of FP64 values.
- Nodes whose inputs come from Q/DQ that is in the model already: a second pair would round twice.
- Both factors constant: there is nothing to compute at run time.
- Convolutions whose weights are computed at run time, on classic TensorRT (RTX takes them, with one scale).

Evidence: RTX 1.7.1: a Conv with two quantized run-time inputs is an INT8 `correlation` on SM86.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.products import compute_nodes, of_other_types, sums_nothing, veto
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto weighted nodes that would not become INT8."""
    for node in compute_nodes(view):
        for reason, fix in _obstacles(view, node, options):
            yield from veto(node, reason, fix)


def _obstacles(view: GraphView, node: Node, options: PlacementOptions) -> Iterator[tuple[str, str]]:
    constant = [view.is_constant(tensor) for tensor in node.inputs[:2]]
    if all(constant):
        yield (
            "it multiplies constants, the same in every inference",
            "nothing to do: the builder computes it once",
        )
    yield from ((reason, "") for reason in of_other_types(view, node))
    for tensor in node.inputs[:2]:
        producer = view.producer(tensor)
        if producer is not None and producer.op == "DequantizeLinear":
            yield (
                f"its input {tensor} comes from Q/DQ already",
                "start from the float model, or keep the Q/DQ as it is",
            )
    if node.op != "Conv":
        return
    if not options.builder.is_rtx and not constant[1]:
        yield (
            "its weights are computed at run time",
            "make the weights constant, or build with TensorRT for RTX",
        )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """An operator that classic TensorRT does not quantize, and a product of constants that nobody folded."""
    if evidence.node.op == "Einsum" and not evidence.rtx:
        yield Explanation(
            reason="classic TensorRT quantizes MatMul, not Einsum",
            fix="write it as MatMul with Transpose and Reshape around it (--set prepare.einsum=true does, where one MatMul suffices)",
            no_kernel=True,
        )
    elif evidence.node.op == "Einsum" and sums_nothing(evidence.node):
        yield Explanation(
            reason=f"{evidence.node.attribute('equation', '')!r} sums nothing: it is no matrix product",
            fix="nothing to do: every value is one multiplication",
            no_kernel=True,
        )
    if not evidence.activations:
        yield Explanation(
            reason="it multiplies constants, the same in every inference, because nobody folded them",
            fix="nothing to do: `prepare` folds what is small enough, and the builder computes the rest once"
            if evidence.decisions
            else "fold constants before the build: `qdqtool repair` does it",
        )


PLUGIN = Rule(code="QDQ180", place=place, explain=explain)
