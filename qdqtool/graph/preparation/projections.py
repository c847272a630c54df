"""Joins the MatMuls that compute queries, keys and values of an attention, so that one Q before the split serves all.

    x ─┬─ MatMul(Wq) ─ Add ─ q                    x ─ MatMul(Wq|Wk|Wv) ─ Add ─ Split ─┬─ q
       ├─ MatMul(Wk) ─ Add ─ k                                                        ├─ k
       └─ MatMul(Wv) ─ Add ─ v                                                        └─ v

TensorRT for RTX computes the three MatMuls in one kernel in any case. But Q/DQ nodes after three MatMuls are three
more kernels, and a single Q before the split is part of a kernel (rule `joint_projection`). The parts then share one
scale, so they are first made about equally large by powers of two, which change no bit of the result in FP32. Queries
are multiplied by f and keys divided by f. Values are multiplied by g, and the rows of the weight that reads the
attention are divided by g. The size of a part is estimated from its weights and biases. Tensors whose values change
get new names.

Evidence: `qdqtool.rules.attention`, joint_projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.graph.beside_attention import FACTORS, is_factor
from qdqtool.graph.edit import Edit
from qdqtool.graph.products import has_weights
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import CASTS, LAYOUT, MATRIX_PRODUCTS, PASSES_PROBABILITIES, SHAPE_READERS

_FARTHEST: Final = 12
"""Most operators to follow from a MatMul to its attention."""
_SPREAD: Final = 3.0
"""Largest value of a product of normalized inputs, in lengths of its column of weights."""
_MATRIX: Final = 2
"""Axes of a weight matrix."""


@dataclass(kw_only=True, slots=True)
class _Projection:
    """One of the MatMul nodes that compute queries, keys or values.

    Attributes:
        node: the MatMul.
        bias: the Add after the MatMul; None without one.
        end: the tensor with its values.
        weight: (K, N).
        shift: (N,), zeros without a bias.
        use: the product of the attention that reads the result, through layout operators and constant factors, and
            the input number; None if the result has another consumer.
        way: the tensors from `end` to that product, which have its values in other places.
    """

    node: Node
    bias: Node | None
    end: str
    weight: NDArray[Any]
    shift: NDArray[Any]
    use: tuple[Node, int] | None = None
    way: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,) if self.bias is None else (self.node, self.bias)

    @property
    def size(self) -> float:
        """The approximate magnitude of the values of this projection."""
        lengths = np.sqrt(np.square(self.weight.astype(np.float64)).sum(axis=0))
        return float((_SPREAD * lengths + np.abs(self.shift.astype(np.float64))).max(initial=0.0))


def join_projections(edit: Edit, view: GraphView, apart: Sequence[str]) -> int:
    """Join the projections of every attention if they read the same tensor; return the number of joined MatMuls.

    Args:
        edit: an edit of the viewed model.
        view: the model.
        apart: globs on node names. If a glob selects a MatMul but not the others, this MatMul is not joined.
    """
    groups: dict[tuple[str, str], list[_Projection]] = {}
    for node in view.nodes:
        part = _part(edit, view, node)
        if part is not None and (attention := _attention(view, part.end)):
            groups.setdefault((node.inputs[0], attention), []).append(part)
    joined = 0
    for (source, _), parts in groups.items():
        alike = len(parts) > 1 and len({(part.weight.dtype, len(part.weight)) for part in parts}) == 1
        if alike and not _is_split_by(apart, parts):
            if parts[0].weight.dtype == np.float32:  # the factors do not fit FP16
                _balance(edit, view, parts)
            _join(edit, source, parts)
            joined += len(parts)
    return joined


def _part(edit: Edit, view: GraphView, node: Node) -> _Projection | None:
    """Return a MatMul with a weight matrix as a projection, if an attention multiplies its result (after the bias)."""
    shape = view.constant_shape(node.inputs[1]) or () if node.op == "MatMul" else ()
    end = node.outputs[0]
    if len(shape) != _MATRIX or end in edit.pinned:
        return None
    uses, bias, addend = view.uses(end), None, None
    if len(uses) == 1 and uses[0].node.op == "Add":
        addend = edit.value(uses[0].node.inputs[1 - uses[0].index])
        rank = len(view.info(end).shape or shape)
        fits = addend is not None and addend.shape[-1:] == shape[1:] and addend.ndim <= rank
        if fits and addend is not None and addend.size == shape[1]:
            bias, end = uses[0].node, uses[0].node.outputs[0]
    if end in edit.pinned or not is_factor(view, end):
        return None  # check before the weight is read, which may have gigabytes
    weight = edit.value(node.inputs[1])
    if weight is None:
        return None
    shift = np.zeros(shape[1], weight.dtype) if bias is None or addend is None else addend.reshape(-1)
    part = _Projection(node=node, bias=bias, end=end, weight=weight, shift=shift)
    part.use = _only_product(view, end, part.way)
    return part


def _only_product(view: GraphView, tensor: str, way: list[str]) -> tuple[Node, int] | None:
    """Return the only consumer of a tensor, after layout, casts and constant scaling, if it multiplies two run-time values.

    The tensors on the way are added to `way`.
    """
    for _ in range(_FARTHEST):
        way.append(tensor)
        uses = [use for use in view.uses(tensor) if use.node.op not in SHAPE_READERS]
        if len(uses) != 1 or view.is_output(tensor):
            return None
        node, index = uses[0].node, uses[0].index
        if node.op in MATRIX_PRODUCTS and not has_weights(view, node):
            return node, index
        scaled = node.op in FACTORS and view.is_constant(node.inputs[1 - index])
        if not ((scaled and (node.op == "Mul" or index == 0)) or (index == 0 and node.op in LAYOUT | CASTS)):
            return None
        tensor = node.outputs[0]
    return None


def _attention(view: GraphView, tensor: str) -> str:
    """Return the name of the second MatMul of the attention that reads a tensor; "" if there is none."""
    waiting, visited = [(tensor, False)], set[str]()
    passed = LAYOUT | CASTS | FACTORS
    scores: Node | None = None
    while waiting and len(visited) < 2 * _FARTHEST:
        name, has_met = waiting.pop(0)
        for use in view.uses(name):
            node = use.node
            if node.name in visited:
                continue
            if node.op in MATRIX_PRODUCTS and not has_weights(view, node):
                if has_met:
                    return node.name
                visited.add(node.name)
                scores = node
                waiting.append((node.outputs[0], True))
            elif node.op in passed or (
                has_met and node.op in {"Softmax", "Add", "Sub", "Where"} | PASSES_PROBABILITIES
            ):
                visited.add(node.name)
                waiting.extend((output, has_met) for output in node.outputs)
    return scores.name if scores is not None else ""


def _is_split_by(apart: Sequence[str], parts: Sequence[_Projection]) -> bool:
    """Return True if a glob of the recipe selects only some of the MatMuls to join, or not the joint one."""
    columns = zip(*((part.node.name, part.node.outputs[0], part.end) for part in parts), strict=True)
    for names in columns:
        for glob in apart:
            selected = [fnmatchcase(name, glob) for name in names]
            if any(selected) and not (all(selected) and fnmatchcase(_joint_name(parts), glob)):
                return True
    return False


def _joint_name(parts: Sequence[_Projection]) -> str:
    return f"{parts[0].node.name}_joined"


# --- equally large parts ---------------------------------------------------------------------------------------------


def _balance(edit: Edit, view: GraphView, parts: Sequence[_Projection]) -> None:
    """Scale the parts of a joint projection by powers of two to similar magnitudes; their consumers undo the scaling."""
    pair = [part for part in parts if part.use is not None and _is_scored(view, part.use[0])]
    if (
        len(pair) == 2
        and {part.use[1] for part in pair if part.use} == {0, 1}
        and pair[0].use
        and pair[1].use
    ):
        first, second = pair
        if pair[0].use[0].name == pair[1].use[0].name and first.size and second.size:
            factor = _power(np.sqrt(second.size / first.size))
            _scale(edit, first, factor)
            _scale(edit, second, 1 / factor)
    for part in parts:
        largest = max((entry.size for entry in parts if entry is not part), default=0.0)
        if part in pair or part.use is None or part.use[1] != 1 or not part.size or not largest:
            continue
        way: list[str] = []
        reader = _behind(view, part.use[0].outputs[0], way)
        weight = None if reader is None else edit.value(reader.inputs[1])
        if reader is None or weight is None or len(view.uses(reader.inputs[1])) != 1:
            continue
        factor = _power(largest / part.size)
        if factor != 1:
            _scale(edit, part, factor)
            _rename(edit, way)
            edit.put(reader.inputs[1], (weight / weight.dtype.type(factor)).astype(weight.dtype))


def _is_scored(view: GraphView, product: Node) -> bool:
    """Return True if a Softmax reads the result of a MatMul as its scores."""
    waiting, visited = [product.outputs[0]], set[str]()
    while waiting and len(visited) < _FARTHEST:
        for use in view.uses(waiting.pop()):
            if use.node.op == "Softmax":
                return True
            if use.node.name not in visited and use.node.op in {"Add", "Where"} | LAYOUT | CASTS | FACTORS:
                visited.add(use.node.name)
                waiting.extend(use.node.outputs)
    return False


def _behind(view: GraphView, tensor: str, way: list[str]) -> Node | None:
    """Return the only consumer of a tensor, after operators that move values, if it is a MatMul with a weight matrix.

    The tensors on the way are added to `way`.
    """
    for _ in range(_FARTHEST):
        way.append(tensor)
        uses = [use for use in view.uses(tensor) if use.node.op not in SHAPE_READERS]
        if len(uses) != 1 or uses[0].index or view.is_output(tensor):
            return None
        node = uses[0].node
        if node.op == "MatMul" and len(view.constant_shape(node.inputs[1]) or ()) == _MATRIX:
            return node
        if node.op not in LAYOUT | CASTS:
            return None
        tensor = node.outputs[0]
    return None


def _power(ratio: float) -> float:
    return float(2.0 ** np.clip(np.round(np.log2(ratio)), -8, 8))


def _scale(edit: Edit, part: _Projection, factor: float) -> None:
    if factor == 1:
        return
    part.weight = (part.weight * part.weight.dtype.type(factor)).astype(part.weight.dtype)
    part.shift = (part.shift * part.shift.dtype.type(factor)).astype(part.shift.dtype)
    part.end = _rename(edit, part.way)


def _rename(edit: Edit, tensors: Sequence[str]) -> str:
    """Give new names to tensors whose values are scaled now; return the first name."""
    names = [edit.fresh(f"{tensor}_scaled") for tensor in tensors]
    for old, new in zip(tensors, names, strict=True):
        node = edit.maker(old)
        if node is not None:
            edit.write(node, list(node.output).index(old), new)
        edit.redirect(old, new)
    return names[0]


def _join(edit: Edit, source: str, parts: Sequence[_Projection]) -> None:
    name = _joint_name(parts)
    joined = {node.name for part in parts for node in part.nodes}
    edit.remove([node for node in edit.nodes if node.name in joined])
    weight = edit.constant(f"{name}_weight", np.concatenate([part.weight for part in parts], axis=1))
    result = edit.fresh(f"{name}_result")
    edit.node("MatMul", [source, weight], [result], name=name)
    if any(part.bias for part in parts):
        shift = edit.constant(f"{name}_bias", np.concatenate([part.shift for part in parts]))
        product, result = result, edit.fresh(f"{name}_biased")
        edit.node("Add", [product, shift], [result], name=f"{name}_bias")
    ends = [part.end for part in parts]
    _split(edit, name, result, ends, [part.weight.shape[1] for part in parts])


def _split(edit: Edit, name: str, tensor: str, ends: Sequence[str], sizes: Sequence[int]) -> None:
    if edit.opset < 13:  # in older opsets the sizes are an attribute
        edit.node("Split", [tensor], ends, name=f"{name}_split", axis=-1, split=list(sizes))
        return
    lengths = edit.constant(f"{name}_sizes", np.asarray(sizes, np.int64))
    edit.node("Split", [tensor, lengths], ends, name=f"{name}_split", axis=-1)
