"""Quantization that other tools write as custom operators.

# domain

Q/DQ nodes of the domain com.microsoft.

    x ─ com.microsoft.QuantizeLinear ─ com.microsoft.DequantizeLinear ─ Conv
    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv

They mean the same as ONNX's operators, and TensorRT for RTX reads them. They are not part of the standard: checkers,
other builders and converters may refuse the file. Use them only for types that opset 21 lacks.

Evidence: RTX 1.7.1 builds com_microsoft_qdq as INT8, in FP32 and, with FP16 scales, in FP16.

# own_spelling

Q and DQ as TensorRT's own operators, which no other runtime supports.

    x ─ trt.TRT_FP8QuantizeLinear ─ trt.TRT_FP8DequantizeLinear ─ MatMul
    x ─ QuantizeLinear (FP8) ─ DequantizeLinear ─ MatMul                      the same kernels

nvidia-modelopt writes them for opsets that lack FP8 or INT4. TensorRT reads both forms; onnxruntime reads only the
second, so its accuracy can be compared. No runtime reads `TRT_FP4QDQ`, which rounds float weights to FP4 for training:
the fix stores the weight as FP4, in blocks of 16 with FP8 scales.

Evidence: RTX 1.7.1 builds an FP8 `gemm` and an INT4 `runtime_fusion` of either spelling, and refuses TRT_FP4QDQ.

# operator

Operators that compute with integers themselves.

    Q ─ QLinearConv ─ DQ                     refused
    Q ─ DQ ─ Conv ─ Q ─ DQ (and w ─ DQ)      INT8

QLinearConv, ConvInteger, DynamicQuantizeLinear and such operators of com.microsoft are onnxruntime's form of INT8. TensorRT
supports only QuantizeLinear and DequantizeLinear around float operators.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE (qlinearconv, dynamicquantizelinear).

# dynamic

Ranges of activations that are measured at run time.

    x ─ DynamicQuantizeLinear ─ MatMulInteger ─ Cast ─ Mul      refused
    x ───────────────────────── MatMul (w ─ DQ)                 a float activation beside an INT8 weight

onnxruntime's dynamic quantization writes DynamicQuantizeLinear, then ConvInteger or MatMulInteger, Cast, and a Mul
with both scales. Older releases add the rounded bias before the Cast, or write one operator of com.microsoft for all
these nodes. TensorRT imports none of these operators, and needs ranges at build time. The fix keeps the INT8 weights
with a DequantizeLinear; the activations stay float until they are calibrated (`qdqtool repair --samples DATA`).
`qdqtool lint` reports the operators as QDQ107. A DynamicQuantizeLSTM becomes an LSTM with float weights, because no
builder has an INT8 kernel for it (QDQ177).

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE (dynamicquantizelinear, DynamicQuantizeLSTM: a public text
recognizer).

# other_quantizer

Quantizers of another tool, in operators that TensorRT does not import.

    x ─ qonnx.custom_op.general.Quant ─ Conv        refused
    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv    INT8

QONNX (Brevitas, QKeras), AMD Quark, OpenVINO and the fake quantization of training toolkits write their own operators.
A model with them is not a float model and must not be calibrated. The fix writes Q and DQ if they compute the same
result: for a Quant of 8 signed bits that rounds to nearest, with zero point 0; for a Quant of fewer bits on a weight;
for an Extended Q or DQ of 8-bit integers. For other quantizers, start from an export with Q/DQ.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE. Forms: QONNX's documentation of Quant, Quark's of its custom
operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.grids import get_storage_type
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT4, NVFP4, DType
from qdqtool.core.wording import REPAIR
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.qdq.encode import block_scales, effective, encode
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.qdq.other_tools import convert, standardise
from qdqtool.graph.qdq.other_tools import other_quantizers as match
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import FLOAT_FORM, QDQ, computes_integers, weight_axis

# --- domain ----------------------------------------------------------------------------------------------------------

_FOREIGN: Final = "com.microsoft"


def match_domain(view: GraphView) -> Iterator[Node]:
    """Return the Q and DQ nodes of the domain com.microsoft."""
    return (node for node in view.nodes if node.op in QDQ and node.domain == _FOREIGN)


def check_domain(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report each Q/DQ pair with a Q or DQ node of the domain com.microsoft. A pair is reported once."""
    foreign = {node.name for node in match_domain(flow.view)}
    for pair in flow.pairs:
        if not foreign.isdisjoint({pair.quantize, pair.dequantize}):
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the nodes belong to the domain {_FOREIGN}",
                effect="TensorRT for RTX reads these nodes; other readers of ONNX may not",
                fix=f"use the operators of the ONNX domain (opset 21 has all integer types), or {REPAIR}",
            )


