"""Attention: its two MatMuls, its cache of keys and values, and its probabilities.

# attention

Attention is one fused INT8 kernel when all four inputs of its two matrix products are quantized.

    before                                     after
    q ─ MatMul ─ scale ─ Softmax ─ MatMul      q ─ QDQ ─ MatMul ─ scale ─ Softmax ─ QDQ ─ MatMul
    k ──┘                    v ──────┘         k ─ QDQ ──┘                    v ─ QDQ ──────┘

The requests come from the MatMul rules. This rule binds them, all four or none, and only if the result is read as INT8
(the next projection is quantized too), because the fused kernel writes INT8. The softmax result is included, although
rounding it costs some accuracy: without it the kernel is not fused.

These attentions have no fused INT8 kernel: head sizes other than 16, 32 and 64; values of another size than queries;
more than 512 tokens; a result that no compute node reads; attention between channels (its result is transposed along
the last axis); a single head of a single sample. For them the type of the float part decides. In FP16 and BF16 the
float attention is one kernel, so it stays float. In FP32 neither form is fused, so the two MatMul nodes are quantized
like all others. They are also quantized if values have another size than queries, or if there is a single head and
sample, because no float kernel fuses these either.

An attention with one query, as in the class attention of vision transformers, has a separate fused kernel
(`_gemv_mha`), also in FP32, if all samples together have at least four heads. In FP32 this kernel multiplies floats
in most networks, even if all four inputs have INT8 Q/DQ. In FP16 and BF16 the Q/DQ split it into two INT8 products
and a softmax. So such an attention stays float. In FP16, FP8 is multiplied as floats too: a decoder that produces one
token at a time has no FP8 attention, with or without a cache of keys and values. With fewer than four heads this kernel does not
exist. Two or three heads are fused as with more queries in FP16, BF16 and FP8, but not in INT8. So in INT8 they stay
float beside FP16 and BF16. Beside FP32 the two MatMul nodes are computed like all others.

PyTorch writes a Where after the Softmax that replaces NaN, for queries that may attend to no key. Such an attention
is one kernel in FP16, but not in INT8 and FP8 (15 builds: heads of 16, 32 and 64 for SM86, SM89 and SM120). qdqtool
removes the Where if the mask is a constant that leaves each query a key, and if the mask is computed from a condition
(`prepare.bound_masks`). Scores that are hidden become -30000 then, and queries without a key get their zeros after
the attention. If the mask is an input of floats, export the network without the Where. MiniLM of six blocks, INT8 for
SM86: 56 kernels and 15.3 MiB instead of 73 and 18.5 MiB; FP16 has 62.

The operator `Attention` (opset 23 and newer) has no input for the scale of its probabilities. Q/DQ on its other inputs
make an FP32 build fail, and in FP16 they are separate kernels before a float attention. `prepare.attention` (on by
default) writes it as MatMul, Softmax and MatMul, and so does `repair`, which gives the probabilities a pair: their
range, 0 to 1, needs no samples.

Evidence for the written form: RTX 1.7.1, 28 shapes with heads of 16 to 256, 1 to 1024 queries, grouped heads, masks and
causal, in FP16 for SM86, SM89 and SM120: never more kernels or bytes than the operator in float, `trt::TRT_QuantizedAttention` in
FP8, or the latter with `TRT_decomposable` in INT8. Classic TensorRT was not built: its documents name the operator since 10.14.

Evidence: RTX 1.7.1, kernels and bytes of small networks:

- Fused INT8 (`_gemm_mha` with Int8 inputs) in a block of 4 heads. 64 tokens, heads of 16: 10 and 213 KB in INT8, 11 and
  246 KB in FP16, 13 and 680 KB in FP32. No compute node after it: 9 and 246 KB in INT8 beside FP16, and 7 and 172 KB in
  FP16; 9 and 393 KB in INT8 beside FP32, and 9 and 565 KB in FP32. 8 to 128 channels per head, 16 to 1024 tokens and BF16 agree, with and without a
  position bias.
- Not fused in INT8. Heads of 24, 64 tokens: 13 and 430 KB, and 11 and 369 KB in FP16; beside FP32 13 and 643 KB, and 13
  and 889 KB in FP32. 577 tokens, heads of 64: 17 and 24.6 MB, and 11 and 8.9 MB in FP16; beside FP32 17 and 38.8 MB, and
  17 and 60.1 MB in FP32.
- One query, 64 tokens, heads of 64: 8 kernels and 678 KB with Q/DQ in FP32, and `_gemv_mha` reads floats; in FP16 11
  and 358 KB with Q/DQ, 7 and 420 KB without. FP8 behaves alike (SM89 and SM120, heads of 64 and 128, FP16 and
  FP32). So do 121 builds for SM75, SM86, SM89 and SM120 (1 to 4 heads of 16 to 128, 17 to 512 tokens, 1 to 4 samples).
- One query, two or three heads of 16 to 128, 17 to 401 keys, FP16: 7 kernels with a float attention in all of 21 builds,
  9 in INT8, 13 in INT8 with an odd number of keys. FP8 is one kernel (SM89 and SM120, FP16 and FP32). CrossViT beside
  FP16: 212 kernels instead of 254, with equal bytes; FP16 has 197.
- A decoder with a cache of keys and values: if the tables of sines and cosines are inputs or constants, the kernel
  includes the rotation and the cache, and multiplies floats (28 graphs). If the tables are computed from positions, only
  the first attention does so; in later ones the rotation has separate kernels, and `_gemv_mha` multiplies three INT8
  tensors. With two layers: 21 kernels instead of 19, 40 % fewer bytes.
- Attention between channels, 16 to 64 tokens, heads of 16 to 32: three kernels in INT8; in FP16 one kernel and the
  Transpose. Between pixels, with convolutions before and after, 2 heads of 32, FP16: 7 kernels with and without INT8;
  213 KB in INT8 against 238 KB with 64 pixels, 852 against 950 KB with 256.
- One head and one sample: two matrix products and a kernel between them (INT8 for SM86, SM89 and SM120, FP8 for SM89,
  FP16 for SM86, heads of 32 and 64). Two heads or two samples are one kernel, and so is a dynamic batch that is built
  for 4 (38 builds). INT8 has no more kernels than float, and fewer bytes (52 attentions of 16 to 197 tokens, FP32 and
  FP16). With an odd number of tokens and one Split for queries, keys and values, float probabilities save a kernel for
  2 to 56 % more bytes (24 attentions).
- FP8 for SM89 and SM120, 40 attentions: one kernel with heads of 8 to 256 and 32 to 1024 keys, with a mask or bias, and
  with any consumer. Several kernels with 31 keys or fewer, with values of another size than queries, and between
  channels.
- Values of another size than queries, 16 to 128 against 16 to 64: two matrix products and a kernel between them in all
  of 23 builds (INT8 and one query for SM86, FP8 for SM89, FP16 for SM86, SM89 and SM120). With equal sizes, one kernel.

NVIDIA/TensorRT issue 3243 says of 8.x that all four inputs are needed, and 3724 that more than 512 tokens are not fused.

# joint_projection

One pair before the split of a joint projection, instead of a separate pair for each part.

    before                                            after
    x ─ MatMul ─ Split ─┬─ ... ─ QDQ(s1) ─ MatMul     x ─ MatMul ─ QDQ(s) ─ Split ─┬─ ... ─ QDQ(s) ─ MatMul
                        ├─ ... ─ QDQ(s2) ─ MatMul                                  ├─ ... ─ QDQ(s) ─ MatMul
                        └─ ... ─ QDQ(s3) ─ MatMul                                  └─ ... ─ QDQ(s) ─ MatMul

Queries, keys and values are often the result of one MatMul that is split into three parts. A pair after the split adds
a kernel per part, which reads floats. A pair before the split is part of the MatMul kernel, and the parts are moved as
INT8. All pairs share one scale, so the second rounding changes nothing. A part that is scaled in between keeps its own
scale; a part that is changed in another way (rotated keys) is not included. For TensorRT for RTX only, and only if all
readers of the MatMul move values.

Three MatMuls that read the same tensor are joined first (`prepare.join_projections`), for INT8 and FP8. The parts are
then made about equally large by powers of two. Queries, keys, values and the weight after the attention take the
inverse factors.

The parts share one scale, which the largest part sets. If keys are many times as large as values, this costs accuracy;
`place.skip_rules: [joint_projection]` gives each part its own scale.

Evidence: RTX 1.7.1, one block of attention: two kernels fewer in each of 22 builds, with equal bytes and an unchanged
fused attention. The cut was a Split, a Slice or a Gather, before or after the heads are made. The scaling by a
constant was on scores, on queries, on queries and keys (as PyTorch writes `scaled_dot_product_attention`) or nowhere. INT8 was built
for SM86 and FP8 for SM89, in FP32 and FP16. If queries and keys are rotated and only values are moved, the number of
kernels does not change. A recognizer of text lines with two blocks: 28 kernels instead of 32. A diffusion
transformer: 37 instead of 41. Networks selected afterwards: 44 instead of 50 (three blocks) and 23 instead of 27 (two),
with 0.02 dB less and 0.2 dB more. Three MatMuls joined: a trained ViT of two blocks, 27 kernels instead of 33, 32.75
dB instead of 33.35 (32.46 without the powers of two). With random weights: T5 of three blocks, 29 instead of 35, 36.0
dB instead of 36.3. HuBERT and ConvBERT of two blocks, 46 instead of 50 and 41 instead of 45, as accurate as before.

# kv_cache

Keys and values that a decoder passes to its next step, stored in low bits on request.

    place.kv_cache: float (default)          place.kv_cache: int8 or fp8
    past ──┐                                 past (INT8) ─ DQ ─┐
           ├ Concat ─┬─ present                                ├ Concat ─ Q ─┬─ present (INT8)
    new ───┘         └─ MatMul               new ─ Q ─ DQ ─────┘             └─ DQ ─ MatMul

A cache is a model input whose values return in an output together with new values, through operators that only move
values (Concat, ScatterND, ScatterElements, Where, Slice, Transpose and the like). Its name does not matter. All its
parts share one scale, because values stored in one step are read in all later steps. Inputs and outputs change their
type: the program that runs the engine stores the cache in INT8 or FP8 and passes it on unchanged.

TensorScatter and `TRT_KVCacheUpdate` take float caches only, which are model inputs, so such caches stay float (RTX 1.7.1). Past
keys and values of the operator Attention become a Concat, and are stored.

The format of the cache does not set the arithmetic: an attention with one query converts the stored values to floats
inside its kernel.

Evidence: RTX 1.7.1, 64 tokens, 4 heads of 32, FP32. One query: `_gemv_mha` reads and writes INT8 (SM86) and FP8
(SM89) instead of floats: 4 kernels in both cases, 38,656 bytes instead of 137,728. 16 queries: 9 kernels and 282,624
bytes instead of 8 and 458,752. FP8 below SM89 is refused, like any FP8 value. Classic TensorRT was not built.

# probabilities

The probabilities of a Softmax have a scale that is too large.

    Softmax ─ Q (scale 0.05) ─ DQ ─ MatMul        values from 0 to 1 on 20 of 127 steps
    Softmax ─ Q (scale 1/127) ─ DQ ─ MatMul       all 127 steps

Probabilities never exceed 1, so a scale above 1/127 leaves steps unused. For FP8, NVIDIA's tools use 1/448 in the fused
attention, because the largest FP8 number is 448.

Evidence: the range is the operator's definition. RTX 1.7.1 builds the same kernels for any scale
(probabilities_coarse), so only accuracy is lost; NVIDIA-Model-Optimizer fixes 1/448 for FP8.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.claims import ADDS_A_KERNEL
from qdqtool.core.engine import EngineLayer
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import (
    JointSlots,
    QdqPair,
    QuantSpec,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotStatement,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import FP8, INT8, DType, by_name
from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.beside_attention import FACTORS
from qdqtool.graph.preparation.attention import heads_of
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.graph.qdq.kv_caches import kv_caches
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.attention import (
    attention_uses,
    attentions,
    has_one_query,
    int8_obstacle,
    is_fused_as_float,
    readers,
    unquantized_results,
)
from qdqtool.matching.products import compute_nodes, operand_slots, skipping, veto
from qdqtool.matching.rule import (
    BuiltGraph,
    Candidate,
    Explanation,
    Goal,
    NodeEvidence,
    Rule,
    Violation,
    feeding,
    kernel_of,
    readers_of_pairs,
)
from qdqtool.trt.ops import ATTENTIONS, PRODUCTS, QUANTIZE, picks_part, quantization_commutes, upstream

# --- attention -------------------------------------------------------------------------------------------------------

match_attention = attentions
"""Finds every attention that is written out, as its first and second MatMul."""


def place_attention(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement | JointSlots]:
    """Require Q/DQ on all inputs or none of an attention that INT8 fuses. Veto attentions that are only fused in float."""
    for scores, values in match_attention(view):
        behind = _products_behind(view, values)
        obstacle = int8_obstacle(view, scores, values, options.builder)
        if not obstacle and not behind:
            obstacle = "no compute node reads its result, but the fused INT8 attention writes INT8 values"
        if not obstacle:
            yield JointSlots(
                slots=(*operand_slots(scores), *operand_slots(values)),
                reason="a half-quantized attention cannot be fused into one kernel",
                requires=behind,
            )
        elif is_fused_as_float(view, scores, values, options.builder, options.float_type):
            objection = f"{obstacle}: INT8 would need several kernels, but the float attention is one kernel"
            without = "" if has_one_query(view, scores, values) else " without fusing them"
            fix = f"{skipping('attention', options)} quantizes the two MatMul nodes{without}"
            for node in (scores, values):
                yield from veto(node, objection, fix, ADDS_A_KERNEL)


def _products_behind(view: GraphView, values: Node) -> tuple[Slot, ...]:
    """Return the inputs that read the attention's result; () if one of them belongs to a node that is not a compute node."""
    uses = tuple(readers(view, values.outputs[0]))
    if not all(use.node.op in PRODUCTS and use.index < 2 for use in uses):
        return ()
    return tuple(Slot(node=use.node.name, index=use.index) for use in uses)


