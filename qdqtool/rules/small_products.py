"""Compute nodes that are too small to gain from INT8. Placement and audit use the same bounds.

# gemv

Small MatMul and Gemm nodes with one row stay float, such as gates and transformer heads at batch 1.

    x [1, 192] ── Gemm ── y [1, 1000]        no Q/DQ

They compute almost nothing, and the Q before them is often a separate kernel: after a model input, a Relu or another
small product, but not after a norm, a Softmax or a maximum, whose kernel includes it. There are two exceptions: large
weights (2**18 values or more), because reading them in INT8 takes a quarter of the time; and the head after a
convolution's global average, because the averaging kernel includes the Q and then writes a quarter of the bytes. A
dynamic batch does not count: only a static shape with one row does. It counts if three or more nodes multiply the same
weights, as the steps of an unrolled recurrence do, because each step has the Q. In a stack of matrices, each of which
multiplies one row, as the heads of an unrolled recurrence do, the bounds apply to the rows of one matrix.

Evidence: RTX 1.7.1 builds a ViT of four blocks with 51 kernels when its head (192 x 1000) is INT8 and with 49 when it
is float. After a global average an INT8 head writes no kernel more than the placements of modelopt and onnxruntime:
MobileNetV1 0.25 57 kernels, 8.196 MB against 8.197 MB with a float head. An unrolled sLSTM of 32 steps with four heads:
86 kernels with INT8 states and 55 with float ones. 209 graphs in FP32 and FP16, weights of 64 x 16 to 512 x 256: INT8
adds a kernel after inputs, Relu and small products. It adds none after a norm, a Softmax, a maximum or a 512 x 256
product of an INT8 layer's result, with at most 3 KB of activations saved. LSTM, GRU and RNN of six steps, 100 to 512
units, FP32 and FP16: with small weights and one row, 20 kernels in INT8, 8 to 14 in float; with 8 rows 20, and 14 to 20 in
float. Engines for 1 to 8 rows: 13 to 19 kernels against 20. A recognizer with a dynamic batch and 20 LSTM steps in two
directions: 131 kernels instead of 168. Set
`place.skip_rules: [gemv]` to quantize all. With `place.activations: float` no Q is needed, so the rule does not apply.

# narrow

MatMul and Gemm nodes with fewer than 16 rows or columns of weights stay float.

    x [N, 128, 256] ── MatMul ── y [N, 128, 2]        no Q/DQ

INT8 matrix kernels work on tiles of 16: the rest of a tile is padding, and removing the padding can need a kernel, as
can the Q before the node. Such nodes are often heads with few classes, where rounding hurts most. Whether INT8 adds a
kernel depends on the neighbours: the audit builds both and prints the result with the fix. The rule does not apply to:

- convolutions, which are padded without an extra kernel (see `min_channels`);
- heads after the global average of a convolution, whose kernel includes the Q;
- products whose input a wider product reads too, because these values are quantized anyway;
- stacks of matrices, such as the constant keys that learned queries give an attention;
- weights alone (`place.activations: float`), whose arithmetic is float.

A MatMul of two activations outside an attention that sums a single product (a column times a row) stays float too: in float it is computed
like a Mul, in the kernel of its neighbours.

Evidence: RTX 1.7.1: an unrolled RWKV of 32 steps has 248 kernels with INT8 outer products and 92 without. A BERT of
four blocks with a head of 2 classes has 47 kernels when the head is INT8 and 46 when it is float; the heads of a
CIFAR ResNet-20 (64 x 10) and of a DS-CNN (64 x 12), after a global average, cost no kernel and save 464 and 480
bytes. modelopt excludes K or N below 16 too. A router (64 x 4) and a head (64 x 6) whose input a wider product also
reads: 1 kernel fewer and an equal number, with 4 % and 1 % fewer bytes. The constant keys of learned queries (16 x
12): 3 kernels and 17 % of the bytes fewer. If no other product reads its input, a small product costs 1 or 2 kernels
in 5 of 6 cases of these networks, and none in the sixth.

# small_product

A Conv, Gemm or MatMul that is too small to gain anything from INT8.

    x [1, 64] ─ Q ─ DQ ─ MatMul [64, 96]      3 kernels
    x [1, 64] ─ MatMul [64, 96]               1 kernel

The Q before it is often a kernel, and the node computes almost nothing: a small matrix times a vector, or weights narrower
than a tile of 16. The bounds, and the exception for heads after a global average, are the same as in the placement
rules `gemv` and `narrow`, which keep such nodes float.

    x [1, 4, 1, 1] ─ Q ─ DQ ─ Conv [32, 4, 1, 1]      no INT8 kernel: computed in float, with its neighbours

A Conv that reads a single value from at most four channels is not a separate kernel, so its Q/DQ only round. With a
dynamic batch this is true for an engine for one sample; if the range allows two samples, it is an INT8 kernel.

Evidence: RTX 1.7.1 (one_row, narrow_head; 24 gates of 1 to 8 channels for SM86, 89 and 120). nvidia-modelopt leaves them float too.

# min_channels

Layers with few channels can stay float: INT8 kernels pad them and gain little.

    place:
      min_channels: 16       weighted nodes with fewer input or output channels stay float

The first layer is an exception: its input channels are the image's colours. Depthwise convolutions count all their
channels.

Evidence: RTX 1.7.1 builds INT8 for every channel count and pads to multiples of 4 (conv_ci3_co64, conv_ci5_co7,
matmul_k17_n33), so the default is 0; modelopt excludes fewer than 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from qdqtool.core.advice import repairing, setting
from qdqtool.core.claims import ADDS_A_KERNEL, IS_KEPT, Assertion, of_reason
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind, SlotStatement
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.attention import attentions
from qdqtool.matching.products import (
    MOST_FOLDED,
    compute_nodes,
    has_free_batch,
    is_folded,
    setting_for,
    skipping,
    veto,
)
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import CONVOLUTIONS, GLOBAL_AVERAGES, MATRIX_PRODUCTS, quantization_commutes

KEPT_IN_EPILOGUE = GLOBAL_AVERAGES | {
    "Add",
    "BatchNormalization",
    "Clip",
    "HardSwish",
    "LeakyRelu",
    "Mul",
    "Relu",
}
"""Operators that may be between a convolution and the global average that RTX computes in its kernel."""


def channels(view: GraphView, node: Node) -> tuple[int, int] | None:
    """Return the numbers of input and output channels of a node with constant weights; None if weights are computed."""
    index = 0 if view.is_constant(node.inputs[0]) else 1
    shape = view.constant_shape(node.inputs[index])
    if shape is None or len(shape) < 2:
        return None
    group = node.integer("group", 1)
    if node.op == "Conv":
        return shape[1] * group, shape[0]
    if node.op == "ConvTranspose":
        return shape[0], shape[1] * group
    flipped = bool(node.attribute("transA" if index == 0 else "transB", 0)) != (index == 0)
    rows, columns = shape[-2], shape[-1]
    return (columns, rows) if flipped else (rows, columns)


def is_pooled(view: GraphView, tensor: str) -> bool:
    """Return True if a tensor is the global average of a convolution's result; activations and reshapes may follow it."""
    pools = 0
    for _ in range(_FARTHEST):
        node = view.producer(tensor)
        if node is None:
            return False
        if node.op in CONVOLUTIONS:
            return pools == 1
        pools += node.op in GLOBAL_AVERAGES
        if not (node.op in KEPT_IN_EPILOGUE or quantization_commutes(view, node)):
            return False
        tensor = node.inputs[0]
    return False


