"""Q/DQ around an operator of another domain, which only a plugin can run.

    x ─ Q ─ DQ ─ MyPlugin ─ Q ─ DQ ─ y

A plugin fuses with nothing: the DequantizeLinear in front of it and the QuantizeLinear behind it stay kernels, unless
the plugin itself takes and gives INT8.

Evidence: NVIDIA's placement rules (absorb both into the plugin). RTX 1.7.1 without a plugin of that name refuses the
node (plugin_between).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Nodes of foreign domains that read a DequantizeLinear or feed a QuantizeLinear."""
    for node in flow.view.nodes:
        if not is_foreign(node):
            continue
        reads = any(tensor in flow.by_dequantized for tensor in node.inputs)
        feeds = any(flow.by_tensor.get(tensor) for tensor in node.outputs)
        if reads or feeds:
            yield Violation(
                node=node.name,
                reason=f"{node.op} of the domain {node.domain} has Q/DQ {'before' if reads else 'behind'} it",
                effect="plugins are not fused: it computes in float, and the Q and DQ beside it are kernels",
                fix=f"let the plugin take and give INT8 itself; {repairing(to_float=_beside(flow, node))} takes the Q/DQ off",
            )


def _beside(flow: Flow, node: Node) -> Iterator[str]:
    """The node, where Q/DQ stands before it, and the pairs behind it."""
    if any(tensor in flow.by_dequantized for tensor in node.inputs):
        yield node.name
    for tensor in node.outputs:
        yield from (pair.quantize or "" for pair in flow.by_tensor.get(tensor, ()))


def is_foreign(node: Node) -> bool:
    """Whether no builder knows the operator by itself."""
    return node.domain not in {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}


PLUGIN = Rule(code="QDQ149", severity=Severity.WARNING, check=check)
