"""An activation with one scale per channel.

    x ─ Q (16 scales, axis 1) ─ DQ ─ Conv      float
    x ─ Q (one scale) ─ DQ ─ Conv              INT8

The scales of an activation would have to be applied inside the sum over channels; no INT8 kernel does that.

Evidence: RTX 1.7.1 runs the Conv in float behind a fake-quantize kernel (act_perchannel). Classic TensorRT: per-channel
quantization is for constants only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation


def match(flow: Flow) -> Iterator[QdqPair]:
    """Activation pairs with more than one scale."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.ACTIVATION and len(pair.scale) > 1 and len(pair.scale_shape or ()) < 2:
            yield pair


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Such pairs."""
    for pair in match(flow):
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason=f"its activation {pair.tensor} has one scale per channel, {len(pair.scale)} of them",
            effect="the layer behind it runs in float" if target.is_rtx else "the builder refuses it",
            fix="use one scale for the whole tensor; `qdqtool repair` does",
            products=flow.products_of(pair),
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Give each activation pair the one scale that covers all of its channels."""
    for pair in match(context.flow):
        whole = pair.quantize is not None and pair.dequantize is not None
        if whole and context.is_plain(pair) and context.is_known(pair):
            low, high = context.span(pair)
            scale = max(-low, high) / INT8.qmax
            context.restate(pair, np.asarray(scale))
            yield Change(
                subject=pair.quantize or "",
                what=f"{counted(len(pair.scale), 'scale became', 'scales became')} one, the largest ({scale:.4g})",
                reason="a scale per channel on an activation keeps its consumer silently in float",
            )


PLUGIN = Rule(
    code="QDQ122",
    severity=Severity.WARNING,
    stage=Stage.LEGAL,
    after=("scale_value",),
    check=check,
    fix=fix,
)
