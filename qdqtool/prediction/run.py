"""Puts precisions, layers and ledger together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qdqtool.core.dtypes import DType
from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedNode, Prediction
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.prediction.classic import ClassicPlan
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.doubts import doubts
from qdqtool.prediction.precision import Judgement, float_type, judge
from qdqtool.trt.ops import QDQ

_SILENT = QDQ | {"Constant"}
_STORED = "-weights"
"""How the name ends of what a product realises whose kernel dequantizes its weights itself."""


def predict(model: Model, target: Target | None = None) -> Prediction:
    """Predicts the precision of each node; for classic TensorRT also the layers and the fate of every Q and DQ.

    Estimated from rules, in time linear in the number of nodes. For TensorRT for RTX the layers and their number are
    not predicted, since its builder gives them in seconds: `pipeline.built_prediction` adds them.

    Args:
        model: a Q/DQ model (a float model gives float nodes and an empty ledger).
        target: the builder; default: TensorRT for RTX. All releases of classic TensorRT give the same prediction.
    """
    target = target or Target()
    flow = Flow(model)
    judged = judge(flow, target)
    plan = None if target.is_rtx else _classic(flow, judged)
    layers = plan.layers if plan else ()
    holder = {node: layer.name for layer in layers for node in layer.nodes}
    demands = Demands(flow)
    nodes = tuple(
        PredictedNode(
            node=node.name,
            op=node.op,
            precision=judged[node.name].precision if node.name in judged else _handed_on(flow, demands, node),
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
        layers=layers,
        ledger=(*plan.ledger, *_scale_rows(flow)) if plan else (),
        notes=(*model.notes, *(doubt.reason for doubt in found)),
        doubts=found,
        kernels=len(layers) if plan else None,
    )


def _classic(flow: Flow, judged: Mapping[str, Judgement]) -> ClassicPlan:
    precision = {name: judgement.precision for name, judgement in judged.items()}
    stored = frozenset(name for name, judgement in judged.items() if judgement.realised.endswith(_STORED))
    return ClassicPlan(flow, precision, stored)


def _scale_rows(flow: Flow) -> Iterator[LedgerRow]:
    """Yields the fate of pairs that only make scales: folded if they are constant, else part of a quantizing kernel."""
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
