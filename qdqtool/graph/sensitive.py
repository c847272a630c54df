"""Finds nodes that need the precision or the range of FP32, with the reason.

    recording ─ Conv ─ squares ─ Add ─ Log      quiet values count as much as loud ones in a logarithm
    probability ─ Sub (1 - p) ─ Log             FP16 rounds to 0, and the logarithm gives minus infinity
    x ─ Mul (x * x) ─ ReduceMean ─ Sqrt         squares overflow and underflow in FP16
    ids ─ Cast ─ Add ─ Cast ─ Gather            integers must be exact
    x, lengths ─ LSTM, GRU or RNN               the parser fills the steps after a length with FP32 zeros

Placement (the rule `logarithm`), the conversion to FP16 and BF16, and the audit (QDQ212) all use these functions. Advice of one
therefore never destroys nodes that another protects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Final

import numpy as np

from qdqtool.core.tensors import DType
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    AVERAGE_POOLS,
    CASTS,
    COMBINING,
    MATRIX_PRODUCTS,
    MOVING,
    PICKING,
    PRODUCTS,
    QDQ,
    RECURRENT,
    REPEATING,
    RESHAPING,
    SATURATING,
    SELECTING,
    SHAPE_MAKERS,
    SPECTRAL,
    STANDARD_DOMAINS,
    WRITES,
    find_computed_once,
)

# --- counting --------------------------------------------------------------------------------------------------------
# Finds arithmetic on integers that an exporter wrote as float arithmetic.
#
#     ids ─ Cast (float) ─ Add ─ Cast (int) ─ Gather        FP16 has no 2049: another row is gathered
#     Shape ─ Cast (float) ─ Mul ─ Floor ─ Less             a mask of another length
#     positions ─ Cast (float) ─ MatMul ─ Sin               an angle of 1000 is off by a quarter
#
# Indices, lengths and compared integers must be exact. FP16 holds all integers up to 2048, BF16 up to 256. Chains whose values are
# known to stay within that limit (flags, small offsets) stay exact and may be narrow.


ROUNDING = frozenset({"Ceil", "Floor", "Mod", "Round"})
"""Operators that turn a small difference into a whole step."""


ANGLES = frozenset({"Cos", "Sin", "Tan"})


COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


COUNTING = (
    (COMBINING - PRODUCTS)
    | MOVING
    | CASTS
    | {"ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
    | ROUNDING
    | frozenset(WRITES)
    | {
        *("Abs", "Clip", "CumSum", "Exp", "Log", "Mean", "Neg"),
        *("Pad", "Range", "Reciprocal", "ReduceProd", "Relu", "Sign", "Sqrt", "Trilu"),
    }
)
"""Operators that compute indices, lengths and positions: arithmetic, and operators that move values."""


EXACT_INPUTS = {"OneHot": (0, 1), "Range": (0, 1, 2), "Resize": (1, 2), "Upsample": (1,)}
"""Float inputs that hold a count, a size or an index."""


NO_LARGER = MOVING | {
    *("Abs", "Cast", "Ceil", "Floor", "Neg", "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "Trilu"),
}
"""Operators that return integers for integers, none larger than those of their first input."""


ADDING_TWO = frozenset({"Add", "Sub"})


CHOOSING = frozenset({"Concat", "Max", "Min"})
"""Operators whose every output value is a value of one of their inputs."""


ANGLE: Final = "an angle"
LENGTHS: Final = "reads the lengths of its sequences: the parser fills the rest with FP32 zeros"
_LENGTHS_INPUT: Final = 4
"""Input of a recurrent node that has the lengths of its sequences."""
_INDICES: Final = SHAPE_MAKERS | SELECTING | {"Range"}
"""Operators that make indices or lengths."""
_BIG_CONSTANT: Final = 1 << 20
"""A constant with more values is taken for a table of weights, and is not read."""
_FREQUENCIES: Final = MATRIX_PRODUCTS | {"Einsum"}
"""Operators that multiply positions by frequencies, to compute angles."""
_TYPES: Final = {DType.BOOL: 1.0, DType.INT8: 128.0, DType.UINT8: 255.0}
"""Largest magnitude of each small type."""


class Counting:
    """Integer arithmetic in one graph, such as indices and flags, that must stay exact.

    Args:
        view: the graph.
        exact: the largest integer up to which the float type holds all integers.
    """

    def __init__(self, view: GraphView, exact: float) -> None:
        self._view = view
        self._exact = exact
        self._whole: dict[str, float] = {}
        self._from_index: set[str] = set()
        self._counts: set[str] = set()
        self._plain: set[str] = set()
        """Float tensors computed by arithmetic alone from inputs, constants and integers."""
        self._angles: set[str] = set()
        """Float tensors after a product of computed positions and frequencies; the product may also be a network layer."""
        for info in view.inputs:
            self._plain.add(info.name)
        for node in view.nodes:
            self._look_at(node)

    @cached_property
    def nodes(self) -> dict[str, str]:
        """The nodes that must stay exact, by name, with a description of what they compute."""
        nodes: dict[str, str] = {}
        for node in self._view.nodes:
            if node.domain in STANDARD_DOMAINS:
                for tensor, word, is_reader in self._ends(node):
                    self._keep(tensor, word, nodes)
                    if is_reader:
                        nodes.setdefault(node.name, word)
        for info in self._view.outputs:
            if info.name in self._counts and info.name in self._plain:
                self._keep(info.name, "an integer that the model returns", nodes)
        return nodes

    def _ends(self, node: Node) -> Iterator[tuple[str, str, bool]]:
        """Yield the inputs of a node that must be exact, with a description, and whether the node must read FP32."""
        floats = self._floats(node)
        followed = [name for name in floats if name in self._counts or name in self._plain]
        exact = [name for name in followed if not self._is_exact(name)]
        counted = [name for name in exact if name in self._counts]
        if node.op == "Cast" and not self._view.info(node.outputs[0]).dtype.is_float:
            yield from ((name, "an integer", True) for name in exact)
        elif node.op in COMPARING and (counted or self._has_large_constant(floats)):
            yield from ((name, "a value that is compared with integers", True) for name in floats)
        elif node.op in SELECTING | ROUNDING and counted:
            yield from ((name, "an index or a length", True) for name in exact)
        elif node.op in ANGLES:
            yield from ((name, ANGLE, True) for name in floats if name in self._plain or name in self._angles)
        elif node.op in EXACT_INPUTS:
            for index in EXACT_INPUTS[node.op]:
                if index < len(node.inputs) and node.inputs[index] in exact:
                    yield node.inputs[index], "a size or an index", node.op == "OneHot"
        for name in node.outputs:
            if name in self._from_index and name in self._counts and name in self._plain:
                yield name, "an index or a length", False

    def _keep(self, tensor: str, word: str, nodes: dict[str, str]) -> None:
        """Add the nodes that compute `tensor` from model inputs and integers to `nodes`, with `word`."""
        waiting = [tensor]
        while waiting:
            here = waiting.pop()
            node = self._view.producer(here)
            if node is None or node.name in nodes or not self._is_known(here) or self._is_exact(here):
                continue
            nodes[node.name] = word
            waiting += [name for name in self._floats(node) if not self._view.is_constant(name)]

    def _is_known(self, tensor: str) -> bool:
        return tensor in self._counts or tensor in self._plain or tensor in self._angles

    def _look_at(self, node: Node) -> None:
        """Record which outputs of a node hold indices, flags or counts."""
        if node.domain not in STANDARD_DOMAINS:
            return
        self._follow_indices(node)
        bound = self._bound_integers(node)
        if bound is not None:
            self._whole.update(dict.fromkeys(node.outputs[:1], bound))
        if not node.outputs or not self._is_float(node.outputs[0]):
            return
        floats, name = self._floats(node), node.outputs[0]
        sources = [source for source in floats if not self._view.is_constant(source)]
        if node.op in _FREQUENCIES:
            if sources and self._plain.issuperset(sources) and self._counts.intersection(sources):
                self._angles.add(name)
            return
        if node.op not in COUNTING:
            return
        counts = any(source in self._counts for source in sources)
        if self._is_integer_cast(node) or (sources and all(map(self._is_exact, sources))):
            counts = not self._is_exact(name)
        if self._plain.issuperset(sources):
            self._plain.update(node.outputs)
        elif all(source in self._plain or source in self._angles for source in sources):
            self._angles.update(node.outputs)
        if counts:
            self._counts.update(node.outputs)

    def _follow_indices(self, node: Node) -> None:
        """Record tensors of indices: moved, cast or shifted indices. Comparisons of indices are flags."""
        if node.op in _INDICES:
            self._from_index.update(name for name in node.outputs if not self._is_float(name))
        elif node.op in COUNTING and any(name in self._from_index for name in node.inputs):
            self._from_index.update(node.outputs)

    def _is_integer_cast(self, node: Node) -> bool:
        return node.op == "Cast" and not self._view.info(node.inputs[0]).dtype.is_float

    def _is_exact(self, tensor: str) -> bool:
        """Return True if a tensor holds only integers that the float type represents exactly."""
        return self._largest(tensor) <= self._exact

    def _has_large_constant(self, floats: list[str]) -> bool:
        """Return True if model inputs are compared with integers that the float type cannot represent exactly."""
        constants = [name for name in floats if self._view.is_constant(name)]
        variables = [name for name in floats if name not in constants]
        return all(name in self._plain for name in variables) and any(
            self._exact < self._largest(name) < inf for name in constants
        )

    def _is_float(self, tensor: str) -> bool:
        return self._view.info(tensor).dtype is DType.FLOAT32

    def _floats(self, node: Node) -> list[str]:
        return [name for name in node.inputs if name and self._is_float(name)]

    def _largest(self, tensor: str) -> float:
        """Return the largest magnitude of a tensor of integers; infinite if unknown or if the tensor may hold fractions."""
        if tensor in self._whole:
            return self._whole[tensor]
        if (dtype := self._view.info(tensor).dtype) in _TYPES:
            return _TYPES[dtype]
        shape = self._view.constant_shape(tensor)
        if shape is None or prod(shape) > _BIG_CONSTANT:
            return inf
        value = self._view.constant(tensor)
        largest = inf
        if value is not None and value.dtype.kind in "iufb":
            wide = value.astype(np.float64)
            if np.array_equal(wide, np.rint(wide)):
                largest = float(np.abs(wide).max(initial=0.0))
        self._whole[tensor] = largest
        return largest

    def _all_largest(self, tensors: Sequence[str]) -> list[float]:
        """Return the largest magnitude of each tensor. Weights are not read if another tensor is unbounded."""
        computed = [self._largest(name) for name in tensors if not self._view.is_constant(name)]
        return [inf] * len(tensors) if inf in computed else [self._largest(name) for name in tensors]

    def _bound_integers(self, node: Node) -> float | None:
        """Return the largest magnitude of integers in a node's first output; None if unknown."""
        if node.op.startswith("Arg"):
            shape, axis = self._view.info(node.inputs[0]).shape or (), node.integer("axis", 0)
            size = shape[axis] if -len(shape) <= axis < len(shape) else ""
            return float(size - 1) if isinstance(size, int) else None
        if node.op == "Clip" and not self._is_float(node.outputs[0]) and len(node.inputs) == 3:
            return max(self._all_largest(node.inputs[1:]))
        if node.op == "Where":
            return max(self._all_largest(node.inputs[1:3]))
        if node.op in CHOOSING:
            return max(self._all_largest(node.inputs))
        if node.op in ADDING_TWO:
            return sum(self._all_largest(node.inputs))
        if node.op == "Mul":
            factors = self._all_largest(node.inputs)
            return 0.0 if 0.0 in factors else prod(factors)
        return self._largest(node.inputs[0]) if node.op in NO_LARGER else None


