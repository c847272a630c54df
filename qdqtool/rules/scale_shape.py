"""The shape, length and axis of scales.

# scale_rank

An activation scale of shape [1] instead of a scalar.

    x ─ Q (s = [0.05]) ─ DQ ─ Conv      float
    x ─ Q (s = 0.05) ─ DQ ─ Conv        INT8

In the ONNX standard both are one scale per tensor. TensorRT for RTX reads [1] as per-channel quantization before
convolutions, and on the shortcut of an Add that fuses with a convolution.

Evidence: RTX 1.7.1 runs the Conv in float and adds dequantize kernels (act_scale_shape1). A shortcut scale of shape
[1] makes the Conv on the other branch float. MatMul and Gemm are not affected (matmul_scale_shape1).

# weight_rank

FP16 weights with one scale of shape [1].

    w (FP16) ─ Q (s = [0.01]) ─ DQ ─ Conv      no build
    w (FP16) ─ Q (s = 0.01) ─ DQ ─ Conv        INT8

One scale for the whole tensor must be a scalar in an FP16 model; in FP32 models both forms build.

Evidence: RTX 1.7.1 fails with `CHECK(same_symbolic_shapes(...))` for FP16 types and builds the same graph in FP32
(chain_pt_w_shape1).

# scale_length

A number of scales or zero points that does not match the tensor, or a channel axis that the tensor does not have.

    w [16, 16, 3, 3] ─ Q (5 scales, axis 0) ─ DQ ─ Conv       refused
    w [16, 16, 3, 3] ─ Q (16 scales, axis 0) ─ DQ ─ Conv      INT8

Evidence: RTX 1.7.1: `The number of scales is not equal to the number of output channels`, `zeroPointSize == scaleSize`,
`Axis must be in the range`.

# weight_axis

Weights with their scales along the wrong axis.

    w [32, 48] ─ Q (32 scales, axis 0) ─ DQ ─ MatMul      float
    w [32, 48] ─ Q (48 scales, axis 1) ─ DQ ─ MatMul      INT8

Scales must be along the output channels, so that one factor per channel can be applied after the sum: axis 0 for Conv
and for Gemm with transB, the last axis for MatMul and for Gemm without.

Evidence: RTX 1.7.1 multiplies in float: `CastMulFc` for MatMul along K (matmul_w_axis0), and for a Conv along its
input channels a kernel that dequantizes the weights.

# transpose_axis

ConvTranspose weights with one scale per channel, along an axis that the release does not read or that is unknown.

    weights [in, out, h, w] ─ Q(axis=0) ─ DQ(axis=0) ─ ConvTranspose      TensorRT 8: INT8
    weights [in, out, h, w] ─ Q(axis=1) ─ DQ(axis=1) ─ ConvTranspose      TensorRT 8: no build, or wrong numbers
    weights [in, out, h, w] ─ Q ─ DQ ─ ConvTranspose                      one scale: every release

TensorRT 8 reads the scales along the input channels, axis 0. Which axis TensorRT 9, 10 and 11 read is unknown: placement writes
one scale for the whole tensor there, and `repair` does.

Evidence: NVIDIA/TensorRT issues 1519 (8.0.1, axis 1: the build fails), 1694 and 1699 (8.2.0, axis 1: wrong numbers; a
maintainer names axis 0), 2380 (8.4: a maintainer says that the kernels expect input channels). NVIDIA's own tools for
later releases disagree: pytorch-quantization has axis 1 in 9.3 and 10.16 and axis 0 in 10.0, Model Optimizer has axis
0. No log of these releases shows the kernel. TensorRT for RTX computes ConvTranspose in float.

# activation_channels

An activation with one scale per channel.

    x ─ Q (16 scales, axis 1) ─ DQ ─ Conv      float
    x ─ Q (one scale) ─ DQ ─ Conv              INT8

The scales of an activation would have to be applied inside the sum over channels; no INT8 kernel does that.

Evidence: RTX 1.7.1 runs the Conv in float after a fake-quantize kernel (act_perchannel). Classic TensorRT: per-channel
quantization is for constants only.

# halves

QuantizeLinear and DequantizeLinear of one pair have different scales.

    x ─ Q (s=0.05) ─ DQ (s=0.10) ─ Conv      the Conv reads 2 x

The pair then also multiplies: its result is the input times the ratio of the scales. This is legal, but nearly always a
mistake of an edit or an exporter.

Evidence: RTX 1.7.1 builds it as INT8, each half with its own scale (halves_apart).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT8, DType
from qdqtool.core.wording import REPAIR, count_noun
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8, is_whole
from qdqtool.graph.qdq.stored import fitting_axis
from qdqtool.graph.view import Node
from qdqtool.matching.products import Product, State, products
from qdqtool.matching.rule import CLASSIC, Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, store_again
from qdqtool.trt.ops import CONVOLUTIONS, weight_axis

SCALAR_SCALE_READERS = CONVOLUTIONS | {"Add"}
"""Operators that run in float in RTX 1.7.1 if the scale of an activation has shape [1]."""


# --- scale_rank ------------------------------------------------------------------------------------------------------


def match_scale_rank(flow: Flow) -> Iterator[QdqPair]:
    """Yield Q/DQ pairs of activations whose scale has shape [1]."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.ACTIVATION and pair.scale_shape == (1,):
            yield pair


