"""What might fix a finding: which inputs to quantize, to quantize otherwise, or to leave float."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qdqtool.auditing.attention import unquantized_results
from qdqtool.auditing.context import AuditContext
from qdqtool.core.audit import Audit
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer
from qdqtool.core.findings import Finding, Verdict
from qdqtool.core.placement import Slot, Stance
from qdqtool.core.quant_format import FORMATS
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.asked import FLOAT, words_of
from qdqtool.matching.evidence import Claim, NodeEvidence, Operand
from qdqtool.pipeline.autofix.edits import Candidate, EditRequest, Goal, Granularity, scale_of
from qdqtool.pipeline.autofix.ties import untied
from qdqtool.trt.ops import weight_axis

_LEFT_ALONE = frozenset({Verdict.NOT_FOUND, Verdict.UNKNOWN})
_KERNEL_CHECKS = frozenset({"runtime_weights", "unfused_qdq", "needless_conversion", "conversion_chain"})
_OF_USER = frozenset({"user", "first_last", "min_channels"})
"""Placement rules that say what the recipe asks for; all others say what TensorRT does, which a build can refute."""


def candidates(context: AuditContext, found: Audit) -> Iterator[Candidate]:
    """Every candidate for the findings of an audit, the better one of a node first; cheap to make, to be proven."""
    assert context.view is not None
    islands = {finding.subject for finding in found.findings if finding.check == "float_island"}
    for evidence, verdict in zip(context.cases, context.verdicts, strict=True):
        as_asked = verdict.asked == verdict.realised != FLOAT
        if verdict.precision is DType.INT8 or as_asked or verdict.verdict in _LEFT_ALONE:
            continue
        if verdict.verdict is Verdict.ABSORBED and not _half_quantized(evidence):
            continue
        # What a placement keeps float on purpose is not called a fallback.
        meant = bool(evidence.decisions) and not evidence.requested
        quantized = any(operand.quantized for operand in evidence.operands)
        if _has_kernel(evidence):
            if not meant and (quantized or evidence.node.name in islands):
                yield from _to_int8(evidence, Goal.INT8)
            elif not _is_users_choice(evidence):
                yield from _to_int8(evidence, Goal.CHEAPER)
        if quantized:
            yield from _to_float(evidence)
    for finding in found.findings:
        yield from _leaner(context, context.view, finding)
    yield from untied(context)


def _half_quantized(evidence: NodeEvidence) -> bool:
    return len({operand.quantized for operand in evidence.operands}) > 1


def _has_kernel(evidence: NodeEvidence) -> bool:
    """Whether the builder has an INT8 kernel for this operator at all, as far as rules know and the engine shows."""
    return not any(found.claim is Claim.NO_KERNEL for found in evidence.explanations)


def _is_users_choice(evidence: NodeEvidence) -> bool:
    """Whether the recipe says that this node, or everything that nodes read at run time, stays float."""
    return evidence.weights_alone or any(
        opinion.stance is Stance.VETO and opinion.rule in _OF_USER
        for decision in evidence.decisions
        for opinion in decision.opinions
    )


def _to_int8(evidence: NodeEvidence, goal: Goal) -> Iterator[Candidate]:
    format_ = FORMATS[words_of(evidence).lower()]
    if format_.block is not None:
        return  # blocks are made by a placement, which knows what divides them
    requests = tuple(
        replace(request, format=format_)
        for operand in evidence.operands
        if (request := _wanted(evidence, operand)) is not None
    )
    if requests:
        inputs = ", ".join(f"{request.slot.index} ({request.how.value})" for request in requests)
        yield Candidate(
            subject=evidence.node.name, goal=goal, text=f"quantize input {inputs}", requests=requests
        )
    for operand in evidence.activations:
        tie = _tied(evidence, operand)
        if tie:
            yield Candidate(
                subject=evidence.node.name, goal=goal, text="give all branches one scale", requests=tie
            )


def _wanted(evidence: NodeEvidence, operand: Operand) -> EditRequest | None:
    """What an operand lacks for INT8; None where it is as it should be."""
    slot = Slot(node=evidence.node.name, index=operand.index)
    if operand.fixed:
        axis = weight_axis(
            evidence.node,
            operand.index,
            len(evidence.view.info(evidence.node.inputs[operand.index]).shape or ()),
        )
        right = operand.quantized and "Cast" not in operand.moves
        crossed = None not in {operand.seen_axis, axis} and operand.seen_axis != axis
        return None if right and not crossed else EditRequest(slot=slot, how=Granularity.CHANNEL, axis=axis)
    if not operand.quantized:
        return EditRequest(slot=slot, how=Granularity.TENSOR, scale=_largest_branch(evidence, operand))
    odd = operand.axis is not None or operand.scale_shape == (1,) or "Cast" in operand.moves
    return (
        EditRequest(slot=slot, how=Granularity.TENSOR, scale=scale_of(evidence.view, operand.dequantize))
        if odd
        else None
    )


def _to_float(evidence: NodeEvidence) -> Iterator[Candidate]:
    """Take Q/DQ off a node that does not run INT8 anyhow."""
    direct = [operand for operand in evidence.operands if operand.quantized and not operand.moves]
    if direct:
        yield Candidate(
            subject=evidence.node.name,
            goal=Goal.LEANER,
            text="take Q/DQ off its inputs",
            requests=tuple(
                EditRequest(slot=Slot(node=evidence.node.name, index=operand.index), how=Granularity.FLOAT)
                for operand in direct
            ),
        )


def _largest_branch(evidence: NodeEvidence, operand: Operand) -> float | None:
    found = evidence.concat(operand)
    scales = [scale_of(evidence.view, node) for node in found[1]] if found else []
    known = [scale for scale in scales if scale is not None]
    return max(known) if known and len(known) == len(scales) else None


def _tied(evidence: NodeEvidence, operand: Operand) -> tuple[EditRequest, ...]:
    found, scale = evidence.concat(operand), _largest_branch(evidence, operand)
    if found is None or scale is None:
        return ()
    concat = found[0]
    return tuple(
        EditRequest(slot=Slot(node=concat.name, index=index), how=Granularity.TENSOR, scale=scale)
        for index in range(len(concat.inputs))
    )


def _leaner(context: AuditContext, view: GraphView, finding: Finding) -> Iterator[Candidate]:
    """Take away the pairs that became a kernel of their own, or add the one that would spare the kernel."""
    if finding.check not in _KERNEL_CHECKS | {"float_round_trip", "attention_not_fused", "int8_in_float_out"}:
        return
    layer = next((layer for layer in context.kernels if layer.name == finding.subject), None)
    if layer is None:
        return
    goal = Goal.LEANER
    if finding.check == "int8_in_float_out":
        requests, text = tuple(_handed_over(view, layer)), "quantize its result for its reader"
        goal = Goal.CHEAPER
    elif finding.check == "float_round_trip":
        requests = tuple(_shortcuts(context, view, layer))
        text = "quantize the shortcut"
    elif finding.check == "attention_not_fused":
        requests = (*_products(context, layer), *_scores(context, layer), *_results(context, layer))
        text = "Q/DQ as the fused INT8 kernel requests it: both inputs of both products, the result, not the scores"
    else:
        # A node that runs INT8 needs its pairs, whatever kernel they cost.
        running = {verdict.node for verdict in context.verdicts if verdict.precision is DType.INT8}
        requests = tuple(request for request in _pairs_of(view, layer) if request.slot.node not in running)
        text = "take away the Q/DQ that became a kernel"
        if not requests and finding.check == "runtime_weights":
            requests, text = tuple(_once(context, layer)), "keep one pair on its weight"
    if requests:
        yield Candidate(subject=_anchor(layer), goal=goal, text=text, requests=requests)


def _handed_over(view: GraphView, layer: EngineLayer) -> Iterator[EditRequest]:
    """Inputs of other kernels' nodes that read what nodes of this kernel made, as floats."""
    for name in sorted(layer.onnx_nodes):
        node = view.by_name.get(name)
        for output in node.outputs if node is not None else ():
            for use in view.uses(output):
                if use.node.name not in layer.onnx_nodes and use.node.op not in {QUANTIZE, DEQUANTIZE}:
                    yield EditRequest(slot=Slot(node=use.node.name, index=use.index), how=Granularity.TENSOR)