def fix_domain(context: RepairContext) -> Iterator[Change]:
    """Move Q/DQ nodes to the default domain."""
    for node in match_domain(context.view):
        context.nodes[node.name].domain = ""
        yield Change(
            subject=node.name,
            what=f"{_FOREIGN}.{node.op} became the standard operator",
            reason=f"TensorRT reads the {_FOREIGN} form in FP32 only",
            error=0.0,
        )


# --- own_spelling ----------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx

_ROUNDS_WEIGHTS: Final = "TRT_FP4QDQ"


def match_own_spelling(flow: Flow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of Q and DQ nodes in TensorRT's own form, and of TRT_FP4QDQ nodes, which no parser imports."""
    return flow.spelled_apart, tuple(node.name for node in flow.view.nodes if node.op == _ROUNDS_WEIGHTS)


def check_own_spelling(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q and DQ nodes in TensorRT's own form, and TRT_FP4QDQ nodes."""
    spelled, rounding = match_own_spelling(flow)
    for name in spelled:
        yield Violation(
            node=name,
            reason="this node is TensorRT's own form of Q or DQ",
            effect="TensorRT reads this form; onnxruntime and other readers of ONNX do not",
            fix=f"use the operators of ONNX; {REPAIR} does this",
        )
    for name in rounding:
        yield Violation(
            node=name,
            reason=f"{_ROUNDS_WEIGHTS} rounds a float weight to FP4, as quantization-aware training does",
            effect="the parser does not know this operator",
            fix=f"store the weight as FP4 with a DequantizeLinear; {REPAIR} does this",
            severity=Severity.ERROR,
        )


def fix_own_spelling(context: RepairContext) -> Iterator[Change]:
    """Rewrite Q and DQ nodes in TensorRT's own form, and TRT_FP4QDQ nodes, as ONNX operators."""
    spelled, rounding = match_own_spelling(context.flow)
    if not rounding and not spelled:
        return
    context.require_opset(NVFP4.opset if rounding else INT4.opset)
    for name, old in standardise(context.edit):
        yield Change(
            subject=name,
            what=f"{old} became the operator of ONNX",
            reason="only TensorRT reads its own form",
            error=0.0,
        )
    for node in [context.nodes[name] for name in rounding]:
        if _store(context, node):
            yield Change(
                subject=node.input[0],
                what="float weight of TRT_FP4QDQ stored as FP4, in blocks of 16 with FP8 scales",
                reason="TensorRT does not import TRT_FP4QDQ",
                error=0.0,
            )


def _store(context: RepairContext, node: onnx.NodeProto) -> bool:
    """Replace a TRT_FP4QDQ node by a stored FP4 weight with blocks along the last axis; return False if that is impossible."""
    edit = context.edit
    value = edit.value(node.input[0]) if node.input else None
    block = NVFP4.block or 0
    if value is None or not value.ndim or value.shape[-1] % block:
        return False
    axis = value.ndim - 1
    scale, level = block_scales(value, NVFP4, axis, block)
    stored = encode(value, effective(scale, level), NVFP4, axis, block)
    stem = node.input[0]
    kind = value.dtype
    low = edit.constant(
        f"{stem}_scale", scale.astype(get_storage_type(NVFP4.scale_dtype)) if NVFP4.scale_dtype else scale
    )
    high = edit.constant(f"{stem}_global_scale", np.asarray(level, kind))
    scales = edit.fresh(f"{stem}_scales")
    edit.node("DequantizeLinear", [low, high], [scales], name=f"{node.name}_scales_DequantizeLinear")
    edit.node(
        "DequantizeLinear",
        [edit.constant(f"{stem}_nvfp4", stored), scales],
        [node.output[0]],
        name=f"{node.name}_DequantizeLinear",
        axis=axis,
        block_size=block,
    )
    edit.remove([node])
    return True


# --- operator --------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx

_MICROSOFT = "com.microsoft"
_PER_AXIS = 13
"""The first opset in which Softmax computes along one axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _OperatorForm:
    """Layout of the inputs and outputs of an integer operator.

    Attributes:
        op: the float operator that it means.
        inputs: positions of each operand's (integers, scale, zero point).
        output: positions of the result's (scale, zero point).
        bias: position of an INT32 bias, which has the product of the first two scales.
        dropped: attributes that the float operator does not have.
    """

    op: str
    inputs: tuple[tuple[int, int, int], ...]
    output: tuple[int, int]
    bias: int | None = None
    dropped: frozenset[str] = field(default_factory=frozenset)


_PAIR = ((0, 1, 2), (3, 4, 5))
_ONE = ((0, 1, 2),)
_CHANNELS = frozenset({"channels_last"})
_FORMS: Mapping[tuple[str, str], _OperatorForm] = {
    ("", "QLinearConv"): _OperatorForm(op="Conv", inputs=_PAIR, output=(6, 7), bias=8),
    (_MICROSOFT, "QLinearConv"): _OperatorForm(
        op="Conv", inputs=_PAIR, output=(6, 7), bias=8, dropped=_CHANNELS
    ),
    ("", "QLinearMatMul"): _OperatorForm(op="MatMul", inputs=_PAIR, output=(6, 7)),
    (_MICROSOFT, "QGemm"): _OperatorForm(op="Gemm", inputs=_PAIR, output=(7, 8), bias=6),
    (_MICROSOFT, "QLinearAdd"): _OperatorForm(op="Add", inputs=_PAIR, output=(6, 7)),
    (_MICROSOFT, "QLinearMul"): _OperatorForm(op="Mul", inputs=_PAIR, output=(6, 7)),
    (_MICROSOFT, "QLinearSigmoid"): _OperatorForm(op="Sigmoid", inputs=_ONE, output=(3, 4)),
    (_MICROSOFT, "QLinearLeakyRelu"): _OperatorForm(op="LeakyRelu", inputs=_ONE, output=(3, 4)),
    (_MICROSOFT, "QLinearSoftmax"): _OperatorForm(
        op="Softmax", inputs=_ONE, output=(3, 4), dropped=frozenset({"opset"})
    ),
    (_MICROSOFT, "QLinearAveragePool"): _OperatorForm(
        op="AveragePool", inputs=_ONE, output=(3, 4), dropped=_CHANNELS
    ),
    (_MICROSOFT, "QLinearGlobalAveragePool"): _OperatorForm(
        op="GlobalAveragePool", inputs=_ONE, output=(3, 4), dropped=_CHANNELS
    ),
}


def match_operator(view: GraphView) -> Iterator[Node]:
    """Return the nodes of integer operators."""
    return (node for node in view.nodes if computes_integers(node.op))


def check_operator(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report integer operators, which TensorRT does not import."""
    for node in match_operator(flow.view):
        yield Violation(
            node=node.name,
            reason=f"{node.op} computes with integers instead of Q/DQ and float operators",
            effect="the parser does not know this operator",
            fix="export the model in Q/DQ format (onnxruntime: QuantFormat.QDQ)"
            + (f"; {REPAIR} converts most of them" if _has_scales(flow, node) else ""),
        )


def _has_scales(flow: Flow, node: Node) -> bool:
    """Return True if the model defines the scale of the integers. Integers that are model inputs have no scale."""
    return "Integer" not in node.op or flow.view.producer(node.inputs[0]) is not None


def fix_operator(context: RepairContext) -> Iterator[Change]:
    """Rewrite each known integer operator as DQ, a float operator, and Q."""
    for operator in match_operator(context.view):
        node = context.nodes[operator.name]
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) == (_MICROSOFT, "QLinearConcat"):
            form: _OperatorForm | None = _concat(node)
        else:
            form = _FORMS.get((domain, node.op_type))
        if form is None or _last_channels(node) or not _is_complete(node, form) or _flattens(operator):
            continue
        _rewrite_operator(context, node, form)
        yield Change(
            subject=node.name,
            what=f"{node.op_type} became DequantizeLinear, {form.op}, QuantizeLinear",
            reason=f"TensorRT does not import {node.op_type}",
            error=0.0,
        )


def _is_complete(node: onnx.NodeProto, form: _OperatorForm) -> bool:
    """Return True if an integer operator has all its integers and scales. Zero points are optional."""
    needed = [position for operand in form.inputs for position in operand[:2]]
    return bool(form.inputs) and all(at(node.input, position) for position in (*needed, form.output[0]))


def _last_channels(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)


def _flattens(operator: Node) -> bool:
    """Return True for a QLinearSoftmax that flattens its input to a matrix, as Softmax did before opset 13.

    Along the last axis both compute equal values.
    """
    flattens = operator.op == "QLinearSoftmax" and operator.integer("opset", 0) < _PER_AXIS
    return flattens and operator.integer("axis", -1) != -1


def _concat(node: onnx.NodeProto) -> _OperatorForm:
    """Return the layout of QLinearConcat: first the scale of its result, then three inputs for each operand."""
    operands = tuple((start, start + 1, start + 2) for start in range(2, len(node.input) - 2, 3))
    return _OperatorForm(op="Concat", inputs=operands, output=(0, 1))


def _rewrite_operator(context: RepairContext, node: onnx.NodeProto, form: _OperatorForm) -> None:
    edit = context.edit
    operands = []
    for number, positions in enumerate(form.inputs):
        names = [at(node.input, position) for position in positions]
        result = edit.fresh(f"{names[0]}_{node.name}_float")
        axis = _axis(context, names, (node, form.op, number))
        inputs = [name for name in names if name]
        edit.node("DequantizeLinear", inputs, [result], name=f"{node.name}_{number}_DequantizeLinear", **axis)
        operands.append(result)
    if form.bias is not None and at(node.input, form.bias):
        operands.append(_bias(context, node, form))
    float_result = edit.fresh(f"{node.output[0]}_float")
    twin = edit.node(form.op, operands, [float_result], name=f"{node.name}_{form.op}")
    twin.attribute.extend(attribute for attribute in node.attribute if attribute.name not in form.dropped)
    scale, zero = (at(node.input, position) for position in form.output)
    if not zero:
        signed = context.view.info(node.input[form.inputs[0][0]]).dtype is DType.INT8
        zero = edit.constant(f"{node.output[0]}_zero_point", np.zeros((), np.int8 if signed else np.uint8))
    edit.node(
        "QuantizeLinear", [float_result, scale, zero], [node.output[0]], name=f"{node.name}_QuantizeLinear"
    )
    edit.remove([node])


def _axis(
    context: RepairContext, names: list[str], operand: tuple[onnx.NodeProto, str, int]
) -> dict[str, int]:
    """Return the axis attribute for a scale with one value per channel; {} for a single scale."""
    scale = context.edit.constants.get(names[1])
    if scale is None or not scale.dims or scale.dims[0] == 1:
        return {}
    node, op, number = operand
    twin = replace(context.view.by_name[node.name], op=op)
    rank = len(context.view.info(names[0]).shape or ())
    return {"axis": weight_axis(twin, number, rank) or 0}


def _bias(context: RepairContext, node: onnx.NodeProto, form: _OperatorForm) -> str:
    """Return the INT32 bias as float: the integers times both scales, and times alpha of a QGemm."""
    edit = context.edit
    name = node.input[form.bias or 0]
    scales = [edit.value(node.input[positions[1]]) for positions in form.inputs]
    value = edit.value(name)
    factor = context.view.by_name[node.name].attribute("alpha", 1.0)
    if value is None or any(scale is None for scale in scales):
        both, scale, result = (edit.fresh(f"{name}_{part}") for part in ("scales", "scale", "float"))
        edit.node(
            "Mul", [node.input[positions[1]] for positions in form.inputs], [both], name=f"{node.name}_scales"
        )
        alpha = edit.constant(f"{name}_alpha", np.asarray(factor, np.float32))
        edit.node("Mul", [both, alpha], [scale], name=f"{node.name}_scale")
        edit.node(
            "DequantizeLinear", [name, scale], [result], name=f"{node.name}_bias_DequantizeLinear", axis=0
        )
        return result
    product: Any = np.float64(factor)
    for scale_value in scales:
        product = product * np.asarray(scale_value, np.float64)
    return edit.constant(f"{name}_float", (value * product.reshape(-1)).astype(np.float32))


# --- dynamic ---------------------------------------------------------------------------------------------------------


ROUNDED_BIAS = ("Reshape", "Cast", "Floor", "Div")
"""Operators that onnxruntime adds to the bias of a dynamically quantized Conv, from the Add back to the float bias."""


_LSTM = (
    *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
)
"""Inputs of DynamicQuantizeLSTM; those of an ordinary LSTM come first."""
_ENDS = ("", "_scale", "_zero_point")
_RANK = 3
"""Number of dimensions of W and R."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pattern:
    """The nodes of one dynamically quantized layer.

    Attributes:
        core: ConvInteger or MatMulInteger.
        source: the float activation.
        weight: the integer weight.
        zero_point: its zero point, "" if it has none.
        scale: its scale.
        end: name of the node that makes the result.
        result: the float tensor at the end.
        bias: the float bias of a Conv that was added in integers; "" if there is none.
    """

    core: Node
    source: str
    weight: str
    zero_point: str
    scale: str
    end: str
    result: str
    bias: str = ""


def fix_dynamic(context: RepairContext) -> Iterator[Change]:
    """Rewrite each dynamically quantized layer as Conv or MatMul with an INT8 weight."""
    for node in context.view.nodes:
        yield from _round_trip(context, node)
        yield from _recurrent(context, node)
        pattern = _pattern(context, node)
        if pattern is None:
            continue
        _rewrite_dynamic(context, pattern)
        yield Change(
            subject=node.name,
            what=f"{node.op} became {pattern.core.op.removesuffix('Integer')} with an INT8 weight and a float activation",
            reason="TensorRT needs ranges at build time, and does not import operators that measure ranges at run time",
        )


def _round_trip(context: RepairContext, node: Node) -> Iterator[Change]:
    """Remove a DequantizeLinear directly after a DynamicQuantizeLinear; its readers then read the float tensor."""
    dynamic = context.view.producer(node.inputs[0]) if node.op == "DequantizeLinear" else None
    if dynamic is None or dynamic.op != "DynamicQuantizeLinear":
        return
    if node.outputs[0] in context.pinned:
        context.edit.remove([context.nodes[node.name]])
        context.edit.node("Identity", [dynamic.inputs[0]], [node.outputs[0]], name=f"{node.name}_Identity")
    else:
        context.redirect(node.outputs[0], dynamic.inputs[0])
    yield Change(
        subject=dynamic.name,
        what="removed together with its DequantizeLinear: the activation is float",
        reason="TensorRT needs ranges at build time, and does not import operators that measure ranges at run time",
    )


def _recurrent(context: RepairContext, node: Node) -> Iterator[Change]:
    """Rewrite com.microsoft.DynamicQuantizeLSTM as LSTM. Its integers W and R have the shape (directions, inputs, 4 * hidden)."""
    if node.domain != "com.microsoft" or node.op != "DynamicQuantizeLSTM" or len(node.inputs) < len(_LSTM):
        return
    first, second = (
        _weight(context, *(node.inputs[_LSTM.index(part + end)] for end in _ENDS)) for part in "WR"
    )
    if first is None or second is None:
        return
    old = context.nodes[node.name]
    old.input[1] = context.edit.constant(f"{node.name}_W", first)
    old.input[2] = context.edit.constant(f"{node.name}_R", second)
    del old.input[_LSTM.index("W_scale") :]
    old.op_type, old.domain = "LSTM", ""
    yield Change(
        subject=node.name,
        what="DynamicQuantizeLSTM became LSTM with float weights",
        reason="TensorRT has no INT8 kernel for recurrent layers, and does not import this operator",
    )


def _weight(context: RepairContext, integers: str, scale: str, zero: str) -> NDArray[np.float32] | None:
    """Return float weights in the layout of LSTM, (directions, 4 * hidden, inputs); None if they are computed at run time."""
    values = [context.edit.value(name) for name in (integers, scale, zero)]
    stored, steps, zeros = values
    if stored is None or steps is None or zeros is None or stored.ndim != _RANK:
        return None
    # One scale per direction, or one per column.
    steps, zeros = (part.reshape(len(stored), 1, -1) for part in (steps, zeros))
    real = (stored.astype(np.float32) - zeros.astype(np.float32)) * steps.astype(np.float32)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


def _pattern(context: RepairContext, node: Node) -> _Pattern | None:
    if node.domain == "com.microsoft" and node.op == "DynamicQuantizeMatMul":
        return _whole(node) if len(node.inputs) < 5 or not node.inputs[4] else None
    if node.domain == "com.microsoft" and node.op == "MatMulIntegerToFloat":
        return _match_scaled(context, node) if len(node.inputs) < 7 or not node.inputs[6] else None
    return (
        _parts(context, node) if node.op in FLOAT_FORM and not node.domain and len(node.inputs) > 2 else None
    )


def _whole(node: Node) -> _Pattern:
    """Match com.microsoft.DynamicQuantizeMatMul, which is a whole quantized layer in one node."""
    return _Pattern(
        core=node,
        source=node.inputs[0],
        weight=node.inputs[1],
        zero_point=node.inputs[3] if len(node.inputs) > 3 else "",
        scale=node.inputs[2],
        end=node.name,
        result=node.outputs[0],
    )


def _match_scaled(context: RepairContext, node: Node) -> _Pattern | None:
    """Match DynamicQuantizeLinear -> com.microsoft.MatMulIntegerToFloat, a dynamically quantized MatMul in two nodes."""
    dynamic = context.view.producer(node.inputs[0])
    constant = all(context.view.is_constant(node.inputs[index]) for index in (1, 3))
    if dynamic is None or dynamic.op != "DynamicQuantizeLinear" or not constant:
        return None
    if len(node.inputs) < 5 or (node.inputs[2], node.inputs[4]) != dynamic.outputs[1:]:
        return None
    return _Pattern(
        core=node,
        source=dynamic.inputs[0],
        weight=node.inputs[1],
        zero_point=node.inputs[5] if len(node.inputs) > 5 else "",
        scale=node.inputs[3],
        end=node.name,
        result=node.outputs[0],
    )


def _parts(context: RepairContext, node: Node) -> _Pattern | None:
    """Match DynamicQuantizeLinear -> ...Integer (-> Add of a bias) -> Cast -> Mul(Mul(scale of x, scale of w))."""
    view = context.view
    dynamic = view.producer(node.inputs[0])
    cast = _only_reader(context, node.outputs[0])
    bias = ""
    if cast is not None and cast.op == "Add" and node.op == "ConvInteger":
        bias = _rounded_bias(context, next(name for name in cast.inputs if name != node.outputs[0]))
        cast = _only_reader(context, cast.outputs[0]) if bias else None
    product = _only_reader(context, cast.outputs[0]) if cast and cast.op == "Cast" else None
    if dynamic is None or dynamic.op != "DynamicQuantizeLinear" or cast is None or product is None:
        return None
    if product.op != "Mul" or node.inputs[2] != dynamic.outputs[2] or not view.is_constant(node.inputs[1]):
        return None
    factors = view.producer(next((name for name in product.inputs if name != cast.outputs[0]), ""))
    if factors is None or factors.op != "Mul" or dynamic.outputs[1] not in factors.inputs:
        return None
    scale = next((name for name in factors.inputs if name != dynamic.outputs[1]), "")
    if not view.is_constant(scale):
        return None
    return _Pattern(
        core=node,
        source=dynamic.inputs[0],
        weight=node.inputs[1],
        zero_point=node.inputs[3] if len(node.inputs) > 3 else "",
        scale=scale,
        end=product.name,
        result=product.outputs[0],
        bias=bias,
    )


def _rounded_bias(context: RepairContext, tensor: str) -> str:
    """Return the float bias before Div(bias, step) -> Floor -> Cast -> Reshape, with which onnxruntime rounds it.

    "" for other patterns.
    """
    for op in ROUNDED_BIAS:
        maker = context.view.producer(tensor)
        if maker is None or maker.op != op:
            return ""
        tensor = maker.inputs[0]
    return tensor if len(context.view.constant_shape(tensor) or ()) == 1 else ""


def _only_reader(context: RepairContext, tensor: str) -> Node | None:
    uses = context.view.uses(tensor)
    return uses[0].node if len(uses) == 1 and tensor not in context.pinned else None


def _rewrite_dynamic(context: RepairContext, pattern: _Pattern) -> None:
    edit, node = context.edit, context.nodes[pattern.core.name]
    op = FLOAT_FORM.get(pattern.core.op, "MatMul")
    scale = edit.value(pattern.scale)
    rank = len(context.view.constant_shape(pattern.weight) or ())
    axis: dict[str, int] = {}
    inputs = [pattern.weight, pattern.scale]
    if scale is not None:
        flat = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
        inputs[1] = edit.constant(pattern.scale, flat)
        axis = {"axis": 0 if op == "Conv" else rank - 1} if scale.size > 1 else {}
    zero = edit.value(pattern.zero_point) if pattern.zero_point else None
    if zero is not None:
        flat = zero.reshape(-1) if zero.size > 1 else zero.reshape(())
        if scale is not None and scale.size > 1 and flat.ndim == 0:
            flat = flat.repeat(scale.size)
        inputs.append(edit.constant(pattern.zero_point, flat))
    weight = edit.fresh(f"{pattern.weight}_float")
    edit.node("DequantizeLinear", inputs, [weight], name=f"{node.name}_DequantizeLinear", **axis)
    old = context.nodes[pattern.end]
    bias = [pattern.bias] if pattern.bias else []
    twin = edit.node(op, [pattern.source, weight, *bias], [pattern.result], name=f"{node.name}_{op}")
    twin.attribute.extend(node.attribute)
    edit.remove([old])


# --- other_quantizer -------------------------------------------------------------------------------------------------


def check_other_quantizer(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report quantizer operators of other tools."""
    for quantizer in match(flow.view):
        node, tool = quantizer.node, f" of {quantizer.tool}" if quantizer.tool else " of another tool"
        domain = f", domain {node.domain}" if node.domain else ""
        yield Violation(
            node=node.name,
            reason=f"{node.op}{domain} is a quantizer{tool}",
            effect="TensorRT does not import this operator",
            fix=f"replace the node by Q/DQ, which compute the same result; {REPAIR} does this"
            if quantizer.exact
            else quantizer.way,
        )


def fix_other_quantizer(context: RepairContext) -> Iterator[Change]:
    """Rewrite quantizers of other tools as Q/DQ if the result is exactly the same."""
    for quantizer in convert(context.edit, context.view, match(context.view)):
        yield Change(
            subject=quantizer.node.name,
            what=f"{quantizer.node.op} of {quantizer.tool or 'another tool'} became Q/DQ",
            reason=f"TensorRT does not import {quantizer.node.op}",
            error=0.0,
        )


PLUGIN = {
    "domain": Rule(
        code="QDQ108",
        severity=Severity.INFO,
        stage=Stage.WRITE_OUT,
        after=("operator",),
        check=check_domain,
        fix=fix_domain,
    ),
    "own_spelling": Rule(
        code="QDQ189",
        formats=frozenset({"fp8", "int4", "nvfp4", "mxfp8"}),
        severity=Severity.INFO,
        stage=Stage.WRITE_OUT,
        check=check_own_spelling,
        fix=fix_own_spelling,
    ),
    "operator": Rule(
        code="QDQ107",
        formats=frozenset({"int8"}),
        severity=Severity.ERROR,
        stage=Stage.WRITE_OUT,
        check=check_operator,
        fix=fix_operator,
    ),
    "dynamic": Rule(code="QDQ118", formats=frozenset({"int8"}), stage=Stage.LEGAL, fix=fix_dynamic),
    "other_quantizer": Rule(
        code="QDQ193",
        severity=Severity.ERROR,
        stops=True,
        stage=Stage.WRITE_OUT,
        check=check_other_quantizer,
        fix=fix_other_quantizer,
    ),
}
