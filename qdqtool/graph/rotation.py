"""Rotates the residual stream of a transformer without changing its function, to spread outlier channels.

    E Q -> x Q -> RMS norm -> Q' diag(gain) W -> ... -> W Q -> Add -> x Q         Q' is the transpose of Q

An RMS norm without gain commutes with every orthogonal matrix, and so does a sum. The gain goes into the weights that read
the norm, the rotation into all weights that write and read the stream. No node changes. A LayerNormalization subtracts a
mean, which a rotation moves: a stream with one is left alone. Source: Ashkboos et al., "QuaRot" (NeurIPS 2024), section 4,
after Chee et al., "QuIP" (NeurIPS 2023), for random Hadamard matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.weights import WeightChanges
from qdqtool.graph.beside_attention import FACTORS
from qdqtool.graph.sparse import has_pattern
from qdqtool.trt.ops import MATRIX_PRODUCTS, SHAPE_READERS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node

_NARROWEST: Final = 16
"""Fewest channels of a stream that is worth a rotation."""
_NORM: Final = "RMSNormalization"


class _NotExactError(Exception):
    """Raised for a residual stream whose rotation would change the function of the model."""


@dataclass(kw_only=True)
class _Stream:
    """Constants that write to a residual stream, and constants that multiply it.

    Attributes:
        channels: size of its last axis.
        written: constants whose last axis is in the stream, or whose first axis is for True.
        read: weights that multiply the stream, the gain of their norm ("" without), and True if they are transposed.
        gains: gains of norms, which become one.
    """

    channels: int
    written: dict[str, bool] = field(default_factory=dict)
    read: dict[str, tuple[str, bool]] = field(default_factory=dict)
    gains: set[str] = field(default_factory=set)


def rotate_streams(view: GraphView) -> WeightChanges:
    """Return the constants of all residual streams, rotated; empty if no stream can be rotated exactly."""
    values: dict[str, NDArray[Any]] = {}
    visited: set[str] = set()
    for node in view.nodes:
        source = _find_normalized_tensor(view, node)
        if source is None or source in visited:
            continue
        tensors = {source}
        try:
            stream = _trace_stream(view, source, tensors)
        except _NotExactError:
            continue
        finally:
            visited |= tensors
        if any(has_pattern(_constant(view, name), axis) for name in stream.read for axis in (0, 1)):
            continue  # a rotation would remove the zeros that sparse tensor cores skip
        if not (values.keys() & {*stream.written, *stream.read, *stream.gains}):
            values |= _values(view, stream)
    return WeightChanges(values=values)


def hadamard(channels: int) -> NDArray[np.float64]:
    """Return a random orthogonal matrix: Hadamard with random signs, times a rotation for the odd part of the size."""
    chance = np.random.default_rng(0)
    odd, matrix = channels, np.ones((1, 1))
    while odd % 2 == 0:
        odd //= 2
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    if odd > 1:
        rotation, _ = np.linalg.qr(chance.standard_normal((odd, odd)))
        matrix = np.kron(rotation, matrix)
    signed: NDArray[np.float64] = matrix * chance.choice([-1.0, 1.0], channels)[:, None]
    return signed


def _values(view: GraphView, stream: _Stream) -> dict[str, NDArray[Any]]:
    turn = hadamard(stream.channels)
    turned: dict[str, NDArray[Any]] = {}
    for name, first in stream.written.items():
        value = _constant(view, name)
        turned[name] = (turn.T @ value if first else value @ turn).astype(value.dtype)
    for name, (gain, transposed) in stream.read.items():
        value = _constant(view, name)
        wide = value.astype(np.float64).T if transposed else value.astype(np.float64)
        wide = turn.T @ (_constant(view, gain).reshape(-1, 1) * wide if gain else wide)
        turned[name] = (wide.T if transposed else wide).astype(value.dtype)
    return turned | {name: np.ones_like(_constant(view, name)) for name in stream.gains}


def _constant(view: GraphView, name: str) -> NDArray[Any]:
    value = view.constant(name)
    assert value is not None, name
    return value


def _trace_stream(view: GraphView, source: str, tensors: set[str]) -> _Stream:
    """Follow the residual stream of tensor `source` in both directions; add its tensors to `tensors`.

    Raises:
        _NotExactError: a node reads or writes the stream in a way that a rotation would change.
    """
    shape = view.info(source).shape
    if not shape or not isinstance(shape[-1], int) or shape[-1] < _NARROWEST:
        raise _NotExactError
    stream = _Stream(channels=shape[-1])
    uses: dict[str, int] = {}
    waiting = [source]
    results = {info.name for info in view.outputs}
    while waiting:
        tensor = waiting.pop()
        fresh = [*_note_written(view, tensor, stream, uses), *_readers(view, tensor, stream, uses)]
        fresh = [name for name in fresh if name not in tensors]
        if any((view.info(name).shape or (0,))[-1] != stream.channels for name in fresh):
            raise _NotExactError
        tensors.update(fresh)
        waiting += dict.fromkeys(fresh)
    # a constant with another reader must stay
    if tensors & results or any(len(view.uses(name)) != count for name, count in uses.items()):
        raise _NotExactError
    names = (*stream.written, *stream.read, *stream.gains)
    if len(set(names)) != len(names):
        raise _NotExactError
    return stream


def _note_written(view: GraphView, tensor: str, stream: _Stream, uses: dict[str, int]) -> list[str]:
    """Record the constants that make a tensor of the stream; return the stream's tensors before it."""
    node = view.producer(tensor)
    if node is None or node.domain:
        raise _NotExactError
    if node.op == "Add":
        vectors = [name for name in node.inputs if view.is_constant(name)]
        for name in vectors:
            _note(view, stream.written, name, False, uses, stream.channels)
        return [name for name in node.inputs if name not in vectors]
    weight = node.inputs[1] if len(node.inputs) > 1 else ""
    if node.op == "MatMul" and view.is_constant(weight) and len(view.info(weight).shape or ()) == 2:
        _note(view, stream.written, weight, False, uses, stream.channels)
        return []
    if node.op == "Gemm" and _is_plain(node) and view.is_constant(weight):
        _note(view, stream.written, weight, node.integer("transB", 0) == 1, uses, stream.channels)
        for name in node.inputs[2:]:
            _note(view, stream.written, name, False, uses, stream.channels)
        return []
    if node.op == "Gather" and node.integer("axis", 0) == 0 and view.is_constant(node.inputs[0]):
        _note(view, stream.written, node.inputs[0], False, uses, stream.channels)
        return []
    source = _find_scaled_tensor(view, node) or _find_normalized_tensor(view, node)
    if source is None or node.op == _NORM:
        raise _NotExactError
    return [source]


