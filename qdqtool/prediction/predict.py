"""Combines the predicted precisions, layers and ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan

from qdqtool.core.events import End, LedgerRow, LedgerStep
from qdqtool.core.findings import Severity
from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.prediction import PredictedNode, Prediction, PredictionCaveat
from qdqtool.core.target import Target
from qdqtool.core.tensors import FLOAT, FORMATS, INT4, INT8, NAMES, DType, first_sm
from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import Model, Node
from qdqtool.matching.products import Product, has_free_batch, in_sums, is_folded, products
from qdqtool.matching.refused import recurrent_in_int8
from qdqtool.matching.rule import Violation, losses, stopping, violations
from qdqtool.prediction.classic import ClassicPlan, Demands
from qdqtool.trt.ops import COMPUTE, NOT_IMPORTED, PRODUCTS, QDQ, RECURRENT, computes_integers

# --- precision -------------------------------------------------------------------------------------------------------
# For each compute node, from the rules: does it compute in the requested format, and if not, why?


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The predicted compute type of a node, the reason, and its format as an audit names it ("fp8")."""

    precision: DType
    reason: str
    realised: str = FLOAT


def judge(flow: Flow, target: Target) -> dict[str, Judgement]:
    """Predict the compute type of every node that multiplies, by node name.

    These nodes are Conv, MatMul and Gemm, recurrences, attentions, and operators that compute with integers
    themselves.
    """
    lost = losses(flow, target)
    judged = {product.node.name: _judgement(flow, product, lost) for product in products(flow, target)}
    for node in flow.view.nodes:
        if node.op in COMPUTE - PRODUCTS or computes_integers(node.op):
            judged[node.name] = _other_operator(flow, node, target)
    return judged


def _judgement(flow: Flow, product: Product, lost: Mapping[str, Violation]) -> Judgement:
    floating, request = float_type(flow, product.node), product.request
    violation = lost.get(product.node.name)
    if violation is not None:
        realised = violation.realised
        reason = f"{violation.reason}: {violation.effect}"
        precision = violation.computed or _type(realised, floating)
        return Judgement(precision=precision, reason=reason, realised=realised)
    if request == FLOAT:
        return Judgement(precision=floating, reason="input 0 has no Q/DQ")
    if product.weights_alone is not None:
        stored = product.weights_alone
        bare = 1 - stored.index
        reason = f"input {bare} has no Q/DQ; the {stored.format} weights are dequantized inside the kernel"
        return Judgement(precision=floating, reason=reason, realised=request)
    if not product.arithmetic:
        # INT4 activations are widened to INT8 arithmetic with 16 different values.
        reason = "both operands are INT8; INT4 values were widened to INT8"
        return Judgement(precision=DType.INT8, reason=reason, realised=INT8.name)
    if request not in FORMATS or request == INT4.name:
        return Judgement(precision=floating, reason=f"TensorRT has no arithmetic in {request}")
    reason = f"both operands are {request.upper()}"
    return Judgement(precision=_type(request, floating), reason=reason, realised=request)


def _type(realised: str, floating: DType) -> DType:
    return FORMATS[realised].dtype if realised in FORMATS else floating


def _other_operator(flow: Flow, node: Node, target: Target) -> Judgement:
    """Predict operators other than Conv, ConvTranspose, Gemm and MatMul. Only Einsum can be INT8, and only on RTX."""
    floating = float_type(flow, node)
    if node.op in NOT_IMPORTED or computes_integers(node.op):
        return Judgement(
            precision=DType.UNKNOWN, reason=f"TensorRT does not import {node.op}", realised="unknown"
        )
    factors = [flow.origin(node, index) for index in range(min(2, len(node.inputs)))]
    if node.op == "Einsum" and target.is_rtx:
        if len(factors) > 1 and all(map(is_int8, factors)):
            return Judgement(precision=DType.INT8, reason="both operands are INT8", realised="int8")
        return Judgement(precision=floating, reason="one of the operands has no Q/DQ")
    if node.op in RECURRENT:
        return Judgement(precision=floating, reason=recurrent_in_int8(node.op, target))
    return Judgement(precision=floating, reason=f"TensorRT has no INT8 kernel for {node.op}")


def float_type(flow: Flow, node: Node) -> DType:
    """Return the float type in which a node computes if it is not INT8."""
    for tensor in (*node.outputs, *node.inputs):
        dtype = flow.view.info(tensor).dtype
        if dtype.is_float:
            return dtype
    return DType.UNKNOWN


