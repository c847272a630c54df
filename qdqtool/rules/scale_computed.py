"""A scale that is computed at run time.

    x ─┬─ ReduceMax ─ s ─┐                   x ─ Q (s = 0.05) ─ DQ ─ Conv
       └──────────── Q(s) ─ DQ(s) ─ Conv

Explicit quantization needs scales that are known when the engine is built. TensorRT up to 10.0 refuses others; later
releases accept some without fusing them; TensorRT for RTX dies in front of a convolution and is float elsewhere.

Evidence: RTX 1.7.1 ends with SIGSEGV when such a pair feeds a Conv (scale_computed) and multiplies in float when it
feeds a MatMul (scale_computed_matmul). Parser sources: 10.0 wants a constant scale, 10.16 only a constant zero point.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation

_CRASHES = "the builder process crashes"
_REFUSED = "the parser refuses it"
_FLOAT = "it is not fused: the layer behind it runs in float"


def match(flow: Flow) -> Iterator[QdqPair]:
    """Pairs without a constant scale."""
    for pair in flow.pairs:
        # FP4 has two levels of scales: the first is made of the second, as TensorRT wants it.
        if pair.scale_shape is None and pair.dtype is not DType.FLOAT4 and not _is_dynamic(flow, pair):
            yield pair


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """All of them."""
    for pair in match(flow):
        effect = _effect(flow, pair, target)
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason="the scale is computed at run time",
            effect=effect,
            fix="calibrate the tensor and store its scale as a constant; `qdqtool repair --samples DATA` does",
            severity=Severity.WARNING if effect == _FLOAT else None,
            products=flow.products_of(pair),
        )


def _effect(flow: Flow, pair: QdqPair, target: Target) -> str:
    if target.is_rtx:
        ops = {flow.view.by_name[slot.node].op for slot in pair.slots}
        return _CRASHES if "Conv" in ops else _FLOAT
    if target.release == (10,):
        return f"10.0 refuses it; in later releases {_FLOAT}"
    return _REFUSED if target.is_before(10, 1) else _FLOAT


def _is_dynamic(flow: Flow, pair: QdqPair) -> bool:
    """Whether the scale comes from DynamicQuantizeLinear, which has a rule of its own."""
    node = flow.view.by_name[pair.dequantize or pair.quantize or ""]
    maker = flow.view.producer(node.inputs[1])
    return maker is not None and maker.op == "DynamicQuantizeLinear"


def fix(context: RepairContext) -> Iterator[Change]:
    """Take out activation pairs without a constant scale."""
    for pair in match(context.flow):
        whole = pair.quantize is not None and pair.dequantize is not None
        if whole and context.is_plain(pair) and pair.kind is SlotKind.ACTIVATION:
            if context.result(pair) in context.pinned:
                continue
            context.dissolve(pair)
            yield Change(
                subject=pair.quantize or "",
                what="taken out: the tensor stays float",
                reason="a scale that is computed at run time crashes the builder",
            )


PLUGIN = Rule(
    code="QDQ104", severity=Severity.ERROR, stage=Stage.LEGAL, after=("cast",), check=check, fix=fix
)