def _readers(
    view: GraphView, tensor: str, stream: _Stream, uses: dict[str, int], gain: str = ""
) -> list[str]:
    """Record the constants that multiply a tensor of the stream; return the stream's tensors after it."""
    results: list[str] = []
    if gain and view.is_output(tensor):
        raise _NotExactError
    for use in view.uses(tensor):
        node = use.node
        result = node.outputs[0]
        if node.op in SHAPE_READERS:
            continue
        if node.op in MATRIX_PRODUCTS and use.index == 0 and _is_plain(node):
            weight = node.inputs[1]
            if not view.is_constant(weight) or len(view.info(weight).shape or ()) != 2:
                raise _NotExactError
            transposed = node.integer("transB", 0) == 1
            _note(
                view, stream.read, weight, (gain, transposed), uses, stream.channels, -1 if transposed else 0
            )
        elif gain:
            raise _NotExactError
        elif (
            node.op == "Add"
            or _find_scaled_tensor(view, node) == tensor
            or (_find_normalized_tensor(view, node) == tensor and node.op != _NORM)
        ):
            results.append(result)
        elif _is_gained(view, node, tensor):
            factor = next(name for name in node.inputs if name != tensor)
            _note(view, stream.gains, factor, None, uses, stream.channels)
            _readers(view, result, stream, uses, factor)
        elif not _measures(view, node, tensor):
            raise _NotExactError
    return results


