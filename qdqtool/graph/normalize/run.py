"""Runs all repairs in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.repair import Change, Remainder
from qdqtool.graph.canonical.opset import HALF_SCALES, raise_opset
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import casts
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.normalize.half_quantized import half_quantized
from qdqtool.graph.normalize.values import check_counts
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import Node
from qdqtool.plugins import Registry

REPAIRS = Registry(package="qdqtool.graph.normalize")
ORDER = (
    "operators",
    "dynamic",
    "four_bits",
    "domain",
    "clipped",
    "movement",
    "dedicated",
    "bias",
    "casts",
    "scales",
    "weights",
    "doubled",
    "zero_points",
    "interface",
)
"""First what makes pairs, then what makes them legal. Repairs of others come last."""


_FOUR_BIT_OPS = frozenset({"GatherBlockQuantized", "MatMulBnb4", "MatMulNBits"})
WRITTEN_OUT = ("operators", "domain", "clipped", "movement")
"""Repairs after which every range of a static quantization stands on a Q/DQ pair."""


def normalize(model: Model, only: Sequence[str] = ()) -> tuple[Model, tuple[Change, ...]]:
    """The model after all repairs, or after `only` some, and every change; the model itself where nothing was changed.

    Raises:
        InputFileError: the model contradicts itself, such as scales that do not fit their axis.
    """
    ready = prepare(model, PrepareOptions(fold_batchnorm=False, conv_transpose=False))
    changes = list(_dangling(model, ready))
    context = RepairContext(ready)
    for pair in context.pairs:
        check_counts(context, pair)
    for name in only or ORDER:
        if name == "casts" and casts.needs_new_opset(context):
            ready, raised = _with_half_scales(ready)
            context = RepairContext(ready)
            changes.append(raised)
        told = tuple(REPAIRS.load(name)(context))
        if told:
            changes += told
            context.edit.prune()
            ready = context.edit.finish(retyped=True)
            context = RepairContext(ready)
    return ready, tuple(changes)


def _with_half_scales(model: Model) -> tuple[Model, Change]:
    proto, note = raise_opset(model.proto, HALF_SCALES, model.path)
    change = Change(
        repair="casts",
        subject=model.path.name,
        what=note or "",
        reason=f"Q/DQ nodes take FP16 scales from opset {HALF_SCALES} on",
        error=0.0,
    )
    return Model(proto=proto, path=model.path, notes=model.notes), change


def _dangling(before: Model, after: Model) -> Iterator[Change]:
    """Q/DQ nodes that no output needs, which preparing the model has dropped."""
    for node in before.view.nodes:
        if node.op in {QUANTIZE, DEQUANTIZE} and node.name not in after.view.by_name:
            yield Change(
                repair="dangling",
                subject=node.name,
                what=f"{node.op} without a reader dropped",
                reason="it computes what nobody needs, and parsers stumble over it",
                error=0.0,
            )


def remaining(model: Model) -> tuple[Remainder, ...]:
    """What keeps compute nodes out of INT8 although half of it is there, and what TensorRT does not import."""
    told = []
    for node in model.view.nodes:
        told += [_half(model, node, index) for index in half_quantized(model.view, node)]
        if "Integer" in node.op or node.op.startswith(("QLinear", "DynamicQuantize")):
            told.append(
                Remainder(
                    subject=node.name,
                    what=f"TensorRT does not import {node.op}, and its surroundings are of no known form",
                    fix="quantize the float model with `qdqtool run` instead",
                )
            )
        if node.op in _FOUR_BIT_OPS:
            told.append(
                Remainder(
                    subject=node.name,
                    what=f"TensorRT does not import {node.op}",
                    fix="quantize these weights as Q/DQ (onnxruntime: quant_format=QuantFormat.QDQ)",
                )
            )
        inner = sorted({op for op in model.view.body_ops(node) if op in {QUANTIZE, DEQUANTIZE}})
        if inner:
            told.append(
                Remainder(
                    subject=node.name,
                    what=f"{', '.join(inner)} inside its body were left alone",
                    fix="export the model without control flow",
                )
            )
    return tuple(told)


def _half(model: Model, node: Node, index: int) -> Remainder:
    constant = model.view.is_constant(node.inputs[index])
    return Remainder(
        subject=node.name,
        what=f"input {index} has no Q/DQ, so {node.op} runs in float",
        fix="quantize the float model with `qdqtool run` instead"
        if constant
        else "name real data with --samples, so that its range can be measured; random samples tell no range",
    )
