"""Findings about kernels that are slower than they could be: not fused, not merged, or without tensor cores.

# attention_not_fused
An attention runs as two matrix products with a softmax between, not as one fused kernel.

    MatMul -> softmax -> MatMul

The scores, tokens times tokens for every head, are written and read twice. A fused kernel never writes them. In INT8 it
needs Q/DQ on both inputs of both MatMul nodes, including the softmax output, and on the result of the second MatMul,
because it writes INT8. With other patterns the builder splits the attention into MatMul, pad and slice kernels. Without
Q/DQ the attention is fused in FP16 and BF16, but not in FP32.

# unmerged_siblings
Convolutions that read the same tensor run one after the other instead of as one kernel.

The builder could merge them (TensorRT writes `A || B`): the input is read once and the GPU is better used. They read one
quantized tensor, so separate scales are not the obstacle; if the scales differ, there are two tensors, which `lint` finds (QDQ129).
TensorRT for RTX makes such choices on the GPU, so its layer information does not show them.

# no_tensor_cores
An INT8 kernel does not run on tensor cores.

Its name (or its runner, for depthwise convolutions) shows that it uses the ordinary INT8 dot product, which is many
times slower per multiprocessor. Usual reasons: a depthwise or grouped convolution, a number of channels that is not a
multiple of sixteen or thirty-two, or a first layer with three channels. FP16 on tensor cores may be faster there.

# separate_epilogues
Low-bit products leave bias, activation and rounding to a separate kernel.

    Conv (FP16, with bias and Swish)                       one kernel
    Conv (INT8) -> scale, bias, Swish, quantize            two kernels, and the sums between them are FP32

TensorRT for RTX writes every low-bit convolution and matrix product like this, with per-channel and per-tensor
scales, any activation and any position of the Q/DQ pairs; only Mish, Selu and PRelu are a second kernel in FP16 too.
So INT8 has up to twice the kernels of FP16, and of a small network the GPU may spend most of the time on starting
kernels. The device completes the kernels, so it is unknown without a GPU whether it merges some of them. The step
`worth` builds the network in FP16 and gives the times for both cases.

The check reports engines in which at least a tenth of all kernels only finish low-bit products.

Evidence: RTX 1.7.1 for SM86, 89 and 120: chains of Conv and MatMul with 16 activations, per channel and per tensor, FP32 and FP16;
YOLOX-nano has 215 kernels in INT8 and 127 in FP16.

# opaque_region
A region was compiled as one block, and the layer information does not say what is inside.

TensorRT 8 prints a Myelin region as one `{ForeignNode[first...last]}` layer: its kernels and their types stay unknown,
also to the profiler. TensorRT 9 and later list the kernels of a region. Only the nodes in this finding are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from qdqtool.auditing.context import ENGINE, AuditContext, Check, RawFinding
from qdqtool.auditing.regions import is_opaque
from qdqtool.core.advice import NEVER_ONE_KERNEL, as_float, setting
from qdqtool.core.claims import Assertion
from qdqtool.core.engine import EngineLayer, Role, computes_softmax
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, Setting, count_noun, list_names
from qdqtool.engine.costs import list_unfinished
from qdqtool.graph.view import Node
from qdqtool.matching.attention import (
    attentions,
    fp8_obstacle,
    int8_obstacle,
    is_fused_as_float,
    unquantized_results,
)
from qdqtool.trt.ops import COMPUTE, QDQ

# --- attention not fused -----------------------------------------------------------------------------------------------


_SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
_BETWEEN = "remove the Q/DQ between the first MatMul and the softmax; the softmax now reads INT8 scores"
_BEHIND = "put a Q/DQ pair directly after the second MatMul: the fused INT8 kernel writes INT8"
_KNOWN = "nothing to do: the Q/DQ is placed correctly, but the builder has no fused kernel for this pattern"
_ALL_OR_NONE = (
    "put Q/DQ on both inputs of both MatMul nodes, including the softmax output, or on none of them"
)


def find_attention_not_fused(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each softmax kernel with a matrix product before and after it."""
    for layer in context.kernels:
        if not (computes_softmax(layer) and _may_be_softmax(context, layer)):
            continue
        before = [writer for writer in context.wiring.compute_before(layer) if _is_product(writer)]
        after = [reader for reader in context.wiring.compute_after(layer) if _is_product(reader)]
        if not before or not after:
            continue
        size = layer.inputs[0].bytes
        yield RawFinding(
            subject=layer.name,
            reason=f"softmax between {before[0].name} ({before[0].precision}) and {after[0].name} "
            f"({after[0].precision}): the attention is not fused",
            fix=_fix_of_attention_pair(context, layer, before, after)
            or _fix_attention(context, layer, (*before, *after)),
            layers=tuple(product.name for product in (*before, *after)),
            bytes=None if size is None else 4 * size,
            evidence=(
                context.at_layer(before[0].name),
                context.at_layer(layer.name),
                context.at_layer(after[0].name),
            ),
        )


