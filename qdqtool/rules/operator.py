"""Operators that compute with integers themselves.

    Q ─ QLinearConv ─ DQ                     refused
    Q ─ DQ ─ Conv ─ Q ─ DQ (and w ─ DQ)      INT8

QLinearConv, ConvInteger, DynamicQuantizeLinear and the com.microsoft family are how onnxruntime executes INT8.
TensorRT knows only QuantizeLinear and DequantizeLinear around float operators.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE (qlinearconv, dynamicquantizelinear).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import computes_integers, weight_axis

if TYPE_CHECKING:
    import onnx

_MICROSOFT = "com.microsoft"


@dataclass(frozen=True, kw_only=True, slots=True)
class _OperatorForm:
    """How an operator on integers is laid out.

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


def match(view: GraphView) -> Iterator[Node]:
    """Nodes of integer operators."""
    return (node for node in view.nodes if computes_integers(node.op))


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for node in match(flow.view):
        yield Violation(
            node=node.name,
            reason=f"{node.op} computes with integers itself",
            effect="the parser knows no such operator",
            fix="export in Q/DQ format (onnxruntime: QuantFormat.QDQ)"
            + ("; `qdqtool repair` converts most of them" if _has_scales(flow, node) else ""),
        )


def _has_scales(flow: Flow, node: Node) -> bool:
    """Whether the model says what the integers stand for; a sum of integers that come from outside has no scale."""
    return "Integer" not in node.op or flow.view.producer(node.inputs[0]) is not None


def fix(context: RepairContext) -> Iterator[Change]:
    """Write each known operator on integers as DQ, float operator, Q."""
    for found in match(context.view):
        node = context.nodes[found.name]
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) == (_MICROSOFT, "QLinearConcat"):
            form: _OperatorForm | None = _concat(node)
        else:
            form = _FORMS.get((domain, node.op_type))
        if form is None or _last_channels(node) or not _is_complete(node, form):
            continue
        _rewrite(context, node, form)
        yield Change(
            subject=node.name,
            what=f"{node.op_type} became DequantizeLinear, {form.op}, QuantizeLinear",
            reason=f"TensorRT does not import {node.op_type}",
            error=0.0,
        )


def _is_complete(node: onnx.NodeProto, form: _OperatorForm) -> bool:
    """Whether all integers and scales are there; zero points may be left out."""
    needed = [position for operand in form.inputs for position in operand[:2]]
    return bool(form.inputs) and all(_input(node, position) for position in (*needed, form.output[0]))


def _input(node: onnx.NodeProto, position: int) -> str:
    return node.input[position] if position < len(node.input) else ""


def _last_channels(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)


def _concat(node: onnx.NodeProto) -> _OperatorForm:
    """QLinearConcat has its own scale first, then three inputs per operand."""
    operands = tuple((start, start + 1, start + 2) for start in range(2, len(node.input) - 2, 3))
    return _OperatorForm(op="Concat", inputs=operands, output=(0, 1))


def _rewrite(context: RepairContext, node: onnx.NodeProto, form: _OperatorForm) -> None:
    edit = context.edit
    operands = []
    for number, positions in enumerate(form.inputs):
        names = [_input(node, position) for position in positions]
        result = edit.fresh(f"{names[0]}_{node.name}_float")
        axis = _axis(context, names, (node, form.op, number))
        given = [name for name in names if name]
        edit.node("DequantizeLinear", given, [result], name=f"{node.name}_{number}_DequantizeLinear", **axis)
        operands.append(result)
    if form.bias is not None and _input(node, form.bias):
        operands.append(_bias(context, node, form))
    made = edit.fresh(f"{node.output[0]}_float")
    twin = edit.node(form.op, operands, [made], name=f"{node.name}_{form.op}")
    twin.attribute.extend(attribute for attribute in node.attribute if attribute.name not in form.dropped)
    scale, zero = (_input(node, position) for position in form.output)
    if not zero:
        signed = context.view.info(node.input[form.inputs[0][0]]).dtype is DType.INT8
        zero = edit.constant(f"{node.output[0]}_zero_point", np.zeros((), np.int8 if signed else np.uint8))
    edit.node("QuantizeLinear", [made, scale, zero], [node.output[0]], name=f"{node.name}_QuantizeLinear")
    edit.remove([node])


def _axis(
    context: RepairContext, names: list[str], operand: tuple[onnx.NodeProto, str, int]
) -> dict[str, int]:
    """The attribute of a scale with one value per channel."""
    scale = context.edit.constants.get(names[1])
    if scale is None or not scale.dims or scale.dims[0] == 1:
        return {}
    node, op, number = operand
    twin = replace(context.view.by_name[node.name], op=op)
    rank = len(context.view.info(names[0]).shape or ())
    return {"axis": weight_axis(twin, number, rank) or 0}


def _bias(context: RepairContext, node: onnx.NodeProto, form: _OperatorForm) -> str:
    """The INT32 bias as float: integer times both scales."""
    edit = context.edit
    name = node.input[form.bias or 0]
    scales = [edit.value(node.input[positions[1]]) for positions in form.inputs]
    value = edit.value(name)
    if value is None or any(scale is None for scale in scales):
        zero = edit.constant(f"{name}_zero", np.asarray(0, np.int32))
        result = edit.fresh(f"{name}_float")
        scale = edit.fresh(f"{name}_scale")
        edit.node(
            "Mul", [node.input[positions[1]] for positions in form.inputs], [scale], name=f"{node.name}_scale"
        )
        edit.node(
            "DequantizeLinear", [name, scale, zero], [result], name=f"{node.name}_bias_DequantizeLinear"
        )
        return result
    product: Any = np.float64(1)
    for scale_value in scales:
        product = product * np.asarray(scale_value, np.float64)
    return edit.constant(f"{name}_float", (value * product.reshape(-1)).astype(np.float32))


PLUGIN = Rule(
    code="QDQ107",
    formats=frozenset({"int8"}),
    severity=Severity.ERROR,
    stage=Stage.WRITE_OUT,
    check=check,
    fix=fix,
)
