"""Nodes between a stored weight and the MatMul that reads it.

# weight_path

Another node is between the DequantizeLinear of the weights and the layer.

    w ─ Q ─ DQ ─ Transpose ─ MatMul      float
    w transposed ─ Q ─ DQ ─ MatMul       INT8

Classic TensorRT fuses a DequantizeLinear only if it feeds the layer directly; with a Transpose, a Reshape or a Cast in
between, the weights are dequantized at run time and the layer runs in float. TensorRT for RTX fuses in these cases too.

Evidence: NVIDIA/TensorRT issue 1604; RTX 1.7.1 builds an INT8 product after a Transpose (weight_transposed).

# cast_weight

Stored integers that a Cast turns into floats, instead of a DequantizeLinear.

    w (INT8) ─ Cast ─ Mul (scale) ─ MatMul      no build
    w (INT8) ─ DequantizeLinear ─ MatMul        one kernel that reads INT8

Exporters that write only the arithmetic produce this form, such as torchao with torch.onnx: a Sub of zero points, a Mul
after the Cast or after the MatMul, and a Reshape on both sides for blocks. TensorRT allows only a DequantizeLinear
after a quantized constant. The fix writes it, with the same integers and scales; blocks of integers that fit four bits
become INT4, which a kernel reads.

Evidence: RTX 1.7.1: `Quantized constant (w) is only allowed before DQ or PLUGIN_V2`, with a Reshape between too. torchao 0.18 in torch
2.13: INT8 and FP8 per channel, INT4 and INT8 in blocks of 32.

# weights_apart

Low-bit weights that a separate kernel converts to float before the MatMul reads them.

    w (INT4, one block) ─ DQ ─ MatMul        kernel: INT4 -> Half [K, N], written; kernel: Half product
    w (INT4, blocks of 64) ─ DQ ─ MatMul     one kernel that reads INT4

Weight-only quantization saves memory traffic if the MatMul kernel dequantizes the weight. Otherwise the weight is
written as floats and read again in every inference, which is more traffic than float weights cause. The engine file
is still small, and the log does not mention it. This happens for:
- convolutions, and FP4 weights;
- weights into which a ScatterND, ScatterElements or Where writes at run time;
- experts that a Gather, GatherND, GatherElements, Where or a Slice at a computed position selects (its kernel
  dequantizes them);
- weights that several nodes read through Q/DQ, and INT4 weights with equal scales of less than 512 bytes (the builder
  merges them);
- an odd number of columns, INT4 with fewer than two blocks, INT8 and FP8 in blocks;
- scales per channel with a single row, or in a joint projection of queries, keys and values;
- MatMul nodes that read the result of an attention. A single row times a weight of up to 131072 values has a special
kernel, which reads all of these.

Evidence: RTX 1.7.1 for SM80 to SM121, about 200 layer dumps: a kernel without inputs whose constants are the stored
weight and whose output is Half [K, N], before a float product. Classic TensorRT is not known.

# split_weights

Weights with several scales in a joint projection of queries, keys and values, or in a stack from which an input chooses.

    w (INT8) ─ DQ ─ MatMul ─ Add ─ Split ─ q, k, v        float, after a kernel that dequantizes the weight
    w (FP32) ─ Q ─ DQ ─ MatMul ─ Add ─ Split ─ q, k, v    INT8

    experts (256 scales) ─ DQ ─ Gather (input) ─ MatMul   float, after a kernel that dequantizes the chosen matrices
    experts (one scale)  ─ DQ ─ Gather (input) ─ MatMul   INT8

The builder splits the weight [K, 3N] into three, together with its Q. If the weight only has a DequantizeLinear, the
builder splits floats, and the node runs in float; the log does not mention it. One scale for the whole weight avoids
this. A Gather, GatherND or GatherElements selects matrices from a stack, but not their scales, unless its index is a
single constant; Q and DQ do not help there. A Slice from a computed place takes no scale at all. A ScatterND,
ScatterElements or Where that writes other values into the weights takes none either.

Evidence: RTX 1.7.1 for SM86, 89 and 120, INT8 and FP8, per channel and per tensor, stored and after Q and DQ, in 20
forms of one block, and all six attentions of timm's test_vit. Experts: 22 stacks of four matrices, per tensor,
expert, row and channel, 75 that other operators pick from, and 39 that an operator writes into (`benchmarks/expert_cases.py`).

# shared_pair

One pair feeds several layers.

    x ─ Q ─ DQ ─┬─ Conv               x ─┬─ Q ─ DQ ─ Conv
                └─ Conv                  └─ Q ─ DQ ─ Conv      same scale: the two Q become one

TensorRT 8 fuses a DequantizeLinear into one consumer and has to copy it for the others. A pair per consumer avoids the
copies; equal Q nodes are merged again. Later releases and TensorRT for RTX are not affected.

The fix is applied for every builder: a pair with a single consumer can be moved or removed for that consumer.

Evidence: logs of TensorRT 8 (`Eliminating ... which duplicates (Q) ...`); nvidia-modelopt can write dedicated pairs;
RTX 1.7.1 builds the same kernels either way (shared_pair).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import FLOAT, FP8, INT4, INT8, NVFP4
from qdqtool.core.wording import REPAIR, Setting, count_noun
from qdqtool.graph.beside_attention import is_split, reads_attention
from qdqtool.graph.qdq.flow import Flow, RepairContext
from qdqtool.graph.qdq.stored import find_holder, stored_casts
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import NodeOperand, Product, products
from qdqtool.matching.refused import BEFORE, is_deep, rows_of
from qdqtool.matching.rule import CLASSIC, Explanation, NodeEvidence, Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, store_again
from qdqtool.trt.ops import CASTS, CONVOLUTIONS, DEQUANTIZE, MATRIX_PRODUCTS, PRODUCTS, QUANTIZE, WRITES

SPLIT_REASON: Final = "the weight is split into the weights of queries, keys and values, but its scales per channel are not split"


_EVEN: Final = frozenset({INT8.name, INT4.name, FP8.name})
"""Formats for which a separate kernel pads an odd number of columns."""


_MERGED_BYTES: Final = 512
"""Size in bytes below which equal constants are merged: 252 scales in FP16 and 124 in FP32 are, 256 and 128 are not."""


_INDEXED: Final = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that pick values by indices."""