def _may_be_softmax(context: AuditContext, layer: EngineLayer) -> bool:
    """Return True if a kernel contains a Softmax node, or if the model does not show its nodes.

    Other kernels, such as the gates of an mLSTM, only look like a softmax.
    """
    nodes = (context.view.by_name.get(name) for name in layer.onnx_nodes) if context.view else ()
    ops = {node.op for node in nodes if node is not None and node.op not in QDQ}
    return not ops or bool(ops & _SOFTMAXES)


def _fix_of_attention_pair(
    context: AuditContext, layer: EngineLayer, before: Sequence[EngineLayer], after: Sequence[EngineLayer]
) -> str:
    """Return the fix for an attention that is not fused, from its Q/DQ and obstacles; "" if none is known."""
    flow = context.flow
    if flow is None:
        return ""
    first, second = ({name for kernel in layers for name in kernel.onnx_nodes} for layers in (before, after))
    for scores, values in attentions(flow.plain):
        if scores.name in first and values.name in second:
            break
    else:
        return ""
    pairs = [flow.origin(node, index) for node in (scores, values) for index in (0, 1)]
    obstacle = (
        fp8_obstacle(flow.plain, scores, values)
        if context.target.is_rtx and any(pair is not None and pair.dtype is DType.FLOAT8 for pair in pairs)
        else int8_obstacle(flow.plain, scores, values, context.target, _head_size(before[0]))
    )
    if obstacle:
        return _around(context, scores, values, obstacle, quantized=any(pairs))
    if any(pair is None for pair in pairs) and context.placement is not None:
        return context.refusals((*before, *after))
    if all(pairs) and layer.inputs[0].dtype is not DType.INT8:
        results = unquantized_results(context.wiring, context.cases, layer)
        return _BEHIND if any(True for _ in results) else _KNOWN
    return ""


def _head_size(first: EngineLayer) -> int | None:
    """Return the head size of an attention, as the engine shows it; None if unknown."""
    shape = first.inputs[0].shape or (None,)
    return shape[-1] if isinstance(shape[-1], int) and shape[-1] > 0 else None


def _around(context: AuditContext, scores: Node, values: Node, obstacle: str, *, quantized: bool) -> str:
    """Return how to get one float kernel for an attention that INT8 does not fuse, or say that this is impossible."""
    flow, placed = context.flow, context.placement is not None
    assert flow is not None
    now, half = (
        is_fused_as_float(flow.plain, scores, values, context.target, word) for word in ("fp32", "fp16")
    )
    if not half or (now and not quantized):
        return f"{NEVER_ONE_KERNEL}: {obstacle}"
    ways = [as_float([scores.name, values.name], placed=placed)] if quantized else []
    if not now:
        ways.append(
            f"{Setting('insert.types', 'fp16') if placed else Command('convert')} computes it in FP16"
        )
    return (
        f"{', and '.join(ways)}: {obstacle}, and a float attention is one kernel{'' if now else ' in FP16'}"
    )


