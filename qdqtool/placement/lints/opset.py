"""FP16 scales under an opset older than 19.

Before opset 19 the standard knows FP32 scales only; onnxruntime refuses such a file, so its accuracy cannot be
checked on the CPU.

Evidence: ONNX operator reference, QuantizeLinear 13 against 19.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """FP16 scales of ONNX's own Q/DQ in an old opset."""
    if flow.view.opset >= 19:
        return
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        if not pair.domain and flow.view.info(flow.view.by_name[name].inputs[1]).dtype is DType.FLOAT16:
            yield Wrong(
                node=name,
                reason=f"the scale is FP16 in opset {flow.view.opset}",
                effect="not valid ONNX: onnxruntime refuses it and parsers may",
                fix="raise the opset to 19",
            )


PLUGIN = LintRule(code="QDQ113", severity=Severity.WARNING, find=find)
