"""Products that are asked for another format than INT8, or for weights in few bits alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import FP8, INT8, MXFP8
from qdqtool.core.target import Target
from qdqtool.graph.qdq.quantized import Quantization
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.silent_float import (
    BEFORE,
    MXFP8_IS_FLOAT,
    StoredWeight,
    columns_of,
    dequantized_apart,
    rows_of,
    too_many_taps,
)
from qdqtool.trt.ops import MATRIX_PRODUCTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """What becomes of one product; `precision` is None for float, and `realised` "" likewise."""

    reason: str
    precision: DType | None = None
    realised: str = ""


def small(flow: Flow, node: Node, target: Target) -> Small | None:
    """The judgement on a product whose factors ask for more than INT8 arithmetic; None for all others."""
    first, second = (_factor(flow, node, index) for index in (0, 1))
    if first is not None and second is not None and first.format == second.format != INT8:
        return _arithmetic(flow, node, target, first)
    constant = flow.plain.is_constant(flow.plain.by_name[node.name].inputs[1])
    alone = first is None and second is not None and constant and flow.origin(node, 0) is None
    if alone and second is not None and (second.format != INT8 or node.op in MATRIX_PRODUCTS):
        return _weights(flow, node, target, second)
    return None


def _factor(flow: Flow, node: Node, index: int) -> Quantization | None:
    """How a factor is quantized, directly or behind nodes that hand quantized values on."""
    assignment = flow.lifted.assignment
    found = assignment.get(Slot(node=node.name, index=index))
    pair = flow.origin(node, index)
    if found is not None or pair is None or not pair.slots:
        return found
    return assignment.get(pair.slots[0])


def _arithmetic(flow: Flow, node: Node, target: Target, first: Quantization) -> Small:
    format_ = first.format
    shape = flow.plain.info(flow.plain.by_name[node.name].inputs[1]).shape or ()
    pair = flow.origin(node, 0)
    if target.is_rtx and format_ == MXFP8:
        return Small(reason=MXFP8_IS_FLOAT[0])
    if node.op == "ConvTranspose":
        return Small(reason=f"there is no {format_.name.upper()} kernel for ConvTranspose")
    objection = too_many_taps(shape) if target.is_rtx and format_ == FP8 and node.op == "Conv" else None
    if objection is not None:
        return Small(reason=objection[0])
    weight = flow.plain.is_constant(flow.plain.by_name[node.name].inputs[0])
    if first.axis is not None and first.block is None and not weight:
        return Small(reason="its input 0 has one scale per channel")
    if target.is_rtx and node.op == "Conv" and pair is not None and pair.scale_shape == (1,):
        return Small(reason="its input 0 has a scale of shape [1]")
    return Small(
        reason=f"both of its factors are {format_.name.upper()}",
        precision=format_.dtype,
        realised=format_.name,
    )


def _weights(flow: Flow, node: Node, target: Target, weight: Quantization) -> Small:
    plain = flow.plain.by_name[node.name]
    name = weight.format.name
    shape = flow.plain.info(plain.inputs[1]).shape or ()
    stored = StoredWeight(
        op=node.op,
        format=name,
        columns=columns_of(plain, shape),
        size=prod(size for size in shape if isinstance(size, int)),
        scales=() if weight.scale is None else weight.scale.shape,
        rows=rows_of(flow.plain, plain),
        readers=sum(
            flow.lifted.assignment.get(Slot(node=use.node.name, index=use.index)) is not None
            for use in flow.plain.uses(plain.inputs[1])
        ),
    )
    why = next(dequantized_apart(stored), None) if target.is_rtx else None
    said = f"its input 0 has no Q/DQ; its {name} weights are dequantized"
    if why is not None:
        return Small(
            reason=f"{said} before the kernel in every inference: {why[0]}",
            realised=f"{name}-weights{BEFORE}",
        )
    return Small(reason=f"{said} inside the kernel", realised=f"{name}-weights")