def check_scale_rank(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report activation Q/DQ pairs with one scale of rank 1 that a convolution or an Add reads."""
    for pair in match_scale_rank(flow):
        for slot in pair.slots:
            op = flow.view.by_name[slot.node].op
            if op == "Add" and not is_int8(pair):
                continue  # an FP8 convolution fuses no Add
            if op in SCALAR_SCALE_READERS:
                yield Violation(
                    node=slot.node,
                    reason=f"the scale on input {slot.index} has shape [1] instead of []",
                    effect=f"{op} and the convolution it fuses with run in float"
                    if op == "Add"
                    else f"{op} runs in float",
                    fix=f"store the scale as a scalar, shape []; {REPAIR} does this",
                    products=_find_summed(flow, slot.node) if op == "Add" else (slot.node,),
                )


def _find_summed(flow: Flow, add: str) -> tuple[str, ...]:
    """Return the convolutions that fuse with an Add because the Add reads their results as floats."""
    node = flow.plain.by_name.get(add)
    if node is None:
        return ()
    bare = [tensor for index, tensor in enumerate(node.inputs) if flow.source(node, index) is None]
    makers = [flow.plain.producer(tensor) for tensor in bare]
    return tuple(maker.name for maker in makers if maker is not None and maker.op == "Conv")


def fix_scale_rank(context: RepairContext) -> Iterator[Change]:
    """Make each activation scale of shape [1] a scalar, with unchanged value and type."""
    for pair in match_scale_rank(context.flow):
        if is_whole(pair) and context.is_plain(pair) and context.is_known(pair):
            _make_scalar(context, pair)
            yield Change(
                subject=pair.quantize or "",
                what="scale of shape [1] became a scalar",
                reason="with a scale of shape [1] on its activation, a Conv runs in float, and TensorRT prints no warning",
                error=0.0,
            )


def _make_scalar(context: RepairContext, pair: QdqPair) -> None:
    for name in (pair.quantize, pair.dequantize):
        node = context.nodes[name or ""]
        for index in range(1, len(node.input)):
            value = context.edit.value(node.input[index])
            if value is not None:
                node.input[index] = context.edit.constant(node.input[index], value.reshape(()))


# --- weight_rank -----------------------------------------------------------------------------------------------------


def match_weight_rank(flow: Flow) -> Iterator[QdqPair]:
    """Yield weight Q/DQ pairs with one scale of rank 1 for more than one channel."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and pair.scale_shape == (1,):
            shape = flow.view.constant_shape(pair.tensor) or ()
            if pair.axis is None or pair.axis >= len(shape) or shape[pair.axis] != 1:
                yield pair


def check_weight_rank(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report FP16 weights with one scale of rank 1 for more than one channel."""
    for pair in match_weight_rank(flow):
        name = pair.dequantize or pair.quantize or ""
        if flow.view.info(flow.view.by_name[name].inputs[1]).dtype is DType.FLOAT16:
            yield Violation(
                node=name,
                reason="FP16 weights have one scale of shape [1]",
                effect="the build fails because the builder refuses this scale shape",
                fix=f"store the scale as a scalar, shape [], or use one scale per channel; {REPAIR} does this",
            )


def fix_weight_rank(context: RepairContext) -> Iterator[Change]:
    """Give weights with a scale of shape [1] a valid scale shape.

    This includes FP32 weights, because they may become FP16 later.
    """
    why = "a scale of shape [1] is neither per tensor nor per channel, and the build fails in FP16"
    return store_again(context, match_weight_rank(context.flow), lambda _: why)


# --- scale_length ----------------------------------------------------------------------------------------------------


def check_scale_length(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose number of scales does not match the channel axis or the number of zero points."""
    for pair in flow.pairs:
        reason = _misfit(flow, pair)
        if reason:
            axis = fitting_axis(flow.view, pair)
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=reason,
                effect="the parser refuses it",
                fix=_way(flow, pair)
                if axis is None
                else f"write axis={axis}, the only one with {count_noun(len(pair.scale), 'channel')}; {REPAIR} does this",
            )


def _way(flow: Flow, pair: QdqPair) -> str:
    """Return the fix for a wrong number of scales: quantize float weights again, or remove the Q/DQ. Stored integers have no fix."""
    rule = "store one scale and one zero point per channel of the axis, or a single scalar of each"
    readers = flow.products_of(pair)
    if pair.quantize is None:
        return f"nothing to do by a command: without valid scales, the meaning of the stored values is lost; in the tool that wrote the model, {rule}"
    if pair.kind is SlotKind.WEIGHT and readers:
        return f"{rule}; {repairing(to_int8=readers)} quantizes the weights again"
    return f"{rule}; {repairing(to_float=readers or [pair.quantize])} removes the Q/DQ"


def _misfit(flow: Flow, pair: QdqPair) -> str:
    if pair.zero_point and pair.scale and len(pair.zero_point) != len(pair.scale):
        return f"the node has {count_noun(len(pair.zero_point), 'zero point')} for {count_noun(len(pair.scale), 'scale')}"
    shape = flow.view.info(pair.tensor).shape
    if pair.scale_shape is None or len(pair.scale_shape) != 1 or pair.axis is None or shape is None:
        return ""
    if len(pair.scale) == 1:
        return ""  # a single scale fits any tensor, and its axis has no meaning
    for name in filter(None, (pair.quantize, pair.dequantize)):
        axis = int(flow.view.by_name[name].attribute("axis", 1))
        if not -len(shape) <= axis < len(shape):
            return (
                f"the channel axis of {name} is {axis}, the tensor has {count_noun(len(shape), 'dimension')}"
            )
    channels = shape[pair.axis]
    if isinstance(channels, int) and len(pair.scale) != channels:
        return f"the node has {count_noun(len(pair.scale), 'scale')} for the {channels} channels of axis {pair.axis}"
    return ""


# --- weight_axis -----------------------------------------------------------------------------------------------------


def match_weight_axis(flow: Flow, target: Target) -> Iterator[tuple[Product, int, QdqPair]]:
    """Yield operands of compute nodes whose scales are not along the output channels, and their Q/DQ pairs."""
    for product in products(flow, target):
        for operand in product.operands:
            if operand.state is State.WRONG_AXIS and operand.pair is not None:
                yield product, operand.index, operand.pair


def check_weight_axis(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report weights with scales along the wrong axis if the activation is quantized. Otherwise, any axis is allowed."""
    for product, index, pair in match_weight_axis(flow, target):
        if product.weights_alone is not None or _fits_elsewhere(flow, pair):
            continue  # the rule scale_length reports scales that do not fit the axis
        node = product.node
        axis = weight_axis(node, index, len(flow.view.info(node.inputs[index]).shape or ()))
        channel_axis = flow.channel_axis(node, index)
        moved = "" if channel_axis == pair.axis else f" (axis {pair.axis} of the stored tensor)"
        yield Violation(
            node=node.name,
            reason=f"the scales of the weights are along axis {channel_axis}{moved}, not along the output channels "
            f"(axis {axis})",
            effect=f"{node.op} runs in float",
            fix=f"scale along the output channels, axis {axis}; {REPAIR} does this",
            products=(node.name,),
        )


def _fits_elsewhere(flow: Flow, pair: QdqPair) -> bool:
    shape = flow.view.info(pair.tensor).shape or ()
    axis = pair.axis
    return axis is None or not -len(shape) <= axis < len(shape) or shape[axis] != len(pair.scale)


def fix_weight_axis(context: RepairContext) -> Iterator[Change]:
    """Quantize weights again along the output channels, even if the activation has no Q/DQ pair yet."""
    astray = (pair for _, _, pair in match_weight_axis(context.flow, context.target or Target()))
    return store_again(context, astray, _astray)


def _astray(weight: StoredWeight) -> str:
    if weight.reader is None or weight.axis is None or weight.moves:
        return ""  # if an operator is between them, `weight_path` stores the weights directly before the compute node
    return (
        f"scales along axis {weight.pair.axis} keep {weight.reader.op} in float, it needs axis {weight.axis}"
    )


# --- transpose_axis --------------------------------------------------------------------------------------------------


def match_transpose_axis(flow: Flow, target: Target) -> Iterator[tuple[Node, QdqPair]]:
    """Yield ConvTransposes, with weight pairs, if scales are off the axis that is read, or it is unknown."""
    for node in flow.products():
        pair = flow.origin(node, 1) if node.op == "ConvTranspose" else None
        if pair is not None and len(pair.scale) > 1 and pair.axis != target.transposed_axis:
            yield node, pair


def check_transpose_axis(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report ConvTranspose weights with scales along another axis than the release reads; as info if that axis is unknown."""
    expected = target.transposed_axis
    for node, pair in match_transpose_axis(flow, target):
        yield Violation(
            node=node.name,
            reason=f"the scales of the weights are along axis {pair.axis}",
            effect=f"it is unknown which axis TensorRT {target.name} reads; if it reads another axis, the results are wrong or the build fails"
            if expected is None
            else f"TensorRT {target.name} reads axis {expected}: the results are wrong, or the build fails",
            fix=f"use one scale for the whole tensor, which every release reads; {REPAIR} does this"
            if expected is None
            else f"scale along axis {expected}, or use one scale for the whole tensor; {REPAIR} does the first",
            severity=Severity.INFO if expected is None else None,
        )


def fix_transpose_axis(context: RepairContext) -> Iterator[Change]:
    """Quantize the weights again along the axis that the release reads; if it is unknown, with one scale."""
    target = context.target or Target()
    astray = () if target.is_rtx else (pair for _, pair in match_transpose_axis(context.flow, target))
    return store_again(
        context,
        astray,
        lambda weight: (
            f"it is unknown whether TensorRT {target.name} reads scales along axis {weight.pair.axis}"
            if target.transposed_axis is None
            else f"TensorRT {target.name} reads scales along axis {target.transposed_axis}, not {weight.pair.axis}"
        ),
    )


# --- activation_channels ---------------------------------------------------------------------------------------------


def match_activation_channels(flow: Flow) -> Iterator[QdqPair]:
    """Yield Q/DQ pairs of activations with more than one scale."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.ACTIVATION and len(pair.scale) > 1 and len(pair.scale_shape or ()) < 2:
            yield pair


def check_activation_channels(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs of activations with more than one scale."""
    for pair in match_activation_channels(flow):
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason=f"the activation {pair.tensor} has one scale per channel, {len(pair.scale)} of them",
            effect="the layer after it runs in float" if target.is_rtx else "the builder refuses it",
            fix=f"use one scale for the whole tensor; {REPAIR} does this",
            products=flow.products_of(pair),
        )


def fix_activation_channels(context: RepairContext) -> Iterator[Change]:
    """Give each activation one scale that covers all of its channels."""
    for pair in match_activation_channels(context.flow):
        if is_whole(pair) and context.is_plain(pair) and context.is_known(pair):
            low, high = context.span(pair)
            scale = max(-low, high) / INT8.qmax
            context.restate(pair, np.asarray(scale))
            yield Change(
                subject=pair.quantize or "",
                what=f"{count_noun(len(pair.scale), 'scale became', 'scales became')} one, the largest ({scale:.4g})",
                reason="with a scale per channel on its activation, a layer runs in float, and TensorRT prints no warning",
            )


# --- halves ----------------------------------------------------------------------------------------------------------


def check_halves(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose Q and DQ have different scale constants with different values."""
    view = flow.view
    for pair in flow.pairs:
        if pair.quantize is None or pair.dequantize is None:
            continue
        first, second = view.by_name[pair.quantize].inputs[1], view.by_name[pair.dequantize].inputs[1]
        if first == second:
            continue
        scales = view.constant(first), view.constant(second)
        if scales[0] is not None and scales[1] is not None and not _agree(scales[0], scales[1]):
            yield Violation(
                node=pair.dequantize,
                reason=f"the scale of this DequantizeLinear differs from that of {pair.quantize}",
                effect="every value is multiplied by the ratio of the two scales",
                fix=f"give the Q and the DQ the same scale; {repairing(to_float=[pair.quantize])} removes the pair",
            )


def _agree(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return True if two scales are equal in the coarser of their two types."""
    coarser = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
    return np.array_equal(first.astype(coarser), second.astype(coarser), equal_nan=True)


PLUGIN = {
    "scale_rank": Rule(
        code="QDQ121",
        formats=frozenset({"int8", "fp8"}),
        severity=Severity.WARNING,
        targets=frozenset({"rtx"}),
        stage=Stage.LEGAL,
        after=("scale_value",),
        check=check_scale_rank,
        fix=fix_scale_rank,
    ),
    "weight_rank": Rule(
        code="QDQ115",
        formats=frozenset({"int8", "fp8"}),
        severity=Severity.ERROR,
        targets=frozenset({"rtx"}),
        stage=Stage.LEGAL,
        after=("cast",),
        check=check_weight_rank,
        fix=fix_weight_rank,
    ),
    "scale_length": Rule(code="QDQ116", severity=Severity.ERROR, check=check_scale_length),
    "weight_axis": Rule(
        code="QDQ123",
        severity=Severity.WARNING,
        stage=Stage.LEGAL,
        after=("weight_path",),
        check=check_weight_axis,
        fix=fix_weight_axis,
    ),
    "transpose_axis": Rule(
        code="QDQ137",
        severity=Severity.WARNING,
        check=check_transpose_axis,
        fix=fix_transpose_axis,
        targets=CLASSIC,
    ),
    "activation_channels": Rule(
        code="QDQ122",
        severity=Severity.WARNING,
        stage=Stage.LEGAL,
        after=("scale_value",),
        check=check_activation_channels,
        fix=fix_activation_channels,
    ),
    "halves": Rule(code="QDQ138", severity=Severity.WARNING, check=check_halves),
}