TILE = 16
"""Rows and columns of a tile of INT8 matrix kernels."""
_FARTHEST = 12
"""Most operators between the global average and a head: activations and reshapes."""
_MOST_REPEATED = 3 << 15
"""Most weights of a stack, repeated for each sample, that RTX multiplies in the kernel of their neighbours: 98,304 are, 114,688 are not."""
_LEAST_STEPS = 3
"""Products with the same weights from which they count as the steps of a recurrence; a shared layer has two."""
_STEP = "this node is one of several steps that multiply the same small matrix by a vector"
_SAVES_LITTLE = "INT8 saves few bytes, and needs a Q, which is often a separate kernel"
_LARGE = 1 << 18
"""Number of weights from which reading them costs more than another kernel does: 768 KiB saved against FP32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallProduct:
    """A compute node of a float graph with small constant weights that is not after the global average of a convolution.

    Attributes:
        node: the product.
        weights: shape of the weights.
        channels: rows and columns of the weights, inputs first; None for a vector.
        is_narrow: whether it is a matrix product of less than a tile of weights.
        is_one_vector: whether a single vector multiplies its few weights, or each matrix of a stack; False if shapes
            are unknown.
    """

    node: Node
    weights: tuple[int, ...]
    channels: tuple[int, int] | None
    is_narrow: bool
    is_one_vector: bool


def match(view: GraphView) -> Iterator[SmallProduct]:
    """Yield every compute node that is too small to gain from INT8, in graph order."""
    for node in compute_nodes(view, "Conv", "Gemm", "MatMul"):
        counts = channels(view, node)
        narrow = node.op in MATRIX_PRODUCTS and counts is not None and _adds_a_tile(view, node, counts)
        one_vector = view.is_constant(node.inputs[1]) and _is_one_vector(view, node)
        if (narrow or one_vector) and not is_pooled(view, node.inputs[0]):
            yield SmallProduct(
                node=node,
                weights=view.constant_shape(node.inputs[1]) or (),
                channels=counts,
                is_narrow=narrow,
                is_one_vector=one_vector,
            )


def _adds_a_tile(view: GraphView, node: Node, counts: tuple[int, int]) -> bool:
    """Return True if a MatMul or Gemm has one weight matrix with a side below a tile.

    Return False if a MatMul or Gemm with larger weights reads the same input.

    A stack of matrices is not a layer: learned queries give an attention a constant factor of this form.
    """
    index = 0 if view.is_constant(node.inputs[0]) else 1
    shape = view.constant_shape(node.inputs[index]) or ()
    return min(counts) < TILE and prod(shape[:-2]) == 1 and not _is_read_in_int8(view, node.inputs[1 - index])


def _is_read_in_int8(view: GraphView, tensor: str) -> bool:
    """Return True if a MatMul or Gemm with weights of at least a tile reads the tensor, which is then quantized."""
    return any(
        use.node.op in MATRIX_PRODUCTS
        and use.index == 0
        and len(shape := view.constant_shape(use.node.inputs[1]) or ()) > 1
        and min(shape[-2:]) >= TILE
        and not _is_one_vector(view, use.node)
        for use in view.uses(tensor)
    )


def _is_one_vector(view: GraphView, node: Node) -> bool:
    elements, shape = view.info(node.inputs[1]).elements, view.info(node.inputs[0]).shape
    if elements is None or elements >= _LARGE or shape is None:
        return False
    weights = view.constant_shape(node.inputs[1]) or ()
    if node.op == "MatMul" and prod(weights[:-2]) > 1:
        return shape[-2:-1] == (1,) and _joins_neighbours(view, node, elements)
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    is_known = all(isinstance(size, int) for size in shape) or _is_step(view, node)
    return is_known and _vectors(node, sizes) == 1


def _is_step(view: GraphView, node: Node) -> bool:
    """Return True if several MatMul or Gemm nodes multiply these weights, as in the steps of an unrolled recurrence."""
    uses = view.uses(node.inputs[1])
    return sum(use.node.op in MATRIX_PRODUCTS and use.index == 1 for use in uses) >= _LEAST_STEPS


def _joins_neighbours(view: GraphView, node: Node, weights: int) -> bool:
    """Return True if a MatMul of single rows with a stack of matrices becomes part of a neighbouring kernel.

    More than one sample repeats the stack. RTX 1.7.1: 24 stacks of 2 to 256 matrices, for 1 to 8 samples.
    """
    batch = (view.info(node.outputs[0]).shape or ())[:-2]
    sizes = [
        size for size in (*batch, *(view.constant_shape(node.inputs[1]) or ())[-2:]) if isinstance(size, int)
    ]
    repeated = prod(sizes)
    return len(sizes) == len(batch) + 2 and (repeated == weights or repeated <= _MOST_REPEATED)


def _vectors(node: Node, sizes: Sequence[int]) -> int | None:
    """Return the number of vectors that a compute node multiplies by its weights."""
    if node.op == "Conv":
        return prod([*sizes[:1], *sizes[2:]])
    if node.op == "MatMul":
        return prod(sizes[:-1])
    # Another rank is not a matrix: onnxruntime and TensorRT refuse it.
    return sizes[1 if node.attribute("transA", 0) else 0] if len(sizes) == 2 else None


def place_one_vector(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on compute nodes that multiply small weights by a single vector."""
    products = match(view) if options.activations != "float" else ()
    small = {product.node.name: product.node for product in products if product.is_one_vector}
    for node in small.values():
        reason, claim = "this node multiplies a small matrix by a vector: INT8 saves few bytes", IS_KEPT
        if _is_step(view, node):
            reason, claim = f"{_STEP}: INT8 adds a kernel", ADDS_A_KERNEL
        elif all(use.node.name in small for use in view.uses(node.inputs[0])):
            reason = f"this node multiplies a small matrix by a vector: {_SAVES_LITTLE}"
            claim = of_reason(Assertion.QUANTIZES_MORE)
        fix = setting_for(view, node, f"{skipping('gemv', options)} quantizes it anyway")
        yield from veto(node, reason, fix, claim)


