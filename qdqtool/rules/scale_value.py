"""Values of scales and zero points, and the forms in which a model states them.

# scale_value

A scale that is zero, negative, NaN or not of a floating-point type.

    x ─ Q (s = 0) ─ DQ (s = 0) ─ Conv

A scale of zero often comes from a channel or tensor that was always zero, or from a small FP32 scale that became FP16.

Evidence: RTX 1.7.1 reports `Scale coefficients must all be positive` (scale_zero, scale_negative, scale_nan; a tiny
scale in FP16). It also reports this for an integer or FP8 scale of any value (scale_integer). Infinity alone is
built, of FP8 and INT8 alike. For INT4, per channel and in blocks, it also builds negative scales, 0, NaN and
infinity, into equal kernels.

# scale_computed

A scale that is computed at run time.

    x ─┬─ ReduceMax ─ s ─┐                   x ─ Q (s = 0.05) ─ DQ ─ Conv
       └──────────── Q(s) ─ DQ(s) ─ Conv

Explicit quantization needs scales that are known when the engine is built. TensorRT up to 10.0 refuses computed scales;
later releases accept some without fusing them; TensorRT for RTX crashes before a Conv and runs other nodes in float.

Evidence: RTX 1.7.1 ends with SIGSEGV when such a pair feeds a Conv (scale_computed) and multiplies in float when it
feeds a MatMul (scale_computed_matmul). Parser sources: 10.0 wants a constant scale, 10.16 only a constant zero point.

# scale_form

A scale or zero point that no parser accepts: a wrong rank, shape or type, or a computed value.

    x ─ TRT_FP4DynamicQuantize (4 scales) ─ DQ      refused
    x ─ TRT_FP4DynamicQuantize (1 scale) ─ DQ       NVFP4

One scale for a tensor is a scalar, scales per channel are a vector, and block scales have the rank of the tensor, and
its length along every axis except the blocked one. The global scale of block scales is a single positive float; the
block scales of MXFP8 are UINT8. All lengths must be known at build time. To omit a zero point, write no input: an empty
name is refused.

Evidence: RTX 1.7.1, `tests/placement/malformed.py`, 660 models: `Scale input must be a scalar`, `Scale input must be an
initializer`, `Invalid rank for the scale tensor`, `only the quantization axis may be blocked`, `ScaleMode is illegal`,
`must be known at build time`, `Found unsupported input type`. It takes a global scale of NaN, 0 or below for activations.

# zero_point

A zero point that is not zero.

    x ─ Q (zero point 128, UINT8) ─ DQ      refused
    x ─ Q (zero point 0, INT8) ─ DQ

TensorRT quantizes symmetrically: its parser refuses the node. Asymmetric UINT8 exists for DLA only (from 10.11 on, with
a parser flag).

The fix: UINT8 with zero point 128 is equal to INT8, so the change is exact. Other activations get a scale that covers
the same range, so their steps grow up to twofold. A range that starts at 0 also replaced a Relu that the quantizer had
removed; the fix restores it. Weights keep their integers if these fit INT8, otherwise they are quantized again.

Evidence: RTX 1.7.1 and TensorRT 8.x to 11 say `Assertion failed: shiftIsAllZeros(zeroPoint)`. For FP8, RTX accepts
any zero point and builds equal engine bytes.

# mixed_types

The scale's type and the types around it disagree.

    x (FP16) ─ Q (s FP16) ─ DQ ─┐
                                 Conv      one operand is FP16, the other FP32: refused
    w (FP32) ─ Q (s FP32) ─ DQ ─┘

In a strongly typed network the scale sets the output type of DequantizeLinear: an FP32 scale in an FP16 model makes one
input of the next layer FP32 and leaves the other FP16.

Evidence: RTX 1.7.1: `input and kernel must be of same type` (half_scale in an FP32 model, opset13_missing_zp and
com_microsoft_qdq in FP16). TensorRT 8 reads FP32 scales only.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.grids import get_storage_type
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT8, DType
from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.qdq.encode import is_number
from qdqtool.graph.qdq.flow import STORED_INTEGERS, Flow, RepairContext, is_whole
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.qdq.unquantize import cut_below
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, store_again
from qdqtool.trt.ops import DEQUANTIZE, DYNAMIC_TYPES, FP4_DYNAMIC, QDQ

# --- scale_value -----------------------------------------------------------------------------------------------------


def match_scale_value(flow: Flow) -> Iterator[tuple[QdqPair, tuple[float, ...]]]:
    """Yield all Q/DQ pairs, each with its scales that are not positive finite numbers."""
    for pair in flow.pairs:
        yield pair, tuple(value for value in pair.scale if not (isfinite(value) and value > 0))


def check_scale_value(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs with a scale that no quantization can use."""
    for pair, bad in match_scale_value(flow):
        node = pair.quantize or pair.dequantize or ""
        dtype = flow.view.info(flow.view.by_name[node].inputs[1]).dtype
        if not dtype.is_float and pair.scale_shape is not None:
            yield Violation(
                node=node,
                reason=f"the scale is stored as {'another type' if dtype is DType.UNKNOWN else dtype}",
                effect="the parser refuses it",
                fix=f"store the scale as FP32, or in the type of the data; {repairing(to_float=flow.products_of(pair) or [node])} removes the Q/DQ",
            )
        if target.is_rtx and pair.dtype is DType.INT4:
            odd = [value for value in bad if not isfinite(value)]
            if odd:
                yield Violation(
                    node=node,
                    reason=f"{len(odd)} of {count_noun(len(pair.scale), 'scale')} are not numbers, the first is {odd[0]:g}",
                    effect="the builder accepts such scales without a message, and the results are NaN",
                    fix="quantize the float weight again",
                )
            continue
        if bad:
            taken = target.is_rtx and all(value == inf for value in bad)
            yield Violation(
                node=node,
                reason=f"{len(bad)} of {count_noun(len(pair.scale), 'scale is', 'scales are')} not positive numbers, the first is {bad[0]:g}",
                effect="the builder accepts such scales without a message, and the results are infinite or NaN"
                if taken
                else "the parser refuses the model: Scale coefficients must all be positive",
                fix="calibrate again, or give channels that are always zero a small positive scale such as 1e-5; "
                + (
                    f"{Command('repair', ('--samples', 'DATA'))} does"
                    if pair.dtype in STORED_INTEGERS
                    else f"{repairing(to_float=flow.products_of(pair) or [node])} removes the Q/DQ"
                ),
            )


