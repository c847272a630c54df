"""Quantization that is hidden in other arithmetic: casts, clips, and values beyond the range.

# cast

A Cast to or from FP16 between Q/DQ and its neighbours.

    Q ─ DQ (FP32 scale) ─ Cast (FP16) ─ Conv      float
    Q ─ DQ (FP16 scale) ─ Conv                    INT8

A Cast between DequantizeLinear and a Conv keeps the Conv in float. From opset 19 on, Q and DQ read and write FP16 if
their scale is FP16: the fix raises the opset if necessary and folds the Cast into the scale.

Evidence: RTX 1.7.1 runs the Conv in float (cast_between).

# border

Inputs and outputs of the model that are integers with a zero point.

    x (UINT8, zero point 128) ─ DQ ─ ...      refused
    x (UINT8) ─ Cast ─ Sub ─ Mul ─ ...        the same numbers in float

A model that reads or returns asymmetric integers has a DequantizeLinear or QuantizeLinear at its inputs or outputs. For
INT8 the fix writes a pair with zero point 0 and an addition; for other types it computes in float. The caller of the
model sees no difference. `qdqtool lint` reports the zero point as QDQ101.

Evidence: RTX 1.7.1 and TensorRT 8.x to 11 say `Assertion failed: shiftIsAllZeros(zeroPoint)`.

# clipped

A Clip on the integers between Q and DQ.

    x ─ Q (s) ─ Clip (0 ... 127) ─ DQ (s)      a Clip between Q and DQ
    x ─ Q (s') ─ DQ (s')                       the scale of the range that the Clip leaves

PyTorch's fake quantization with seven of eight bits (`reduce_range`) and Brevitas (QCDQ) export so. Clip of weights is
folded. On activations TensorRT for RTX builds it, but classic TensorRT does not clip integers. The fix is exact if INT8
has the same limits as the Clip; a Relu replaces a limit at the zero point.

Evidence: exports of PyTorch's fake quantization with `reduce_range` (FX graph mode). RTX 1.7.1 builds a QCDQ export
of three convolutions, all three in INT8.

# hidden

Q/DQ inside the body of an If or a Loop.

    If ── then: x ─ Q ─ DQ ─ y
       └─ else: x

TensorRT imports bodies of conditionals and loops only partly, and fuses nothing across their boundary. A float input
is quantized inside the body, in a separate kernel. Lint, prediction and audit do not check the bodies.

Evidence: RTX 1.7.1 runs a Conv with Q/DQ inside an If in INT8, after a quantize kernel in each branch (conv_inside_if);
a lone pair is a float kernel (pair_inside_if). Parser documentation of classic releases: If and Loop partly.

# saturation

A QuantizeLinear that TensorRT computes differently: FP8 that does not saturate, and division in another type.

    x ─ Q (FP8, saturate=0) ─ DQ      onnxruntime: NaN above 448. TensorRT: 448
    x ─ Q (FP8, saturate=1) ─ DQ      448 everywhere
    x ─ Q (precision=FLOAT16) ─ DQ    onnxruntime: x / scale is rounded to FP16 first. TensorRT: it is not

TensorRT does not read these attributes, so accuracy measured with another runtime differs from the engine's accuracy.
The fix removes these attributes; the engine does not change. Weights beyond the range are QDQ188.

Evidence: RTX 1.7.1 writes equal engine bytes for both values of saturate, and with and without precision. onnxruntime
1.31 gives NaN; with precision=FLOAT16, 1 step in 100 differs.

# weight_value

Weights stored in FP8 that are not numbers, and weights far beyond the range of their scale.

    w (FP8: 0x7F) ─ DQ ─ MatMul               every output that it meets is NaN
    w = 100 ─ Q (FP8, scale 0.01) ─ DQ        4.48: the largest value of FP8 is 448

E4M3 has NaN but no infinity; casting a weight beyond 448 without saturation gives NaN. With saturation, and in
integers, larger values are clipped. Calibration clips a little on purpose. If weights exceed the range more than four
times, the scale belongs to other weights, or is the reciprocal of the right one.

Evidence: RTX 1.7.1 builds such weights without a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT8, DType, QuantFormat, of_dtype
from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.canonical.opset import HALF_SCALES
from qdqtool.graph.qdq.encode import storable
from qdqtool.graph.qdq.flow import Flow, RepairContext, cast_to
from qdqtool.graph.qdq.unquantize import cut_below
from qdqtool.graph.view import GraphView, Node, dtype_of
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import PRODUCTS, QDQ, QUANTIZE, carried_inputs, carried_outputs

# --- cast ------------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from qdqtool.graph.view import Node


def fix_cast(context: RepairContext) -> Iterator[Change]:
    """Fold a Cast to FP16 into the DequantizeLinear before it, and a Cast from FP16 into the QuantizeLinear after it."""
    if _needs_half_scales(context):
        raised = context.require_opset(HALF_SCALES)
        yield Change(
            subject=context.path.name,
            what=raised or "",
            reason=f"Q/DQ nodes allow FP16 scales from opset {HALF_SCALES} on",
            error=0.0,
        )
    for pair in context.pairs:
        reader, maker = _cast_behind(context, pair), _cast_before(context, pair)
        if reader is None and maker is None:
            continue
        scale = storable(np.asarray(pair.scale, np.float32).reshape(pair.scale_shape or ()), np.float16)
        if pair.dequantize:
            _rescale(context, pair.dequantize, scale, half=reader is not None)
        if pair.quantize:
            _rescale(context, pair.quantize, scale, half=maker is not None)
        if reader is not None:
            context.redirect(reader.outputs[0], context.result(pair))
            yield _cast_change(pair.dequantize or "", f"Cast {reader.name!r} after it folded into its scale")
        if maker is not None:
            context.edit.connect(context.nodes[pair.quantize or ""], 0, maker.inputs[0])
            yield _cast_change(pair.quantize or "", f"Cast {maker.name!r} before it folded into its scale")


def _needs_half_scales(context: RepairContext) -> bool:
    """Return True if the model has, or will have, FP16 scales that its opset does not support."""
    return context.edit.opset < HALF_SCALES and any(
        _has_half_scale(context, pair) or _cast_behind(context, pair) or _cast_before(context, pair)
        for pair in context.pairs
    )


def _has_half_scale(context: RepairContext, pair: QdqPair) -> bool:
    names = [name for name in (pair.quantize, pair.dequantize) if name]
    return any(context.view.info(context.nodes[name].input[1]).dtype is DType.FLOAT16 for name in names)


def _cast_behind(context: RepairContext, pair: QdqPair) -> Node | None:
    reader = context.consumer(pair) if pair.dequantize and pair.scale else None
    is_cast = (
        reader is not None
        and reader.op == "Cast"
        and context.view.info(reader.outputs[0]).dtype is DType.FLOAT16
    )
    return reader if is_cast else None


def _cast_before(context: RepairContext, pair: QdqPair) -> Node | None:
    maker = context.view.producer(pair.tensor) if pair.quantize and pair.scale else None
    is_cast = (
        maker is not None and maker.op == "Cast" and context.view.info(maker.inputs[0]).dtype is DType.FLOAT16
    )
    return maker if is_cast else None


def _rescale(context: RepairContext, name: str, scale: NDArray[np.float32], *, half: bool) -> None:
    node = context.nodes[name]
    node.input[1] = context.edit.constant(node.input[1], scale.astype(np.float16) if half else scale)


def _cast_change(subject: str, result: str) -> Change:
    return Change(
        subject=subject,
        what=result,
        reason="a Cast between DequantizeLinear and a compute node keeps that node in float",
    )


# --- border ----------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from numpy.typing import NDArray


def fix_border(context: RepairContext) -> Iterator[Change]:
    """Replace each DequantizeLinear without Q, and each QuantizeLinear without DQ, if it is not symmetric INT8."""
    for pair in context.pairs:
        lone = pair.quantize is None or pair.dequantize is None
        if (
            not lone
            or pair.kind is SlotKind.WEIGHT
            or context.symmetric(pair)
            or not _is_single(context, pair)
        ):
            continue
        before = f"{context.integers(pair)} with zero point {pair.zero_point[0]}"
        if pair.quantize is None:
            _enter(context, pair)
        elif not pair.returned:
            continue
        else:
            _leave(context, pair)
        yield Change(
            subject=pair.tensor,
            what=f"{before} is {'read' if pair.quantize is None else 'written'} with float arithmetic",
            reason="TensorRT accepts INT8 with zero point 0 only; the inputs and outputs of the model keep their types and meaning",
            error=0.0,
        )


def _is_single(context: RepairContext, pair: QdqPair) -> bool:
    """Return True if a Q/DQ pair has one positive scale and one zero point."""
    return context.is_known(pair) and len(pair.scale) == 1 and pair.scale[0] > 0


def _enter(context: RepairContext, pair: QdqPair) -> None:
    """Replace a DequantizeLinear with a zero point by nodes with the same result: a symmetric Q/DQ pair and Sub, or Cast, Sub and Mul."""
    edit = context.edit
    node = context.nodes[pair.dequantize or ""]
    kind = context.scale_type(node)
    scale, zero = pair.scale[0], pair.zero_point[0]
    result = node.output[0]
    if context.integers(pair) == np.int8:
        node.output[0] = edit.fresh(f"{pair.tensor}_unshifted")
        context.restate(pair, np.asarray(scale))
        shift = edit.constant(f"{pair.tensor}_shift", np.asarray(scale * zero, kind))
        edit.node("Sub", [node.output[0], shift], [result], name=f"{node.name}_Sub")
        _follow_up(context, pair, result)
        return
    names = [edit.fresh(f"{pair.tensor}_{part}") for part in ("float", "shifted")]
    edit.remove([node])
    edit.node("Cast", [pair.tensor], [names[0]], name=f"{node.name}_Cast", to=cast_to(kind))
    edit.node(
        "Sub",
        [names[0], edit.constant(f"{pair.tensor}_shift", np.asarray(zero, kind))],
        [names[1]],
        name=f"{node.name}_Sub",
    )
    edit.node(
        "Mul",
        [names[1], edit.constant(f"{pair.tensor}_scale", np.asarray(scale, kind))],
        [result],
        name=f"{node.name}_Mul",
    )
    _follow_up(context, pair, result)


def _follow_up(context: RepairContext, pair: QdqPair, tensor: str) -> None:
    """Add a symmetric INT8 Q/DQ pair with the range of `pair` to `tensor`, if a compute node reads it."""
    small = context.integers(pair).itemsize == 1
    if tensor in context.pinned or not small or not _feeds_compute(context.view, tensor):
        return
    edit = context.edit
    low, high = context.span(pair)
    kind = context.scale_type(context.nodes[pair.dequantize or ""])
    scale = edit.constant(f"{tensor}_scale", np.asarray(max(-low, high) / INT8.qmax, kind))
    zero = edit.constant(f"{tensor}_zero_point", np.asarray(0, np.int8))
    integers, result = edit.fresh(f"{tensor}_quantized"), edit.fresh(f"{tensor}_again")
    context.redirect(tensor, result)
    edit.node("QuantizeLinear", [tensor, scale, zero], [integers], name=f"{tensor}_QuantizeLinear")
    edit.node("DequantizeLinear", [integers, scale, zero], [result], name=f"{tensor}_DequantizeLinear")


def _feeds_compute(view: GraphView, tensor: str) -> bool:
    """Return True if a compute node reads the tensor: directly, or after operators that only move values."""
    waiting = [tensor]
    while waiting:
        for use in view.uses(waiting.pop()):
            if use.node.op in PRODUCTS and use.index < 2:
                return True
            if use.index in carried_inputs(view, use.node):
                waiting += carried_outputs(use.node)
    return False


def _leave(context: RepairContext, pair: QdqPair) -> None:
    """Replace a QuantizeLinear with a zero point by nodes with the same result: Add and a symmetric Q, or Div, Round, Add, Clip, Cast."""
    edit = context.edit
    node = context.nodes[pair.quantize or ""]
    kind = context.scale_type(node)
    scale, zero = pair.scale[0], pair.zero_point[0]
    if context.integers(pair) == np.int8:
        shifted = edit.fresh(f"{pair.tensor}_shifted")
        shift = edit.constant(f"{pair.tensor}_shift", np.asarray(scale * zero, kind))
        edit.node("Add", [pair.tensor, shift], [shifted], name=f"{node.name}_Add")
        edit.connect(node, 0, shifted)
        context.restate(pair, np.asarray(scale))
        return
    limits = np.iinfo(context.integers(pair))
    steps: list[tuple[str, list[NDArray[np.float32]]]] = [
        ("Div", [np.asarray(scale, kind)]),
        ("Round", []),
        ("Add", [np.asarray(zero, kind)]),
        ("Clip", [np.asarray(limits.min, kind), np.asarray(limits.max, kind)]),
    ]
    edit.remove([node])
    tensor = node.input[0]
    for op, operands in steps:
        result = edit.fresh(f"{pair.tensor}_{op}")
        names = [edit.constant(f"{pair.tensor}_{op}_operand", operand) for operand in operands]
        edit.node(op, [tensor, *names], [result], name=f"{node.name}_{op}")
        tensor = result
    target = cast_to(context.integers(pair))
    edit.node("Cast", [tensor], [node.output[0]], name=f"{node.name}_Cast", to=target)


# --- clipped ---------------------------------------------------------------------------------------------------------

_EXACT = frozenset({(0, INT8.qmax), (INT8.qmin, INT8.qmax)})
"""Integer limits of a Clip, relative to the zero point, that INT8 represents exactly. A limit of 0 becomes a Relu."""


def fix_clipped(context: RepairContext) -> Iterator[Change]:
    """Remove a Clip of integers between Q and DQ. The new symmetric scale covers its limits."""
    cut: dict[str, str] = {}
    for pair in context.pairs:
        clip = context.view.producer(pair.tensor) if pair.quantize is None else None
        quantize = _quantize(context, pair, clip)
        if clip is None or quantize is None:
            continue
        limits = _limits(context, pair, clip)
        step = pair.scale[0]
        low, high = (limit - pair.zero_point[0] for limit in limits)
        if low >= high:
            continue
        exact = (low, high) in _EXACT
        scale = step if exact else max(-low, high) * step / INT8.qmax
        node = context.nodes[pair.dequantize or ""]
        twin = context.edit.node(
            "QuantizeLinear",
            [quantize.inputs[0], *node.input[1:]],
            [context.edit.fresh(f"{quantize.inputs[0]}_quantized")],
            name=f"{node.name}_QuantizeLinear",
        )
        context.edit.connect(node, 0, twin.output[0])
        context.restate_nodes((twin, node), quantize.inputs[0], np.asarray(scale))
        if low == 0:
            context.edit.connect(twin, 0, cut_below(context.edit, context.view, quantize.inputs[0], cut))
        yield Change(
            subject=clip.name,
            what=f"Clip of integers to {limits[0]} ... {limits[1]} removed; the scale is {scale:.4g} now, was {step:.4g}",
            reason="TensorRT does not import Clip on integers, and the pair around it would not fuse",
            error=0.0 if exact else None,
        )


def _quantize(context: RepairContext, pair: QdqPair, clip: Node | None) -> Node | None:
    """Return the QuantizeLinear before the Clip that feeds the Q/DQ pair's DequantizeLinear; None if there is none."""
    is_simple = pair.kind is SlotKind.ACTIVATION and len(pair.scale) == 1 and len(pair.zero_point) == 1
    if clip is None or clip.op != "Clip" or not is_simple or not pair.scale[0] > 0:
        return None
    maker = context.view.producer(clip.inputs[0])
    bounds = [name for name in clip.inputs[1:] if name]
    numbers = context.view.by_name[pair.dequantize or ""].inputs[1:]
    is_pair = maker is not None and maker.op == "QuantizeLinear" and maker.inputs[1:] == numbers
    return maker if is_pair and all(context.view.is_constant(name) for name in bounds) else None