# --- joint_projection ------------------------------------------------------------------------------------------------


def match_joint_projection(
    view: GraphView,
) -> Iterator[tuple[str, tuple[Slot, ...], tuple[Slot, ...], tuple[str, ...]]]:
    """Yield joint projections: results whose parts, such as Q, K and V, are operands of other compute nodes.

    Yields the result, the slots that read it, the operands' slots, and the operands with its values unscaled.
    """
    cut: dict[str, dict[str, list[Slot]]] = {}
    unscaled: dict[str, list[str]] = {}
    for node in compute_nodes(view):
        for slot in operand_slots(node):
            tensor = node.inputs[slot.index]
            way, scaled = _way(view, tensor)
            parts = [part for part in way[:-1] if picks_part(_maker(view, part))]
            if parts and _is_projected(view, way[-1]):
                cut.setdefault(way[-1], {}).setdefault(parts[-1], []).append(slot)
                unscaled.setdefault(way[-1], []).extend([] if scaled else [tensor])
    for tensor, factors_of in cut.items():
        uses = view.uses(tensor)
        moved = all(use.index == 0 and quantization_commutes(view, use.node) for use in uses)
        if len(factors_of) > 1 and moved and not view.is_output(tensor):
            read = tuple(Slot(node=use.node.name, index=0) for use in uses)
            yield (
                tensor,
                read,
                tuple(slot for slots in factors_of.values() for slot in slots),
                tuple(unscaled[tensor]),
            )