# --- sensitive -------------------------------------------------------------------------------------------------------


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


def has_lengths(node: Node) -> bool:
    """Return True if the recurrent node reads the lengths of its sequences. Such a node must stay FP32."""
    return node.op in RECURRENT and len(node.inputs) > _LENGTHS_INPUT and bool(node.inputs[_LENGTHS_INPUT])


def sensitive(view: GraphView, to: FloatType) -> dict[str, str]:
    """Return the nodes that must not compute in this 16-bit type, by name, with the reason."""
    reasons = {
        name: f"computes {value}: {to.name} rounds {'large angles' if value == ANGLE else f'integers beyond {to.exact:g}'}"
        for name, value in Counting(view, to.exact).nodes.items()
    }
    # RTX 1.7.1 refuses these: its parser mixes values of the narrow type with constants in FP32.
    for node in view.nodes:
        if has_lengths(node):
            reasons[node.name] = LENGTHS
        elif node.op == "GRU" and not to.is_short:
            reasons[node.name] = "is a GRU: the parser subtracts a gate in BF16 from 1 in FP32"
    for log, nodes in front_ends(view):
        _name(reasons, log, (*nodes, *_tables(view, nodes)), to)
    for log, nodes in _small_arguments(view):
        if to.is_short or any(node.op == "Sub" for node in nodes):
            _name(reasons, log, nodes, to)
    if to.is_short:
        for root, nodes in _squares(view):
            for node in nodes:
                reasons.setdefault(
                    node.name, f"computes squares for {root.name!r}: they exceed the range of {to.name}"
                )
    return reasons


