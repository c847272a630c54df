"""Attention: its two matrix products, the parts that a builder fuses, and the models for which a fused kernel exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from qdqtool.core.engine import EngineLayer, Wiring
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.graph.products import has_weights
from qdqtool.graph.view import GraphView, Node, Use
from qdqtool.matching.rule import NodeEvidence
from qdqtool.trt.ops import (
    CONVOLUTIONS,
    LAYOUT,
    PASSES_PROBABILITIES,
    QDQ,
    QUANTIZE,
    SHAPE_READERS,
    carried_outputs,
    quantization_commutes,
    value_preserving,
)

SCALING = frozenset({"Add", "Cast", "Div", "Mul", "Sub", "Where"})
"""Operators between the scores of an attention and its softmax: scale, mask, casts."""


_FARTHEST = 12
"""Largest number of operators between a matrix product and the softmax: scale, mask, casts, reshapes."""
# The attentions that RTX 1.7.1 fuses, from builds of one block; the page of the rule `attention` has the evidence.
_FUSED_HEADS = (16, 32, 64)
_MOST_TOKENS = 512
_LEAST_FP8_KEYS = 32
_LEAST_QUERIES = 4
_FEW = "the attention has a single query and fewer than four heads over all samples, and no INT8 kernel fuses so few heads"
_GUARDED = "a Where replaces NaN after its Softmax, and no attention with it"
_LEAST_FLOAT_HEAD = 12
# Largest number of tensors that are followed at a time: an attention has a few, other graphs could have thousands.
_WIDEST = 16


def attentions(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield the two MatMuls of each attention: scores (before the softmax) and values (after it), both without weights."""
    return ((scores, use.node) for scores, use in attention_uses(view))


def attention_uses(view: GraphView) -> Iterator[tuple[Node, Use]]:
    """Yield the first MatMul of each attention, and the input of the second MatMul that reads the probabilities."""
    for node in view.nodes:
        if node.op != "Softmax":
            continue
        scores = _product_before(view, node.inputs[0])
        use = _product_after(view, node.outputs[0])
        if (
            scores is not None
            and use is not None
            and not (has_weights(view, scores) or has_weights(view, use.node))
        ):
            yield scores, use


_SINGLE = "the attention has a single head of a single sample, and only two or more are fused into one kernel"


def int8_obstacle(
    view: GraphView, scores: Node, values: Node, target: Target, head: int | None = None
) -> str:
    """Return why the target has no fused INT8 kernel for an attention; "" if it has a kernel or shapes are unknown.

    Source: builds with RTX 1.7.1. Heads of 16, 32 and 64 with up to 512 tokens are fused. Not fused:

    - other head sizes from 8 to 288;
    - values of another size than the queries;
    - a single attention (see `is_alone`);
    - a guard against NaN after the Softmax (three shapes, SM86 and SM120);
    - attention between channels instead of tokens, whose result is transposed back. It is fused if several heads
      become a picture for convolutions (heads of 16, 32 and 64, 16 to 256 pixels).

    For classic releases, only the limit of tokens is known.

    Args:
        view: the float graph.
        scores: the product of queries and keys.
        values: the product of probabilities and values.
        target: the builder.
        head: the size of the heads in an engine; used if the graph does not show it.
    """
    size, tokens = _head_size(view, scores) or head, _tokens(view, scores)
    if target.is_rtx and has_one_query(view, scores, values):
        return (
            "the attention has a single query, and the fused kernel for this case usually multiplies floats"
        )
    if target.is_rtx and _has_few_queries(view, scores):
        return _FEW
    if target.is_rtx and is_alone(view, scores):
        return _SINGLE
    if target.is_rtx and _is_guarded(view, values):
        return f"{_GUARDED} is fused in INT8"
    if target.is_rtx and size is not None and size not in _FUSED_HEADS:
        return f"the heads of the attention have size {size}, and only sizes {', '.join(map(str, _FUSED_HEADS))} are fused in INT8"
    if target.is_rtx and (unequal := _unequal_sizes(view, scores, values)):
        return f"{unequal} are fused in INT8"
    if target.is_rtx and _is_turned(view, values):
        return "the result of the attention is transposed along the last axis, and only results without this transpose are fused in INT8"
    if tokens > _MOST_TOKENS:
        return f"the attention has {tokens} tokens, and at most {_MOST_TOKENS} are fused in INT8"
    return ""


