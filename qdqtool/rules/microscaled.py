"""MXFP8 with TensorRT for RTX.

    x ─ TRT_MXFP8DynamicQuantize ─ TRT_MXFP8DequantizeLinear ─ MatMul      float, and more kernels than FP16

The builder accepts the nodes from SM89 on and multiplies floats: activations are quantized and dequantized again at
once. Documented for classic TensorRT 10.12 and newer on SM100.

Evidence: RTX 1.7.1 for SM89 and SM120: no FP8 product in any of 15 graphs. Its parser knows scales as UINT8 only.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import MXFP8
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.matching.operands import products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import MXFP8_IS_FLOAT


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products with both factors in MXFP8."""
    for node in flow.view.nodes:
        if node.op == MX_DEQUANTIZE and flow.view.info(node.inputs[1]).dtype is DType.FLOAT8_E8M0:
            yield Violation(
                node=node.name,
                reason="its scales are stored as FLOAT8E8M0",
                effect="the parser refuses it: Failed to import initializer",
                fix="store the same bytes as UINT8",
                severity=Severity.ERROR,
            )
    for product in products(flow, target):
        if product.arithmetic == MXFP8.name:
            yield Violation(
                node=product.node.name,
                reason=MXFP8_IS_FLOAT[0],
                effect=f"{product.node.op} runs in float",
                fix=f"{MXFP8_IS_FLOAT[1]}: `qdqtool run FLOAT_MODEL --recipe transformer-fp8 --sm 89`",
                products=(product.node.name,),
            )


PLUGIN = Rule(
    code="QDQ186",
    formats=frozenset({"mxfp8"}),
    severity=Severity.WARNING,
    targets=frozenset({"rtx"}),
    check=check,
)
