"""Verdicts on every compute node: its requested and real format, the reason if they differ, and the fix."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qdqtool.auditing.explanations import RuleExplanations, add_explanations, builders, in_one, reasons
from qdqtool.auditing.regions import add_generated_kernels, is_opaque, region_around
from qdqtool.core.advice import format_fix, join_fixes, promises
from qdqtool.core.claims import Assertion, Claim, of_reason
from qdqtool.core.engine import (
    VECTOR_PRODUCT,
    Certainty,
    Engine,
    EngineLayer,
    EngineTensor,
    Role,
    stored_weight,
)
from qdqtool.core.findings import NodeVerdict, Verdict
from qdqtool.core.placement import Decision, Placement
from qdqtool.core.tensors import FLOAT, FORMATS, NAMES, DType
from qdqtool.core.wording import Command
from qdqtool.engine.layer_text import DUMP
from qdqtool.engine.roles import is_attention
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Model
from qdqtool.matching.products import find_asked_format
from qdqtool.matching.refused import BEFORE
from qdqtool.matching.rule import NodeEvidence, Rulebook, operands, rulebook
from qdqtool.trt.names import LayerMatch, join
from qdqtool.trt.ops import ATTENTIONS, COMPUTE

# --- realised --------------------------------------------------------------------------------------------------------
# Requested format of a node, type of its kernel's arithmetic, and type of its stored weight.
#
# `request` comes from the Q/DQ nodes before its two inputs. `compare_with_engine` comes from the layer information. It is low-bit
# arithmetic if both inputs of the kernel have the same small type. Otherwise it is float arithmetic with dequantization
# inside the kernel, if the kernel reads a stored weight. Otherwise, if a separate kernel converts that weight to float
# first, the format is lost: the weight is written and read again in every inference, although the engine file is just as
# small.
#
# Evidence: layer dumps of about 790 builds with TensorRT for RTX 1.7.1. Its log does not distinguish these cases.


UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Realised:
    """The format that Q/DQ request for one node, and the format that the engine uses.

    Attributes:
        request: a format ("int8", "nvfp4"), one of its weights alone ("int4-weights"), or "float".
        realised: format of the kernel, in the words of `request`; "float", "unknown", or weights that are dequantized before the kernel.
        layer: the kernel that dequantizes the weight, "" without one.
        bytes_lost: bytes that the dequantizing kernel writes and the next one reads, in every inference; None without
            such a kernel.
    """

    request: str
    realised: str
    layer: str = ""
    bytes_lost: int | None = None


def compare_with_engine(node_evidence: NodeEvidence, precision: DType) -> Realised:
    """Compare the requested format of one node with the engine; `precision` is the type of its arithmetic."""
    request = node_evidence.request
    if precision in NAMES:
        return Realised(request=request, realised=NAMES[precision])
    layers = node_evidence.holders.compute or tuple(
        layer for layer in node_evidence.holders.other if VECTOR_PRODUCT in layer.name
    )
    if not layers:
        return Realised(request=request, realised=UNKNOWN)
    held = stored_weight(layers)
    if held is not None:
        return Realised(request=request, realised=f"{_find_stored_format(held, request)}-weights")
    for layer in node_evidence.producers:
        stored = stored_weight((layer,))
        if stored is not None and layer.outputs:
            size = layer.outputs[0].bytes
            return Realised(
                request=request,
                realised=f"{_find_stored_format(stored, request)}-weights{BEFORE}",
                layer=layer.name,
                bytes_lost=None if size is None else 2 * size,
            )
    return Realised(request=request, realised=FLOAT)


def _find_stored_format(weight: EngineTensor, request: str) -> str:
    """Return the format of a stored weight. A dump shows MXFP8 as E4M3 values and does not show their scales."""
    if weight.dtype is DType.FLOAT8 and request.startswith("mxfp8"):
        return "mxfp8"
    return NAMES[weight.dtype]


def makers(engine: Engine) -> Mapping[str, EngineLayer]:
    """Return the kernels whose inputs are all constants, by the tensor that each kernel writes."""
    return {
        tensor.name: layer
        for layer in engine.layers
        if layer.constants and not layer.inputs and layer.role is not Role.NONE
        for tensor in layer.outputs
    }


# --- verdicts --------------------------------------------------------------------------------------------------------


_RTX_KINDS = frozenset({"correlation", "deconv", "runtime_fusion"})
"""Kinds of layers that only TensorRT for RTX prints."""
_SHARED_KINDS = frozenset(
    {"avgpool", "gemm", "kgen", "maxpool", "runtime_function", "shape_call", "signal", "wait"}
)
"""Kinds that classic TensorRT prints too, always beside others (NoOp, Reformat, fusion ...)."""
_ROUNDS_THEN_MULTIPLIES = re.compile(r"^__myl_\w*RounCast(?:Conc)?(?:Corr|Fc)")
_BY_TYPE = {
    DType.INT8: Verdict.INT8,
    DType.FLOAT16: Verdict.FP16,
    DType.BFLOAT16: Verdict.BF16,
    DType.FLOAT32: Verdict.FP32,
    DType.FLOAT8: Verdict.FP8,
    DType.FLOAT8_E5M2: Verdict.FP8,
    DType.FLOAT4: Verdict.FP4,
}


def verdicts(
    model: Model, engine: Engine, placement: Placement | None, *, targets: tuple[str, ...] = ()
) -> tuple[NodeVerdict, ...]:
    """Return one verdict for every Conv, ConvTranspose, Gemm, MatMul and attention node, in graph order.

    Args:
        model: the Q/DQ model that the engine was built from.
        engine: its layers.
        placement: the decisions behind the model; None for third-party Q/DQ.
        targets: architectures the engine was built for ("sm86"), as far as known.
    """
    return verdicts_of(cases(model, engine, placement, targets=targets))


def verdicts_of(nodes: Sequence[NodeEvidence]) -> tuple[NodeVerdict, ...]:
    """Return the verdicts on all nodes of a model.

    The layer information may belong to another model only if the engine names none of the nodes.
    """
    verdicts = tuple(
        _add_command(judged, evidence) for evidence, judged in zip(nodes, map(verdict, nodes), strict=True)
    )
    if all(judged.verdict is Verdict.NOT_FOUND for judged in verdicts):
        return verdicts
    return tuple(
        replace(judged, fix=_MERGED) if judged.verdict is Verdict.NOT_FOUND else judged for judged in verdicts
    )


def _add_command(node_verdict: NodeVerdict, evidence: NodeEvidence) -> NodeVerdict:
    """Return a verdict with its fix as a command, and with what reason and fix claim about the engine."""
    fix = format_fix(node_verdict.fix, command=evidence.as_float, at=node_verdict.node)
    stated = node_verdict.claims or (
        (of_reason(Assertion.IS_FLOAT),) if node_verdict.reason and _is_float(node_verdict) else ()
    )
    return replace(node_verdict, fix=fix, claims=(*stated, *promises(fix, of_finding=False)))


def _is_float(node_verdict: NodeVerdict) -> bool:
    return node_verdict.precision.is_float or node_verdict.realised == FLOAT


def cases(
    model: Model,
    engine: Engine,
    placement: Placement | None,
    *,
    targets: tuple[str, ...] = (),
    book: Rulebook | None = None,
) -> tuple[NodeEvidence, ...]:
    """Return the evidence on every compute node, in graph order; the rules in `book` add explanations."""
    nodes = [node for node in model.view.nodes if node.op in COMPUTE]
    flow, rtx = Flow(model), is_from_rtx(engine)
    made_by = builders(rtx=rtx, targets=targets)
    named = join(engine, frozenset(node.name for node in nodes))
    factors = {node.name: operands(flow, node, made_by[0]) for node in nodes}
    holders = {}
    for node in nodes:
        fixed = tuple(factor.index for factor in factors[node.name] if factor.fixed)
        holders[node.name] = add_generated_kernels(flow, node, fixed, named[node.name], engine)
    shared = Counter(layer.name for evidence in holders.values() for layer in evidence.compute)
    regions = tuple(layer for layer in engine.layers if is_opaque(layer))
    decisions: dict[str, list[Decision]] = defaultdict(list)
    for decision in placement.decisions if placement else ():
        if decision.slot.index < 2:
            decisions[decision.slot.node].append(decision)
    producers = makers(engine)
    evidence = tuple(
        NodeEvidence(
            flow=flow,
            node=node,
            operands=factors[node.name],
            request=find_asked_format(flow, node, (factor.index for factor in factors[node.name])),
            decisions=tuple(decisions[node.name]),
            holders=_own(holders[node.name], shared),
            regions=regions,
            producers=tuple(
                producers[tensor.name]
                for layer in holders[node.name].compute
                for tensor in layer.inputs
                if tensor.name in producers
            ),
            rtx=rtx,
            targets=targets,
        )
        for node in nodes
    )
    explanations = RuleExplanations(flow, made_by, book or rulebook())
    return add_explanations(evidence, _in_few_bits, explanations)


def is_from_rtx(engine: Engine) -> bool:
    """Return True if the kinds of layers show that TensorRT for RTX made the engine.

    A kind of layer that only TensorRT for RTX has proves it. A dump in which all kinds are shared also counts as RTX.
    """
    kinds = {layer.kind for layer in engine.layers}
    is_mixed = any(kind not in _SHARED_KINDS for kind in kinds)
    return bool(kinds & _RTX_KINDS) or (engine.form == DUMP and bool(kinds) and not is_mixed)


def _own(holders: LayerMatch, shared: Counter[str]) -> LayerMatch:
    """Leave out kernels that several nodes share and fused attentions, if the node has other kernels.

    A shared kernel may contain just the bias of a node, as a fused attention does for projections before it.
    """
    matrix = tuple(layer for layer in holders.compute if not is_attention(layer))
    holders = replace(holders, compute=matrix or holders.compute)
    own = tuple(layer for layer in holders.compute if shared[layer.name] == 1)
    return replace(holders, compute=own) if own else holders


def verdict(node_evidence: NodeEvidence) -> NodeVerdict:
    """Return how one compute node of the model runs in the engine, with reason and fix."""
    judged = _verdict_on_type(node_evidence)
    real = compare_with_engine(node_evidence, judged.precision)
    judged = replace(judged, asked=real.request, realised=real.realised, bytes_lost=real.bytes_lost)
    if judged.precision is DType.INT8:
        return judged
    stored = real.realised in {f"{name}-weights" for name in FORMATS}
    if judged.precision is DType.UNKNOWN and stored and not _is_rounded(node_evidence):
        judged = replace(judged, precision=_find_written_type(node_evidence))
    if judged.asked == judged.realised != FLOAT:
        return judged if node_evidence.weights_alone else replace(judged, reason="", fix="", claims=())
    refused = (
        any(not decision.quantize for decision in node_evidence.decisions) and not node_evidence.weights_alone
    )
    before = real.layer and judged.asked.endswith("-weights") and not refused
    return replace(judged, reason=_describe_earlier_dequantization(real, judged.reason)) if before else judged


def _find_written_type(node_evidence: NodeEvidence) -> DType:
    """Return the float type that a matrix-vector kernel writes. Such a kernel dequantizes the matrix and multiplies floats."""
    types = {
        tensor.dtype
        for layer in node_evidence.holders.other
        if layer.constants
        for tensor in layer.outputs
        if tensor.dtype.is_float
    }
    return types.pop() if len(types) == 1 else DType.UNKNOWN


def _describe_earlier_dequantization(real: Realised, reason: str) -> str:
    lost = "" if real.bytes_lost is None else f" ({real.bytes_lost:,} bytes are written and read again)"
    return f"{real.layer} dequantizes its weight before the kernel in every inference{lost}: {reason}"


def _verdict_on_type(node_evidence: NodeEvidence) -> NodeVerdict:
    if not node_evidence.holders.compute:
        return _without_kernel(node_evidence)
    if _is_rounded(node_evidence):
        return _with_neighbours(node_evidence)
    precision, kind, certainty = _precision(node_evidence)
    if precision is DType.INT8:
        return _verdict(node_evidence, kind, precision, certainty=certainty)
    reason, fix = _why(node_evidence, kind, precision)
    judged = _verdict(node_evidence, kind, precision, reason=reason, fix=fix, certainty=certainty)
    return replace(judged, claims=_claims(node_evidence))


def _in_few_bits(node_evidence: NodeEvidence) -> bool:
    """Return whether separate kernels compute the node in INT8, FP8 or FP4."""
    layers = node_evidence.holders.compute
    return bool(layers) and not _is_rounded(node_evidence) and _precision(node_evidence)[0] in NAMES


def _precision(node_evidence: NodeEvidence) -> tuple[DType, Verdict, Certainty]:
    """Return the type of the node's arithmetic, the verdict on this type, and its certainty."""
    layers = node_evidence.holders.compute
    types = {layer.precision for layer in layers}
    precision = types.pop() if len(types) == 1 else DType.UNKNOWN
    certainty = _weakest(node_evidence.holders.certainty, *(layer.precision_certainty for layer in layers))
    if any(map(is_attention, layers)):
        return _in_attention(node_evidence, precision), Verdict.ATTENTION, certainty
    if precision is not DType.INT8 and any(_reads_int8(layer) for layer in layers):
        return precision, Verdict.PROLOGUE, certainty
    return precision, _BY_TYPE.get(precision, Verdict.UNKNOWN), certainty


