"""Findings about nodes that compute in float.

# fallback
A node does not run in INT8, or in the other low-bit format that was requested for it.

Placement (or, without one, the Q/DQ nodes of the model) requested it on every input of this node, but its kernel in the
engine computes in float, or no kernel was found. The Q/DQ before it then has a cost without a gain: values are rounded
to eight bits and converted back to float before they are multiplied. The reason comes from the Q/DQ graph around the
node.

# unrequested_float
A node runs in float because no rule requested its quantization.

This is not a fault of the builder: placement refused this node, or the model lacks Q/DQ on some of its inputs. The
reason repeats the reason of placement, so the list of float nodes in the engine is complete. Nodes with weight-only
quantization (`place.activations: float`) run as requested and are not listed.

# float_island
A float node between low-precision nodes.

Its input is converted from INT8 (or FP8, FP4) to float before it and back after it, so the tensors on both sides are
two or four times larger than necessary, in addition to the slower arithmetic. One missing Q/DQ pair often adds three
kernels. If placement kept the node float on purpose, the finding is for information only. Without a model the engine's
layers are checked: a float kernel between two low-precision kernels.

# float_shortcut
An Add reads its shortcut in float although other nodes read these values as INT8.

The kernel that produces these values writes them twice, and the Add reads the float copy. Placement may do this on
purpose: in a network with LayerNormalization, an INT8 residual stream loses accuracy in every block. This finding
reports the cost.

# fp16_off
Nodes that are not quantized run in FP32, because FP16 was not enabled.

The engine computes in INT8 (or FP8, FP4) and FP32, but not in FP16. With FP16 types in the model (or --fp16 for
TensorRT up to 10), the float part would be smaller and faster, with no visible loss for most networks. TensorRT's own
tools give the same hint. Kernels of nodes that lose their result in FP16 (`qdqtool convert` keeps them FP32 and gives
the reason) do not count.

If all products are low-bit, the values between them can still be FP32, as around the normalizations of a transformer. From 10 % of
the bytes on this is reported as information. On a MiniLM, FP16 left 9.1 of 15.3 MiB (RTX 1.7.1, SM86).

# slower_layer
A layer is slower than its counterpart in the engine this one is compared with.

Measured times of both engines, aligned by ONNX node. INT8 is not faster everywhere: small layers, kernels without
tensor cores and layers that need extra conversions can be slower than in FP16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from qdqtool.auditing.context import ENGINE, AuditContext, Check, RawFinding
from qdqtool.auditing.explanations import why_float
from qdqtool.core.claims import Assertion, Part
from qdqtool.core.engine import EngineLayer, EngineTensor, Role, first_ends
from qdqtool.core.findings import NodeVerdict, Severity, Verdict
from qdqtool.core.placement import Placement, RequestOrVeto, Slot
from qdqtool.core.tensors import FLOAT, DType
from qdqtool.core.wording import Command, Setting, count_noun
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.narrow import NARROW
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.refused import BEFORE
from qdqtool.matching.rule import Explanation
from qdqtool.trt.ops import COMPUTE

# --- fallback ----------------------------------------------------------------------------------------------------------


def find_fallback(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each requested node that does not run in the requested format."""
    for verdict in context.verdicts:
        if not verdict.requested or verdict.precision.is_quantized or verdict.asked == verdict.realised:
            continue
        request = "INT8" if verdict.asked == "float" else verdict.asked.upper()
        harmless = verdict.verdict is Verdict.ABSORBED
        yield RawFinding(
            subject=verdict.node,
            reason=f"{verdict.op} should run {request} but is {_verdict_words(verdict.verdict, verdict.precision)}: {verdict.reason}",
            fix=verdict.fix,
            severity=Severity.INFO if harmless else None,
            evidence=(context.at_node(verdict.node), *(context.at_layer(name) for name in verdict.layers)),
        )


def _verdict_words(kind: Verdict, precision: DType) -> str:
    return (
        str(kind.value)
        if precision is DType.UNKNOWN or kind.value == precision.value
        else f"{kind.value} ({precision})"
    )


