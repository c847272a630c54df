"""Q/DQ in front of an operator that computes in float.

    x ─ Q ─ DQ ─ Softmax ─ Q ─ DQ ─ MatMul      two roundings, Softmax in float
    x ─ Softmax ─ Q ─ DQ ─ MatMul               one rounding, Softmax in float

Softmax, LayerNormalization, activations and other pointwise operators have no INT8 form of their own: the pair rounds
the values and gives them back as float.

Evidence: RTX 1.7.1: `...RounCastCastMul...` inside a float kernel (softmax_q, layernorm_q, relu_behind_pair), and
`...MulCastCastMul...` with FP8 in front of LayerNormalization (SM89, SM120: as many kernels as without the pair). A layer
behind such an operator is float as well unless Q/DQ follows it.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal, kernel_of, readers_of_pairs
from qdqtool.matching.patterns import is_fused
from qdqtool.matching.rule import Rule, Violation
from qdqtool.rules.plugin import is_foreign
from qdqtool.trt.ops import (
    ATTENTIONS,
    COMPUTE,
    FUSES_DEQUANTIZE,
    INT8_READERS,
    PRODUCTS,
    RECURRENT,
    quantization_commutes,
)


def match(flow: Flow, target: Target | None) -> Iterator[tuple[QdqPair, tuple[Node, ...]]]:
    """Pairs whose readers are all float operators, and these; `target` None: where any builder computes in float."""
    for pair in flow.pairs:
        readers = tuple(flow.view.by_name[slot.node] for slot in pair.slots)
        if pair.kind is not SlotKind.ACTIVATION or not pair.dequantize or not readers or pair.returned:
            continue
        producer = flow.view.producer(pair.tensor)
        if (
            producer is not None
            and producer.op in PRODUCTS
            and any(is_fused(flow.view, each) for each in readers)
        ):
            continue  # the rule inside_fusion speaks of these
        if any(is_foreign(reader) or reader.op in ATTENTIONS for reader in readers):
            continue  # the rules plugin and attention speak of these
        used = any(_can_use(flow, reader, target) for reader in readers)
        if not used and not _is_gated(flow, pair, readers):
            yield pair, readers


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Pairs whose readers are all float operators."""
    for pair, readers in match(flow, target):
        ops = ", ".join(sorted({reader.op for reader in readers}))
        yield Violation(
            node=readers[0].name,
            reason=f"the pair on {pair.tensor} feeds only {ops}",
            effect="the values are rounded and computed on in float",
            fix="take the pair off, as `qdqtool repair` does, or move it behind the operator if a product follows",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Take these pairs off."""
    for pair, readers in match(Flow(context.model), context.target):
        if pair.quantize is not None:
            ops = ", ".join(sorted({reader.op for reader in readers}))
            yield Change(
                edits=tuple(SlotEdit(slot=slot) for slot in pair.slots),
                subject=pair.quantize,
                what=f"taken off: only {ops} reads it",
                reason="operators without an INT8 form compute in float behind a pair, on rounded values",
            )


def _can_use(flow: Flow, node: Node, target: Target | None) -> bool:
    fused = target is not None and not target.is_rtx and node.op in FUSES_DEQUANTIZE
    return node.op in INT8_READERS | (COMPUTE - RECURRENT) or quantization_commutes(flow.view, node) or fused


def _is_gated(flow: Flow, pair: QdqPair, readers: tuple[Node, ...]) -> bool:
    """Whether a Mul reads as INT8 what a product does too, which saves a float copy (see the rule gated_shortcut)."""
    slots = (slot for other in flow.by_tensor.get(pair.tensor, ()) for slot in other.slots)
    products = any(flow.view.by_name[slot.node].op in PRODUCTS for slot in slots)
    return products and all(reader.op == "Mul" for reader in readers)


def candidates(built: BuiltGraph) -> Iterator[Candidate]:
    """No Q/DQ where it became a kernel; a node that multiplies few bits needs its pairs, whatever kernel they cost."""
    running = {verdict.node for _, verdict in built.nodes if verdict.is_quantized}
    for layer in built.layers_with(
        "runtime_weights", "unfused_qdq", "needless_conversion", "conversion_chain"
    ):
        slots = [slot for slot in readers_of_pairs(built.view, layer) if slot.node not in running]
        if slots:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="take away the Q/DQ that became a kernel",
                edits=tuple(SlotEdit(slot=slot) for slot in slots),
            )


PLUGIN = Rule(
    code="QDQ133",
    severity=Severity.WARNING,
    after=("inside_fusion",),
    check=check,
    fix=fix,
    candidates=candidates,
)