def fix_scale_value(context: RepairContext) -> Iterator[Change]:
    """Make negative scales positive, and remove activation Q/DQ pairs with other unusable scales.

    Weights are stored again as INT8 with positive scales.
    """
    faults = [(pair, bad) for pair, bad in match_scale_value(context.flow) if bad and context.is_plain(pair)]
    for pair, bad in faults:
        if not is_whole(pair) or pair.kind is not SlotKind.ACTIVATION or not context.is_known(pair):
            continue
        negative = any(scale < 0 for scale in bad)
        unusable = not all(isfinite(scale) and scale != 0 for scale in bad)
        if unusable or (negative and any(pair.zero_point)):
            yield from context.removed(
                pair,
                "the parser refuses a scale that is 0 or not a number"
                if unusable
                else "the parser refuses negative scales",
            )
        elif negative:
            context.restate(pair, np.abs(np.asarray(pair.scale)).max())
            yield Change(
                subject=pair.quantize or "",
                what="negative scale became positive",
                reason="the parser refuses negative scales",
            )
    yield from store_again(
        context,
        (pair for pair, _ in faults),
        lambda _: "the parser refuses scales that are not positive",
    )


# --- scale_computed --------------------------------------------------------------------------------------------------

_CRASHES = "the builder process crashes"
_REFUSED = "the parser refuses it"
_FLOAT = "the node is not fused: the layer after it runs in float"


def match_scale_computed(flow: Flow) -> Iterator[QdqPair]:
    """Yield the Q/DQ pairs without a constant scale."""
    for pair in flow.pairs:
        # FP4 has two levels of scales, as TensorRT requires: the first is dequantized with the second.
        if pair.scale_shape is None and pair.dtype is not DType.FLOAT4 and not _is_dynamic(flow, pair):
            yield pair


