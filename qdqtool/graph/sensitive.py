"""Finds nodes that need the precision or the range of FP32, with the reason.

    recording ─ Conv ─ squares ─ Add ─ Log      quiet values count as much as loud ones in a logarithm
    probability ─ Sub (1 - p) ─ Log             FP16 rounds to 0, and the logarithm gives minus infinity
    x ─ Mul (x * x) ─ ReduceMean ─ Sqrt         squares overflow and underflow in FP16
    ids ─ Cast ─ Add ─ Cast ─ Gather            integers must be exact (`qdqtool.graph.counting`)

Placement (the rule `logarithm`), the conversion to FP16 and BF16, and the audit (QDQ212) all use these functions. Advice of one
therefore never destroys nodes that another protects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qdqtool.graph.counting import ANGLE, Counting
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    AVERAGE_POOLS,
    CASTS,
    COMBINING,
    PICKING,
    PRODUCTS,
    QDQ,
    REPEATING,
    RESHAPING,
    SATURATING,
    SPECTRAL,
    STANDARD_DOMAINS,
    computed_once,
)

ROOTS = frozenset({"Div", "Log", "Pow", "Reciprocal", "Sqrt"})
"""Operators that return squares to the size of the squared values."""


SQUARES_KEPT = (
    AVERAGE_POOLS
    | RESHAPING
    | REPEATING
    | PICKING
    | {"Add", "Concat", "ReduceMean", "ReduceSum", "Transpose"}
)
"""Operators that may be between squares and their root."""


FEATURES = (
    COMBINING
    | RESHAPING
    | PICKING
    | REPEATING
    | CASTS
    | SPECTRAL
    | {
        *(
            "Abs",
            "AveragePool",
            "Clip",
            "Identity",
            "Neg",
            "Pad",
            "ReduceL2",
            "ReduceMax",
            "ReduceMean",
            "ReduceSum",
        ),
        *("ReduceSumSquare", "Sqrt", "Transpose"),
    }
)
"""Operators that compute features of a recording, such as a spectrogram: sums, products, powers, and moves of values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatType:
    """Properties of a 16-bit float type that decide which nodes are sensitive to it.

    Attributes:
        name: "fp16" or "bf16".
        exact: the largest integer up to which it holds all integers.
        is_short: whether squares of ordinary values leave its range.
    """

    name: str
    exact: float
    is_short: bool


def sensitive(view: GraphView, to: FloatType) -> dict[str, str]:
    """Return the nodes that must not compute in that type: node name -> reason."""
    found = {
        name: f"computes {what}: {to.name} rounds {'large angles' if what == ANGLE else f'integers beyond {to.exact:g}'}"
        for name, what in Counting(view, to.exact).nodes.items()
    }
    for log, nodes in front_ends(view):
        _name(found, log, (*nodes, *_tables(view, nodes)), to)
    for log, nodes in _small_arguments(view):
        if to.is_short or any(node.op == "Sub" for node in nodes):
            _name(found, log, nodes, to)
    if to.is_short:
        for root, nodes in _squares(view):
            for node in nodes:
                found.setdefault(
                    node.name, f"computes squares for {root.name!r}: they exceed the range of {to.name}"
                )
    return found


def _name(found: dict[str, str], log: Node, nodes: Iterable[Node], to: FloatType) -> None:
    """Record the reason for a logarithm and the nodes that feed it."""
    why = f"small values matter there, and {to.name} loses them"
    for node in nodes:
        found.setdefault(node.name, f"feeds the logarithm {log.name!r}: {why}")
    found.setdefault(log.name, f"takes a logarithm: {why}")


def front_ends(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every Log whose argument is computed from model inputs without an activation, and all nodes that feed it."""
    known = computed_once(view)
    for log in view.nodes:
        if log.op == "Log":
            nodes = _front_end(view, log, known)
            if any(node.op in PRODUCTS | SPECTRAL for node in nodes):
                yield log, nodes


def _front_end(view: GraphView, log: Node, known: frozenset[str]) -> tuple[Node, ...]:
    """Return the nodes from the model inputs to a Log; empty if an activation is among them."""
    found: dict[str, Node] = {}
    waiting = list(log.inputs)
    while waiting:
        tensor = waiting.pop()
        node = view.producer(tensor)
        if node is None or tensor in known or node.name in found:
            continue
        if node.op not in FEATURES | QDQ or node.domain not in STANDARD_DOMAINS:
            return ()
        found[node.name] = node
        waiting += node.inputs if node.op in COMBINING else node.inputs[:1]
    return tuple(found.values())


def _tables(view: GraphView, nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield nodes that compute constants for other nodes, such as a Fourier table."""
    known = computed_once(view)
    waiting = [name for node in nodes for name in node.inputs]
    seen: set[str] = set()
    while waiting:
        tensor = waiting.pop()
        node = view.producer(tensor)
        if node is not None and tensor in known and node.name not in seen:
            seen.add(node.name)
            yield node
            waiting += node.inputs


def _small_arguments(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every Log and the elementwise nodes that feed it; the walk stops at a probability, a layer or an input."""
    for log in view.nodes:
        if log.op == "Log" and log.domain in STANDARD_DOMAINS:
            found: dict[str, Node] = {}
            waiting = list(log.inputs)
            while waiting:
                node = view.producer(waiting.pop())
                if node is None or node.name in found or node.domain not in STANDARD_DOMAINS:
                    continue
                if node.op in SATURATING:
                    found[node.name] = node
                elif node.op in FEATURES - PRODUCTS - SPECTRAL:
                    found[node.name] = node
                    waiting += node.inputs if node.op in COMBINING else node.inputs[:1]
            yield log, tuple(found.values())


def _squares(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every root or quotient of squares (x * x), and the nodes from the squares to it."""
    squares: dict[str, frozenset[str]] = {}
    for node in view.nodes:
        if node.domain not in STANDARD_DOMAINS or not node.outputs:
            continue
        before = frozenset[str]().union(*(squares.get(name, ()) for name in node.inputs))
        if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
            squares[node.outputs[0]] = frozenset({node.name})
        elif before and node.op in SQUARES_KEPT:
            squares.update(dict.fromkeys(node.outputs, before | {node.name}))
        elif before and node.op in ROOTS:
            yield node, tuple(view.by_name[name] for name in sorted(before | {node.name}))