def fp8_obstacle(view: GraphView, scores: Node, values: Node) -> str:
    """Return why TensorRT for RTX has no fused FP8 kernel for an attention; "" if it has a kernel or shapes are unknown.

    Source: builds with RTX 1.7.1 for SM89 and SM120. Heads of 8 to 256 and 1 to 1024 queries are fused from 32 keys
    on, with and without a mask or bias, in FP16 and FP32, with any consumer. Not fused: 31 keys or fewer, values of
    another size than queries, attention between channels, and a guard against NaN.
    """
    if has_one_query(view, scores, values):
        return "the attention has a single query, and the fused kernel for this case multiplies floats, with or without Q/DQ"
    if is_alone(view, scores):
        return _SINGLE
    if _is_guarded(view, values):
        return f"{_GUARDED} is fused in FP8"
    keys = (view.info(scores.outputs[0]).shape or (None,))[-1]
    if isinstance(keys, int) and keys < _LEAST_FP8_KEYS:
        return f"the attention has {keys} keys, and only attentions of {_LEAST_FP8_KEYS} and more are fused in FP8"
    if unequal := _unequal_sizes(view, scores, values):
        return f"{unequal} are fused in FP8"
    if _is_turned(view, values):
        return "the result of the attention is transposed along the last axis, and only results without this transpose are fused in FP8"
    return ""


def is_fused_as_float(view: GraphView, scores: Node, values: Node, target: Target, float_type: str) -> bool:
    """Return True if TensorRT fuses an attention without Q/DQ into one kernel, in the type `float_type`.

    Source: 256 builds of one block with RTX 1.7.1. Fused in FP16 and BF16 with heads of 12 to 128 and 16 to 1024
    tokens, with and without a position bias. One query with two or three heads is fused too (24 shapes). Never fused
    with heads of 8, and never in FP32. The exception is one query: its kernel (`_gemv_mha`) exists in FP32 too (heads of
    16 to 64 with 17 to 512 tokens), if all samples together have four heads or more. Values of another size than the queries are
    never fused (FP16 for SM86, SM89 and SM120, 16 to 256 tokens and one query: 16 of 16). Classic TensorRT is assumed
    to fuse its float attention; nothing else is known.
    """
    if not target.is_rtx:
        return True
    if _unequal_sizes(view, scores, values):
        return False
    if has_one_query(view, scores, values):
        return True
    if is_alone(view, scores):
        return False
    half = float_type != "fp32" or view.info(scores.inputs[0]).dtype in {DType.FLOAT16, DType.BFLOAT16}
    size = _head_size(view, scores)
    return half and (size is None or size >= _LEAST_FLOAT_HEAD)


def _is_guarded(view: GraphView, values: Node) -> bool:
    """Return whether a Where replaces NaN between the Softmax of an attention and its second MatMul."""
    node = view.producer(values.inputs[0])
    for _ in range(_FARTHEST):
        if node is None or node.op == "Softmax":
            return False
        condition = view.producer(node.inputs[0]) if node.op == "Where" else None
        if condition is not None and condition.op == "IsNaN":
            return True
        node = next((maker for name in node.inputs if (maker := view.producer(name)) is not None), None)
    return False


def is_alone(view: GraphView, scores: Node) -> bool:
    """Return True if an attention has one head and one sample, so that each of its MatMuls is an ordinary kernel.

    Source: builds with RTX 1.7.1 (INT8 for SM86, SM89 and SM120, FP8 for SM89 and FP16 for SM86, heads of 32 and 64).
    Two heads or two samples are one fused kernel, also if the engine is for 1 to 8 samples.
    """
    shape = view.info(scores.outputs[0]).shape or ()
    return len(shape) > 1 and all(size == 1 for size in shape[:-2])


def has_one_query(view: GraphView, scores: Node, values: Node) -> bool:
    """Return True if an attention has one query and runs in the special kernel for one query.

    An example is the class attention of vision transformers.

    No such kernel exists if the size of values differs from the size of queries, or for fewer than four heads in all
    samples together. In INT8 and FP32, such products are computed like any others (RTX 1.7.1, 121 builds for SM75,
    SM86, SM89 and SM120). An unknown number of samples counts as one, as the tool builds it.
    """
    return _queries(view, scores) >= _LEAST_QUERIES and not _unequal_sizes(view, scores, values)


def _has_few_queries(view: GraphView, scores: Node) -> bool:
    return 0 < _queries(view, scores) < _LEAST_QUERIES


def _queries(view: GraphView, scores: Node) -> int:
    """Return the number of queries of all heads and samples, if each head has one query; 0 if it has more queries."""
    shape = view.info(scores.outputs[0]).shape or ()
    if len(shape) < 2 or shape[-2] != 1:
        return 0
    return prod(size if isinstance(size, int) else 1 for size in shape[:-2])


def _unequal_sizes(view: GraphView, scores: Node, values: Node) -> str:
    """Return a phrase about values whose size differs from the size of queries; "" if both are equal or unknown."""
    query_size, value_size = _head_size(view, scores), (view.info(values.outputs[0]).shape or (None,))[-1]
    if query_size is None or not isinstance(value_size, int) or query_size == value_size:
        return ""
    return f"the queries have size {query_size} and its values {value_size}, and only equal sizes"