def _fix_attention(context: AuditContext, layer: EngineLayer, products: tuple[EngineLayer, ...]) -> str:
    """Return the change that fuses the kernels of an attention into one."""
    between = layer.inputs[0].dtype is DType.INT8
    types = {product.precision for product in products}
    if types == {DType.FLOAT32} and not between:
        return f"{_ALL_OR_NONE} and use FP16 ({Command('convert')}): attention in FP32 is not fused"
    if types != {DType.INT8}:
        return _BETWEEN if between else _ALL_OR_NONE
    open_end = context.view is not None and any(
        True for _ in unquantized_results(context.wiring, context.cases, layer)
    )
    if between:
        return f"{_BETWEEN}; {_BEHIND}" if open_end else _BETWEEN
    if context.view is None:
        return _ALL_OR_NONE
    return _BEHIND if open_end else _KNOWN


def _is_product(layer: EngineLayer) -> bool:
    """Return whether a layer is a matrix product of two run-time values."""
    weights = any(constant.shape and len(constant.shape) > 1 for constant in layer.constants)
    return layer.role is Role.COMPUTE and len(layer.inputs) > 1 and not weights


# --- unmerged siblings -------------------------------------------------------------------------------------------------


_NOT_MERGED = "nothing to do: the convolutions read one quantized tensor with one scale, but the builder did not merge them"
_Alike = tuple[str, str, tuple[int, ...], tuple[int, ...]]