def _once(context: AuditContext, layer: EngineLayer) -> Iterator[EditRequest]:
    """Weights behind two pairs of which a layer holds one."""
    held = set(layer.onnx_nodes)
    for evidence in context.cases:
        for operand in evidence.weights:
            if operand.dequantize is not None and _stacked(evidence.view, operand.dequantize) & held:
                rank = len(evidence.view.info(evidence.node.inputs[operand.index]).shape or ())
                axis = weight_axis(evidence.node, operand.index, rank)
                yield EditRequest(
                    slot=Slot(node=evidence.node.name, index=operand.index),
                    how=Granularity.CHANNEL,
                    axis=axis,
                )


def _stacked(view: GraphView, dequantize: Node) -> set[str]:
    """The Q of a pair and the DQ of another pair right in front of it; nothing where there is only one pair."""
    quantize = view.producer(dequantize.inputs[0])
    first = view.producer(quantize.inputs[0]) if quantize is not None else None
    two = quantize is not None and first is not None and first.op == DEQUANTIZE
    return {node.name for node in (quantize, first) if node is not None} if two else set()


def _anchor(layer: EngineLayer) -> str:
    """What names a kernel in every build: its nodes; kernels get new names each time."""
    return ", ".join(sorted(layer.onnx_nodes)) or layer.name