def _in_attention(node_evidence: NodeEvidence, precision: DType) -> DType:
    """Return the precision of a product in a fused attention.

    Both products share a kernel: a product is INT8 only if both of its operands come through Q/DQ.
    """
    if precision is DType.INT8 and not all(operand.quantized for operand in node_evidence.operands):
        return DType.UNKNOWN
    return precision


def _is_rounded(node_evidence: NodeEvidence) -> bool:
    """Return True if all kernels of a node round its input to eight bits.

    For such kernels, the engine does not show the type of the arithmetic.
    """
    layers = node_evidence.holders.compute
    return bool(layers) and all(map(_multiplies_rounded, layers))


def _multiplies_rounded(layer: EngineLayer) -> bool:
    """Return True if a generated kernel rounds its input to eight bits and multiplies it by INT8 weights in one step."""
    weights = any(
        constant.dtype is DType.INT8 and len(constant.shape or ()) > 1 for constant in layer.constants
    )
    return weights and not _reads_int8(layer) and _ROUNDS_THEN_MULTIPLIES.search(layer.name) is not None


def _with_neighbours(node_evidence: NodeEvidence) -> NodeVerdict:
    """Return the verdict on a convolution of few channels that TensorRT for RTX merged into a neighbour."""
    absent = _absent(
        node_evidence,
        Verdict.ABSORBED,
        "one kernel computes this node together with its neighbours: the kernel rounds its input to eight bits, but the engine does not show whether the kernel multiplies integers",
        node_evidence.holders.compute,
    )
    return replace(absent, fix="nothing to do: neither the node nor its Q/DQ costs a kernel")


