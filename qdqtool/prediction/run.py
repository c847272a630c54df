"""Puts precisions, layers and ledger together."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedNode, Prediction
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.silent_float import BEFORE
from qdqtool.prediction.certainty import is_certain
from qdqtool.prediction.classic import ClassicPlan
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.doubts import doubts
from qdqtool.prediction.precision import float_type, judge
from qdqtool.prediction.rtx import RtxPlan
from qdqtool.trt.ops import QDQ

_SILENT = QDQ | {"Constant"}
_STORED = "-weights"
"""How the name ends of what a product realises whose kernel dequantizes its weights itself."""


def predict(model: Model, target: Target | None = None) -> Prediction:
    """What the optimizer will do with every Q/DQ pair, which nodes share a layer, and each node's precision.

    Linear in nodes. Estimated from rules; `benchmarks/prediction.py` measures how often they are right.

    Args:
        model: a Q/DQ model (a float model gives float layers and an empty ledger).
        target: the builder; TensorRT for RTX without. All releases of TensorRT are predicted alike.
    """
    target = target or Target()
    flow = Flow(model)
    judged = judge(flow, target)
    precision = {name: judgement.precision for name, judgement in judged.items()}
    stored = frozenset(name for name, judgement in judged.items() if judgement.realised.endswith(_STORED))
    before = frozenset(name for name, judgement in judged.items() if judgement.realised.endswith(BEFORE))
    plan = RtxPlan(flow, precision, stored, before) if target.is_rtx else ClassicPlan(flow, precision, stored)
    holder = {node: layer.name for layer in plan.layers for node in layer.nodes}
    demands = Demands(flow)
    nodes = tuple(
        PredictedNode(
            node=node.name,
            op=node.op,
            precision=precision.get(node.name) or _handed_on(flow, demands, node),
            layer=holder.get(node.name, ""),
            compute=node.name in judged,
            reason=judged[node.name].reason if node.name in judged else "",
            realised=judged[node.name].realised if node.name in judged else "",
        )
        for node in flow.view.nodes
        if node.op not in _SILENT
    )
    found = tuple(doubts(model, flow, target))
    return Prediction(
        profile="rtx" if target.is_rtx else "classic",
        nodes=nodes,
        layers=plan.layers,
        ledger=(*plan.ledger, *_scale_rows(flow)),
        notes=(*model.notes, *(doubt.reason for doubt in found)),
        doubts=found,
        kernels=None
        if any(doubt.countless for doubt in found)
        else sum(layer.kernels for layer in plan.layers),
        exact=not found and is_certain(flow, precision, target),
    )


def _scale_rows(flow: Flow) -> Iterator[LedgerRow]:
    """The fate of pairs that only make scales: folded where they are constant, else part of a quantizing kernel."""
    for pair in flow.scales:
        last = flow.view.by_name[pair.dequantize or pair.quantize or ""]
        reader = flow.view.uses(last.outputs[0])[0].node.name
        constant = pair.kind is SlotKind.WEIGHT
        end = End.FOLDED if constant else End.KERNEL
        step = LedgerStep(line=0, what=f"makes the scales of {reader}")
        for kind, name in (("Q", pair.quantize), ("DQ", pair.dequantize)):
            if name is not None:
                yield LedgerRow(node=name, kind=kind, end=end, into=reader if constant else "", steps=(step,))


def _handed_on(flow: Flow, demands: Demands, node: Node) -> DType:
    """The type of the values that a node without a product hands on."""
    if not node.outputs:
        return DType.UNKNOWN
    reads = flow.origins.get(node.outputs[0])
    if reads is not None and reads.dtype.is_quantized:
        return reads.dtype
    if demands.passes(node):
        return next(dtype for output in node.outputs for dtype, _ in demands.of(output).scales)
    dtype = flow.view.info(node.outputs[0]).dtype
    return float_type(flow, node) if dtype is DType.UNKNOWN else dtype