def _pairs_of(view: GraphView, layer: EngineLayer) -> Iterator[EditRequest]:
    """Inputs that read the pairs which a layer consists of."""
    seen = set()
    for name in layer.onnx_nodes:
        node = view.by_name.get(name)
        if node is None or node.op not in {QUANTIZE, DEQUANTIZE}:
            continue
        ends = [node] if node.op == DEQUANTIZE else [use.node for use in view.uses(node.outputs[0])]
        for end in ends:
            for use in view.uses(end.outputs[0]) if end.op == DEQUANTIZE else ():
                slot = Slot(node=use.node.name, index=use.index)
                if slot not in seen and use.index < len(use.node.inputs):
                    seen.add(slot)
                    yield EditRequest(slot=slot, how=Granularity.FLOAT)


def _products(context: AuditContext, layer: EngineLayer) -> Iterator[EditRequest]:
    """Float inputs of the two matrix products beside a softmax, where no placement meant them to be float."""
    beside = (*context.wiring.compute_before(layer), *context.wiring.compute_after(layer))
    names = {name for other in beside for name in other.onnx_nodes}
    for evidence in context.cases:
        meant = bool(evidence.decisions) and not evidence.requested
        if evidence.node.name in names and len(evidence.activations) > 1 and not meant:
            for operand in evidence.activations:
                if not operand.quantized:
                    yield EditRequest(
                        slot=Slot(node=evidence.node.name, index=operand.index), how=Granularity.TENSOR
                    )


def _scores(context: AuditContext, layer: EngineLayer) -> Iterator[EditRequest]:
    """Pairs between the first product and the softmax."""
    products = {evidence.node.name for evidence in context.cases}
    if layer.inputs[0].dtype is DType.INT8 and context.view is not None:
        yield from (
            request for request in _pairs_of(context.view, layer) if request.slot.node not in products
        )


def _results(context: AuditContext, layer: EngineLayer) -> Iterator[EditRequest]:
    """Who reads the second product's result in float."""
    for _, tensor in unquantized_results(context, layer):
        for use in context.view.uses(tensor) if context.view is not None else ():
            if use.node.op != QUANTIZE:
                yield EditRequest(slot=Slot(node=use.node.name, index=use.index), how=Granularity.TENSOR)


def _shortcuts(context: AuditContext, view: GraphView, layer: EngineLayer) -> Iterator[EditRequest]:
    """Float inputs of Adds beside the kernel that only brings a result back to INT8."""
    source = context.wiring.round_trip_of(layer)
    readers = context.wiring.readers(source) if source is not None else []
    for reader in readers:
        for name in reader.onnx_nodes if reader.name != layer.name else ():
            node = view.by_name.get(name)
            if node is None or node.op != "Add":
                continue
            for index, tensor in enumerate(node.inputs):
                maker = view.producer(tensor)
                if not view.is_constant(tensor) and (maker is None or maker.op != DEQUANTIZE):
                    yield EditRequest(slot=Slot(node=node.name, index=index), how=Granularity.TENSOR)