def _reads_int8(layer: EngineLayer) -> bool:
    return any(tensor.dtype is DType.INT8 for tensor in layer.inputs[:1])


def _why(node_evidence: NodeEvidence, kind: Verdict, precision: DType) -> tuple[str, str]:
    causes = reasons(node_evidence)
    if causes:
        reason = in_one(causes)
        is_operator = node_evidence.node.op in ATTENTIONS
        if kind is Verdict.ATTENTION and not node_evidence.decisions and not is_operator:
            return reason, _FUSED
        return reason, join_fixes(cause.fix for cause in causes)
    if precision is DType.UNKNOWN:
        return (
            "the layer information does not show the type of its arithmetic",
            f"inspect the layer with {Command('engine', ('show',))}",
        )
    where = "dequantizes its input before it multiplies" if kind is Verdict.PROLOGUE else "is float"
    return (
        f"the inputs are quantized correctly, but the kernel that the builder chose {where}; no cause is visible",
        "keep this node float to save the Q/DQ kernels, or try another builder version or target",
    )


def _claims(node_evidence: NodeEvidence) -> tuple[Claim, ...]:
    """Return what the printed reasons of a node claim about the engine, each claim once."""
    return tuple(dict.fromkeys(claim for cause in reasons(node_evidence) for claim in cause.all_claims))