# --- caveats ---------------------------------------------------------------------------------------------------------
# Parts of a model for which a prediction may not hold.


def doubts(model: Model, flow: Flow, target: Target) -> Iterator[PredictionCaveat]:
    """Yield the reasons why the prediction may be wrong.

    The reasons are Q/DQ that the parser refuses, formats that a GPU lacks, bodies of control flow, and precisions
    that depend on the batch.
    """
    for problem, named in (
        ("scales that are not positive numbers", [pair for pair in flow.pairs if _is_sick(pair)]),
        ("zero points other than 0", [pair for pair in flow.pairs if any(pair.zero_point)]),
        (
            "numbers of scales that do not match the tensor",
            [pair for pair in flow.pairs if _is_odd(flow, pair)],
        ),
    ):
        if named:
            reason = (
                f"{count_noun(len(named), 'pair has', 'pairs have')} {problem}, the first {_name(named[0])!r}: the parser refuses these pairs; "
                f"the prediction is valid after they are corrected; {Command('lint')} names each"
            )
            yield PredictionCaveat(reason=reason, nodes=tuple(map(_name, named)))
    yield from _find_stopped(flow, target)
    yield from _beyond(flow, target)
    yield from _bodies(model)
    if target.is_rtx:
        yield from _refused_blocks(flow)
        yield from _of_one_sample(flow)


def _find_stopped(flow: Flow, target: Target) -> Iterator[PredictionCaveat]:
    """Yield a caveat about nodes in a form that every builder refuses."""
    refusals = [
        wrong for _, wrong in violations(flow, target, stopping()) if wrong.severity is Severity.ERROR
    ]
    if refusals:
        nodes = tuple(dict.fromkeys(wrong.node for wrong in refusals))
        first = refusals[0]
        reason = (
            f"nothing is built: {count_noun(len(nodes), 'node is', 'nodes are')} refused, the first {first.node!r}: {first.reason}; the "
            f"prediction is valid after they are corrected; {Command('lint')} names each"
        )
        yield PredictionCaveat(reason=reason, nodes=nodes)


def _bodies(model: Model) -> Iterator[PredictionCaveat]:
    """Yield a caveat about control flow: the prediction does not include the nodes in its bodies."""
    named = [node for node in model.view.nodes if model.view.body_ops(node)]
    if not named:
        return
    inside = [name for node in named for name in model.view.body_names(node)]
    quantized = [node for node in named if QDQ & set(model.view.body_ops(node))]
    first = (quantized or named)[0]
    reason = f"{count_noun(len(named), 'node')} of control flow, the first {first.op} {first.name!r}: no prediction for the {count_noun(len(inside), 'node')} in their bodies{', Q/DQ included' if quantized else ''}"
    yield PredictionCaveat(reason=reason, nodes=(*(node.name for node in named), *inside))


def _beyond(flow: Flow, target: Target) -> Iterator[PredictionCaveat]:
    """Yield caveats about formats that a GPU of TensorRT for RTX does not support: the build fails."""
    if not target.is_rtx or not target.sm:
        return
    oldest = min(map(int, target.sm))
    named: dict[str, list[str]] = defaultdict(list)
    for pair in flow.pairs:
        name = NAMES.get(pair.dtype, "")
        if name in FORMATS and first_sm(FORMATS[name], rtx=True) > oldest:
            named[name].append(_name(pair))
    for name, nodes in named.items():
        reason = (
            f"SM{oldest} has no {name.upper()}, which {count_noun(len(nodes), 'pair holds', 'pairs hold')}, the first {nodes[0]!r}: the build "
            f"fails, and the prediction is valid from SM{first_sm(FORMATS[name], rtx=True)} on"
        )
        yield PredictionCaveat(reason=reason, nodes=tuple(nodes))


def _refused_blocks(flow: Flow) -> Iterator[PredictionCaveat]:
    """Yield NVFP4 activations with constant block scales that the builder refuses."""
    stopped = [_name(pair) for pair, _ in in_sums(flow)]
    if stopped:
        reason = (
            f"{count_noun(len(stopped), 'quantization')} to FP4 with constant block scales, the first {stopped[0]!r}, would share "
            "the kernel of a sum along the blocks: the build fails; the prediction is valid if these scales are "
            f"computed at run time, as {REPAIR} does"
        )
        yield PredictionCaveat(reason=reason, nodes=tuple(stopped))