def _is_turned(view: GraphView, values: Node) -> bool:
    """Return True if the next Transpose after an attention makes another axis the last one, as in attention between channels."""
    uses = view.uses(values.outputs[0])
    while len(uses) == 1 and uses[0].node.op in LAYOUT | QDQ:
        node = uses[0].node
        if node.op == "Transpose":
            order = node.attribute("perm", ())
            return bool(order) and order[-1] != len(order) - 1 and not _is_picture(view, node)
        uses = view.uses(node.outputs[0])
    return False


def _is_picture(view: GraphView, turn: Node) -> bool:
    """Return True if only convolutions read the transposed heads; in INT8, these use channels last anyway."""
    heads = (view.info(turn.inputs[0]).shape or ())[:-2]
    if set(heads) <= {1}:
        return False
    uses = view.uses(turn.outputs[0])
    while len(uses) == 1 and uses[0].node.op in LAYOUT | QDQ:
        uses = view.uses(uses[0].node.outputs[0])
    return bool(uses) and all(use.node.op in CONVOLUTIONS for use in uses)


def _head_size(view: GraphView, scores: Node) -> int | None:
    query = view.info(scores.inputs[0]).shape
    return query[-1] if query and isinstance(query[-1], int) else None


def _tokens(view: GraphView, scores: Node) -> int:
    """Return the larger of the two numbers of tokens (queries and keys); 0 if none is known."""
    return max(
        (dim for dim in (view.info(scores.outputs[0]).shape or ())[-2:] if isinstance(dim, int)), default=0
    )


def readers(view: GraphView, tensor: str) -> Iterator[Use]:
    """Yield the consumers of `tensor`, up to 12 nodes away: directly, or after nodes that move values or replace some by zero."""
    frontier = [tensor]
    for _ in range(_FARTHEST):
        uses = [use for name in frontier[:_WIDEST] for use in view.uses(name)]
        frontier = []
        for use in uses:
            if use.index == 0 and quantization_commutes(view, use.node):
                frontier.extend(carried_outputs(use.node))
            elif use.node.op == "Where" and use.index == 1 and _is_zero(view, use.node.inputs[2]):
                frontier.extend(
                    use.node.outputs
                )  # queries that may read no key; the fused kernel still writes INT8
            else:
                yield use
        if not frontier:
            return


def _is_zero(view: GraphView, tensor: str) -> bool:
    value = view.constant(tensor)
    return value is not None and not value.any()


def _product_before(view: GraphView, tensor: str) -> Node | None:
    """Return the nearest MatMul before `tensor`; scales and masks may be between.

    The search is breadth first, so a MatMul inside a mask is found last.
    """
    frontier = [tensor]
    for _ in range(_FARTHEST):
        producers = [node for node in map(view.producer, frontier) if node is not None]
        for node in producers:
            if node.op == "MatMul":
                return node
        frontier = [name for node in producers for name in _find_carried(view, node)][:_WIDEST]
    return None


def _find_carried(view: GraphView, node: Node) -> tuple[str, ...]:
    if node.op in SCALING:
        values = node.inputs[1:] if node.op == "Where" else node.inputs
        return tuple(name for name in values if not view.is_constant(name))[:2]
    return node.inputs[:1] if quantization_commutes(view, node) else ()


def _product_after(view: GraphView, tensor: str) -> Use | None:
    for _ in range(_FARTHEST):
        # a guard against NaN also reads the probabilities
        uses = [use for use in view.uses(tensor) if use.node.op != "IsNaN"]
        if len(uses) != 1:
            return None
        node = uses[0].node
        if node.op == "MatMul":
            return uses[0]
        if not (node.op in PASSES_PROBABILITIES or quantization_commutes(view, node)):
            return None
        tensor = node.outputs[0]
    return None


def unquantized_results(
    wiring: Wiring, nodes: Iterable[NodeEvidence], softmax: EngineLayer
) -> Iterator[tuple[Node, str]]:
    """Yield each MatMul after a softmax whose result is read in float, and this result."""
    behind = {name for layer in wiring.compute_after(softmax) for name in layer.onnx_nodes}
    for case in nodes:
        node = case.node
        if (
            node.name in behind
            and len(case.activations) > 1
            and not _is_quantized(case.view, node.outputs[0])
        ):
            yield node, node.outputs[0]


def _is_quantized(view: GraphView, tensor: str) -> bool:
    """Return True if only quantizers read a tensor: directly, or after operators that move values."""
    waiting, visited = [tensor], {tensor}
    while waiting:
        name = waiting.pop()
        uses = view.uses(name)
        if not uses or view.is_output(name):
            return False
        for use in uses:
            if use.node.op != "Concat" and value_preserving(view, use.node):
                fresh = use.node.outputs[0]
                if fresh not in visited:
                    visited.add(fresh)
                    waiting.append(fresh)
            elif use.node.op not in {QUANTIZE, *SHAPE_READERS}:
                return False
    return True
