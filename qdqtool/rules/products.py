"""A compute node computes in a low-bit format if both of its operands are quantized.

# conv

Convolutions compute in INT8 when activation and weight are both quantized.

    before                  after
    x ── Conv ── y          x ─ Q ─ DQ ─ Conv ── y
    W ───┘                  W ─ Q ─ DQ ───┘        (one scale per output channel: axis 0)

The output gets no Q/DQ: bias, BatchNormalization and activation fuse into the Conv, and the Q of the next consumer
fuses after them. The bias stays float (an INT32 bias with a DQ does not parse).

Evidence: RTX 1.7.1 builds one INT8 `correlation` for 1-D, 2-D and 3-D, grouped, depthwise and odd-channel
convolutions (placement cases chain_ok, depthwise_q, group4_q, conv_ci5_co7). Without Q/DQ on the weights, or without
on the activation, it computes in float and keeps dequantize kernels (chain_noweight, chain_noact).

# gemm

Fully connected layers (Gemm) compute in INT8 when both matrices are quantized.

    before                  after
    x ── Gemm ── y          x ─ Q ─ DQ ─ Gemm ── y
    W ───┘                  W ─ Q ─ DQ ───┘        (one scale per output: axis 0 with transB, else axis 1)

Evidence: RTX 1.7.1 builds one INT8 `gemm` for transB 0 and 1. Scales on the other axis give `CastMulFc`, a dequantize
inside a float product (gemm_q, matmul_w_axis0).

# matmul_weight

MatMul with one constant operand: activation per tensor, weight per output channel.

    before                    after
    x ── MatMul ── y          x ─ Q ─ DQ ─ MatMul ── y
    W ───┘                    W ─ Q ─ DQ ───┘      (last axis; next to last where the weight comes first)

The bias Add after it stays float: it fuses into the epilogue.

Evidence: RTX 1.7.1 builds one INT8 `gemm` (matmul_w; also with K=17, N=33 and M=1, with batched weights, and with the
weight on the first input). Scales along K give `CastMulFc`, which is float (matmul_w_axis0). If only the weight or
only the activation is quantized, the MatMul is float (matmul_w_only, matmul_a_only).

# matmul_activations

MatMul of two activations: both quantized, or neither.

    before                  after
    a ── MatMul ── y        a ─ Q ─ DQ ─ MatMul ── y
    b ───┘                  b ─ Q ─ DQ ───┘

Evidence: RTX 1.7.1 builds an INT8 `gemm` if both activations are quantized. If one is, it builds a float gemm after
an extra quantize-dequantize kernel (matmul_two_act, matmul_one_q).

# half_quantized

Only one of the two inputs of a Conv, Gemm or MatMul is quantized.

    x ─ Q ─ DQ ─┐                  x ─ Q ─ DQ ─┐
                 Conv  float                    Conv  INT8
    w ──────────┘                  w ─ Q ─ DQ ─┘

INT8, FP8 and FP4 arithmetic need both. With only one, the node runs in float, and its Q/DQ still rounds the values and
adds kernels. A MatMul or Gemm with low-bit weights and a float activation is correct if all of them are like that (see
QDQ184). Next to nodes with INT8 arithmetic, the Q/DQ may have been forgotten; the finding is then reported as
information. The same holds if operators move the quantized values to the node and another node uses the same Q: the
kernel of the node dequantizes them.

Evidence: RTX 1.7.1: float weights leave a fake-quantize kernel (chain_noweight). A float activation adds a kernel
that dequantizes the weights in every inference (chain_noact; folded for MatMul, matmul_w_only). If one of two
activations is quantized, the result is `CastMulFc`, a dequantize inside a float product (matmul_one_q,
matmul_a_only). If operators move the values of a Q that other nodes use to a float Gemm, the pair saves bytes
(fork_moved_to_float, fork_float). A matrix product whose weights alone are INT8 is what `place.format=int8-weights`
asks for: fewer bytes, and float arithmetic.

# mixed_formats

The two inputs of a Conv, Gemm or MatMul are quantized in different number formats.

    x ─ Q (INT8) ─ DQ ─┐                       x ─ Q (FP8) ─ DQ ─┐
                        MatMul   no build                          MatMul   FP8
    w (FP8) ─ DQ ──────┘                       w (FP8) ─ DQ ─────┘

A kernel multiplies two inputs of the same format. Different layers may use different formats: the kernels between them
change the format at no cost.

Evidence: RTX 1.7.1:
- INT8 with FP8 on either input, FP8 with INT4, and a Conv of INT8 and INT4 end with `Input and filter have to be the
  same type`.
- INT4 weights with one scale, or one per channel, and an INT8 activation: a separate kernel widens the weights to
  INT8.
- INT4 blocks and an INT8 activation build, but the result is multiplied by a constant with a scale per block and
  column, which fits no output.
- Any pair with FP4, and any operand that cannot be multiplied in its own format (scales along another axis), is
  multiplied in float.

# float_island

A layer without Q/DQ between INT8 layers.

    QDQ ─ Conv ─ Relu ─ Conv ─ Relu ─ QDQ ─ Conv            float tensors around the Conv in the middle
    QDQ ─ Conv ─ Relu ─ QDQ ─ Conv ─ Relu ─ QDQ ─ Conv      INT8 throughout

Its input is written in float and its result is quantized for the next layer, so tensors on both sides are four times
larger than necessary. Layers that placement keeps float, because they have no INT8 kernel or gain nothing, are not
reported.

Evidence: RTX 1.7.1 (depthwise_noq): the layer before writes Float, and a quantize kernel follows.

# per_tensor_weights

Weights with one scale for the whole tensor.

    w [64, 32, 3, 3] ─ Q (1 scale) ─ DQ ─ Conv
    w [64, 32, 3, 3] ─ Q (64 scales, axis 0) ─ DQ ─ Conv      same speed, less error

Per-channel scales cost nothing at run time and keep more accuracy, most of all for depthwise convolutions. If two
layers read a weight along different axes, no per-channel scale serves both.

Evidence: RTX 1.7.1 builds INT8 in both cases (chain_pertensor). With FP16 types, the per-tensor Conv keeps bias and
activation inside and writes Half, so it can even be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.findings import NodeVerdict, Severity, Verdict
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import JointSlots, RequestOrVeto, Slot, SlotKind, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import FLOAT, FORMATS, INT4, INT8, NAMES, NVFP4
from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import (
    NodeOperand,
    Product,
    State,
    arithmetic_word,
    both_or_neither,
    compute_nodes,
    products,
    weight_specs,
)
from qdqtool.matching.refused import BEFORE
from qdqtool.matching.rule import (
    BuiltGraph,
    Candidate,
    Explanation,
    Goal,
    NodeEvidence,
    Rule,
    Violation,
    refusals,
)
from qdqtool.matching.weights import asks_int8, requantize_weight
from qdqtool.matching.weights import half_quantized as match
from qdqtool.trt.ops import (
    ATTENTIONS,
    CLAMPS,
    ELEMENTWISE_SUMS,
    MATRIX_PRODUCTS,
    PRODUCTS,
    SWISHES,
    weight_axis,
)

ISLAND_BORDER = ELEMENTWISE_SUMS | CLAMPS | SWISHES | {"BatchNormalization", "LeakyRelu", "Sigmoid"}
"""Operators that may be between two compute nodes that pass INT8 values to each other."""


# --- conv ------------------------------------------------------------------------------------------------------------


def place_conv(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | JointSlots]:
    """Request Q/DQ on both inputs of a Conv or on neither; the weight gets one scale per output channel."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "Conv"):
        yield from both_or_neither(
            node,
            specs,
            reason="a convolution computes in INT8 if input and weights are quantized",
            alone="with only one of input and weights quantized a convolution computes in float",
        )