def _of_one_sample(flow: Flow) -> Iterator[PredictionCaveat]:
    """Yield a caveat about convolutions that are float in an engine for one sample, and INT8 in an engine for several."""
    named = [
        node
        for node in flow.products()
        if is_folded(flow.view, node)
        and has_free_batch(flow.view, node)
        and all(flow.origin(node, index) for index in (0, 1))
    ]
    if named:
        reason = (
            f"{count_noun(len(named), 'convolution')} with a single value and few channels, the first {named[0].name!r}, are predicted as float, "
            "as in an engine for one sample; in an engine for several samples each is an INT8 kernel"
        )
        yield PredictionCaveat(reason=reason, nodes=tuple(node.name for node in named))


def _name(pair: QdqPair) -> str:
    return pair.dequantize or pair.quantize or ""


def _is_sick(pair: QdqPair) -> bool:
    """Return True if RTX's parser refuses the scale of a Q/DQ pair: zero, negative or NaN; never for INT4."""
    return pair.dtype is not DType.INT4 and any(isnan(scale) or scale <= 0 for scale in pair.scale)


def _is_odd(flow: Flow, pair: QdqPair) -> bool:
    """Return True if a Q/DQ pair has no scale, or another number of scales than its axis has channels."""
    if pair.scale_shape is None or len(pair.scale_shape) > 1:
        return False
    shape = flow.view.info(pair.tensor).shape
    if len(pair.scale) == 1 or shape is None:
        return not pair.scale
    axis = pair.axis if pair.axis is not None else 1
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    return size is None or (isinstance(size, int) and size != len(pair.scale))


# --- run -------------------------------------------------------------------------------------------------------------


_SILENT = QDQ | {"Constant"}
_STORED = "-weights"
"""End of the realised format's name for a product with a kernel that dequantizes its weights itself."""


def predict(model: Model, target: Target | None = None) -> Prediction:
    """Predict the precision of each node. For classic TensorRT, also predict the layers and the fate of every Q and DQ.

    Estimated from rules, in time linear in the number of nodes. For TensorRT for RTX the layers and their number are
    not predicted, since its builder gives them in seconds: `pipeline.building.predict_built` adds them.

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
            precision=judged[node.name].precision
            if node.name in judged
            else _find_passed_type(flow, demands, node),
            layer=holder.get(node.name, ""),
            compute=node.name in judged,
            reason=judged[node.name].reason if node.name in judged else "",
            realised=judged[node.name].realised if node.name in judged else "",
        )
        for node in flow.view.nodes
        if node.op not in _SILENT
    )
    reasons = tuple(doubts(model, flow, target))
    return Prediction(
        profile="rtx" if target.is_rtx else "classic",
        nodes=nodes,
        layers=layers,
        ledger=(*plan.ledger, *_scale_rows(flow)) if plan else (),
        notes=(*model.notes, *(doubt.reason for doubt in reasons)),
        doubts=reasons,
        kernels=len(layers) if plan else None,
    )


def _classic(flow: Flow, judged: Mapping[str, Judgement]) -> ClassicPlan:
    precision = {name: judgement.precision for name, judgement in judged.items()}
    stored = frozenset(name for name, judgement in judged.items() if judgement.realised.endswith(_STORED))
    return ClassicPlan(flow, precision, stored)


def _scale_rows(flow: Flow) -> Iterator[LedgerRow]:
    """Yield the fate of Q/DQ pairs that only compute scales: folded if they are constant, else part of a quantizing kernel."""
    for pair in flow.scales:
        last = flow.view.by_name[pair.dequantize or pair.quantize or ""]
        reader = flow.view.uses(last.outputs[0])[0].node.name
        constant = pair.kind is SlotKind.WEIGHT
        end = End.FOLDED if constant else End.KERNEL
        step = LedgerStep(line=0, what=f"makes the scales of {reader}")
        for kind, name in (("Q", pair.quantize), ("DQ", pair.dequantize)):
            if name is not None:
                yield LedgerRow(node=name, kind=kind, end=end, into=reader if constant else "", steps=(step,))


def _find_passed_type(flow: Flow, demands: Demands, node: Node) -> DType:
    """Return the type of the values that a node without arithmetic passes on."""
    if not node.outputs:
        return DType.UNKNOWN
    reads = flow.origins.get(node.outputs[0])
    if reads is not None and reads.dtype.is_quantized:
        return reads.dtype
    if demands.passes(node):
        return next(dtype for output in node.outputs for dtype, _ in demands.of(output).scales)
    dtype = flow.view.info(node.outputs[0]).dtype
    return float_type(flow, node) if dtype is DType.UNKNOWN else dtype