def check_scale_computed(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs whose scale is computed at run time."""
    for pair in match_scale_computed(flow):
        effect = _effect(flow, pair, target)
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason="the scale is computed at run time",
            effect=effect,
            fix=f"calibrate the tensor and store its scale as a constant; {Command('repair', ('--samples', 'DATA'))} does",
            severity=Severity.WARNING if effect == _FLOAT else None,
            products=flow.products_of(pair),
        )


def _effect(flow: Flow, pair: QdqPair, target: Target) -> str:
    if target.is_rtx:
        ops = {flow.view.by_name[slot.node].op for slot in pair.slots}
        return _CRASHES if "Conv" in ops else _FLOAT
    if target.release == (10,):
        return f"10.0 refuses it; in later releases {_FLOAT}"
    return _FLOAT if target.reads_computed_scales else _REFUSED


def _is_dynamic(flow: Flow, pair: QdqPair) -> bool:
    """Return True if the scale comes from DynamicQuantizeLinear. A separate rule reports such scales."""
    node = flow.view.by_name[pair.dequantize or pair.quantize or ""]
    maker = flow.view.producer(node.inputs[1])
    return maker is not None and maker.op == "DynamicQuantizeLinear"


def fix_scale_computed(context: RepairContext) -> Iterator[Change]:
    """Remove activation Q/DQ pairs without a constant scale."""
    for pair in match_scale_computed(context.flow):
        if context.is_plain(pair):
            yield from context.removed(pair, "a scale that is computed at run time crashes the builder")


# --- scale_form ------------------------------------------------------------------------------------------------------


_QUANTIZERS = QDQ | {FP4_DYNAMIC, MX_DEQUANTIZE}
_LOST = "nothing to do by a command: without a valid scale, the meaning of the stored values is lost; in the tool that wrote the model"
_ZERO = 2
"""Input number of the zero point."""
_BLOCK_SCALES = frozenset({DType.FLOAT8, DType.INT8, DType.UNKNOWN})
"""Types of block scales with a global scale that the parser reads; only FLOAT8 is multiplied as such."""


def match_scale_form(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Yield Q and DQ nodes whose scale or zero point has a wrong shape or type, and the error."""
    levels = _levels(view)
    for node in view.nodes:
        if node.op not in _QUANTIZERS or len(node.inputs) < 2:
            continue
        fault = _of_constants(view, node) if node.op in {FP4_DYNAMIC, MX_DEQUANTIZE} else ""
        if not fault and node.name in levels:
            fault = _of_levels(view, node)
        fault = fault or _of_shapes(view, node) or _of_zero_point(node)
        if fault:
            yield node, fault


def check_scale_form(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report scales and zero points of a wrong shape or type, and zero points stored as floats."""
    eight = any(pair.dtype is DType.FLOAT8 for pair in flow.pairs)
    for pair in flow.pairs:
        if pair.dtype.is_float:
            node = flow.view.by_name[pair.quantize or pair.dequantize or ""]
            yield Violation(
                node=node.name,
                reason=f"the zero point is stored as {_word(pair.dtype)}",
                effect="TensorRT reads the quantized values as INT8, and onnxruntime refuses the model",
                fix=f"store the zero point in the type of the quantized values; {repairing(to_float=_readers(flow, node))} removes the Q/DQ",
                severity=Severity.ERROR if eight else Severity.WARNING,
            )
    for node, reason in match_scale_form(flow.view):
        value = flow.view.constant(node.inputs[1])
        alike = (
            value is not None and value.size > 1 and _same(value) is not None and _takes_one(flow.view, node)
        )
        if alike or reason == _EMPTY:
            way = (
                f"{REPAIR} does this"
                if reason == _EMPTY
                else f"the scales are equal: {REPAIR} replaces them by one scale"
            )
        elif _is_computed(flow.view, node):
            way = f"{repairing(to_float=_readers(flow, node))} removes the Q/DQ"
        else:
            way = ""
        form = _required_form(flow.view, node)
        fix = f"{form}; {way}" if way else f"{_LOST}, {form}"
        yield Violation(node=node.name, reason=reason, effect=_REFUSED, fix=fix)


def _is_computed(view: GraphView, node: Node) -> bool:
    """Return True if a node of the model computes the quantized values. Their float form is then available."""
    if node.op == MX_DEQUANTIZE:
        return False
    if node.op != DEQUANTIZE:
        return True
    maker = view.producer(node.inputs[0])
    return maker is not None and maker.op in DYNAMIC_TYPES | dict.fromkeys(QDQ)


def _readers(flow: Flow, node: Node) -> tuple[str, ...]:
    """Return the nodes that read a quantizer's values, also through more Q/DQ; if none, the quantizer."""
    readers: list[str] = []
    waiting, visited = list(node.outputs), set[str]()
    while waiting:
        for use in flow.view.uses(waiting.pop(0)):
            if use.node.name in visited:
                continue
            visited.add(use.node.name)
            if use.node.op in _QUANTIZERS:
                waiting += use.node.outputs
            else:
                readers.append(use.node.name)
    return tuple(readers) or (node.name,)


_EMPTY = "the zero point is an input without a name"


def _required_form(view: GraphView, node: Node) -> str:
    if node.op == MX_DEQUANTIZE:
        return "store one UINT8 exponent per block of 32"
    if node.op == FP4_DYNAMIC or node.name in _levels(view):
        return "store one positive FP32 scalar as the global scale, and the block scales as FP8"
    return "store one scalar, one scale per channel, or one per block along a single axis"


def _levels(view: GraphView) -> frozenset[str]:
    """Return the names of DequantizeLinear nodes that compute the block scales of other nodes from a global scale."""
    return frozenset(
        node.name
        for node in view.nodes
        if node.op == DEQUANTIZE
        and (uses := view.uses(node.outputs[0]))
        and all(use.index == 1 and use.node.op in QDQ for use in uses)
    )


def _takes_one(view: GraphView, node: Node) -> bool:
    return node.op == FP4_DYNAMIC or node.name in _levels(view)


def _of_constants(view: GraphView, node: Node) -> str:
    """Return the error in the scales of operators in TensorRT's own form; "" if there is none."""
    producer = view.producer(node.inputs[1])
    if node.op == MX_DEQUANTIZE and producer is not None and producer.op in DYNAMIC_TYPES:
        return ""
    value, dtype = view.constant(node.inputs[1]), view.info(node.inputs[1]).dtype
    if value is None:
        return "the scale is not a constant"
    if node.op == FP4_DYNAMIC:
        if not dtype.is_float:
            return f"the scale is stored as {_word(dtype)}"
        return (
            ""
            if value.size == 1
            else f"the node has {count_noun(value.size, 'scale')}, but only a scalar is allowed"
        )
    if dtype is DType.FLOAT8_E8M0:
        return ""  # the rule microscaled explains how to store them
    if value.dtype != np.uint8:
        return f"the scales are stored as {_word(dtype)}"
    return _misfit(node, value.shape, view.info(node.inputs[0]).shape, blocks=True)


def _of_levels(view: GraphView, node: Node) -> str:
    """Return the error in the block scales or the global scale of a two-level format; "" if there is none."""
    blocks, level = (view.info(name) for name in node.inputs[:2])
    maker = view.producer(node.inputs[0])
    if maker is None and any(not isinstance(size, int) for size in blocks.shape or ()):
        return "the number of block scales is unknown at build time"
    if maker is not None and maker.op not in DYNAMIC_TYPES | dict.fromkeys(QDQ):
        return f"the block scales are computed by {maker.op}"
    if blocks.dtype not in _BLOCK_SCALES and maker is None:
        return f"the block scales are stored as {_word(blocks.dtype)}"
    value = view.constant(node.inputs[1])
    if value is None:
        return ""
    if not level.dtype.is_float:
        return f"the global scale is stored as {_word(level.dtype)}"
    if value.size != 1:
        return f"the node has {count_noun(value.size, 'global scale')}, but only a scalar is allowed"
    fixed = view.is_constant(node.inputs[0])
    positive = is_number(value) and bool(np.all(np.asarray(value, np.float32) > 0))
    return (
        ""
        if positive or not fixed
        else f"the global scale is {float(np.asarray(value, np.float32).flat[0]):g}"
    )


def _of_shapes(view: GraphView, node: Node) -> str:
    scale, tensor = (view.info(node.inputs[place]).shape for place in (1, 0))
    if scale is None:
        return ""
    free = [size for size in scale if not isinstance(size, int)]
    producer = view.producer(node.inputs[1])
    if free and producer is None:
        return "the length of the scale is unknown at build time"
    two_levels = producer is not None and producer.op == DEQUANTIZE
    return "" if free else _misfit(node, scale, tensor, blocks=two_levels)


def _misfit(
    node: Node, scale: tuple[int | str, ...], tensor: tuple[int | str, ...] | None, *, blocks: bool
) -> str:
    """Return the error in the shape of a scale; "" if there is none. With `blocks`, a single scale is an error."""
    if tensor is None:
        return ""
    whole = "x".join(map(str, tensor)) or "a scalar"
    axis = node.integer("axis", 1)
    channels = len(scale) == 1 and -len(tensor) <= axis < len(tensor) and scale[0] == tensor[axis]
    ranks = {len(tensor)} if blocks else {0, 1, len(tensor)}
    if len(scale) not in ranks and not channels:
        return f"the scale has {count_noun(len(scale), 'dimension')}, the tensor is {whole}"
    if len(scale) < 2 or len(scale) != len(tensor):
        return ""
    sizes = enumerate(zip(scale, tensor, strict=True))
    if any(at != axis % len(tensor) and isinstance(of, int) and count != of for at, (count, of) in sizes):
        return (
            f"the scale is {'x'.join(map(str, scale))}, the tensor {whole}: only axis {axis} may have blocks"
        )
    return ""


def _of_zero_point(node: Node) -> str:
    has_none = node.op in QDQ and len(node.inputs) > _ZERO and not node.inputs[_ZERO]
    return _EMPTY if has_none else ""


def _word(dtype: DType) -> str:
    return "another type" if dtype is DType.UNKNOWN else dtype.value.upper()


def _same(value: NDArray[Any]) -> NDArray[Any] | None:
    """Return the common value of all scales as a scalar; None if scales differ."""
    if not value.size or not is_number(value) or not (value == value.flat[0]).all():
        return None
    scalar: NDArray[Any] = value.reshape(-1)[:1].reshape(())
    return scalar


def fix_scale_form(context: RepairContext) -> Iterator[Change]:
    """Replace equal scales by one scalar if the node needs a scalar. Remove zero points without a name."""
    view = context.view
    for quantizer, reason in match_scale_form(view):
        node = context.nodes[quantizer.name]
        if reason == _EMPTY:
            del node.input[_ZERO:]
            yield Change(
                subject=quantizer.name,
                what="input without a name removed",
                reason=f"{reason}: {_REFUSED}",
                error=0.0,
            )
            continue
        value = view.constant(quantizer.inputs[1])
        scalar = None if value is None or not _takes_one(view, quantizer) else _same(value)
        if scalar is not None and value is not None and value.ndim:
            context.edit.connect(node, 1, context.edit.constant(f"{quantizer.inputs[1]}_scalar", scalar))
            result = f"{count_noun(value.size, 'equal scale')} became one scalar"
            yield Change(subject=quantizer.name, what=result, reason=f"{reason}: {_REFUSED}", error=0.0)


# --- zero_point ------------------------------------------------------------------------------------------------------


def match_zero_point(flow: Flow) -> Iterator[QdqPair]:
    """Return the Q/DQ pairs whose zero point is computed or not 0."""
    return (pair for pair in flow.pairs if any(pair.zero_point) or (pair.scale and not pair.zero_point))


def check_zero_point(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report zero points that are computed or not 0."""
    for pair in match_zero_point(flow):
        node = pair.quantize or pair.dequantize or ""
        if any(pair.zero_point):
            values = sorted(set(pair.zero_point))
            shown = str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
            yield Violation(
                node=node,
                reason=f"the zero point is {shown}",
                effect="TensorRT ignores the zero point: every value is off by that many steps"
                if pair.dtype is DType.FLOAT8
                else "the parser refuses the model: shiftIsAllZeros(zeroPoint)",
                fix=f"quantize symmetrically with zero point 0; {REPAIR} converts the model",
            )
        else:
            constant = flow.view.is_constant(flow.view.by_name[node].inputs[-1])
            yield Violation(
                node=node,
                reason="the zero point is not a number"
                if constant
                else "the zero point is computed at run time",
                effect="the parser refuses the model: a zero point must be a constant",
                fix=_way(flow, pair),
            )


def _way(flow: Flow, pair: QdqPair) -> str:
    """Return the fix for a zero point that is computed at run time."""
    if pair.dtype is DType.FLOAT8:
        return f"write zero point 0, which TensorRT uses anyway; {REPAIR} does this"
    rule = "quantize symmetrically with zero point 0"
    if pair.quantize is None:
        return f"nothing to do by a command: without a valid zero point, the meaning of the stored values is lost; in the tool that wrote the model, {rule}"
    if pair.kind is SlotKind.ACTIVATION and pair.dtype in _PLAIN:
        return f"{rule}; {REPAIR} removes the pair"
    return f"{rule}; {repairing(to_float=flow.products_of(pair) or [pair.quantize])} removes the Q/DQ"


_PLAIN = frozenset({DType.INT8, DType.UINT8})


def fix_zero_point(context: RepairContext) -> Iterator[Change]:
    """Convert every Q/DQ pair that is not symmetric INT8, including UINT8 with zero point 0.

    Activations keep their range, weights their values.
    """
    yield from store_again(
        context, (pair for pair in context.pairs if not context.symmetric(pair)), _weight_reason
    )
    yield from _unknown_and_float(context)
    cut: dict[str, str] = {}
    for pair in context.pairs:
        if (
            not is_whole(pair)
            or pair.kind is SlotKind.WEIGHT
            or pair.scale_shape != ()
            or not pair.zero_point
        ):
            continue
        if context.symmetric(pair):
            yield from _write_out_zero(context, pair)
            continue
        low, high = context.span(pair)
        old = pair.scale[0]
        exact = np.isclose(low, INT8.qmin * old) and np.isclose(high, INT8.qmax * old)
        scale = old if exact else max(-low, high) / INT8.qmax
        kind = str(context.integers(pair))
        context.restate(pair, np.asarray(scale))
        source = cut_below(context.edit, context.view, pair.tensor, cut) if low == 0 else pair.tensor
        relu = source != pair.tensor
        if relu:
            context.edit.connect(context.nodes[pair.quantize or ""], 0, source)
        yield _zero_point_change(pair, old, scale, relu=relu, kind=kind)


def _unknown_and_float(context: RepairContext) -> Iterator[Change]:
    """Remove Q/DQ pairs with a computed zero point; set zero points of FP8 to 0, as TensorRT reads them."""
    for pair in match_zero_point(context.flow):
        if not pair.zero_point and context.is_plain(pair):
            yield from context.removed(pair, "the parser refuses a zero point that is computed at run time")
        if pair.dtype is not DType.FLOAT8 or (pair.zero_point and not any(pair.zero_point)):
            continue
        for name in (pair.quantize, pair.dequantize):
            node = context.nodes[name] if name else None
            if node is not None and len(node.input) > 2:
                zero = np.zeros(pair.scale_shape or (), get_storage_type(DType.FLOAT8))
                context.edit.connect(node, 2, context.edit.constant(f"{name}_zero_point", zero))
        yield Change(
            subject=pair.tensor,
            what=f"the FP8 zero point {f'{pair.zero_point[0]:g} ' if pair.zero_point else ''}became 0",
            reason="TensorRT ignores it, and other runtimes refuse it",
        )


def _weight_reason(_weight: StoredWeight) -> str:
    return "TensorRT accepts INT8 weights with zero point 0 only"


def _write_out_zero(context: RepairContext, pair: QdqPair) -> Iterator[Change]:
    """Add the zero points that one node of a Q/DQ pair omits."""
    if all(len(context.nodes[name].input) > 2 for name in (pair.quantize, pair.dequantize) if name):
        return
    context.restate(pair, np.asarray(pair.scale[0]))
    yield Change(
        subject=pair.tensor,
        what="zero point 0 written explicitly on both nodes",
        reason="without a zero point, ONNX assumes uint8, and FP16 models fail with type errors",
        error=0.0,
    )


def _zero_point_change(pair: QdqPair, old: float, scale: float, *, relu: bool, kind: str) -> Change:
    before = f"{kind} with zero point {pair.zero_point[0]}"
    result = (
        f"{before} became int8 with zero point 0, exactly"
        if scale == old
        else (f"{before} became int8 with zero point 0; the step grew from {old:.4g} to {scale:.4g}")
    )
    return Change(
        subject=pair.tensor,
        what=result + (", after the Relu that the zero point implied" if relu else ""),
        reason="TensorRT accepts symmetric INT8 only: the parser refuses other zero points, and reads uint8 as int8",
        error=0.0 if scale == old else None,
    )


# --- mixed_types -----------------------------------------------------------------------------------------------------


def check_mixed_types(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes whose operands have different float types; for TensorRT 8, also FP16 scales."""
    for node in flow.products():
        types = [_type(flow.view, tensor) for tensor in node.inputs[:2]]
        quantized = any(flow.origin(node, index) is not None for index in (0, 1))
        if quantized and types[0] is not types[1] and all(dtype.is_float for dtype in types):
            yield Violation(
                node=node.name,
                reason=f"one operand is {types[0]}, the other {types[1]}",
                effect="the parser refuses the node: both of its operands must have the same type",
                fix="store the scales of both Q/DQ pairs in the type of the float tensors; "
                f"{repairing(to_float=[node.name])} removes the Q/DQ",
            )
    if not target.reads_half_scales:
        for pair in flow.pairs:
            name = pair.dequantize or pair.quantize or ""
            step = flow.view.by_name[name].inputs[1]
            if flow.view.info(step).dtype is DType.FLOAT16:
                yield Violation(
                    node=name,
                    reason="the scale is FP16",
                    effect="TensorRT 8 needs FP32 scales and refuses FP16 scales",
                    fix="store scales as FP32 and let the --fp16 flag choose types",
                )


def _type(view: GraphView, tensor: str) -> DType:
    """Return the float type of an operand. After a DequantizeLinear it is the type of the scale.

    Before opset 19, ONNX itself states FP32.
    """
    maker = view.producer(tensor)
    if maker is None or maker.op != DEQUANTIZE:
        return view.info(tensor).dtype
    scale = view.info(maker.inputs[1]).dtype
    if scale is DType.FLOAT64:
        return DType.FLOAT32  # the parser reads FP64 constants as FP32
    return scale if scale.is_float else view.info(tensor).dtype


PLUGIN = {
    "scale_value": Rule(
        code="QDQ103",
        severity=Severity.ERROR,
        stage=Stage.LEGAL,
        after=("cast",),
        check=check_scale_value,
        fix=fix_scale_value,
    ),
    "scale_computed": Rule(
        code="QDQ104",
        severity=Severity.ERROR,
        stage=Stage.LEGAL,
        after=("cast",),
        check=check_scale_computed,
        fix=fix_scale_computed,
    ),
    "scale_form": Rule(
        code="QDQ198",
        severity=Severity.ERROR,
        stops=True,
        stage=Stage.WRITE_OUT,
        check=check_scale_form,
        fix=fix_scale_form,
    ),
    "zero_point": Rule(
        code="QDQ101",
        severity=Severity.ERROR,
        stage=Stage.LEGAL,
        after=("requantized",),
        check=check_zero_point,
        fix=fix_zero_point,
    ),
    "mixed_types": Rule(code="QDQ112", severity=Severity.ERROR, check=check_mixed_types),
}
