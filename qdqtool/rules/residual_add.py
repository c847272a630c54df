"""Sums and gates: which of their inputs are quantized.

# residual_add

Residual Add: quantize the shortcut, never the branch that comes from the convolution.

    before                               after
    x ─┬─ Conv ─ Conv ─ Add ─ Relu       x ─┬─ QDQ ─ Conv ─ ... ─ Conv ─ Add ─ Relu
       └────────────────┘                   └─ QDQ ───────────────────────┘   (same tensor, same scale)

The Conv, the Add and the activation fuse into one kernel that reads the shortcut as INT8, so the producer of x writes
one INT8 tensor and no float copy. This only helps if x is quantized for another consumer anyway. A shortcut that no
other node reads in INT8 (because LayerNormalization or an activation comes first) stays float.

If both branches come from convolutions of the same input (a downsampling block), RTX reads both results in one kernel,
and rounding one of them saves nothing. Classic TensorRT fuses the Add into one of the two convolutions, so there the
branch with fewer layers is quantized (the second branch if they are equal), never both.

Evidence: RTX 1.7.1, placement cases res_ok, res_missing (a float copy is written), res_both (double rounding);
MobileNetV2 blocks 7.73 MB against 8.43 MB without; transformer residuals 0.95 MB against 0.92 MB without;
downsampling blocks 2.86 MB whichever branch is quantized. Classic: placement guide of 8.x, NVIDIA/TensorRT issues
1144 and 3205.

# residual_stream

The residual stream of a network with LayerNormalization stays float.

    x ─┬─ QDQ ─ products ─┐                      no Q/DQ on the shortcut, although x is INT8 for the products
       └──────────────── Add ─ LayerNorm ─┬─ ...
                                          └─ ...

Every block adds its result to the output of a LayerNormalization, as in BERT, ALBERT and DeBERTa (or, in Swin v2, adds
a normalized result). INT8 would round the stream again in every block, and the results of the MatMul nodes are small in
comparison. A float copy of the values is written in addition to the INT8 tensor; `QDQ219` reports its cost.

Evidence: bert, albert and deberta-v2 of two blocks (random weights, 64 tokens, RTX 1.7.1, SM86): INT8 shortcuts save
13 % of the activation bytes (1.72 -> 1.50 MiB, with an equal number of kernels), and the outputs of all three are far
noisier. Networks that add results of convolutions lose no accuracy (levit_128s and efficientvit_m0, both 9 % fewer
bytes); this rule does not apply to them. FP8 behaves alike. A block has two matrix products of 256 channels in INT8
(SM89) or FP8 (SM89, SM120), with FP16 or FP32 around them. Pairs on the shortcut, on the other operand, on both, on
the sum, or nowhere give the same five kernels, with both products in their format (36 builds). Such a pair adds a
rounding, and saves no kernel. After LayerNormalization, the quantization is part of its kernel in each build.

# gated_shortcut

A gate reads its shortcut as INT8 if the layer that computes the gate reads INT8.

    before                                  after
    x ─┬─ QDQ ─ Conv ─ Sigmoid ─ Mul        x ─┬─ QDQ ─ Conv ─ Sigmoid ─ Mul
       └───────────────────────────┘           └─ QDQ ────────────────────┘   (same tensor, same scale)

The Conv, the activation and the Mul are one kernel, as with a residual Add. If it reads x as INT8, the producer of x
writes one INT8 tensor and no float copy. Masks of speech networks, attention gates and pixel attention have this
form. A swish, x * sigmoid(x), is not such a gate, nor is a squeeze-and-excite gate whose x no other layer reads.

Evidence: RTX 1.7.1: x * sigmoid(conv(x)) before a Conv takes 7 kernels either way, and 0.160 MB with the pair against
0.188 MB without; with fused epilogues 0.061 against 0.090. The same for Tanh and Relu, and after a residual Add. A
1-D network with a mask writes as many bytes as modelopt's placement, 6 % less than without.

# squeeze_excite

Squeeze-and-excite gates stay float.

    x ─┬─ GlobalAveragePool ─ Conv ─ SiLU ─ Conv ─ Sigmoid ─┐       no Q/DQ on the two small Convs
       └────────────────────────────────────────────────── Mul ─ QDQ ─ Conv

The two layers work on one value per channel: INT8 saves no time, and every Q is a separate kernel.

Evidence: RTX 1.7.1: an excite block takes 10 kernels with both Convs in INT8 and 8 with both float, at the same 1.18
MB. Set `place.skip_rules: [squeeze_excite]` to quantize them anyway. The second Conv then runs in INT8 if there are 5
or more squeezed channels. With fewer channels and one sample, a generated kernel computes it together with its
neighbours (`small_product`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.core.claims import ADDS_A_KERNEL
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, QuantSpec, RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.core.wording import REPAIR
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import setting_for, skipping, veto, wanted_slots
from qdqtool.matching.rule import BuiltGraph, Candidate, Goal, Rule, Violation, feeding, kernel_of
from qdqtool.trt.ops import (
    CASTS,
    ELEMENTWISE_SUMS,
    GLOBAL_AVERAGES,
    POINTWISE_ACTIVATIONS,
    PRODUCTS,
    upstream,
)

_LONGEST_GATE = 12
"""Most steps from the pooling to the Mul of a squeeze-and-excite gate."""
_AFFINE = 5
"""Most nodes from a normalized value back to the division that makes it: shift, factor, casts between them."""


def adds_to_normalized(view: GraphView, node: Node) -> bool:
    """Return True if the node adds two run-time values, and a LayerNormalization (an operator or several nodes) makes one."""
    if node.op != "Add" or len(node.inputs) != 2 or any(map(view.is_constant, node.inputs)):
        return False
    return any(_is_normalized(view, tensor) for tensor in node.inputs)


def _is_normalized(view: GraphView, tensor: str) -> bool:
    for _ in range(_AFFINE):
        node = view.producer(tensor)
        if node is None or node.op == "LayerNormalization":
            return node is not None
        if node.op == "Div":
            return _is_centered(view, node.inputs[0])
        values = [name for name in node.inputs if not view.is_constant(name)]
        if node.op not in ELEMENTWISE_SUMS | CASTS or len(values) != 1:
            return False
        tensor = values[0]
    return False


def _is_centered(view: GraphView, tensor: str) -> bool:
    """Return True if the tensor is a value minus its mean."""
    node = view.producer(tensor)
    mean = view.producer(node.inputs[1]) if node is not None and node.op == "Sub" else None
    return mean is not None and mean.op == "ReduceMean"


def gates(view: GraphView) -> Iterator[tuple[Node, ...]]:
    """Yield the nodes of each squeeze-and-excite gate: those between the pooling and the Mul with the pooled tensor."""
    for pool in view.nodes:
        if pool.op not in GLOBAL_AVERAGES:
            continue
        chain: list[Node] = []
        tensor = pool.outputs[0]
        for _ in range(_LONGEST_GATE):
            # Swish reads its input twice, so the chain follows the last consumer while all consumers belong to it.
            uses = view.uses(tensor)
            if not uses:
                break
            node = uses[-1].node
            if node.op == "Mul" and pool.inputs[0] in node.inputs:
                yield tuple(chain)
                break
            chain.extend(use.node for use in uses)
            tensor = node.outputs[0]


# --- residual_add ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualAdd:
    """An Add of two run-time values in a float graph.

    Attributes:
        node: the Add.
        branches: numbers of the inputs that a product makes for this Add alone, so that the Add can fuse into it.
        kept: the branch that stays quantized if both inputs are such branches; else None.
    """

    node: Node
    branches: tuple[int, ...]
    kept: int | None = None


def match_residual_add(view: GraphView) -> Iterator[ResidualAdd]:
    """Yield every Add of two run-time values, in graph order."""
    for node in view.nodes:
        if node.op != "Add" or len(node.inputs) != 2 or any(map(view.is_constant, node.inputs)):
            continue
        branches = tuple(index for index in (0, 1) if _is_branch(view, node.inputs[index]))
        fewest = min((1, 0), key=lambda index: _depth(view, node.inputs[index]))
        yield ResidualAdd(node=node, branches=branches, kept=fewest if len(branches) > 1 else None)


def place_residual_add(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Request Q/DQ on a residual Add's input that INT8 layers read, or (not RTX) that does not fuse."""
    useful = wanted_slots(view)
    for residual in match_residual_add(view):
        index = _find_shared(view, residual.node, useful)
        shared = index is not None
        reason = "the shortcut is already quantized for another layer, so INT8 here saves a float copy"
        if index is None and not options.builder.is_rtx:
            index = residual.kept
            reason = "the Add fuses into the convolution of one branch and reads the other branch as INT8"
        if index is not None:
            yield SlotStatement(
                slot=Slot(node=residual.node.name, index=index),
                stance=RequestOrVeto.REQUEST,
                reason=reason,
                spec=QuantSpec(),
                only_if_shared=shared,
            )