# --- gemm ------------------------------------------------------------------------------------------------------------


def place_gemm(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | JointSlots]:
    """Request Q/DQ on both operands of a Gemm. Constants get one scale per output channel."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "Gemm"):
        yield from both_or_neither(
            node,
            specs,
            reason="a matrix product computes in INT8 if both operands are quantized",
            alone="with only one operand quantized, a matrix product computes in float",
        )


# --- matmul_weight ---------------------------------------------------------------------------------------------------


def place_matmul_weight(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | JointSlots]:
    """Request Q/DQ on both operands of every MatMul with exactly one constant operand."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "MatMul"):
        if view.is_constant(node.inputs[0]) == view.is_constant(node.inputs[1]):
            continue
        yield from both_or_neither(
            node,
            specs,
            reason="a matrix product computes in INT8 if activation and weight are quantized",
            alone="with only one of activation and weight quantized a matrix product computes in float",
        )


# --- matmul_activations ----------------------------------------------------------------------------------------------


def place_matmul_activations(
    view: GraphView, _options: PlacementOptions
) -> Iterator[SlotStatement | JointSlots]:
    """Request Q/DQ on both operands of every MatMul without a constant operand."""
    for node in compute_nodes(view, "MatMul"):
        if any(view.is_constant(tensor) for tensor in node.inputs):
            continue
        yield from both_or_neither(
            node,
            {},
            reason="a MatMul of two activations computes in INT8 if both are quantized",
            alone="with only one activation quantized it computes in float",
        )


