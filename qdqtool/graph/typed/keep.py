"""Chooses the nodes that go on computing in FP32, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from qdqtool.core.dtypes import DType
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.narrow import Narrow, fits
from qdqtool.graph.typed.scales import PAIRS
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import LAYOUT, MOVING, PRODUCTS

MAGNITUDE_KEPT = MOVING | {"Abs", "Add", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMean", "Sub"}
"""Operators whose result is as large as what they read."""


MAGNITUDE_LOWERED = frozenset({"Clip", "Div", "Log", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"})
"""Operators that bring large values back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRequest:
    """What must stay FP32.

    Attributes:
        nodes: globs on node names.
        others: globs on the names of nodes that need not; all others must stay. Without any, no node must for its name.
        ops: operator types.
        tensors: tensors whose values the narrow type cannot hold.
        small: tensors whose values are all so small that it loses their digits.
    """

    nodes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    tensors: frozenset[str] = frozenset()
    small: frozenset[str] = frozenset()


def kept(view: GraphView, request: FloatRequest, narrow: Narrow) -> dict[str, str]:
    """Node name -> why it stays FP32, in graph order. Q/DQ are never among them: they take their neighbours' types."""
    reasons: dict[str, str] = {}
    risen: set[str] = set()
    large = set(request.tensors)
    facts = sensitive(view, narrow.float_type)
    for node in view.nodes:
        if node.op in PAIRS | LAYOUT and node.inputs[0] in large:
            large.update(node.outputs)  # neither quantizing nor moving makes it smaller
        if node.op in PAIRS or not _has_wide(view, node):
            continue
        reason = _reason(view, node, request, narrow, large) or facts.get(node.name)
        follows = _follows(view, node, risen)
        if reason is None and follows:
            reason = "computes on with large values of kept nodes"
        if reason is not None:
            reasons[node.name] = reason
        if node.op in request.ops or (follows and node.op not in MAGNITUDE_LOWERED):
            risen.update(node.outputs)
    return reasons


def wide_weights(view: GraphView, narrow: Narrow) -> frozenset[str]:
    """Constants beyond the type that are factors of products, where clipping changes what is computed.

    A mask of -1e9 that is added means the same when it is clipped. Stored integers count as what they stand for.
    """
    found = set()
    for node in view.nodes:
        for name in node.inputs[:2] if node.op in PRODUCTS else ():
            tensor, scale = name, 1.0
            while (maker := view.producer(tensor)) is not None and maker.op in PAIRS | LAYOUT:
                tensor = maker.inputs[0]
                steps = view.constant(maker.inputs[1]) if maker.op == DEQUANTIZE else None
                if steps is not None and view.is_constant(tensor):  # stored in few bits
                    scale = float(np.abs(steps.astype(np.float64)).max(initial=0.0))
            value = view.constant(tensor)
            if value is not None and not fits(narrow, value.astype(np.float64) * scale):
                found.add(tensor)
    return frozenset(found)


def unused(view: GraphView, patterns: Iterable[str]) -> tuple[str, ...]:
    """Globs that no node's name matches."""
    return tuple(
        pattern for pattern in patterns if not any(fnmatchcase(node.name, pattern) for node in view.nodes)
    )


def _reason(
    view: GraphView, node: Node, request: FloatRequest, narrow: Narrow, large: set[str]
) -> str | None:
    pattern = next((glob for glob in request.nodes if fnmatchcase(node.name, glob)), None)
    if pattern is not None:
        return f"matches {pattern!r}"
    if request.others and not any(fnmatchcase(node.name, glob) for glob in request.others):
        return "only other nodes were asked for"
    beyond = next((name for name in (*node.inputs, *node.outputs) if name in large), None)
    if beyond is not None:
        return f"the values of {beyond!r} reach beyond {narrow.dtype}"
    faint = next((name for name in (*node.inputs, *node.outputs) if name in request.small), None)
    if faint is not None:
        return f"the values of {faint!r} are so small that {narrow.dtype} loses digits"
    unknown = next((name for name in node.inputs if _is_unknown(view, name)), None)
    if unknown is not None:
        return f"the type of {unknown!r} is not known"
    return f"{node.op} makes large values of small ones" if node.op in request.ops else None


def _has_wide(view: GraphView, node: Node) -> bool:
    return any(view.info(name).dtype is DType.FLOAT32 for name in (*node.inputs, *node.outputs) if name)


def _is_unknown(view: GraphView, tensor: str) -> bool:
    return bool(tensor) and view.info(tensor).dtype is DType.UNKNOWN


def _follows(view: GraphView, node: Node, risen: set[str]) -> bool:
    """Whether the node reads large values of kept nodes and, constants aside, nothing else."""
    if node.op not in MAGNITUDE_KEPT | MAGNITUDE_LOWERED:
        return False
    read = [name for name in node.inputs if name and not view.is_constant(name)]
    floats = [name for name in read if view.info(name).dtype is DType.FLOAT32]
    return bool(floats) and all(name in risen for name in floats)