def _limits(context: RepairContext, pair: QdqPair, clip: Node) -> tuple[int, int]:
    """Return the smallest and the largest integer that a Clip allows."""
    kind = np.iinfo(context.integers(pair))
    bounds = [context.edit.value(name) if name else None for name in (*clip.inputs[1:], "", "")]
    low, high = bounds[0], bounds[1]
    return (
        kind.min if low is None else int(low.reshape(())),
        kind.max if high is None else int(high.reshape(())),
    )


# --- hidden ----------------------------------------------------------------------------------------------------------

_WAY_OUT = "nothing to do by a command: remove the control flow in the exporting code. In PyTorch, decide a condition in Python before torch.onnx.export, or compute both branches and select with torch.where; torch.jit.trace unrolls a loop of known length"


def check_hidden(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report control-flow nodes with Q/DQ in their bodies."""
    for node in flow.view.nodes:
        count = sum(op in QDQ for op in flow.view.body_ops(node))
        if count:
            yield Violation(
                node=node.name,
                reason=f"{count_noun(count, 'Q/DQ node is', 'Q/DQ nodes are')} inside the bodies of this {node.op}",
                effect="TensorRT fuses nothing across the boundary of a body, and qdqtool does not check the nodes inside",
                fix=_WAY_OUT,
                severity=Severity.INFO if target.is_rtx else None,
            )


# --- saturation ------------------------------------------------------------------------------------------------------


def match_saturation(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Yield QuantizeLinear nodes with an attribute that TensorRT ignores (saturate=0 or precision), and the attribute's name.

    `precision` counts if it is not the type of the scale, which is its default.
    """
    for node in view.nodes:
        if node.op != QUANTIZE:
            continue
        if not node.attribute("saturate", 1):
            yield node, "saturate"
        chosen = node.integer("precision", 0)
        if chosen and dtype_of(chosen) is not view.info(node.inputs[1]).dtype:
            yield node, "precision"


def check_saturation(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report QuantizeLinear nodes with saturate=0, or with the attribute precision."""
    for node, name in match_saturation(flow.view):
        if name == "saturate":
            yield Violation(
                node=node.name,
                reason="the attribute saturate is 0",
                effect="TensorRT still clips to the largest value, but other runtimes give NaN",
                fix=f"set the attribute saturate of the QuantizeLinear to 1; {REPAIR} does this",
            )
            continue
        kind = str(dtype_of(node.integer("precision", 0))).upper()
        yield Violation(
            node=node.name,
            reason=f"the attribute precision is {kind}, which is not the type of the scale",
            effect="TensorRT ignores this attribute, but other runtimes round to this type before they quantize",
            fix=f"remove the attribute precision from the QuantizeLinear; {REPAIR} does this",
        )


def fix_saturation(context: RepairContext) -> Iterator[Change]:
    """Remove the attributes saturate and precision of QuantizeLinear. TensorRT computes with their defaults."""
    for quantizer, name in list(match_saturation(context.view)):
        node = context.nodes[quantizer.name]
        kept = [field for field in node.attribute if field.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if name == "saturate":
            yield Change(
                subject=node.name,
                what="saturate=0 became saturate=1",
                reason="TensorRT clips in either case, and other runtimes give NaN beyond the range",
                error=0.0,
            )
        else:
            yield Change(
                subject=node.name,
                what="precision removed",
                reason="TensorRT ignores this attribute, and other runtimes round before they quantize",
            )


# --- weight_value ----------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLIPPED = 4
"""Ratio of largest weight to range above which a weight is reported; calibrators that clip stay far below."""


def check_weight_value(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report stored FP8 constants with a NaN, and weights with values far beyond the range of their scale."""
    for pair in flow.pairs:
        if pair.kind is not SlotKind.WEIGHT or pair.quantize is not None or pair.dtype is not DType.FLOAT8:
            continue
        value = flow.view.constant(pair.tensor)
        count = 0 if value is None else int(np.isnan(value.astype(np.float32)).sum())
        if count:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"{count} of the {value.size if value is not None else 0} stored values of {pair.tensor} are NaN",
                effect="every output computed from these values is NaN",
                fix=f"the NaN values cannot be recovered: quantize the float model again with {Command('run', ('FLOAT_MODEL', '--recipe', 'transformer-fp8', '--sm', '89'))}",
            )
    for slot, entry in flow.lifted.assignment.items():
        assigned = flow.by_slot.get(slot)
        if assigned is not None and entry.scale is not None and entry.block is None:
            yield from _report_clipped(flow, assigned, entry.scale, entry.axis, entry.format)
    # `lift` does not read a pair without saturation, and its weights are clipped anyway
    for pair in flow.pairs:
        format_ = of_dtype(pair.dtype)
        quantize = flow.view.by_name.get(pair.quantize or "")
        saturates = quantize is None or quantize.attribute("saturate", 1)
        if format_ is not None and pair.scale and pair.dequantize and not saturates:
            axis = pair.axis if pair.scale_shape else None
            yield from _report_clipped(flow, pair, np.array(pair.scale, np.float32), axis, format_)


def _command(flow: Flow, pair: QdqPair, format_: QuantFormat) -> str:
    readers = flow.products_of(pair) or (pair.quantize or "",)
    if format_ is INT8 and flow.products_of(pair):
        return f"{repairing(to_int8=readers)} quantizes the weight again"
    return f"{repairing(to_float=readers)} removes the Q/DQ"


def _report_clipped(
    flow: Flow, pair: QdqPair, scale: NDArray[Any], axis: int | None, format_: QuantFormat
) -> Iterator[Violation]:
    """Report a float weight before a Q if its largest value is far beyond the range of its scale."""
    value = None if pair.quantize is None else flow.view.constant(pair.tensor)
    if value is None or value.size == 0:
        return
    axes = tuple(dim for dim in range(value.ndim) if dim != axis) if axis is not None else None
    largest = np.abs(value).max(axis=axes)
    times = float((largest / (np.abs(scale) * format_.qmax)).max())
    if np.isfinite(times) and times > _CLIPPED:
        yield Violation(
            node=pair.quantize or "",
            reason=f"the largest value of {pair.tensor} is {times:.3g} times the largest value that its scale can represent",
            effect=f"the value is clipped to {format_.qmax:g} steps, and the results computed from it are wrong",
            fix=f"store its largest magnitude / {format_.qmax:g} as the scale; {_command(flow, pair, format_)}",
            severity=Severity.WARNING,
        )


PLUGIN = {
    "cast": Rule(code="QDQ153", stage=Stage.LEGAL, after=("bias",), fix=fix_cast),
    "border": Rule(
        code="QDQ154", formats=frozenset({"int8"}), stage=Stage.LEGAL, after=("zero_point",), fix=fix_border
    ),
    "clipped": Rule(
        code="QDQ119", formats=frozenset({"int8"}), stage=Stage.WRITE_OUT, after=("domain",), fix=fix_clipped
    ),
    "hidden": Rule(code="QDQ114", severity=Severity.WARNING, check=check_hidden),
    "saturation": Rule(
        code="QDQ187",
        formats=frozenset({"fp8"}),
        severity=Severity.WARNING,
        stage=Stage.WRITE_OUT,
        after=("domain",),
        check=check_saturation,
        fix=fix_saturation,
    ),
    "weight_value": Rule(
        code="QDQ188", formats=frozenset({"fp8"}), severity=Severity.ERROR, check=check_weight_value
    ),
}
