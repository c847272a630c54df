"""Inputs and outputs of the model that are integers with a zero point.

    x (UINT8, zero point 128) ─ DQ ─ ...      refused
    x (UINT8) ─ Cast ─ Sub ─ Mul ─ ...        the same numbers in float

A model that takes or returns asymmetric integers has a DequantizeLinear or QuantizeLinear of its own at the border.
INT8 goes through a pair with zero point 0 and an addition; other types are computed with in float. The caller who
feeds the model sees no difference. `qdqtool lint` reports the zero point as QDQ101.

Evidence: RTX 1.7.1 and TensorRT 8.x to 11 say `Assertion failed: shiftIsAllZeros(zeroPoint)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.graph.qdq.repairing import RepairContext, cast_to
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import Rule, Stage
from qdqtool.trt.ops import PRODUCTS, carried_inputs, carried_outputs

if TYPE_CHECKING:
    from numpy.typing import NDArray


def fix(context: RepairContext) -> Iterator[Change]:
    """Replace each lone DequantizeLinear or QuantizeLinear that is not symmetric INT8."""
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
            what=f"{before} is {'read' if pair.quantize is None else 'written'} by way of float arithmetic",
            reason="TensorRT takes INT8 with zero point 0 only; the border of the model keeps its type and meaning",
            error=0.0,
        )


def _is_single(context: RepairContext, pair: QdqPair) -> bool:
    """Whether the pair has one positive scale and one zero point."""
    return context.is_known(pair) and len(pair.scale) == 1 and pair.scale[0] > 0


def _enter(context: RepairContext, pair: QdqPair) -> None:
    """(q - z) * s without a DequantizeLinear that has a zero point."""
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
    """A pair with zero point 0 and the same range, where a compute node would read float now."""
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
    """Whether a compute node reads the tensor, directly or behind operators that only move values."""
    waiting = [tensor]
    while waiting:
        for use in view.uses(waiting.pop()):
            if use.node.op in PRODUCTS and use.index < 2:
                return True
            if use.index in carried_inputs(view, use.node):
                waiting += carried_outputs(use.node)
    return False


def _leave(context: RepairContext, pair: QdqPair) -> None:
    """saturate(round(x / s) + z) without a QuantizeLinear that has a zero point."""
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
        made = edit.fresh(f"{pair.tensor}_{op}")
        names = [edit.constant(f"{pair.tensor}_{op}_operand", operand) for operand in operands]
        edit.node(op, [tensor, *names], [made], name=f"{node.name}_{op}")
        tensor = made
    target = cast_to(context.integers(pair))
    edit.node("Cast", [tensor], [node.output[0]], name=f"{node.name}_Cast", to=target)


PLUGIN = Rule(code="QDQ154", formats=frozenset({"int8"}), stage=Stage.LEGAL, after=("zero_point",), fix=fix)
