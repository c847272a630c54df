"""Ranges of activations that are measured at run time.

    x ─ DynamicQuantizeLinear ─ MatMulInteger ─ Cast ─ Mul      refused
    x ───────────────────────── MatMul (w ─ DQ)                 a float activation beside an INT8 weight

onnxruntime's dynamic quantization writes DynamicQuantizeLinear, then ConvInteger or MatMulInteger, Cast, and Mul with
both scales (older releases add the rounded bias in front of the Cast), or one operator of com.microsoft for all of it. TensorRT imports none of them and needs ranges when it
builds. The fix keeps the INT8 weights behind a DequantizeLinear; the activations are float until they are calibrated
(`qdqtool repair --samples DATA`). `qdqtool lint` reports the operators as QDQ107. A DynamicQuantizeLSTM becomes an LSTM
with the float weights that its integers stand for: no builder has an INT8 kernel for it (QDQ177).

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE (dynamicquantizelinear, DynamicQuantizeLSTM: a public text
recognizer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.core.repair import Change
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.matching.rule import Rule, Stage
from qdqtool.trt.ops import FLOAT_FORM, ROUNDED_BIAS

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LSTM = (
    *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
)
"""Inputs of DynamicQuantizeLSTM; those of an LSTM come first."""
_ENDS = ("", "_scale", "_zero_point")
_RANK = 3
"""Dimensions of W and R."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pattern:
    """The nodes of one dynamically quantized layer.

    Attributes:
        core: ConvInteger or MatMulInteger.
        source: the float activation.
        weight: the integer weight.
        zero_point: its zero point, "" where it has none.
        scale: its scale.
        end: name of the node that makes the result.
        result: the float tensor at the end.
        bias: the float bias of a Conv that was added in integers; "" where there is none.
    """

    core: Node
    source: str
    weight: str
    zero_point: str
    scale: str
    end: str
    result: str
    bias: str = ""


def fix(context: RepairContext) -> Iterator[Change]:
    """Write each dynamically quantized layer as Conv or MatMul with an INT8 weight."""
    for node in context.view.nodes:
        yield from _round_trip(context, node)
        yield from _recurrent(context, node)
        found = _pattern(context, node)
        if found is None:
            continue
        _rewrite(context, found)
        yield Change(
            subject=node.name,
            what=f"{node.op} became {found.core.op.removesuffix('Integer')} with an INT8 weight and a float activation",
            reason="TensorRT needs ranges when it builds, and does not import operators that measure them at run time",
        )


def _round_trip(context: RepairContext, node: Node) -> Iterator[Change]:
    """A DequantizeLinear straight behind a DynamicQuantizeLinear gives the float tensor back."""
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
        what="taken out with the DequantizeLinear behind it: the activation is float",
        reason="TensorRT needs ranges when it builds, and does not import operators that measure them at run time",
    )


def _recurrent(context: RepairContext, node: Node) -> Iterator[Change]:
    """com.microsoft.DynamicQuantizeLSTM: an LSTM whose W and R are integers, (directions, inputs, 4 * hidden)."""
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
    """The weights as an LSTM takes them, (directions, 4 * hidden, inputs); None where they are computed at run time."""
    values = [context.edit.value(name) for name in (integers, scale, zero)]
    stored, steps, zeros = values
    if stored is None or steps is None or zeros is None or stored.ndim != _RANK:
        return None
    # One scale for each direction, or one for each of its columns.
    steps, zeros = (part.reshape(len(stored), 1, -1) for part in (steps, zeros))
    real = (stored.astype(np.float32) - zeros.astype(np.float32)) * steps.astype(np.float32)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


def _pattern(context: RepairContext, node: Node) -> _Pattern | None:
    if node.domain == "com.microsoft" and node.op == "DynamicQuantizeMatMul":
        return _whole(node) if len(node.inputs) < 5 or not node.inputs[4] else None
    if node.domain == "com.microsoft" and node.op == "MatMulIntegerToFloat":
        return _scaled(context, node) if len(node.inputs) < 7 or not node.inputs[6] else None
    return (
        _parts(context, node) if node.op in FLOAT_FORM and not node.domain and len(node.inputs) > 2 else None
    )


def _whole(node: Node) -> _Pattern:
    """com.microsoft.DynamicQuantizeMatMul: everything in one node."""
    return _Pattern(
        core=node,
        source=node.inputs[0],
        weight=node.inputs[1],
        zero_point=node.inputs[3] if len(node.inputs) > 3 else "",
        scale=node.inputs[2],
        end=node.name,
        result=node.outputs[0],
    )


def _scaled(context: RepairContext, node: Node) -> _Pattern | None:
    """DynamicQuantizeLinear -> com.microsoft.MatMulIntegerToFloat, which scales by itself."""
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
    """DynamicQuantizeLinear -> ...Integer (-> Add of a bias) -> Cast -> Mul(Mul(scale of x, scale of w))."""
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
    """The float bias behind Div(bias, step) -> Floor -> Cast -> Reshape, as onnxruntime rounds one; "" for anything else."""
    for op in ROUNDED_BIAS:
        maker = context.view.producer(tensor)
        if maker is None or maker.op != op:
            return ""
        tensor = maker.inputs[0]
    return tensor if len(context.view.constant_shape(tensor) or ()) == 1 else ""


def _only_reader(context: RepairContext, tensor: str) -> Node | None:
    uses = context.view.uses(tensor)
    return uses[0].node if len(uses) == 1 and tensor not in context.pinned else None


def _rewrite(context: RepairContext, found: _Pattern) -> None:
    edit, node = context.edit, context.nodes[found.core.name]
    op = FLOAT_FORM.get(found.core.op, "MatMul")
    scale = edit.value(found.scale)
    rank = len(context.view.constant_shape(found.weight) or ())
    axis: dict[str, int] = {}
    inputs = [found.weight, found.scale]
    if scale is not None:
        flat = scale.reshape(-1) if scale.size > 1 else scale.reshape(())
        inputs[1] = edit.constant(found.scale, flat)
        axis = {"axis": 0 if op == "Conv" else rank - 1} if scale.size > 1 else {}
    zero = edit.value(found.zero_point) if found.zero_point else None
    if zero is not None:
        flat = zero.reshape(-1) if zero.size > 1 else zero.reshape(())
        if scale is not None and scale.size > 1 and flat.ndim == 0:
            flat = flat.repeat(scale.size)
        inputs.append(edit.constant(found.zero_point, flat))
    weight = edit.fresh(f"{found.weight}_float")
    edit.node("DequantizeLinear", inputs, [weight], name=f"{node.name}_DequantizeLinear", **axis)
    old = context.nodes[found.end]
    bias = [found.bias] if found.bias else []
    twin = edit.node(op, [found.source, weight, *bias], [found.result], name=f"{node.name}_{op}")
    twin.attribute.extend(node.attribute)
    edit.remove([old])


PLUGIN = Rule(code="QDQ118", formats=frozenset({"int8"}), stage=Stage.LEGAL, fix=fix)