def _way(view: GraphView, tensor: str) -> tuple[tuple[str, ...], bool]:
    """Return the tensors on the path from an operand back to the joint projection, and whether a constant scales the values."""
    way = tuple(upstream(view, tensor))
    node = view.producer(way[-1])
    if node is None or node.op not in FACTORS:
        return way, False
    varying = [name for name in node.inputs if not _is_number(view, name)]
    if len(varying) != 1 or (node.op == "Div" and varying[0] != node.inputs[0]):
        return way, False
    return (*way, *upstream(view, varying[0])), True


def place_joint_projection(
    view: GraphView, options: PlacementOptions
) -> Iterator[SlotStatement | JointSlots | SharedScale]:
    """For RTX, request a single Q/DQ pair before joint Q, K and V are cut, if all parts are quantized."""
    if not options.builder.is_rtx:
        return
    for tensor, read, behind, unscaled in match_joint_projection(view):
        for slot in read:
            yield SlotStatement(
                slot=slot,
                stance=RequestOrVeto.REQUEST,
                reason=f"{count_noun(len(behind), 'operand')} are slices of {tensor}: a single Q before the slices is enough for all",
                spec=QuantSpec(),
            )
        yield JointSlots(
            slots=read, reason="the parts of a joint projection are quantized together", requires=behind
        )
        if unscaled:
            yield SharedScale(
                tensors=(tensor, *dict.fromkeys(unscaled)),
                reason=f"parts of {tensor}, which are quantized before their split",
            )