def _without_kernel(node_evidence: NodeEvidence) -> NodeVerdict:
    if node_evidence.operands and not node_evidence.activations:
        return _absent(
            node_evidence,
            Verdict.ABSORBED,
            "the node depends on constants only, so the builder computed its result once",
        )
    kernels = node_evidence.holders.other
    region = next((layer for layer in kernels if is_opaque(layer)), None)
    region = region or (
        None if kernels else region_around(node_evidence.view, node_evidence.node, node_evidence.regions)
    )
    if region is not None:
        return _absent(
            node_evidence, Verdict.UNKNOWN, f"inside {region.name}, whose kernels are not listed", (region,)
        )
    if kernels:
        return _judge_absorbed(node_evidence, kernels)
    if not any(
        node_evidence.view.uses(output) or node_evidence.view.is_output(output)
        for output in node_evidence.node.outputs
    ):
        return _absent(
            node_evidence,
            Verdict.ABSORBED,
            "nothing uses the result of this node, so the builder removed the node",
        )
    return _absent(node_evidence, Verdict.NOT_FOUND, "no layer of the engine names this node")


def _judge_absorbed(node_evidence: NodeEvidence, kernels: tuple[EngineLayer, ...]) -> NodeVerdict:
    """Return the verdict on a node that only kernels of other nodes name, such as a product written as multiply and sum."""
    names = ", ".join(sorted({layer.name for layer in kernels})[:3])
    causes = reasons(node_evidence)
    texts = [
        *(cause.reason for cause in causes),
        f"no convolution or matrix kernel names this node, only {names}",
    ]
    verdict = _absent(node_evidence, Verdict.ABSORBED, "; ".join(texts), kernels)
    fix = join_fixes(cause.fix for cause in causes)
    return replace(verdict, fix=fix or verdict.fix, claims=_claims(node_evidence))


