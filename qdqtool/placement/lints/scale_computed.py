"""A scale that is computed at run time.

Explicit quantization needs scales that are known when the engine is built. TensorRT up to 10.0 refuses others; later
releases accept some without fusing them; TensorRT for RTX dies.

Evidence: RTX 1.7.1 ends with SIGSEGV when such a pair feeds a Conv (dyn_scale). Parser sources: 10.0 wants a constant
scale, 10.16 only a constant zero point.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong

_EFFECT = {
    "rtx": "the builder process crashes",
    "8.6": "the parser refuses it",
    "10": "10.0 refuses it; later releases do not fuse it",
    "11": "it is not fused: the layer behind it runs in float",
}


def find(flow: Flow, asked: Asked) -> Iterator[Wrong]:
    """Pairs without a constant scale."""
    for pair in flow.pairs:
        if pair.scale_shape is None and not _is_dynamic(flow, pair):
            yield Wrong(
                node=pair.quantize or pair.dequantize or "",
                reason="the scale is computed at run time",
                effect=_EFFECT[asked.target],
                fix="calibrate the tensor and store its scale as a constant",
                severity=Severity.WARNING if asked.target == "11" else None,
            )


def _is_dynamic(flow: Flow, pair: QdqPair) -> bool:
    """Whether the scale comes from DynamicQuantizeLinear, which has a rule of its own."""
    node = flow.view.by_name[pair.dequantize or pair.quantize or ""]
    maker = flow.view.producer(node.inputs[1])
    return maker is not None and maker.op == "DynamicQuantizeLinear"


PLUGIN = LintRule(code="QDQ104", severity=Severity.ERROR, find=find)