def _is_number(view: GraphView, tensor: str) -> bool:
    """Return whether a tensor is a constant with one value."""
    shape = view.constant_shape(tensor) if view.is_constant(tensor) else None
    return shape is not None and prod(shape) == 1


def _maker(view: GraphView, tensor: str) -> Node:
    node = view.producer(tensor)
    assert node is not None  # `upstream` came from that node
    return node


def _is_projected(view: GraphView, tensor: str) -> bool:
    """Return whether a compute node, with or without a bias, produces a tensor."""
    node = view.producer(tensor)
    if node is not None and node.op == "Add":
        node = next((maker for name in node.inputs if (maker := view.producer(name)) is not None), None)
    return node is not None and node.op in PRODUCTS


def check_attention(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report attentions that are quantized in part, or in INT8 without a fused kernel."""
    yield from _operators(flow)
    view = flow.plain
    for scores, values in match_attention(view):
        inputs = [(node, index) for node in (scores, values) for index in (0, 1)]
        bare = [f"{node.name}[{index}]" for node, index in inputs if not is_int8(flow.origin(node, index))]
        float_is_one = is_fused_as_float(view, scores, values, target, "fp32")
        in_fp8 = any(
            pair is not None and pair.dtype is DType.FLOAT8
            for pair in (flow.origin(node, index) for node, index in inputs)
        )
        if has_one_query(view, scores, values) and target.is_rtx and (in_fp8 or len(bare) < len(inputs)):
            in_floats = in_fp8 or _is_single(view, scores)
            yield Violation(
                node=scores.name,
                reason=f"the attention of this node has Q/DQ, but {int8_obstacle(view, scores, values, target)}"
                if not in_floats
                else "the attention of this node has Q/DQ, but only a single query, and the fused kernel for this case usually multiplies floats",
                effect="the inputs are rounded without any gain"
                if in_floats
                else "the two MatMul nodes and the softmax are separate kernels, but a float attention is one kernel",
                fix=_off(flow, scores, values),
                products=(scores.name, values.name) if in_floats else (),
            )
        elif 0 < len(bare) < len(inputs):
            yield Violation(
                node=scores.name,
                reason=f"of the four inputs of the attention of this node, these have no Q/DQ: {', '.join(bare)}",
                effect="the attention is not fused into one kernel",
                fix=f"put Q/DQ on {', '.join(bare)}; or {_off(flow, scores, values)}",
            )
        elif not bare and not _is_read_quantized(flow, values):
            if _products_behind(view, values) or float_is_one:
                yield Violation(
                    node=values.name,
                    reason="the four inputs of the attention of this node are INT8, but its result is read as float",
                    effect="the attention is not fused into one kernel",
                    fix=f"quantize the layer after the attention; or {_off(flow, scores, values)}",
                )
        elif not bare and float_is_one and (obstacle := int8_obstacle(view, scores, values, target)):
            yield Violation(
                node=scores.name,
                reason=f"the attention of this node is INT8, but {obstacle}",
                effect="the attention is not fused into one kernel; a float attention would be",
                fix=_off(flow, scores, values),
            )


def _off(flow: Flow, *products: Node) -> str:
    read = [node.name for node in products if any(flow.source(node, index) for index in (0, 1))]
    return f"{repairing(to_float=read)} removes the Q/DQ from its inputs"


def _is_read_quantized(flow: Flow, values: Node) -> bool:
    """Return True if every reader of an attention's result reads it in quantized form."""
    uses = readers(flow.plain, values.outputs[0])
    return all(flow.source(use.node, use.index) is not None for use in uses)


def _is_single(view: GraphView, scores: Node) -> bool:
    """Return True if the float part is FP32. For one query, an FP32 attention kernel then replaces INT8 MatMuls."""
    return view.info(scores.inputs[0]).dtype is DType.FLOAT32


def explain_attention(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain attentions with one query, whose kernel always multiplies floats, and attention operators without Q/DQ."""
    if evidence.node.op in ATTENTIONS and not evidence.any_quantized:
        yield Explanation(reason=f"the operator {evidence.node.op} {_NO_PLACE}", fix=_FROM_FLOAT)
    elif any("_gemv_mha" in layer.name for layer in evidence.holders.compute):
        yield Explanation(
            reason="the attention of this node has a single query, and the fused kernel for this case, `_gemv_mha`, multiplies floats",
            fix=evidence.without_qdq,
        )


_NO_PLACE = "has no place for Q/DQ on its probabilities"
_FROM_FLOAT = f"{Command('quantize', ('FLOAT_MODEL', '--samples', 'DATA', '--out', 'MODEL'))} writes it as MatMul, Softmax and MatMul and quantizes both"


def _operators(flow: Flow) -> Iterator[Violation]:
    """Report attention operators with Q/DQ inputs. Their softmax is inside the operator, so its result cannot be quantized."""
    for node in flow.view.nodes:
        if node.op in ATTENTIONS and any(
            flow.origin(node, index) for index in range(min(3, len(node.inputs)))
        ):
            written = heads_of(flow.view, node) is not None and node.op == "Attention"
            out = f"{REPAIR} writes it as MatMul, Softmax and MatMul, and gives the probabilities a pair"
            off = f"{repairing(to_float=[node.name])} removes the Q/DQ"
            yield Violation(
                node=node.name,
                reason=f"the operator {node.op} has Q/DQ on its inputs, and {_NO_PLACE}",
                effect="in FP32 no builder accepts this operator; in FP16 it runs in float, after kernels that round its inputs",
                fix=out if written else off,
                products=(node.name,),
            )


def fix_attention(context: RepairContext) -> Iterator[Change]:
    """Add a Q/DQ pair for the probabilities (range 0 to 1) of an attention whose other three inputs have a pair."""
    flow = context.flow
    places = {use.node.name: use.index for _, use in attention_uses(flow.plain)}
    for scores, values in match_attention(flow.plain):
        index = places[values.name]
        inputs = ((scores, 0), (scores, 1), (values, 1 - index))
        pairs = [flow.origin(node, place) for node, place in inputs]
        kinds = {pair.dtype for pair in pairs if pair is not None}
        if None in pairs or len(kinds) != 1 or flow.origin(values, index) is not None:
            continue
        format_ = next((entry for entry in (INT8, FP8) if entry.dtype in kinds), None)
        if format_ is not None:
            slot = Slot(node=values.name, index=index)
            yield Change(
                edits=(SlotEdit(slot=slot, scales=(1 / format_.qmax,), format=format_),),
                subject=values.name,
                what=f"Q/DQ with scale 1/{format_.qmax:.0f} added to {slot}, the probabilities of its attention",
                reason="a half-quantized attention cannot be fused into one kernel",
            )


def candidates_attention(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose three changes per attention: the Q/DQ that the fused kernel requires, Q/DQ on all inputs, or no Q/DQ."""
    for layer in built.layers_with("attention_not_fused"):
        edits = (*_products(built, layer), *_scores(built, layer), *_results(built, layer))
        if edits:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="Q/DQ as the fused INT8 kernel requires: on both inputs of both MatMul nodes and on the result, not on the scores",
                edits=edits,
            )
    view = built.view
    for scores, values in match_attention(view):
        slots = (*operand_slots(scores), *operand_slots(values))
        bare = [slot for slot in slots if feeding(view, view.by_name[slot.node].inputs[slot.index]) is None]
        if bare:
            yield Candidate(
                subject=scores.name,
                goal=Goal.CHEAPER,
                text="quantize all inputs of both MatMul nodes of the attention",
                edits=tuple(SlotEdit(slot=slot, scales=None) for slot in bare),
            )
        if len(bare) < len(slots) and not _runs_quantized(built, scores, values):
            yield Candidate(
                subject=scores.name,
                goal=Goal.CHEAPER,
                text="remove Q/DQ from both MatMul nodes of the attention",
                edits=tuple(SlotEdit(slot=slot) for slot in slots if slot not in bare),
            )


def _runs_quantized(built: BuiltGraph, *products: Node) -> bool:
    names = {node.name for node in products}
    return any(verdict.is_quantized for _, verdict in built.nodes if verdict.node in names)


def _products(built: BuiltGraph, softmax: EngineLayer) -> Iterator[SlotEdit]:
    """Yield edits that quantize float inputs of the two MatMuls around a softmax, except inputs that placement kept float."""
    beside = (*built.wiring.compute_before(softmax), *built.wiring.compute_after(softmax))
    names = {name for kernel in beside for name in kernel.onnx_nodes}
    for evidence, _ in built.nodes:
        meant = bool(evidence.decisions) and not evidence.requested
        if evidence.node.name in names and len(evidence.activations) > 1 and not meant:
            for operand in evidence.activations:
                if not operand.quantized:
                    yield SlotEdit(slot=Slot(node=evidence.node.name, index=operand.index), scales=None)


def _scores(built: BuiltGraph, softmax: EngineLayer) -> Iterator[SlotEdit]:
    """Yield edits that remove Q/DQ pairs between the first MatMul and the softmax."""
    products = {evidence.node.name for evidence, _ in built.nodes}
    if softmax.inputs[0].dtype is DType.INT8:
        for slot in readers_of_pairs(built.view, softmax):
            if slot.node not in products:
                yield SlotEdit(slot=slot)


def _results(built: BuiltGraph, softmax: EngineLayer) -> Iterator[SlotEdit]:
    """Yield edits that quantize the nodes that read the second MatMul's result as float."""
    nodes = (evidence for evidence, _ in built.nodes)
    for _, tensor in unquantized_results(built.wiring, nodes, softmax):
        for use in built.view.uses(tensor):
            if use.node.op != QUANTIZE:
                yield SlotEdit(slot=Slot(node=use.node.name, index=use.index), scales=None)


# --- kv_cache --------------------------------------------------------------------------------------------------------


def place_kv_cache(
    view: GraphView, options: PlacementOptions
) -> Iterator[SlotStatement | SharedScale | JointSlots]:
    """Request the format in `place.kv_cache` for all inputs of a key/value cache, with one shared scale."""
    if options.kv_cache == "float":
        return
    format_ = by_name(options.kv_cache)
    for cache in kv_caches(view):
        for slot in cache.entries:
            yield SlotStatement(
                slot=slot,
                stance=RequestOrVeto.REQUEST,
                reason=f"place.kv_cache requests {format_} for the cache {' and '.join(cache.outputs)}",
                spec=QuantSpec(format=format_),
            )
        read = (view.by_name[slot.node].inputs[slot.index] for slot in cache.entries)
        yield SharedScale(
            tensors=tuple(dict.fromkeys((*read, *cache.tensors))),
            reason=f"each decoding step passes the cache {' and '.join(cache.outputs)} to the next step",
        )
        yield JointSlots(
            slots=cache.entries, reason="all parts of a key-value cache must be stored in one format"
        )


# --- probabilities ---------------------------------------------------------------------------------------------------

_LARGEST = {entry.dtype: entry.qmax for entry in (INT8, FP8)}
# Scales of calibration are quotients in FP32, and some tools divide by 128 for INT8.
_TOLERANCE = 1.05


def match_probabilities(flow: Flow) -> Iterator[tuple[QdqPair, float]]:
    """Yield Q/DQ pairs directly after a Softmax if their scale is too large for values up to 1.

    For each pair, also yield the largest number of its format.
    """
    for pair in flow.pairs:
        producer, largest = flow.view.producer(pair.tensor), _LARGEST.get(pair.dtype)
        if producer is None or producer.op != "Softmax" or largest is None or len(pair.scale) != 1:
            continue
        if pair.scale[0] * largest > _TOLERANCE:
            yield pair, largest


def check_probabilities(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs directly after a Softmax if their scale is too large for values up to 1."""
    for pair, largest in match_probabilities(flow):
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason=f"probabilities are at most 1, but the scale {pair.scale[0]:.3g} covers {pair.scale[0] * largest:.3g}",
            effect="most quantization steps cover values that never occur",
            fix=f"store the scale 1/{largest} = {1 / largest:.6f}, so that the range ends at 1; {REPAIR} does this",
        )


def fix_probabilities(context: RepairContext) -> Iterator[Change]:
    """Set the scale directly after a Softmax to 1 / the format's largest number, if the Q/DQ pair has no zero point."""
    for pair, largest in match_probabilities(context.flow):
        if pair.quantize and pair.dequantize and not any(pair.zero_point):
            for name in (pair.quantize, pair.dequantize):
                node = context.nodes[name]
                kind = context.scale_type(node)
                stored = np.full(pair.scale_shape or (), 1 / largest).astype(kind)
                node.input[1] = context.edit.constant(f"{pair.tensor}_probability_scale", stored)
            yield Change(
                subject=pair.quantize,
                what=f"scale {pair.scale[0]:.4g} became 1/{largest}",
                reason="probabilities are at most 1, and all steps above 1 cover values that never occur",
            )


PLUGIN = {
    "attention": Rule(
        code="QDQ132",
        formats=frozenset({"int8", "fp8"}),
        severity=Severity.WARNING,
        place=place_attention,
        check=check_attention,
        fix=fix_attention,
        candidates=candidates_attention,
        explain=explain_attention,
    ),
    "joint_projection": Rule(code="QDQ178", place=place_joint_projection),
    "kv_cache": Rule(code="QDQ194", place=place_kv_cache),
    "probabilities": Rule(
        code="QDQ151",
        severity=Severity.INFO,
        after=("scale_rank",),
        check=check_probabilities,
        fix=fix_probabilities,
    ),
}