def find_unmerged_siblings(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each group of kernels with the same input, kernel size, precision and output size."""
    groups: dict[_Alike, list[EngineLayer]] = defaultdict(list)
    for layer in context.kernels:
        key = _alike(layer)
        if key is not None:
            groups[key].append(layer)
    for layers in groups.values():
        if len(layers) > 1:
            size = layers[0].inputs[0].bytes
            yield RawFinding(
                subject=layers[0].name,
                reason=f"{count_noun(len(layers), 'convolution of the same size reads', 'convolutions of the same size read')} one tensor and were not merged: "
                + ", ".join(layer.name for layer in layers),
                fix=_NOT_MERGED,
                bytes=None if size is None else size * (len(layers) - 1),
                evidence=tuple(context.at_layer(layer.name) for layer in layers),
            )


def _alike(layer: EngineLayer) -> _Alike | None:
    """Return what quantized convolutions must share to be merged; None for all further kernels."""
    weights = [constant.shape for constant in layer.constants if constant.shape and len(constant.shape) == 4]
    alone = layer.role is Role.COMPUTE and layer.kind != "correlation" and len(layer.inputs) == 1
    if not alone or not weights or not layer.outputs or layer.outputs[0].shape is None:
        return None
    largest = max(weights, key=lambda shape: shape[0] * shape[1] * shape[2] * shape[3])
    if not layer.precision.is_quantized:
        return None  # float convolutions have no scales that could differ
    return layer.inputs[0].name, str(layer.precision), largest[1:], layer.outputs[0].shape[2:]


# --- no tensor cores ---------------------------------------------------------------------------------------------------


def find_no_tensor_cores(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each INT8 kernel that is known to run without tensor cores."""
    for layer in context.kernels:
        is_stated = (
            layer.role is Role.COMPUTE and layer.precision is DType.INT8 and layer.tensor_cores is False
        )
        if is_stated:
            yield RawFinding(
                subject=layer.name,
                reason=f"INT8 without tensor cores ({layer.tactic or layer.kind}){_likely(layer)}",
                fix="compare the time of this node with an FP16 build; if FP16 is faster, keep the node float",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


def _likely(layer: EngineLayer) -> str:
    shape = layer.inputs[0].shape if layer.inputs else None
    channels = shape[1] if shape and len(shape) > 2 else None
    groups = dict(layer.attributes).get("Groups", "1")
    if "Depthwise" in layer.kind or groups not in {"", "1"}:
        return ": a depthwise or grouped convolution"
    if channels is not None and 0 < channels < 16:
        return f": only {count_noun(channels, 'input channel')}"
    if channels is not None and channels % 16:
        return f": {count_noun(channels, 'input channel is', 'input channels are')} not a multiple of 16"
    return ""


# --- separate epilogues ------------------------------------------------------------------------------------------------

_SHARE = 0.1
"""Share of all kernels that only finish low-bit products, from which they are reported."""
_ACTIVATIONS = 3
"""Most operators that are named."""
_UNPLACED = f"nothing to do: the builder uses a second kernel after every low-bit MatMul or Conv; {Command('run', ('FLOAT_MODEL',))} compares both engines"


def find_separate_epilogues(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for the engine if many of its kernels only scale and convert the results of low-bit kernels."""
    pairs = list_unfinished(context.engine)
    if not pairs or len(pairs) < _SHARE * len(context.kernels):
        return
    products = [verdict for producer, _ in pairs for verdict in context.verdicts_on(producer)]
    ops = sorted({verdict.op for verdict in products})
    named = list_names(ops, _ACTIVATIONS) or "product"
    sizes = [producer.outputs[0].bytes for producer, _ in pairs]
    yield RawFinding(
        subject=ENGINE,
        reason=f"{len(pairs)} of {count_noun(len(context.kernels), 'kernel')} only finish a low-bit {named}: scale, bias, "
        f"{_list_operators(context, [finisher for _, finisher in pairs])}quantize; in FP16 its own kernel does this",
        fix=f"if the run reports that INT8 is not faster: {setting('place.exclude_ops', ops)} {Setting('insert.types', 'fp16')} computes them in FP16"
        if context.placement is not None and ops
        else _UNPLACED,
        bytes=None if None in sizes else 2 * sum(size or 0 for size in sizes),
        evidence=tuple(context.at_layer(finisher.name) for _, finisher in pairs[:_ACTIVATIONS]),
    )


def _list_operators(context: AuditContext, finishers: Sequence[EngineLayer]) -> str:
    """Return the most frequent operators of these kernels as "Sigmoid, Mul, "; "" if no model shows them."""
    view = context.view
    nodes = (view.by_name.get(name) for layer in finishers for name in layer.onnx_nodes) if view else ()
    ops = Counter(node.op for node in nodes if node is not None and node.op not in QDQ | COMPUTE)
    return "".join(f"{op}, " for op, _ in ops.most_common(_ACTIVATIONS))


def find_opaque_region(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each fused region if the layer information does not list its kernels."""
    for layer in context.kernels:
        if is_opaque(layer):
            nodes = layer.onnx_nodes
            held = (
                f"{count_noun(len(nodes), 'ONNX node')}, {', '.join(nodes[:5])}"
                if nodes
                else "nodes that the layer information does not list"
            )
            yield RawFinding(
                subject=layer.name,
                reason=f"a region whose kernels are not listed; it contains {held}",
                fix="nothing to do with this release: TensorRT 9 and newer list the kernels of such regions",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


PLUGIN = {
    "attention_not_fused": Check(
        code="QDQ215", severity=Severity.INFO, find=find_attention_not_fused, says=Assertion.STANDS_ALONE
    ),
    "unmerged_siblings": Check(code="QDQ213", severity=Severity.INFO, find=find_unmerged_siblings),
    "no_tensor_cores": Check(code="QDQ210", severity=Severity.INFO, find=find_no_tensor_cores),
    "separate_epilogues": Check(
        code="QDQ222", severity=Severity.INFO, find=find_separate_epilogues, says=Assertion.FINISHES
    ),
    "opaque_region": Check(code="QDQ214", severity=Severity.INFO, find=find_opaque_region),
}