_WITH_GATHER: Final = (
    "select the weights with a Gather instead of a Slice, and quantize the input of the node too (int8, or fp8 from SM89 on), with one scale for "
    "the whole stack"
)


_BEFORE_COPY: Final = frozenset({"ScatterElements", "ScatterND", "Slice"})
"""Pickers that read weights which a separate kernel dequantized; the kernels of the other pickers dequantize them."""


_WRITTEN: Final = "if the written values are constant, write them before quantization; do not quantize weights that change at run time"


_SMALL: Final = 2**17
"""Largest weight (number of values) with a special low-bit kernel for one row of input: 256x512 has this kernel,
384x384 does not.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoneWeight:
    """A low-bit weight of a compute node with a float activation.

    Attributes:
        op: operator of the product.
        format: name of the format.
        columns: length of the axis that is not summed over; None if it is not known.
        size: values of the weight.
        scales: shape of its scales; () for one scale.
        rows: rows of the activation, all leading dimensions together; None if they are open.
        readers: inputs that read these values with these scales.
        twins: other weights with the same short list of scales.
        split: whether the product makes queries, keys and values, which the builder splits.
        attention: whether the activation is the result of an attention, of three dimensions or more.
        deep: whether an operand has more than three dimensions, or an operator selects or moves the stored weight.
        picker: operator that picks it from a stack, or writes into it, at run time; "" if there is none.
        written: whether this operator writes other values into it.
    """

    op: str
    format: str
    columns: int | None
    size: int
    scales: tuple[int, ...]
    rows: int | None
    readers: int
    twins: int = 0
    split: bool = False
    attention: bool = False
    deep: bool = False
    picker: str = ""
    written: bool = False


def explain_dequantization(weight: LoneWeight) -> Iterator[tuple[str, str]]:
    """Yield the reason why a separate kernel dequantizes a weight in every inference, and the fix, if there is such a kernel."""
    inside = "inside the kernel"
    if weight.written:
        yield (f"a {weight.picker} writes into its weights, which are dequantized for it", _WRITTEN)
    elif weight.picker:
        yield (
            f"the {weight.picker} selects the weights of this node from a stack, and its kernel dequantizes them",
            _WITH_GATHER
            if weight.picker == "Slice"
            else "quantize the input of the node too (int8, or fp8 from SM89 on), with one scale for the whole stack of weights",
        )
    if weight.op in CONVOLUTIONS:
        yield (
            f"no Conv dequantizes weights {inside}",
            "quantize the input of the Conv too (int8, or fp8 from SM89 on), or keep the Conv float",
        )
    if weight.rows == 1 and weight.size <= _SMALL:
        return  # a separate kernel that reads weights with any format, scales and number of columns
    if weight.format == NVFP4.name:
        yield (
            f"FP4 weights are not dequantized {inside} if the input has more than one row",
            "quantize the input of the node to nvfp4 too",
        )
    if weight.readers > 1:
        yield (
            "several nodes read this weight through Q/DQ, and the builder merges equal nodes",
            "give each of them a separate initializer and a separate DequantizeLinear",
        )
    blocks = len(weight.scales) > 1
    if weight.twins and blocks and weight.format == INT4.name:
        yield (
            f"another weight has the same scales, and the builder merges equal lists of scales of less than {_MERGED_BYTES} bytes",
            "change one of its scales by the smallest step of its type",
        )
    if weight.columns is not None and weight.columns % 2 and weight.format in _EVEN:
        yield f"{weight.columns} columns are an odd number", "pad the columns to an even number"
    if weight.format == INT4.name and (not blocks or 1 in weight.scales[-2:]):
        yield (
            f"INT4 without at least two blocks is not dequantized {inside}",
            "use blocks of 16 to 128 along the summed axis",
        )
    if weight.format == INT4.name and prod(weight.scales[:-2]) > 1 and weight.deep:
        yield (
            f"INT4 in a stack of matrices is not dequantized {inside} if the input has four dimensions or a Gather picks matrices",
            "store its weights in int8",
        )
    if weight.format in {INT8.name, FP8.name} and blocks:
        yield (
            f"{weight.format.upper()} in blocks is not dequantized {inside}",
            "store the weights with one scale per output channel, or as INT4 in blocks",
        )
    channels = bool(weight.scales) and not blocks
    if weight.attention:
        yield (
            f"a node that reads the unchanged result of an attention does not dequantize weights {inside}",
            f"reshape its input to two dimensions ({Setting('prepare.flatten', 'true')} does this, and adds no kernel)",
        )
    if channels and weight.split and prod(weight.scales) > 1 and weight.format in {INT8.name, FP8.name}:
        yield (
            SPLIT_REASON,
            "store the weight as INT4 in blocks or with one scale, or use three separate MatMul nodes",
        )
    if channels and weight.format in {INT8.name, FP8.name} and weight.rows == 1:
        yield (
            "if the input has one row, weights with a scale per channel are not dequantized inside the kernel",
            "use one scale for the whole weight",
        )


def twins(view: GraphView) -> dict[str, int]:
    """Map the DequantizeLinear of each weight to the number of other weights with the same few scales."""
    lists: dict[bytes, set[str]] = defaultdict(set)
    keys = {}
    for node in view.nodes:
        if node.op == DEQUANTIZE and view.is_constant(node.inputs[0]):
            key = _short_scales(view, node)
            if key is not None:
                keys[node.name] = key
                lists[key].add(node.inputs[0])
    return {name: len(lists[key]) - 1 for name, key in keys.items()}


def _short_scales(view: GraphView, dequantize: Node) -> bytes | None:
    """Return a DequantizeLinear's scales as bytes, if the builder merges lists of this length; else None."""
    shape, width = view.constant_shape(dequantize.inputs[1]), view.info(dequantize.inputs[1]).dtype.bits
    if shape is None or width is None or prod(shape) * width >= _MERGED_BYTES * 8:
        return None
    value = view.constant(dequantize.inputs[1])
    return None if value is None else value.tobytes()


