"""Q/DQ between a layer and the activation or bias that fuses with it.

    Conv ─ Q ─ DQ ─ Relu ─ Q ─ DQ ─ Conv      two roundings
    Conv ─ Relu ─ Q ─ DQ ─ Conv               one

The layer, its bias and its activation are one kernel with one rounding at its end. A pair between them is a second
rounding; classic TensorRT cannot fuse across it.

Evidence: RTX 1.7.1 rounds twice inside the epilogue (qdq_between_conv_relu, silu_inner_q). Classic: placement guide;
NVIDIA/TensorRT issue 2592.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.trt.ops import FUSES_BEHIND_PRODUCT, PRODUCTS


def find(flow: Flow, asked: Target) -> Iterator[Violation]:
    """Pairs on the result of a product whose reader would have fused with it."""
    for pair in flow.pairs:
        producer = flow.view.producer(pair.tensor)
        if producer is None or producer.op not in PRODUCTS:
            continue
        for slot in pair.slots:
            reader = flow.view.by_name[slot.node]
            bias = reader.op == "Add" and any(flow.view.is_constant(tensor) for tensor in reader.inputs)
            if reader.op in FUSES_BEHIND_PRODUCT or bias:
                yield Violation(
                    node=reader.name,
                    reason=f"Q/DQ stands between {producer.op} {producer.name} and its {reader.op}",
                    effect="the values are rounded twice"
                    + ("" if asked.is_rtx else f", and {reader.op} is a float kernel of its own"),
                    fix=f"move the pair behind {reader.name}" + ("" if bias else "; `qdqtool repair` does"),
                )


PLUGIN = LintRule(code="QDQ126", severity=Severity.WARNING, find=find)