def place_narrow(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on MatMuls and Gemms with narrow weights."""
    for product in match(view) if options.activations != "float" else ():
        if product.is_narrow and product.channels is not None:
            rows, columns = product.channels
            yield from veto(
                product.node,
                f"the weights of this node are {rows} x {columns}, less than a kernel's tile of {TILE}, and no other node reads the input in INT8",
                f"{skipping('narrow', options)} quantizes it anyway",
                of_reason(Assertion.QUANTIZES_MORE),
            )
    in_attention = {node.name for both in attentions(view) for node in both}
    for node in compute_nodes(view, "MatMul") if options.activations != "float" else ():
        is_other = node.name in in_attention or any(view.is_constant(tensor) for tensor in node.inputs)
        if not is_other and (view.info(node.inputs[0]).shape or ())[-1:] == (1,):
            yield from veto(
                node,
                "this node multiplies a column by a row: without INT8 the kernel of its neighbours computes the product as a Mul",
                f"{skipping('narrow', options)} quantizes it anyway",
                ADDS_A_KERNEL,
            )


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report INT8 compute nodes with constant weights that placement would keep float because they are so small."""
    small = {product.node.name: product for product in match(flow.plain)}
    for node in flow.products():
        activation, weight = flow.origin(node, 0), flow.origin(node, 1)
        if activation is None or weight is None or not (is_int8(activation) and is_int8(weight)):
            continue
        if weight.kind is not SlotKind.WEIGHT:
            continue
        if target.is_rtx and is_folded(flow.view, node):
            yield Violation(
                node=node.name,
                reason=f"the input of this convolution has one position and at most {MOST_FOLDED} channels",
                effect="the convolution is computed in float, in one kernel with its neighbours"
                + (", in an engine for one sample" if has_free_batch(flow.view, node) else ""),
                fix=f"{repairing(to_float=[node.name])} removes the Q/DQ from both of its inputs",
                products=(node.name,),
                no_kernel=True,
            )
        elif node.name in small and len(small[node.name].weights) > 1:
            yield Violation(
                node=node.name,
                reason=_smallness(small[node.name]),
                effect=_SAVES_LITTLE,
                fix=f"{repairing(to_float=[node.name])} removes the Q/DQ from both of its inputs",
            )


def _smallness(product: SmallProduct) -> str:
    shown = " x ".join(map(str, product.weights))
    if product.is_narrow:
        return f"the weights of this node are {shown}, less than a kernel's tile of {TILE}"
    return f"this node multiplies small weights, {shown}, by one vector"


def place_min_channels(view: GraphView, options: PlacementOptions) -> Iterator[SlotStatement]:
    """Veto Q/DQ on compute nodes with fewer channels than the recipe's limit."""
    if not options.min_channels:
        return
    fed = {info.name for info in view.inputs}
    for node in compute_nodes(view):
        counts = channels(view, node)
        if counts is None:
            continue
        narrowest = counts[1] if node.inputs[0] in fed else min(counts)
        if narrowest < options.min_channels:
            yield from veto(
                node,
                f"this {node.op} has {narrowest} channels, fewer than place.min_channels={options.min_channels}",
                f"{setting('place.min_channels', str(narrowest))} quantizes this node and all others with as many channels",
            )


PLUGIN = {
    "gemv": Rule(code="QDQ170", place=place_one_vector),
    "narrow": Rule(code="QDQ174", place=place_narrow),
    "small_product": Rule(code="QDQ147", severity=Severity.INFO, check=check),
    "min_channels": Rule(code="QDQ173", place=place_min_channels),
}