def find_unrequested_float(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each float node that was not requested."""
    for case, verdict in zip(context.cases, context.verdicts, strict=True):
        if verdict.requested or verdict.precision.is_quantized or verdict.verdict is Verdict.ABSORBED:
            continue
        defeated = verdict.realised == FLOAT or verdict.realised.endswith(BEFORE)  # another check reports it
        if case.weights_alone or (verdict.asked.endswith("-weights") and (verdict.is_as_asked or defeated)):
            continue
        yield RawFinding(
            subject=verdict.node,
            reason=f"{verdict.op} runs {verdict.precision} and the model does not quantize it: {verdict.reason}",
            fix=verdict.fix,
            evidence=(context.at_node(verdict.node), *(context.at_layer(name) for name in verdict.layers)),
        )


# --- float island ------------------------------------------------------------------------------------------------------


def find_float_island(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each float node with low-precision nodes before and after it."""
    return _island_nodes(context, context.view) if context.view else _island_layers(context)


def _island_nodes(context: AuditContext, view: GraphView) -> Iterator[RawFinding]:
    by_node = {verdict.node: verdict for verdict in context.verdicts}
    for case in context.cases:
        verdict = by_node[case.node.name]
        if not verdict.precision.is_float:
            continue
        before = _nearest(case.node, lambda node: _above(view, node), by_node)
        after = _nearest(case.node, lambda node: _below(view, node), by_node)
        if before and after and all(neighbour.precision.is_quantized for neighbour in (*before, *after)):
            layers = case.holders.compute
            sizes = [tensor.bytes for layer in layers for tensor in (*layer.inputs[:1], *layer.outputs)]
            known_sizes = [size for size in sizes if size is not None]
            yield RawFinding(
                subject=case.node.name,
                reason=f"{case.node.op} runs {verdict.precision} between {before[0].node} and {after[0].node}, "
                f"which run {before[0].precision.value.upper()}",
                fix=verdict.fix,
                severity=Severity.INFO if case.decisions and not verdict.requested else None,
                bytes=sum(known_sizes) if len(known_sizes) == len(sizes) else None,
                evidence=(
                    context.at_node(case.node.name),
                    *(context.at_layer(layer.name) for layer in layers),
                ),
            )


def _island_layers(context: AuditContext) -> Iterator[RawFinding]:
    for layer in context.kernels:
        if layer.role is not Role.COMPUTE or not layer.precision.is_float:
            continue
        before, after = context.wiring.compute_before(layer), context.wiring.compute_after(layer)
        if before and after and all(neighbour.precision.is_quantized for neighbour in (*before, *after)):
            yield RawFinding(
                subject=layer.name,
                reason=f"runs {layer.precision} between {before[0].name} and {after[0].name}, which run {before[0].precision.value.upper()}",
                fix="put Q/DQ on the input and the weight of this node",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


def _above(view: GraphView, node: Node) -> list[Node]:
    producers = (view.producer(name) for name in node.inputs)
    return [producer for producer in producers if producer is not None]


def _below(view: GraphView, node: Node) -> list[Node]:
    return [use.node for output in node.outputs for use in view.uses(output)]


def _nearest(
    start: Node, step: Callable[[Node], list[Node]], verdicts: dict[str, NodeVerdict]
) -> tuple[NodeVerdict, ...]:
    """Return the verdicts on the compute nodes nearest to `start`, one per path."""
    nearest = first_ends(step(start), step, lambda node: node.name in verdicts, {start.name})
    return tuple(verdicts[name] for name in sorted(node.name for node in nearest))


# --- float shortcut ----------------------------------------------------------------------------------------------------


def find_float_shortcut(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for each reason why Adds read floats, for all Adds with this reason together."""
    if context.view is None or context.placement is None:
        return
    groups: dict[tuple[bool, Explanation], list[tuple[Slot, str]]] = defaultdict(list)
    for slot, tensor, shared in _float_shortcuts(context.view, context.placement):
        cause = why_float(slot, context.placement)
        if cause is not None:
            # For Adds that no rule asks to quantize, only the input's name differs.
            reason, fix = (text.replace(str(slot), "this input") for text in (cause.reason, cause.fix))
            groups[shared, replace(cause, reason=reason, fix=fix)].append((slot, tensor))
    for (shared, cause), shortcuts in groups.items():
        sizes = [_count_bytes_saved(context.view, tensor) if shared else None for _, tensor in shortcuts]
        known_sizes = [size for size in sizes if size is not None]
        several = f"{count_noun(len(shortcuts), 'Add reads', 'Adds read')}" if len(shortcuts) > 1 else "reads"
        problem = (
            "in float, although other nodes read the same tensor quantized"
            if shared
            else "the shortcut in float"
        )
        yield RawFinding(
            subject=shortcuts[0][0].node,
            reason=f"{several} {problem}: {cause.reason}",
            fix=cause.fix,
            bytes=sum(known_sizes) if len(known_sizes) == len(sizes) else None,
            evidence=tuple(context.at_node(slot.node) for slot, _ in shortcuts),
            claims=tuple(claim for claim in cause.claims if claim.part is Part.REASON),
        )


def _float_shortcuts(view: GraphView, placement: Placement) -> Iterator[tuple[Slot, str, bool]]:
    """Yield float inputs of Adds that a rule asked to quantize, or whose tensor another node reads quantized.

    Constants are skipped. The last item is true if another node reads the tensor quantized.
    """
    decisions = {decision.slot: decision for decision in placement.decisions}
    shared = {decision.tensor for decision in placement.quantized}
    for node in view.nodes:
        for index, tensor in enumerate(node.inputs if node.op == "Add" else ()):
            if view.is_constant(tensor):
                continue
            slot = Slot(node=node.name, index=index)
            decision = decisions.get(slot)
            is_requested = decision is not None and any(
                opinion.stance is RequestOrVeto.REQUEST for opinion in decision.opinions
            )
            if (tensor in shared or is_requested) and not (decision is not None and decision.quantize):
                yield slot, tensor, tensor in shared


def _count_bytes_saved(view: GraphView, tensor: str) -> int | None:
    """Return the bytes that INT8 saves over a float copy. A copy is written and read; INT8 values are only read.

    Example: to write and read 32768 FP32 values takes 256 KiB, to read them in INT8 32 KiB. So 224 KiB are saved, as
    dumped for bert, albert and deberta-v2 of two blocks.
    """
    info = view.info(tensor)
    if info.elements is None or info.dtype.bits is None:
        return None
    return info.elements * (2 * info.dtype.bits // 8 - 1)


# --- fp16 off ----------------------------------------------------------------------------------------------------------


_FLOATS: Final = 0.1
"""Share of FP32 in the activation bytes from which FP16 is proposed although no product computes in FP32. Three
networks with normalizations had 11 to 19 %; FP16 saved 27 and 40 % of two. Three convolutional networks had less than
5 %, and FP16 saved no bytes there.
"""


def find_fp16_off(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding for the engine if FP16 is off, but kernels or values between low-bit kernels are FP32."""
    computing = [layer for layer in context.kernels if layer.role is Role.COMPUTE]
    types = {tensor.dtype for layer in context.kernels for tensor in (*layer.inputs, *layer.outputs)}
    left = [layer for layer in computing if layer.precision is DType.FLOAT32]
    mixed = any(layer.precision.is_quantized for layer in computing)
    if not mixed or types & {DType.FLOAT16, DType.BFLOAT16}:
        return
    if not left:
        yield from _floats_between(context)
        return
    left, destroyed = _separate_kernels(context, left)
    if not left:
        return
    moved = _count_floats(context, frozenset(layer.name for layer in left))
    kept = f"; {len(destroyed)} more must stay FP32 (the first {destroyed[0]})" if destroyed else ""
    yield RawFinding(
        subject=ENGINE,
        reason=f"{len(left)} of {count_noun(len(computing), 'compute kernel runs', 'compute kernels run')} FP32 and none FP16: FP16 was not enabled{kept}",
        fix=_half_types(context),
        bytes=moved and moved[0] // 2,
        evidence=tuple(context.at_layer(layer.name) for layer in left[:5]),
    )


def _floats_between(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding if the values between low-bit compute nodes are FP32, as around LayerNormalization."""
    moved = _count_floats(context)
    if moved is None:
        return
    floats, whole = moved
    if not floats or floats < _FLOATS * whole:
        return
    yield RawFinding(
        subject=ENGINE,
        reason=f"all compute kernels are low-bit, but other kernels between them write FP32, {floats / whole:.0%} of all activation "
        "bytes, and none FP16: FP16 was not enabled",
        fix=_half_types(context),
        severity=Severity.INFO,
        bytes=floats // 2,
    )


def _count_floats(context: AuditContext, products: frozenset[str] = frozenset()) -> tuple[int, int] | None:
    """Return the FP32 bytes that FP16 would halve, and the bytes of all activations; None if a size is unknown.

    Kernels before a compute node count too. The sums of a convolution are FP32 in any case, and so may be the nodes
    after the last compute node.
    """
    inner: set[str] = set()
    leading: set[str] = set()
    for layer in reversed(context.kernels):
        readers = context.wiring.readers(layer)
        if any(reader.role is Role.COMPUTE or reader.name in leading for reader in readers):
            leading.add(layer.name)
            inner.update(tensor.name for tensor in layer.outputs if layer.role is not Role.COMPUTE)

    def is_float(tensor: EngineTensor) -> bool:
        return tensor.dtype is DType.FLOAT32 and tensor.name in inner

    floats = whole = 0
    for layer in context.kernels:
        size = context.bytes_of(layer)
        part = size if layer.name in products else context.bytes_of(layer, is_float)
        if size is None or part is None:
            return None
        floats, whole = floats + part, whole + size
    return floats, whole


def _half_types(context: AuditContext) -> str:
    typed = (
        Command("convert", ("--types", "fp16"))
        if context.placement is None
        else Setting("insert.types", "fp16")
    )
    classic = "; without strong typing (TensorRT up to 10) pass --fp16 as well"
    return f"{typed} gives the float part FP16{'' if context.target.is_rtx else classic}"


def _separate_kernels(context: AuditContext, left: list[EngineLayer]) -> tuple[list[EngineLayer], list[str]]:
    """Return the kernels that may compute in FP16, and the reason against FP16 for each of the others."""
    if context.view is None or not left:
        return left, []
    reasons = sensitive(context.view, NARROW["fp16"].float_type)
    nodes = context.view.by_name
    possible, destroyed = [], []
    for layer in left:
        computing = [name for name in layer.onnx_nodes if name in nodes and nodes[name].op in COMPUTE]
        if computing and all(name in reasons for name in computing):
            destroyed.append(reasons[computing[0]])
        else:
            possible.append(layer)
    return possible, destroyed


_LEAST = 0.05
"""Smallest slowdown that is reported, as a share; less is noise."""


def find_slower_layer(context: AuditContext) -> Iterator[RawFinding]:
    """Yield a finding per group of compute layers that take longer than in the second engine, worst first."""
    if context.compared is None:
        return
    pairs = [pair for pair in context.compared.pairs if pair.ms is not None and pair.left.ms]
    slower = [pair for pair in pairs if (pair.ms or 0.0) > _LEAST * (pair.left.ms or 0.0)]
    for pair in sorted(slower, key=lambda pair: -(pair.ms or 0.0)):
        yield RawFinding(
            subject=pair.right.layers[0],
            reason=f"takes {pair.right.ms:.4f} ms in {pair.right.arithmetic} instead of {pair.left.ms:.4f} ms in "
            f"{pair.left.arithmetic} in {context.compared.left.name}",
            fix="keep this node float, or look for conversions and for kernels without tensor cores next to the node",
            layers=pair.right.layers,
            bytes=pair.bytes,
            evidence=tuple(context.at_layer(name) for name in pair.right.layers),
        )


PLUGIN = {
    "fallback": Check(code="QDQ201", severity=Severity.WARNING, find=find_fallback, says=Assertion.IS_FLOAT),
    "unrequested_float": Check(
        code="QDQ202", severity=Severity.INFO, find=find_unrequested_float, says=Assertion.IS_FLOAT
    ),
    "float_island": Check(
        code="QDQ204", severity=Severity.WARNING, find=find_float_island, says=Assertion.IS_FLOAT
    ),
    "float_shortcut": Check(
        code="QDQ219", severity=Severity.INFO, find=find_float_shortcut, says=Assertion.READS_FLOAT
    ),
    "fp16_off": Check(code="QDQ212", severity=Severity.WARNING, find=find_fp16_off, says=Assertion.NO_HALF),
    "slower_layer": Check(code="QDQ216", severity=Severity.WARNING, find=find_slower_layer),
}
