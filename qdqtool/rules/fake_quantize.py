"""Q/DQ in front of an operator that computes in float.

    x ─ Q ─ DQ ─ Softmax ─ Q ─ DQ ─ MatMul      two roundings, Softmax in float
    x ─ Softmax ─ Q ─ DQ ─ MatMul               one rounding, Softmax in float

Softmax, LayerNormalization, activations and other pointwise operators have no INT8 form of their own: the pair rounds
the values and gives them back as float.

Evidence: RTX 1.7.1: `...RounCastCastMul...` inside a float kernel (softmax_q, layernorm_q, relu_behind_pair). A layer
behind such an operator is float as well unless Q/DQ follows it.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.rules.plugin import is_foreign
from qdqtool.trt.ops import ATTENTIONS, FUSES_DEQUANTIZE, INT8_READERS, PRODUCTS, quantization_commutes


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Pairs whose readers are all float operators."""
    for pair in flow.pairs:
        readers = [flow.view.by_name[slot.node] for slot in pair.slots]
        if pair.kind is not SlotKind.ACTIVATION or not pair.dequantize or not readers or pair.returned:
            continue
        producer = flow.view.producer(pair.tensor)
        if producer is not None and producer.op in PRODUCTS:
            continue  # the rule inside_fusion speaks of these
        if any(is_foreign(reader) or reader.op in ATTENTIONS for reader in readers):
            continue  # the rules plugin and attention speak of these
        if not any(_can_use(flow, reader, target) for reader in readers) and not _is_gated(
            flow, pair, readers
        ):
            ops = ", ".join(sorted({reader.op for reader in readers}))
            yield Violation(
                node=readers[0].name,
                reason=f"the pair on {pair.tensor} feeds only {ops}",
                effect="the values are rounded and computed on in float",
                fix="take the pair off, or move it behind the operator if a product follows",
            )


def _can_use(flow: Flow, node: Node, target: Target) -> bool:
    fused = not target.is_rtx and node.op in FUSES_DEQUANTIZE
    return node.op in INT8_READERS or quantization_commutes(flow.view, node) or fused


def _is_gated(flow: Flow, pair: QdqPair, readers: list[Node]) -> bool:
    """Whether a Mul reads as INT8 what a product does too, which saves a float copy (see the rule gated_shortcut)."""
    slots = (slot for other in flow.by_tensor.get(pair.tensor, ()) for slot in other.slots)
    products = any(flow.view.by_name[slot.node].op in PRODUCTS for slot in slots)
    return products and all(reader.op == "Mul" for reader in readers)


PLUGIN = Rule(code="QDQ133", severity=Severity.WARNING, check=check)
