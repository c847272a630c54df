"""What in a model a prediction does not hold for."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.matching.flow import Flow
from qdqtool.matching.silent_float import rows_of
from qdqtool.trt.ops import QDQ, RECURRENT, WRITTEN_AS


def doubts(model: Model, flow: Flow, target: Target) -> Iterator[str]:
    """Sentences about pairs that the parser will refuse, pairs in bodies of control flow, and kernels not foreseen."""
    for what, named in (
        ("scales that are not positive numbers", [pair for pair in flow.pairs if _is_sick(pair)]),
        ("zero points other than 0", [pair for pair in flow.pairs if _is_shifted(pair)]),
        ("numbers of scales that do not fit", [pair for pair in flow.pairs if _is_odd(flow, pair)]),
    ):
        if named:
            yield (
                f"{len(named)} pairs have {what}, the first {_name(named[0])!r}: the parser refuses them, and what is "
                "said here holds once they are fixed; `qdqtool lint` tells each"
            )
    for node in model.view.nodes:
        if QDQ & set(model.view.body_ops(node)):
            yield f"{node.op} {node.name!r} has Q/DQ inside its body, which is not looked into"
    yield from _unforeseen(model, target)
    if target.is_rtx:
        yield from _written_out(flow)


def _unforeseen(model: Model, target: Target) -> Iterator[str]:
    """Nodes that TensorRT for RTX makes into kernels of which the graph does not tell how many."""
    nodes = model.view.nodes if target.is_rtx else ()
    recurrent = [node.name for node in nodes if node.op in RECURRENT]
    if recurrent:
        yield (
            f"{len(recurrent)} recurrences, the first {recurrent[0]!r}, are shown as one kernel each: the compiler "
            "unrolls their steps into several, or runs some of them in a loop"
        )
    grouped = [
        node.name
        for node in nodes
        if node.op == "InstanceNormalization" and (model.view.info(node.inputs[0]).shape or (0, 1))[1] != 1
    ]
    if grouped:
        yield (
            f"{len(grouped)} normalizations of several groups, the first {grouped[0]!r}, are kernels of their own; which of "
            "the kernels around them does the Reshape, Mul and Add that belong to them is not foreseen everywhere"
        )


def _written_out(flow: Flow) -> Iterator[str]:
    """Operators that the compiler writes as several others, which find their kernels by themselves."""
    for op, words in WRITTEN_AS.items():
        named = [node.name for node in flow.view.nodes if node.op == op]
        if named:
            yield f"{len(named)} {op} nodes, the first {named[0]!r}, are shown as part of one kernel each: {words}"
    rows = [
        node.name
        for node in flow.products()
        if rows_of(flow.view, node) == 1
        and flow.source(node, 0) is None
        and flow.view.is_constant(node.inputs[1])
    ]
    if rows:
        yield (
            f"{len(rows)} float products of one row, the first {rows[0]!r}, are shown as kernels of their own: the compiler "
            "writes them as multiply and sum, often in one kernel with each other or with what stands around them"
        )


def _name(pair: QdqPair) -> str:
    return pair.dequantize or pair.quantize or ""


def _is_sick(pair: QdqPair) -> bool:
    return pair.dtype is not DType.INT4 and any(not isfinite(scale) or scale <= 0 for scale in pair.scale)


def _is_shifted(pair: QdqPair) -> bool:
    return any(pair.zero_point)


def _is_odd(flow: Flow, pair: QdqPair) -> bool:
    """Whether a pair has no scale, or not one for each channel of a known shape."""
    if pair.scale_shape is None or len(pair.scale_shape) > 1:
        return False
    shape = flow.view.info(pair.tensor).shape
    if len(pair.scale) == 1 or shape is None:
        return not pair.scale
    axis = pair.axis if pair.axis is not None else 1
    size = shape[axis] if axis < len(shape) else None
    return size is None or (isinstance(size, int) and size != len(pair.scale))