def _note(
    view: GraphView,
    place: dict[str, Any] | set[str],
    name: str,
    value: Any,
    uses: dict[str, int],
    channels: int,
    axis: int | None = None,
) -> None:
    """Record a constant of the stream, and check its channels along an axis: the last, or the first if `value` is True."""
    shape = view.info(name).shape
    axis = axis if axis is not None else 0 if value is True else -1
    if not view.is_constant(name) or not shape or shape[axis] != channels:
        raise _NotExactError
    if isinstance(place, set):
        if view.info(name).elements != channels:
            raise _NotExactError  # a gain per token
        place.add(name)
    elif place.setdefault(name, value) != value:
        raise _NotExactError
    uses[name] = uses.get(name, 0) + 1


def _is_plain(node: Node) -> bool:
    """Return True if a Gemm has no factors: it only multiplies its operands and adds its bias."""
    scales = (node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0))
    return scales == (1.0, 1.0) and not node.integer("transA", 0)


def _find_scaled_tensor(view: GraphView, node: Node) -> str | None:
    """Return the tensor that a node multiplies or divides by one constant number; None for other nodes."""
    if node.op == "Mul" and view.constant_shape(node.inputs[0]) in {(), (1,)}:
        return node.inputs[1]
    is_scaled = node.op in FACTORS and view.constant_shape(node.inputs[1]) in {(), (1,)}
    return node.inputs[0] if is_scaled else None


def _is_gained(view: GraphView, node: Node, tensor: str) -> bool:
    """Return True if a node is RMSNormalization of `tensor`, or scales a normalized `tensor` by constants."""
    if node.op == _NORM:
        return node.inputs[0] == tensor and node.integer("axis", -1) == -1
    factors = [name for name in node.inputs if name != tensor]
    maker = view.producer(tensor)
    is_normalized = maker is not None and _find_normalized_tensor(view, maker) is not None
    return node.op == "Mul" and is_normalized and len(factors) == 1 and view.is_constant(factors[0])


def _find_normalized_tensor(view: GraphView, node: Node) -> str | None:
    """Return the tensor x of a node that computes x / sqrt(mean(x * x) + epsilon) over the last axis; None for others."""
    if node.op == _NORM and node.integer("axis", -1) == -1:
        return node.inputs[0]
    if len(node.inputs) != len(("source", "root")):
        return None
    for source, divisor in (node.inputs, node.inputs[::-1]):
        root = view.producer(divisor)
        if node.op == "Mul":
            root = _under(view, root, "Reciprocal") or _under(view, root, "Div", 1)
        elif node.op != "Div" or source != node.inputs[0]:
            continue
        total = _under(view, root, "Sqrt")
        mean = None
        if total is not None and total.op == "Add":
            mean = next((view.producer(name) for name in total.inputs if not view.is_constant(name)), None)
        if mean is not None and mean.op == "ReduceMean" and _is_last(view, mean):
            square = view.producer(mean.inputs[0])
            if square is not None and _squares(view, square) == source:
                return source
    return None


def _under(view: GraphView, node: Node | None, op: str, index: int = 0) -> Node | None:
    """Return the producer of a node's input if the node has operator `op`, else None; a Div must divide 1."""
    if node is None or node.op != op:
        return None
    if index:
        value = view.constant(node.inputs[0])
        if value is None or value.size != 1 or float(value.reshape(-1)[0]) != 1.0:
            return None
    return view.producer(node.inputs[index])


def _is_last(view: GraphView, node: Node) -> bool:
    """Return True if a reduction is over the last axis alone, and keeps this axis."""
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        value = view.constant(node.inputs[1])
        axes = None if value is None else value.reshape(-1).tolist()
    rank = len(view.info(node.inputs[0]).shape or ())
    return node.integer("keepdims", 1) == 1 and axes is not None and list(axes) in ([-1], [rank - 1])


def _squares(view: GraphView, node: Node) -> str | None:
    """Return the tensor that a node squares; None for other nodes."""
    if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
        return node.inputs[0]
    if node.op == "Pow":
        power = view.constant(node.inputs[1])
        if power is not None and power.size == 1 and float(power.reshape(-1)[0]) == 2.0:
            return node.inputs[0]
    return None


def _measures(view: GraphView, node: Node, tensor: str) -> bool:
    """Return True if a node squares a tensor only to take means over channels, which a rotation keeps."""
    square = node.outputs[0]
    return (
        _squares(view, node) == tensor
        and not view.is_output(square)
        and all(use.node.op == "ReduceMean" and _is_last(view, use.node) for use in view.uses(square))
    )
