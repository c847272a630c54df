"""Transposed convolutions: INT8 on classic TensorRT, never on TensorRT for RTX.

    before                       after, classic TensorRT          after, RTX
    x ── ConvTranspose ── y      x ─ Q ─ DQ ─ ConvTranspose       unchanged
    W ───┘                       W ─ Q ─ DQ ───┘

The channel axis of the weights differs by release in NVIDIA's own tools: 0 for TensorRT 8.4-8.6, 1 from 10 on.
With groups there is no axis that all releases agree on, so one scale serves the whole tensor.

Evidence: RTX 1.7.1 runs `deconv` in float whatever is quantized and adds a kernel that dequantizes the weights
(convtranspose_q, convtranspose_pt). Axis: pytorch-quantization 8.4-8.6 against 10.16, and NVIDIA/TensorRT issue 2380.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion, QuantSpec, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.placement.weighted import compute_nodes, factors, veto, weight_specs


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:  # noqa: N802 -- the plug
    """Both inputs on classic TensorRT; a veto on RTX."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "ConvTranspose"):
        activation, weight = factors(node)
        for slot, spec in ((activation, QuantSpec()), (weight, specs.get(node.inputs[1], QuantSpec()))):
            yield Opinion(
                slot=slot,
                rule="conv_transpose",
                stance=Stance.REQUEST,
                reason="a transposed convolution computes in INT8 when input and weights are quantized",
                spec=spec,
            )
        yield Bond(
            slots=(activation, weight),
            rule="conv_transpose",
            reason="with only one of input and weights quantized it computes in float",
        )
        if options.builder.is_rtx:
            yield from veto(
                node,
                "conv_transpose",
                "TensorRT for RTX has no INT8 kernel for ConvTranspose: Q/DQ would only add dequantize kernels",
                "replace it by a nearest Resize and a Conv, or accept float here",
            )