# --- half_quantized --------------------------------------------------------------------------------------------------

WEIGHTS_ALONE = "place.format=int8-weights"
"""The setting that asks for quantized weights with float activations."""


def check_half_quantized(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes with Q/DQ on one operand only. For stored weights of a MatMul or Gemm, the severity is info."""
    for product, missing in match(flow, target):
        node, stored = product.node, product.weights_alone
        subject = "the weights have" if missing.fixed else f"input {missing.index} has"
        both = f"{arithmetic_word(product.request)} needs both"
        inside = stored is not None and node.op in MATRIX_PRODUCTS
        shared = _find_sharing(flow, node, 1 - missing.index)
        unless = (
            f"{WEIGHTS_ALONE} is intended"
            if inside
            else f"this node is meant to be float, as {shared} uses the same Q"
            if shared
            else ""
        )
        fix = f"put Q/DQ on {node.inputs[missing.index]} as well ({both})"
        fix = f"nothing to do if {unless}; otherwise {fix}" if unless else fix
        fix += "" if shared else ", or remove it from the other input"
        if shared and INT8.name in product.request:
            fix += f": {repairing(to_int8=[node.name])} does"
        elif INT8.name in product.request:
            samples = () if missing.fixed else ("--samples", "DATA")
            fix += f"; {Command('repair', samples)} does the first"
        yield Violation(
            node=node.name,
            reason=f"{subject} no Q/DQ, but the other input has",
            effect=f"{node.op} runs in float"
            + (" and its weights are dequantized in every inference" if stored and not inside else ""),
            fix=fix,
            severity=Severity.INFO if unless else None,
            products=() if inside else (node.name,),
            realised=f"{product.request}{BEFORE}" if stored is not None and target.is_rtx else FLOAT,
            of_builder=False,
        )


def _find_sharing(flow: Flow, node: Node, index: int) -> str:
    """Return another node that reads the quantized values which operators move to this input; "" if there is none."""
    slot, pair = flow.source(node, index), flow.origin(node, index)
    if slot is None or pair is None or slot.node == node.name:
        return ""
    pairs = (each for each in flow.pairs if each.tensor == pair.tensor)
    return next((reader.node for each in pairs for reader in each.slots if reader != slot), "")


def fix_half_quantized(context: RepairContext) -> Iterator[Change]:
    """Quantize float weights of compute nodes whose activation is quantized, unless other nodes need its Q."""
    for product, bare in match(context.flow, Target(), alone=True):
        if _find_sharing(context.flow, product.node, 1 - bare.index):
            continue
        change = _quantize_constant(context, product.node.name, bare.index) if asks_int8(product) else None
        if change is not None:
            yield change


def _quantize_constant(context: RepairContext, name: str, index: int) -> Change | None:
    """Quantize a float constant to INT8 per output channel; None if the input is not a float constant."""
    reader = context.view.by_name[name]
    tensor = reader.inputs[index]
    value = context.edit.value(tensor)
    if value is None or value.dtype not in (np.float32, np.float16) or value.ndim < 2 or not value.size:
        return None
    axis = weight_axis(reader, index, value.ndim)
    _, scale, error = requantize_weight(value.astype(np.float64), axis, value.dtype)
    scales = tuple(float(step) for step in np.atleast_1d(scale))
    return Change(
        edits=(SlotEdit(slot=Slot(node=name, index=index), scales=scales, axis=axis),),
        subject=tensor,
        what=f"float weight of {reader.op} {name!r} quantized per channel",
        reason="a quantized activation without a quantized weight silently runs in float",
        error=error,
    )


def explain_half_quantized(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain which operands of a compute node have no Q/DQ, also if none has."""
    if evidence.node.op in ATTENTIONS:
        return  # the rule `attention` gives the reason, and reports that Q/DQ on the operator's inputs end a build
    if evidence.node.op == "Einsum" and len(evidence.node.inputs) > 2:
        yield Explanation(
            reason=f"an Einsum of {count_noun(len(evidence.node.inputs), 'operand')} becomes several matrix products, and Q/DQ cannot be placed between them",
            fix="write it as Einsums of two operands, each with Q/DQ on both",
        )
        return
    if _is_plain(evidence):
        yield Explanation(
            reason="the activation and the weight have no Q/DQ",
            fix=f"{repairing(to_int8=[evidence.node.name], samples=True)} puts Q/DQ on both of its inputs",
        )
        return
    bare = [operand for operand in evidence.activations if not operand.quantized]
    several = "s" * (len(bare) > 1)
    if bare:
        numbers = " and ".join(str(operand.index) for operand in bare)
        extra = "; its quantized weight is dequantized in every inference" if _is_computed(evidence) else ""
        measured = f"; {Command('repair', ('--samples', 'DATA'))} does" if evidence.any_quantized else ""
        yield Explanation(
            reason=f"{'the activations have' if several else 'the activation has'} no Q/DQ{extra}",
            fix=f"put Q/DQ on input{several} {numbers}{f': {evidence.arithmetic} needs all of them' if several else ''}{measured}",
        )
    for operand in evidence.weights if evidence.activations else ():
        if not operand.quantized:
            yield Explanation(
                reason="the weight has no Q/DQ",
                fix=f"put Q/DQ on input {operand.index} as well: {evidence.arithmetic} needs both",
            )


def _is_plain(evidence: NodeEvidence) -> bool:
    """Return True if a compute node with constant weights has no Q/DQ, in a model without a placement."""
    stored = len(evidence.activations) == len(evidence.weights) == 1
    return stored and evidence.node.op in PRODUCTS and not evidence.any_quantized and not evidence.decisions


def _is_computed(evidence: NodeEvidence) -> bool:
    """Return True if a separate kernel computes the quantized weight in every inference."""
    weight = len(evidence.activations) == 1 and any(operand.quantized for operand in evidence.weights)
    return weight and any(len(layer.inputs) > 1 for layer in evidence.holders.compute)


_LEFT_ALONE = frozenset({Verdict.NOT_FOUND, Verdict.UNKNOWN})
_OF_USER = frozenset({"user", "first_last", "min_channels", "fix"})
"""Placement rules that express wishes of the recipe, and edits that a build has proven. All others predict TensorRT, and a build
can refute them.
"""


def candidates_half_quantized(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose INT8 on all inputs of a float compute node, and the removal of Q/DQ from a node that stays float."""
    islands = {finding.subject for finding in built.findings if finding.check == "float_island"}
    for evidence, verdict in built.nodes:
        if not _is_fallback(evidence, verdict):
            continue
        quantized = evidence.any_quantized
        # A node that placement keeps float on purpose is not a fallback, so INT8 must bring a gain there.
        meant = bool(evidence.decisions) and not evidence.requested
        has_kernel = not any(explanation.no_kernel for explanation in evidence.explanations)
        if has_kernel and not meant and (quantized or evidence.node.name in islands):
            yield from _to_int8(evidence, Goal.INT8)
        elif has_kernel and not _is_users_choice(evidence):
            yield from _to_int8(evidence, Goal.CHEAPER)
        direct = [
            operand for operand in evidence.operands if operand.quantized and not evidence.moves(operand)
        ]
        if direct:
            yield Candidate(
                subject=evidence.node.name,
                goal=Goal.CHEAPER,
                text="remove the Q/DQ from its inputs",
                edits=tuple(
                    SlotEdit(slot=Slot(node=evidence.node.name, index=operand.index)) for operand in direct
                ),
            )


def _is_fallback(evidence: NodeEvidence, verdict: NodeVerdict) -> bool:
    if verdict.is_quantized or verdict.verdict in _LEFT_ALONE:
        return False
    return (
        verdict.verdict is not Verdict.ABSORBED
        or len({operand.quantized for operand in evidence.operands}) > 1
    )


def _is_users_choice(evidence: NodeEvidence) -> bool:
    """Return True if the recipe keeps this node float, or keeps all activations float."""
    return evidence.weights_alone or any(
        opinion.stance is RequestOrVeto.VETO and opinion.rule in _OF_USER
        for decision in evidence.decisions
        for opinion in decision.opinions
    )


def _to_int8(evidence: NodeEvidence, goal: Goal) -> Iterator[Candidate]:
    format_ = FORMATS[evidence.arithmetic.lower()]
    if format_.block is not None:
        return  # placement makes the blocks and knows which sizes divide the axis
    edits = tuple(
        replace(edit, format=format_)
        for operand in evidence.operands
        if (edit := _needed_edit(evidence, operand)) is not None
    )
    if edits:
        inputs = ", ".join(
            f"{edit.slot.index} ({'one scale' if edit.axis is None else 'one scale per channel'})"
            for edit in edits
        )
        yield Candidate(subject=evidence.node.name, goal=goal, text=f"quantize input {inputs}", edits=edits)


def _needed_edit(evidence: NodeEvidence, operand: NodeOperand) -> SlotEdit | None:
    """Return the edit that quantizes an operand to INT8; None if it is INT8 already."""
    slot = Slot(node=evidence.node.name, index=operand.index)
    cast = "Cast" in evidence.moves(operand)
    if operand.fixed:
        rank = len(evidence.view.info(evidence.node.inputs[operand.index]).shape or ())
        axis = weight_axis(evidence.node, operand.index, rank)
        right = operand.quantized and not cast and operand.state is not State.WRONG_AXIS
        return None if right else SlotEdit(slot=slot, scales=None, axis=axis)
    pair = operand.pair
    if operand.quantized and not cast and (pair is None or pair.scale_shape in {None, ()}):
        return None
    scale = max(map(abs, pair.scale), default=None) if pair else evidence.largest_branch(operand)
    return SlotEdit(slot=slot, scales=None if scale is None else (scale,))


# --- mixed_formats ---------------------------------------------------------------------------------------------------

_REFUSED = "the build fails: both operands must be of the same type"
_WRONG = "the engine builds, but multiplies the result by the scales of other columns"


def check_mixed_formats(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes whose operands have two different formats that TensorRT supports."""
    for product in products(flow, target):
        formats = [operand.format for operand in product.operands]
        are_known = set(formats) <= {*NAMES.values(), "mxfp8"}
        if not product.mixed or not are_known or _is_int4_activation(product):
            continue
        effect, severity, realised = _outcome(product, target)
        yield Violation(
            node=product.node.name,
            reason=f"one operand is {formats[0]}, the other {formats[1]}",
            effect=effect,
            fix=_fix(product),
            severity=severity,
            products=(product.node.name,),
            realised=realised,
        )


def _outcome(product: Product, target: Target) -> tuple[str, Severity, str]:
    formats = {operand.format for operand in product.operands}
    if not target.is_rtx:
        return _REFUSED, Severity.ERROR, "float"
    if NVFP4.name in formats or not {operand.state for operand in product.operands} <= {
        State.READY,
        State.BLOCKS,
    }:
        return f"{product.node.op} runs in float", Severity.WARNING, "float"
    if formats == {INT8.name, INT4.name} and product.node.op in MATRIX_PRODUCTS:
        small = next(operand for operand in product.operands if operand.format == INT4.name)
        blocks = small.quantization is not None and small.quantization.block is not None
        if blocks:
            return _WRONG, Severity.ERROR, INT8.name
        return (
            "a separate kernel widens the weights to INT8 in every inference",
            Severity.WARNING,
            INT8.name,
        )
    return _REFUSED, Severity.ERROR, "float"


def _fix(product: Product) -> str:
    activation = next((operand.format for operand in product.operands if not operand.fixed), "float")
    if any(operand.format == INT4.name and operand.fixed for operand in product.operands):
        return f"keep the activation float, or store the weights as INT8, as {REPAIR} does"
    command = repairing(to_float=[product.node.name])
    return f"quantize the weights to {activation} too, or keep both float, as {command} does"


def _is_int4_activation(product: Product) -> bool:
    """Return True if an activation is INT4. It is widened to INT8; the rule four_bits reports it."""
    return any(
        operand.format == INT4.name and operand.pair is not None and operand.pair.kind is SlotKind.ACTIVATION
        for operand in product.operands
    )


# --- float_island ----------------------------------------------------------------------------------------------------

# Number of operators that are followed on each side of a float compute node.
_FARTHEST = 6


def check_float_island(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes without Q/DQ between neighbours with Q/DQ on both sides."""
    islands = [node for node in flow.products() if _is_island(flow, node)]
    meant = refusals(flow, target) if islands else {}
    for node in islands:
        if node.name not in meant:
            yield Violation(
                node=node.name,
                reason=f"this {node.op} has no Q/DQ, but the layers before and after it have",
                effect="float tensors are written and read on both sides of this node",
                fix=f"{repairing(to_int8=[node.name], samples=True)} puts Q/DQ on both of its inputs",
            )


def _is_island(flow: Flow, node: Node) -> bool:
    bare = all(flow.origin(node, index) is None for index in (0, 1))
    return bare and _int8_before(flow, node) and _int8_behind(flow, node)


def _int8_before(flow: Flow, node: Node) -> bool:
    tensor = node.inputs[0]
    for _ in range(_FARTHEST):
        producer = flow.view.producer(tensor)
        if producer is None:
            return False
        if producer.op in PRODUCTS:
            return all(is_int8(flow.origin(producer, index)) for index in (0, 1))
        if producer.op not in ISLAND_BORDER:
            return False
        tensor = producer.inputs[0]
    return False


def _int8_behind(flow: Flow, node: Node) -> bool:
    tensor = node.outputs[0]
    for _ in range(_FARTHEST):
        readers = flow.readers(tensor)
        if not readers:
            return False
        if all(reader.op == "QuantizeLinear" for reader in readers):
            return True
        if readers[-1].op not in ISLAND_BORDER:
            return False
        tensor = readers[-1].outputs[0]
    return False


# --- per_tensor_weights ----------------------------------------------------------------------------------------------


def check_per_tensor_weights(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report INT8 compute nodes whose weights have several channels but only one scale."""
    specs = weight_specs(flow.plain, PlacementOptions(target=target.name))
    for product in products(flow, target):
        node = product.node
        ready = all(operand.state is State.READY for operand in product.operands)
        if node.op == "ConvTranspose" or product.arithmetic != INT8.name or not ready:
            continue
        for operand in product.operands:
            pair = operand.pair
            if pair is None or pair.kind is not SlotKind.WEIGHT:
                continue
            float_node = flow.plain.by_name.get(node.name)
            if float_node is None:
                continue  # it leads to no output
            tensor = float_node.inputs[operand.index]
            axis = specs[tensor].axis if tensor in specs else None
            shape = flow.plain.info(tensor).shape or ()
            if len(pair.scale) == 1 and axis is not None and axis < len(shape) and shape[axis] != 1:
                yield Violation(
                    node=node.name,
                    reason="the weights of this node have one scale for all channels",
                    effect="the node runs INT8, with more rounding error than with per-channel scales",
                    fix=f"{repairing(to_int8=[node.name])} gives its weights one scale per output channel",
                )


PLUGIN = {
    "conv": Rule(code="QDQ163", place=place_conv),
    "gemm": Rule(code="QDQ169", place=place_gemm),
    "matmul_weight": Rule(code="QDQ172", place=place_matmul_weight),
    "matmul_activations": Rule(code="QDQ171", place=place_matmul_activations),
    "half_quantized": Rule(
        code="QDQ120",
        severity=Severity.WARNING,
        check=check_half_quantized,
        fix=fix_half_quantized,
        candidates=candidates_half_quantized,
        explain=explain_half_quantized,
    ),
    "mixed_formats": Rule(code="QDQ182", severity=Severity.ERROR, check=check_mixed_formats),
    "float_island": Rule(
        code="QDQ134", formats=frozenset({"int8"}), severity=Severity.INFO, check=check_float_island
    ),
    "per_tensor_weights": Rule(code="QDQ144", severity=Severity.INFO, check=check_per_tensor_weights),
}
