"""Attentions that TensorRT for RTX computes in one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qdqtool.core.dtypes import DType
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.patterns import (
    attentions,
    between,
    fp8_obstacle,
    has_one_query,
    int8_obstacle,
    is_alone,
    is_fused_as_float,
    readers,
)
from qdqtool.trt.ops import ELEMENTWISE_SUMS, LAYOUT, MASKING, PRODUCTS, QDQ, QUANTIZE, RESHAPING

_FARTHEST = 16
"""Nodes in front of an input of an attention that are looked at."""


def whole_attentions(flow: Flow, precision: Mapping[str, DType]) -> Iterator[tuple[Node, ...]]:
    """The nodes of every attention that is one kernel, Q included: INT8 or FP8 as a whole, of one query, or in half floats."""
    view = flow.view
    for plain in attentions(flow.plain):
        scores, values = (view.by_name[node.name] for node in plain)
        inner = (*_mask(view, between(view, scores, values)), scores, *between(view, scores, values), values)
        behind = [use.node for use in readers(view, values.outputs[0])]
        kinds = {precision.get(node.name, DType.UNKNOWN) for node in (scores, values)}
        if has_one_query(flow.plain, *plain):
            if DType.INT8 in kinds:
                continue  # in FP16 and BF16: two INT8 products
            before = [node for name in _inputs(scores, values) for node in _before(view, name)]
            yield (*before, *inner, *_behind(view, values))
        elif is_alone(flow.plain, plain[0], free=1):
            continue  # engines are built for one sample
        elif kinds == {DType.FLOAT8}:
            if not fp8_obstacle(flow.plain, *plain):
                result = tuple(_behind(view, values))
                yield (*inner, *(result if result and result[-1].op == QUANTIZE else ()))
        elif kinds == {DType.INT8}:
            kept = bool(behind) and all(node.op == QUANTIZE for node in behind)
            if kept and not int8_obstacle(view, scores, values, Target()):
                repeated = (node for name in _inputs(scores, values) for node in _repeated_heads(view, name))
                yield (*repeated, *inner, *behind, *_moved(view, values))
        elif not any(kind.is_quantized for kind in kinds) and is_fused_as_float(
            view, scores, values, Target(), "fp32"
        ):
            yield inner


def _moved(view: GraphView, values: Node) -> Iterator[Node]:
    """What gives the INT8 result of an attention another order and shape, its Q being where it may: its kernel writes it so."""
    node = values
    while len(uses := view.uses(node.outputs[0])) == 1 and uses[0].node.op in LAYOUT | QDQ:
        node = uses[0].node
        if node.op in LAYOUT:
            yield node


def _repeated_heads(view: GraphView, tensor: str) -> tuple[Node, ...]:
    """What repeats the keys or values of an INT8 attention for several heads, in front of whose kernel they are rounded once."""
    found: list[Node] = []
    maker = view.producer(tensor)
    while maker is not None and maker.op in LAYOUT | QDQ | {"Expand"} and len(found) < _FARTHEST:
        if maker.op not in QDQ:
            found.append(maker)
        if maker.op == "Expand":  # a Tile is done in front of the kernel
            before = view.producer(maker.inputs[0])
            return (*found, before) if before is not None and before.op in RESHAPING else tuple(found)
        maker = view.producer(maker.inputs[0])
    return ()


def _mask(view: GraphView, inner: tuple[Node, ...]) -> Iterator[Node]:
    """What makes a mask element by element, for attentions alone: the kernel of each does it once more."""
    added = {node.name for node in inner}
    waiting = [name for node in inner if node.op in ELEMENTWISE_SUMS for name in node.inputs]
    seen: set[str] = set()
    while waiting and len(seen) < _FARTHEST:
        maker = view.producer(waiting.pop())
        if maker is None or maker.name in added | seen or maker.op not in MASKING:
            continue
        if all(
            use.node.op in ELEMENTWISE_SUMS | MASKING for name in maker.outputs for use in view.uses(name)
        ):
            seen.add(maker.name)
            yield maker
            waiting.extend(maker.inputs)


def _inputs(scores: Node, values: Node) -> tuple[str, str, str]:
    return scores.inputs[0], scores.inputs[1], values.inputs[1]


def _before(view: GraphView, tensor: str) -> Iterator[Node]:
    """What a kernel of one query does itself behind a product: bias, factor and the order of the values."""
    for _ in range(_FARTHEST):
        node = view.producer(tensor)
        if node is None or node.op in PRODUCTS:
            return
        variable = [name for name in node.inputs if not view.is_constant(name)]
        if node.op not in LAYOUT | QDQ | ELEMENTWISE_SUMS or len(variable) != 1:
            return
        yield node
        tensor = variable[0]


def _behind(view: GraphView, values: Node) -> Iterator[Node]:
    """What such a kernel does with its result: the order of the values, and one Q."""
    uses = view.uses(values.outputs[0])
    while len(uses) == 1 and uses[0].node.op in LAYOUT | {QUANTIZE}:
        yield uses[0].node
        if uses[0].node.op == QUANTIZE:
            return
        uses = view.uses(uses[0].node.outputs[0])