def _name(reasons: dict[str, str], log: Node, nodes: Iterable[Node], to: FloatType) -> None:
    """Record the reason for a logarithm and for the nodes that feed it."""
    why = f"small values matter there, and {to.name} loses them"
    for node in nodes:
        reasons.setdefault(node.name, f"feeds the logarithm {log.name!r}: {why}")
    reasons.setdefault(log.name, f"takes a logarithm: {why}")


def front_ends(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield each Log that is computed from model inputs without an activation, and all nodes that feed the Log."""
    once = find_computed_once(view)
    for log in view.nodes:
        if log.op == "Log":
            nodes = _front_end(view, log, once)
            if any(node.op in PRODUCTS | SPECTRAL for node in nodes):
                yield log, nodes


def _front_end(view: GraphView, log: Node, once: frozenset[str]) -> tuple[Node, ...]:
    """Return the nodes from the model inputs to a Log; empty if one of them is an activation."""
    front: dict[str, Node] = {}
    waiting = list(log.inputs)
    while waiting:
        tensor = waiting.pop()
        node = view.producer(tensor)
        if node is None or tensor in once or node.name in front:
            continue
        if node.op not in FEATURES | QDQ or node.domain not in STANDARD_DOMAINS:
            return ()
        front[node.name] = node
        waiting += node.inputs if node.op in COMBINING else node.inputs[:1]
    return tuple(front.values())


def _tables(view: GraphView, nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield nodes that compute constants for other nodes, such as a Fourier table."""
    once = find_computed_once(view)
    waiting = [name for node in nodes for name in node.inputs]
    visited: set[str] = set()
    while waiting:
        tensor = waiting.pop()
        node = view.producer(tensor)
        if node is not None and tensor in once and node.name not in visited:
            visited.add(node.name)
            yield node
            waiting += node.inputs


def _small_arguments(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every Log and the elementwise nodes before it, back to a probability, a layer or an input."""
    for log in view.nodes:
        if log.op == "Log" and log.domain in STANDARD_DOMAINS:
            feeding: dict[str, Node] = {}
            waiting = list(log.inputs)
            while waiting:
                node = view.producer(waiting.pop())
                if node is None or node.name in feeding or node.domain not in STANDARD_DOMAINS:
                    continue
                if node.op in SATURATING:
                    feeding[node.name] = node
                elif node.op in FEATURES - PRODUCTS - SPECTRAL:
                    feeding[node.name] = node
                    waiting += node.inputs if node.op in COMBINING else node.inputs[:1]
            yield log, tuple(feeding.values())


def _squares(view: GraphView) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every root or quotient of squares (x * x), and all nodes from the squares to this node."""
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