def check_residual_add(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ between a convolution and its Add, and float shortcuts that other layers read in INT8."""
    lost = (
        "the Add rounds the tensor once more"
        if target.is_rtx
        else "the Add does not fuse with the convolution"
    )
    for residual in match_residual_add(flow.plain):
        node = flow.view.by_name[residual.node.name]
        for index in _superfluous(flow, residual):
            yield Violation(
                node=node.name,
                reason=f"input {index} of this Add, the branch of the convolution, has Q/DQ"
                + ("" if residual.kept is None else ", and so does the other branch"),
                effect=lost,
                fix=f"remove the pair from this branch; {REPAIR} does this",
            )
        for index, _ in _bare_shortcuts(flow, residual):
            yield Violation(
                node=node.name,
                reason=f"input {index} of this Add, the shortcut, is float here and INT8 for another layer",
                effect="the producer of the tensor writes a float copy in addition to the INT8 tensor",
                fix=f"put Q/DQ on this input, with the scale of the INT8 tensor; {REPAIR} does this",
            )


def fix_residual_add(context: RepairContext) -> Iterator[Change]:
    """Remove the Q/DQ pair on the branch that the Add fuses with. Add a pair on a shortcut that other layers read in INT8."""
    flow = Flow(context.model)
    for residual in match_residual_add(flow.plain):
        for index in _superfluous(flow, residual):
            pair = flow.origins[flow.view.by_name[residual.node.name].inputs[index]]
            if pair.quantize is None or context.consumer(pair) is None:
                continue
            yield Change(
                edits=(SlotEdit(slot=pair.slots[0]),),
                subject=pair.tensor,
                what=f"pair before Add {residual.node.name!r} removed; the other input keeps its pair"
                if residual.kept is not None
                else f"pair between Add {residual.node.name!r} and the node before it removed",
                reason="the Add is fused into the Conv before it, and a pair in between rounds again or splits the fusion",
            )

        for index, pair in _bare_shortcuts(flow, residual):
            yield Change(
                edits=(SlotEdit(slot=Slot(node=residual.node.name, index=index), scales=pair.scale),),
                subject=pair.tensor,
                what=f"quantized for Add {residual.node.name!r} with the scale of {pair.dequantize!r}",
                reason="another layer reads these values in INT8: with one scale the producer writes no float copy",
            )


def _bare_shortcuts(flow: Flow, residual: ResidualAdd) -> Iterator[tuple[int, QdqPair]]:
    """Yield the float shortcut of an Add if another layer reads it in INT8, and the Q/DQ pair of this layer."""
    inputs = flow.view.by_name[residual.node.name].inputs
    for index in () if adds_to_normalized(flow.plain, residual.node) else (0, 1):
        if residual.branches == (1 - index,) and flow.origins.get(inputs[index]) is None:
            pairs = [
                pair for pair in flow.by_tensor.get(inputs[index], ()) if is_int8(pair) and pair.dequantize
            ]
            if pairs:
                yield index, pairs[0]


def _superfluous(flow: Flow, residual: ResidualAdd) -> tuple[int, ...]:
    """Return the branches of an Add whose Q/DQ pair prevents fusion."""
    inputs = flow.view.by_name[residual.node.name].inputs
    paired = tuple(index for index in residual.branches if flow.origins.get(inputs[index]) is not None)
    if residual.kept is None:
        return paired
    return tuple(index for index in paired if index != residual.kept) if len(paired) > 1 else ()


def _find_shared(view: GraphView, node: Node, useful: frozenset[Slot]) -> int | None:
    """Return the input of an Add that other layers read in INT8; if both qualify, the one that is computed first."""
    candidates = [
        (_position(view, tensor), index)
        for index, tensor in enumerate(node.inputs)
        if _is_wanted(view, tensor, useful)
    ]
    return min(candidates)[1] if candidates else None


def _is_branch(view: GraphView, tensor: str) -> bool:
    producer = view.producer(tensor)
    return producer is not None and producer.op in PRODUCTS and len(view.uses(tensor)) == 1


def _position(view: GraphView, tensor: str) -> int:
    producer = view.producer(tensor)
    return -1 if producer is None else producer.position


def _depth(view: GraphView, tensor: str) -> int:
    """Return the number of layers between a tensor and the last fork before it. The count stops at eight."""
    for depth in range(8):
        producer = view.producer(tensor)
        if producer is None or len(view.uses(tensor)) > 1:
            return depth
        tensor = producer.inputs[0]
    return 8


def candidates_residual_add(built: BuiltGraph) -> Iterator[Candidate]:
    """Propose Q/DQ on float shortcuts. Adds whose result a separate kernel converts back to INT8 come first."""
    view = built.view
    for layer in built.layers_with("float_round_trip"):
        source = built.wiring.round_trip_of(layer)
        readers = built.wiring.readers(source) if source is not None else ()
        names = [name for reader in readers if reader.name != layer.name for name in reader.onnx_nodes]
        slots = [
            slot for name in names if name in view.by_name for slot in _float_inputs(view, view.by_name[name])
        ]
        if slots:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="quantize the shortcut",
                edits=tuple(SlotEdit(slot=slot, scales=None) for slot in dict.fromkeys(slots)),
            )
    for residual in match_residual_add(view):
        for slot in _float_inputs(view, residual.node):
            if slot.index not in residual.branches:
                yield Candidate(
                    subject=residual.node.name,
                    goal=Goal.CHEAPER,
                    text=f"quantize the shortcut, input {slot.index}",
                    edits=(SlotEdit(slot=slot, scales=None),),
                )


def _float_inputs(view: GraphView, node: Node) -> Iterator[Slot]:
    """Yield the run-time inputs of an Add that have no Q/DQ."""
    for index, tensor in enumerate(node.inputs if node.op == "Add" else ()):
        if not view.is_constant(tensor) and feeding(view, tensor) is None:
            yield Slot(node=node.name, index=index)


# --- residual_stream -------------------------------------------------------------------------------------------------


def place_residual_stream(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on both inputs of every Add of a normalized residual stream."""
    for node in view.nodes:
        if adds_to_normalized(view, node):
            for index in (0, 1):
                yield SlotStatement(
                    slot=Slot(node=node.name, index=index),
                    stance=RequestOrVeto.VETO,
                    reason="this Add belongs to the residual stream after a LayerNormalization, and INT8 would round this stream again in every block",
                    fix=f"{skipping('residual_stream', options)} adds in INT8 if other nodes read it in INT8",
                )


# --- gated_shortcut --------------------------------------------------------------------------------------------------

# Largest number of consecutive activations after a compute node, as in Relu6 or a hard sigmoid of several nodes.
_FARTHEST = 3


def place_gated_shortcut(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Request Q/DQ on the shortcut input of every Mul whose other input is an activation after a compute node."""
    if "Add" not in options.ops:
        return
    useful = wanted_slots(view)
    for node in view.nodes:
        if node.op != "Mul" or len(node.inputs) != 2 or any(map(view.is_constant, node.inputs)):
            continue
        for index in (0, 1):
            if _is_gate(view, node.inputs[1 - index]) and _is_wanted(view, node.inputs[index], useful):
                yield SlotStatement(
                    slot=Slot(node=node.name, index=index),
                    stance=RequestOrVeto.REQUEST,
                    reason="the shortcut is already quantized for another layer, so INT8 here saves a float copy",
                    spec=QuantSpec(),
                    only_if_shared=True,
                )
                break


def _is_gate(view: GraphView, tensor: str) -> bool:
    """Return True if a compute node with one or more activation functions after it makes the tensor."""
    for _ in range(_FARTHEST):
        node = view.producer(tensor)
        if node is None or node.op not in POINTWISE_ACTIVATIONS:
            return False
        tensor = node.inputs[0]
        maker = view.producer(tensor)
        if maker is not None and maker.op in PRODUCTS:
            return len(view.uses(tensor)) == 1
    return False


def _is_wanted(view: GraphView, tensor: str, useful: frozenset[Slot]) -> bool:
    return any(
        Slot(node=use.node.name, index=use.index) in useful
        for before in upstream(view, tensor)
        for use in view.uses(before)
    )


# --- squeeze_excite --------------------------------------------------------------------------------------------------


def place_squeeze_excite(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on the compute nodes of a squeeze-and-excite gate, between the pooling and the Mul."""
    for gate in gates(view):
        for node in gate:
            if node.op in PRODUCTS:
                yield from veto(
                    node,
                    "this node computes a squeeze-and-excite gate with one value per channel: INT8 only adds kernels",
                    setting_for(view, node, f"{skipping('squeeze_excite', options)} quantizes gates too"),
                    ADDS_A_KERNEL,
                )


PLUGIN = {
    "residual_add": Rule(
        code="QDQ127",
        severity=Severity.INFO,
        place=place_residual_add,
        check=check_residual_add,
        fix=fix_residual_add,
        candidates=candidates_residual_add,
    ),
    "residual_stream": Rule(code="QDQ195", place=place_residual_stream),
    "gated_shortcut": Rule(code="QDQ168", place=place_gated_shortcut),
    "squeeze_excite": Rule(code="QDQ179", place=place_squeeze_excite),
}