def columns_of(node: Node, shape: tuple[int | str, ...]) -> int | None:
    """Return the length of the axis of the second operand that is not summed over; None if unknown."""
    if node.op not in MATRIX_PRODUCTS or len(shape) < 2:
        return None
    size = shape[-2 if node.op == "Gemm" and node.attribute("transB", 0) else -1]
    return size if isinstance(size, int) else None


# --- weight_path -----------------------------------------------------------------------------------------------------

_HINDERING = CASTS | {"Pad"}
"""Operators on a weight that TensorRT for RTX does not look through. No release looks through a Pad with a value other than 0."""


def match_weight_path(flow: Flow) -> Iterator[tuple[Node, Node, QdqPair]]:
    """Yield compute nodes with an operator between them and their quantized weights, the nearest operator, and the Q/DQ pair."""
    for node in flow.products():
        for index in (0, 1):
            pair = flow.origin(node, index)
            between = flow.view.producer(node.inputs[index])
            if pair is None or between is None or pair.kind is not SlotKind.WEIGHT:
                continue
            if between.name != pair.dequantize:
                yield node, between, pair


def check_weight_path(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report compute nodes with an operator between them and their quantized weights."""
    for node, between, _ in match_weight_path(flow):
        yield Violation(
            node=node.name,
            reason=f"{between.op} {between.name} is between the DequantizeLinear and its weights",
            effect=f"the weights are dequantized at run time and {node.op} runs in float",
            fix=f"apply the {between.op} to the stored weights, so that DequantizeLinear feeds the layer; {REPAIR} does this",
            products=(node.name,),
        )


def explain_weight_path(evidence: NodeEvidence) -> Iterator[Explanation]:
    """Explain operators between the DequantizeLinear of a weight and its compute node.

    Cast and Pad always prevent fusion, others in some classic releases.
    """
    for operand in evidence.operands:
        moves = evidence.moves(operand)
        hindering = sorted(move for move in moves if not evidence.rtx or move in _HINDERING)
        if hindering:
            hinders = (
                "" if _HINDERING & set(hindering) else ", which keeps some TensorRT releases from fusing"
            )
            yield Explanation(
                reason=f"{' and '.join(hindering)} between DequantizeLinear and input {operand.index}{hinders}",
                fix="move Q/DQ after it, so that DequantizeLinear feeds this node directly"
                + (f"; {REPAIR} does this" if _is_repaired(evidence, moves, fixed=operand.fixed) else ""),
                of_builder=True,
            )


def _is_repaired(evidence: NodeEvidence, moves: frozenset[str], *, fixed: bool) -> bool:
    """Return True if `fix` can apply the operators between a weight and its node to the stored weight."""
    return fixed and not evidence.decisions and not _HINDERING & moves


def fix_weight_path(context: RepairContext) -> Iterator[Change]:
    """Apply the operators between a weight and its reader to the stored values, and remove the operators."""
    return store_again(context, (pair for _, _, pair in match_weight_path(context.flow)), _behind_moves)


def _behind_moves(weight: StoredWeight) -> str:
    if weight.reader is None or not weight.moves:
        return ""
    names = ", ".join(move.op for move in weight.moves)
    return f"{names} between DequantizeLinear and {weight.reader.op} keeps it in float"


# --- cast_weight -----------------------------------------------------------------------------------------------------


def check_cast_weight(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report casts from constants of type INT8, INT4 or FP8 to floats without a DequantizeLinear."""
    for node in stored_casts(flow.view):
        yield Violation(
            node=node.name,
            reason=f"this Cast reads the quantized {flow.view.info(node.inputs[0]).dtype.value.upper()} values of "
            f"{find_holder(flow.view, node.inputs[0])}",
            effect="the builder refuses the model: Quantized constant is only allowed before DQ",
            fix=f"replace the Cast by a DequantizeLinear with the scales that follow it; {REPAIR} does this, and stores weights as float if their scales are neither per channel nor per block",
        )


# --- weights_apart ---------------------------------------------------------------------------------------------------


def check_weights_apart(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes with a float activation if their kernel does not dequantize the weights."""
    equal_weights = twins(flow.view)
    for product in products(flow, target):
        stored, node = product.weights_alone, product.node
        if stored is None or _is_reported_elsewhere(product, stored) or node.name not in flow.plain.by_name:
            continue
        picker = _find_picker(flow, node, stored.index, "Where")
        described = _describe_weight(flow, product, stored, equal_weights, picker)
        reason_and_fix = next(explain_dequantization(described), None)
        if reason_and_fix is not None:
            yield Violation(
                node=node.name,
                reason=reason_and_fix[0],
                effect=f"in every inference the {stored.format} weights are written as floats, and the kernel reads these floats",
                fix=f"{reason_and_fix[1]}; {repairing(to_float=[node.name])} leaves the node float",
                products=(node.name,),
                realised=FLOAT
                if picker is not None
                and picker.op not in _BEFORE_COPY
                and not flow.plain.is_constant(picker.inputs[picker.op in _INDEXED])
                else f"{product.request}{BEFORE}",
            )


def _is_reported_elsewhere(product: Product, stored: NodeOperand) -> bool:
    """Return True if the node is a half-quantized INT8 convolution: QDQ120 reports it."""
    return stored.format == INT8.name and product.node.op in CONVOLUTIONS


def _describe_weight(
    flow: Flow, product: Product, stored: NodeOperand, equal_weights: Mapping[str, int], picker: Node | None
) -> LoneWeight:
    node = flow.plain.by_name[product.node.name]
    tensor = node.inputs[stored.index]
    shape = flow.plain.info(tensor).shape or ()
    scale = None if stored.quantization is None else stored.quantization.scale
    written = () if stored.pair is None or stored.pair.scale_shape is None else stored.pair.scale_shape
    return LoneWeight(
        op=node.op,
        format=stored.format,
        columns=columns_of(node, shape),
        size=prod(size for size in shape if isinstance(size, int)),
        scales=written if scale is None else scale.shape,
        rows=rows_of(flow.plain, node),
        readers=sum(
            Slot(node=use.node.name, index=use.index) in flow.lifted.assignment
            for use in flow.plain.uses(tensor)
        ),
        twins=0 if stored.pair is None else equal_weights.get(stored.pair.dequantize or "", 0),
        split=is_split(flow.plain, node),
        attention=reads_attention(flow.plain, node),
        deep=is_deep(flow.plain, node) or bool(flow.moves(product.node, stored.index)),
        picker="" if picker is None else picker.op,
        written=picker is not None and _is_written(flow, picker),
    )


def _find_picker(flow: Flow, node: Node, index: int, *operators: str) -> Node | None:
    """Return the node that selects from stacked weights of an input or writes into them; None without any.

    A constant index of one matrix selects nothing at run time. Neither does a Slice at a constant position.
    `operators` are additional selecting operators without indices.
    """
    for move in flow.moves(node, index):
        if (
            move.op in operators
            or (move.op in _INDEXED and _picks_several(flow.plain, move.inputs[1]))
            or (move.op == "Slice" and not all(map(flow.plain.is_constant, move.inputs[1:3])))
            or _is_written(flow, move)
        ):
            return move
    return None


def _is_written(flow: Flow, move: Node) -> bool:
    """Return True if an operator writes other values into the weights that pass through it."""
    sources = [flow.source(move, index) for index in WRITES.get(move.op, ())]
    return bool(sources) and (move.op != "Where" or None in sources)


def _is_whole(flow: Flow, picker: Node) -> bool:
    """Return True if an operator selects or changes stacked weights, but not their scales."""
    return picker.op == "Slice" or _is_written(flow, picker)


def _picks_several(view: GraphView, indices: str) -> bool:
    return not view.is_constant(indices) or prod(view.constant_shape(indices) or ()) > 1


# --- split_weights ---------------------------------------------------------------------------------------------------

_PICKED: Final = "the weights of this node are selected from a stack, but their scales are not"
_FIX = f"write float weights with Q and DQ, as {Setting('insert.weights', 'qdq')} does, or use one scale for the weight"


def check_split_weights(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report compute nodes in INT8 or FP8 whose weights have several scales and are split, or selected at run time."""
    for product in products(flow, target):
        node = flow.plain.by_name.get(product.node.name)
        if product.arithmetic not in {INT8.name, FP8.name} or node is None:
            continue
        weights = [operand for operand in product.operands if operand.fixed and operand.pair is not None]
        several = [
            operand for operand in weights if operand.pair and prod(operand.pair.scale_shape or ()) > 1
        ]
        pickers = [_find_picker(flow, product.node, operand.index) for operand in weights]
        whole = next((picker for picker in pickers if picker is not None and _is_whole(flow, picker)), None)
        picked = whole is not None or any(
            _find_picker(flow, product.node, operand.index) for operand in several
        )
        stored = any(operand.pair is not None and operand.pair.quantize is None for operand in several)
        if picked or (stored and is_split(flow.plain, node)):
            scale = "use one scale for the whole stack" if whole is None else _WITH_GATHER
            reason = _PICKED if picked else SPLIT_REASON
            if whole is not None and _is_written(flow, whole):
                reason, scale = f"a {whole.op} writes into its weights", _WRITTEN
            yield Violation(
                node=node.name,
                reason=reason,
                effect=f"{node.op} runs in float, and its weights are dequantized in every inference",
                fix=f"{scale}; {repairing(to_float=[node.name])} leaves the node float" if picked else _FIX,
                products=(node.name,),
            )


# --- shared_pair -----------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    import onnx


def match_shared_pair(flow: Flow) -> Iterator[QdqPair]:
    """Return Q/DQ pairs with several readers; a model output counts as a reader."""
    return (pair for pair in flow.pairs if len(pair.slots) + pair.returned > 1)


def check_shared_pair(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs that several compute nodes or Adds read."""
    for pair in match_shared_pair(flow):
        readers = {slot.node for slot in pair.slots if flow.view.by_name[slot.node].op in PRODUCTS | {"Add"}}
        if len(readers) > 1:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"{count_noun(len(readers), 'layer shares', 'layers share')} this DequantizeLinear",
                effect="TensorRT 8 copies the DequantizeLinear, and may not fuse every copy",
                fix=f"give each layer a separate pair with the scale of this pair; {REPAIR} does this",
            )


def fix_shared_pair(context: RepairContext) -> Iterator[Change]:
    """Copy Q and DQ nodes that several nodes read: first each DequantizeLinear, then each QuantizeLinear."""
    shared = frozenset(pair.dequantize for pair in match_shared_pair(context.flow))
    for op in (DEQUANTIZE, QUANTIZE):
        consumers = context.edit.consumers()
        for node in [node for node in context.edit.nodes if node.op_type == op]:
            if op == DEQUANTIZE and node.name not in shared:
                continue
            readers = consumers.get(node.output[0], [])
            kept = 0 if node.output[0] in context.pinned else 1
            spare = readers[kept:]
            for reader, index in spare:
                context.edit.connect(reader, index, _copy(context, node, reader, index))
            if spare:
                yield Change(
                    subject=node.name,
                    what=f"{op} that {count_noun(len(readers), 'input reads', 'inputs read')} was copied for each of them",
                    reason="a shared node is fused into one consumer and may stay a separate kernel for the others",
                    error=0.0,
                )


def _copy(context: RepairContext, node: onnx.NodeProto, reader: onnx.NodeProto, index: int) -> str:
    """Add a copy of `node` for one input of `reader`; return its output."""
    result = context.edit.fresh(f"{node.output[0]}_{reader.name}_{index}")
    twin = context.edit.node(node.op_type, node.input, [result], name=f"{node.name}_{reader.name}_{index}")
    twin.attribute.extend(node.attribute)
    return result


PLUGIN = {
    "weight_path": Rule(
        code="QDQ124",
        severity=Severity.WARNING,
        targets=CLASSIC,
        stage=Stage.LEGAL,
        after=("cast",),
        check=check_weight_path,
        fix=fix_weight_path,
        explain=explain_weight_path,
    ),
    "cast_weight": Rule(code="QDQ191", severity=Severity.ERROR, check=check_cast_weight),
    "weights_apart": Rule(
        code="QDQ184", severity=Severity.WARNING, targets=frozenset({"rtx"}), check=check_weights_apart
    ),
    "split_weights": Rule(
        code="QDQ192",
        formats=frozenset({"int8", "fp8"}),
        severity=Severity.WARNING,
        targets=frozenset({"rtx"}),
        check=check_split_weights,
    ),
    "shared_pair": Rule(
        code="QDQ143",
        severity=Severity.INFO,
        targets=frozenset({"8"}),
        stage=Stage.LEGAL,
        after=("dynamic", "four_bits"),
        check=check_shared_pair,
        fix=fix_shared_pair,
    ),
}