_FUSED = "nothing to do: the float attention is one kernel; INT8 would need Q/DQ on both inputs of both MatMul nodes and after the second one; with only some of these Q/DQ the kernel is split"
_MERGED = (
    "nothing to do: the engine contains other nodes of this model; the builder merged or renamed this one"
)
_FIXES = {
    Verdict.ABSORBED: "nothing to do",
    Verdict.NOT_FOUND: f"{Command('build', ('MODEL', '--out', 'built'))} writes detailed layer information of this model",
    Verdict.UNKNOWN: "nothing to do with this release: TensorRT 9 and newer list the kernels of such regions",
}


def _absent(
    node_evidence: NodeEvidence, kind: Verdict, reason: str, layers: tuple[EngineLayer, ...] = ()
) -> NodeVerdict:
    holders = LayerMatch(compute=layers, certainty=Certainty.INFERRED)
    assigned = replace(node_evidence, holders=holders)
    return _verdict(
        assigned, kind, DType.UNKNOWN, reason=reason, fix=_FIXES[kind], certainty=Certainty.INFERRED
    )


def _verdict(
    node_evidence: NodeEvidence,
    kind: Verdict,
    precision: DType,
    *,
    reason: str = "",
    fix: str = "",
    certainty: Certainty,
) -> NodeVerdict:
    return NodeVerdict(
        node=node_evidence.node.name,
        op=node_evidence.node.op,
        verdict=kind,
        precision=precision,
        requested=node_evidence.requested,
        layers=tuple(layer.name for layer in node_evidence.holders.compute),
        reason=reason,
        fix=fix,
        certainty=certainty,
    )


def _weakest(*certainties: Certainty) -> Certainty:
    order = (Certainty.UNKNOWN, Certainty.INFERRED, Certainty.STATED)
    return min(certainties, key=order.index)
