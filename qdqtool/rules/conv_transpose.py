"""Transposed convolutions: INT8 on classic TensorRT, on TensorRT for RTX only once they are written as convolutions.

    before                       after, classic TensorRT          after, RTX
    x ── ConvTranspose ── y      x ─ Q ─ DQ ─ ConvTranspose       x ─ Q ─ DQ ─ Conv ── DepthToSpace ── y
    W ───┘                       W ─ Q ─ DQ ───┘                  W ─ Q ─ DQ ───┘

For RTX preparation writes them as convolutions that compute the same (`prepare.conv_transpose` for stride 1,
`prepare.strided_conv_transpose` for the places between larger strides). Without a setting it does the latter beside
FP32, where that saves bytes. What stays a ConvTranspose (output shapes instead of paddings, dilations with strides,
outputs that are no multiple of the stride, weights that are not constant) stays float.

The channel axis of the weights differs by release in NVIDIA's own tools: 0 for TensorRT 8.4-8.6, 1 from 10 on.
With groups there is no axis that all releases agree on, so one scale serves the whole tensor.

Evidence: RTX 1.7.1 runs `deconv` in float whatever is quantized and adds a kernel that dequantizes the weights
(convtranspose_q, convtranspose_pt). Conv, ConvTranspose, Conv with 32 channels, kernels of 2, 3 and 4 and strides of 2:
all INT8 as convolutions, 7 kernels as before, 0.94 of the bytes beside FP32 (0.85 with 8 channels, 0.61 with 3 at the end
of a network, 1.00 depthwise and with strides of 8), but 1.06 to 1.23 beside FP16 (0.71 with 3 at the end), because its
INT8 kernels with a scale per channel hand on FP32. Axis of scales: pytorch-quantization 8.4-8.6 against 10.16, and NVIDIA/TensorRT
issue 2380.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.claims import HAS_NO_KERNEL
from qdqtool.core.findings import Severity
from qdqtool.core.placement import Bond, Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.asked import arithmetic_word
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.operands import product_of
from qdqtool.matching.products import both_or_neither, compute_nodes, veto, weight_specs
from qdqtool.matching.rule import Rule, Violation


def match(view: GraphView) -> Iterator[Node]:
    """Transposed convolutions."""
    return compute_nodes(view, "ConvTranspose")


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Both inputs on classic TensorRT; a veto on RTX."""
    specs = weight_specs(view, options)
    for node in match(view):
        yield from both_or_neither(
            node,
            specs,
            reason="a transposed convolution computes in INT8 when input and weights are quantized",
            alone="with only one of input and weights quantized it computes in float",
        )
        if options.builder.is_rtx:
            yield from veto(
                node,
                "TensorRT for RTX has no INT8 kernel for ConvTranspose: Q/DQ would only add dequantize kernels",
                "nothing to do; --set insert.types=fp16 makes its float arithmetic half as wide",
                HAS_NO_KERNEL,
            )


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Transposed convolutions with Q/DQ where no kernel computes them in INT8."""
    for node in match(flow.view):
        product = product_of(flow, node, target)
        if any(factor.quantized for factor in product.factors):
            yield Violation(
                node=node.name,
                reason=f"TensorRT for RTX runs no ConvTranspose in {arithmetic_word(product.asked)}",
                effect="it runs in float, and its weights are dequantized in every inference",
                fix=f"{repairing(to_float=[node.name])} takes its Q/DQ off",
                products=(node.name,),
                no_kernel=True,
            )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """No kernel of TensorRT for RTX, with or without Q/DQ, so that no other candidate is worth a build."""
    if evidence.rtx and evidence.node.op == "ConvTranspose":
        yield Explanation(
            reason=f"TensorRT for RTX runs no ConvTranspose in {evidence.arithmetic}",
            fix=f"{repairing(to_float=[evidence.node.name])} takes its Q/DQ off"
            if evidence.any_quantized
            else "nothing to do",
            of_builder=True,
            no_kernel=True,
        )


PLUGIN = Rule(
    code="QDQ130",
    severity=Severity.WARNING,
    targets=frozenset({"rtx"}),
    place=place,
    check=check,
    explain=explain,
)
