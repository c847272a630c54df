"""Writes ONNX's Attention (opset 23 and newer) as the MatMul, Softmax and MatMul that TensorRT quantizes and fuses.

    q, k, v ─ Attention ─ y        q, k ─ MatMul ─ Mul ─ Add (mask) ─ Softmax, v ─ MatMul ─ y

Written out, the probabilities are a tensor: they are calibrated and get a Q/DQ pair, which the operator has no place for. The
second MatMul keeps the name of the node, so an engine's layers are found under it.

Evidence: builds of TensorRT for RTX 1.7.1, FP16, one block with its projections. There are 28 shapes: heads of 16 to 256, 1 to
1024 queries, grouped heads, masks, causal. Targets are SM86, SM89 and SM120. FP32 was not measured.
FP16: never more kernels or bytes than the operator.
FP8: one `_gemm_mha_v2` with FP8 operands wherever `trt::TRT_QuantizedAttention` has it. The latter writes FP16 where the written
form writes FP8, and takes 1 to 10 kernels more.
INT8: one `_gemm_mha_v2` with INT8 operands for heads of 16, 32 and 64 up to 512 tokens. `TRT_QuantizedAttention` does not build
there, or is two products and a softmax (`TRT_decomposable=1`). Elsewhere both are two INT8 products, and the written form moves
fewer bytes.
No engine of classic TensorRT was built. Its documents say that it fuses this form from 8.6 on, and the operator from 10.14 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import STANDARD_DOMAINS

FLOATS = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
LOWEST = -30000.0
"""Value added to the scores of a masked key, whose probability is then 0 in every float type. FP16 holds its
sum with any usual score.
"""
_HEADS, _ROWS, _SIZE = 1, 2, 3
"""Axes of queries, keys and values: (batch, heads, tokens, head size)."""
_RANK = 4
"""Dimensions of queries, keys and values with an axis of heads."""
_WORDS = ("raw", "capped", "biased", "probabilities")
"""Tensors that `qk_matmul_output_mode` asks for, by its number."""

Dim = int | str | None


def write_attention(edit: Edit, view: GraphView) -> int:
    """Replace every Attention with known heads by MatMul, Softmax and MatMul; return their number.

    A query whose Boolean mask allows no key gives zeros, as ONNX says; a mask of floats must allow each query one key
    (not -inf).
    """
    masks: dict[tuple[Any, ...], str] = {}
    written = 0
    for proto in tuple(edit.nodes):
        is_operator = proto.op_type == "Attention" and proto.domain in STANDARD_DOMAINS
        node = view.by_name.get(proto.name) if is_operator else None
        sides = None if node is None else heads_of(view, node)
        if node is not None and sides is not None:
            edit.remove([proto])
            AttentionWriter(edit=edit, view=view, node=node, sides=sides, masks=masks).write()
            written += 1
    return written


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """Sizes of an attention that must be known to write it out.

    Attributes:
        queries, keys: numbers of heads; a multiple of each other.
        size: values of one head of the queries.
        values: values of one head of the values; None if not known.
        rows: whether the inputs hold heads side by side, (batch, tokens, heads x size).
        dtype: of the computation.
    """

    queries: int
    keys: int
    size: int
    values: int | None
    rows: bool
    dtype: np.dtype[Any]


def heads_of(view: GraphView, node: Node) -> Heads | None:
    """Return the sizes of an Attention; None if unknown, or if the scores of masked keys are an output."""
    if _shows_masked_scores(view, node):
        return None
    query, key, value = (view.info(name) for name in node.inputs[:3])
    dtype = FLOATS.get(query.dtype)
    if dtype is None or query.shape is None or key.shape is None:
        return None
    rows = len(query.shape) == _RANK - 1
    if rows:
        queries, keys = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
        width, wide = query.shape[-1], (value.shape or (None,))[-1]
        if queries < 1 or keys < 1 or not isinstance(width, int):
            return None
        size, values = width // queries, wide // keys if isinstance(wide, int) else None
    elif len(query.shape) == _RANK:
        heads = (query.shape[_HEADS], key.shape[_HEADS], query.shape[_SIZE])
        if not all(isinstance(length, int) and length > 0 for length in heads):
            return None
        queries, keys, size = (int(length) for length in heads)
        last = (value.shape or (None,))[-1]
        values = last if isinstance(last, int) else None
    else:
        return None
    if queries % keys or (queries != keys and values is None):
        return None
    return Heads(queries=queries, keys=keys, size=size, values=values, rows=rows, dtype=dtype)


def _shows_masked_scores(view: GraphView, node: Node) -> bool:
    """Return True if an Attention returns the scores of masked keys: -inf, but finite after the rewriting."""
    if not at(node.outputs, 3) or _WORDS[node.integer("qk_matmul_output_mode", 0)] != "biased":
        return False
    mask = at(node.inputs, 3)
    windows = any(node.integer(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
    is_flag = bool(mask) and view.info(mask).dtype is DType.BOOL
    return bool(node.attribute("is_causal", 0)) or windows or is_flag or bool(at(node.inputs, 6))


@dataclass(kw_only=True)
class AttentionWriter:
    """Writes one attention as MatMul, Softmax and MatMul.

    Attributes:
        edit: the graph.
        view: the graph before it was changed.
        node: with the inputs, outputs and attributes of ONNX's operator.
        sides: its sizes.
        masks: constants that the attentions of a graph share.
        inputs: tensors that replace inputs 0 to 2, of equal shapes.
        turn: rotates queries (0) and new keys (1) of shape (batch, heads, tokens, size); None for no rotation.
        stages: tensors on the way, by what they hold.
    """

    edit: Edit
    view: GraphView
    node: Node
    sides: Heads
    masks: dict[tuple[Any, ...], str]
    inputs: dict[int, str] = field(default_factory=dict)
    turn: Callable[[str, int], str] | None = None
    stages: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        query, key, value = (self._heads(index) for index in range(3))
        if self.turn is not None:
            query, key = self.turn(query, 0), self.turn(key, 1)
        key, value = self._join_past(key, 4, 1), self._join_past(value, 5, 2)
        tokens, total = self._tokens(0), self._total()
        scores = self._op(
            "MatMul", [query, self._transpose_key(self._repeat_heads(key, self.sides.size))], "scores"
        )
        scale = float(self.node.attribute("scale", 0.0) or self.sides.size**-0.5)
        scores = self._op("Mul", [scores, self._number("scale", scale)], "scaled")
        self.stages["raw"] = scores
        cap = float(self.node.attribute("softcap", 0.0))
        if cap > 0:
            limit = self._number("softcap", cap)
            scores = self._op(
                "Mul",
                [self._op("Tanh", [self._op("Div", [scores, limit], "ratio")], "bent"), limit],
                "capped",
            )
        self.stages["capped"] = scores
        for bias in self._biases(query, key, tokens, total):
            scores = self._op("Add", [scores, bias], "masked")
        self.stages["biased"] = scores
        probabilities = self._softmax(scores)
        self.stages["probabilities"] = (
            self._guard_rows(probabilities, "kept") if at(self.node.outputs, 3) else ""
        )
        self._result(probabilities, self._repeat_heads(value, self.sides.values))

    # --- queries, keys and values ---

    def _heads(self, index: int) -> str:
        """Return an input with the shape (batch, heads, tokens, size)."""
        tensor = self.inputs.get(index) or self.node.inputs[index]
        if not self.sides.rows:
            return tensor
        count = self.sides.keys if index else self.sides.queries
        shape = self._shape(f"heads_{index}", [0, 0, count, -1])
        apart = self._op("Reshape", [tensor, shape], f"apart_{index}")
        return self._op("Transpose", [apart], f"heads_{index}", perm=[0, 2, 1, 3])

    def _join_past(self, new: str, past: int, output: int) -> str:
        """Return keys or values joined with those of earlier steps, also as a model output if the node returns them."""
        earlier, present = at(self.node.inputs, past), at(self.node.outputs, output)
        if earlier:
            return self._op("Concat", [earlier, new], f"joined_{output}", result=present, axis=2)
        if present:
            return self._op("Identity", [new], f"joined_{output}", result=present)
        return new

    def _transpose_key(self, key: str) -> str:
        return self._op("Transpose", [key], "turned", perm=[0, 1, 3, 2])

    def _repeat_heads(self, tensor: str, size: int | None) -> str:
        """Return keys or values with each head repeated for all query heads that share the head."""
        times = self.sides.queries // self.sides.keys
        if times == 1:
            return tensor
        apart = self._op("Unsqueeze", [tensor, self._shape("axis", [2])], "apart")
        wide = self._op("Expand", [apart, self._shape("times", [1, 1, times, 1, 1])], "repeated")
        shape = self._shape("all_heads", [0, self.sides.queries, -1, size or 0])
        return self._op("Reshape", [wide, shape], "all_heads")

    # --- masks ---

    def _biases(self, query: str, key: str, tokens: Dim, total: Dim) -> list[str]:
        """Return the terms to add to the scores: one for all conditions on keys, one for a float mask."""
        allowed = self._list_conditions(query, key, tokens, total)
        mask = at(self.node.inputs, 3)
        biases, is_flag = [], bool(mask) and self.view.info(mask).dtype is DType.BOOL
        if is_flag:
            allowed.append(self._pad_mask(mask, total))
        elif mask:
            biases.append(self._pad_mask(mask, total))
        if allowed:
            both = allowed[0]
            for condition in allowed[1:]:
                both = self._op("And", [both, condition], "allowed")
            constant = self.edit.value(both)
            if constant is not None:
                biases.append(self._write_fixed_mask(constant))
            else:
                zero, lowest = self._number("allowed", 0.0), self._number("lowest", LOWEST)
                biases.append(self._op("Where", [both, zero, lowest], "bias"))
            shape = (self.view.info(mask).shape or ())[-2:-1] if is_flag else (1,)
            if (is_flag and shape != (1,)) or (constant is not None and not constant.any(-1).all()):
                best = self._op("ReduceMax", [biases[-1], self._shape("last", [-1])], "best")
                self.stages["answered"] = self._op(
                    "GreaterOrEqual", [best, self._number("none", 0.0)], "answered"
                )
        return biases

    def _guard_rows(self, tensor: str, word: str, result: str = "") -> str:
        """Return the attention result with zeros for queries whose keys are all masked.

        Such queries exist only with masks of (queries, keys).
        """
        if "answered" not in self.stages:
            return tensor
        return self._op(
            "Where", [self.stages["answered"], tensor, self._number("nothing", 0.0)], word, result
        )

    def _write_fixed_mask(self, allowed: NDArray[np.bool_]) -> str:
        """Return the constant to add to the scores: 0 for allowed keys, and a large negative number for all others."""
        key = (allowed.shape, allowed.tobytes(), self.sides.dtype.str)
        if key not in self.masks:
            bias = np.where(allowed, 0, LOWEST).astype(self.sides.dtype)
            self.masks[key] = self.edit.constant(f"{self.node.name}_mask", bias)
        return self.masks[key]

    def _pad_mask(self, mask: str, total: Dim) -> str:
        """Return the attention mask padded to the number of keys; the added keys are not allowed."""
        shape = self.view.info(mask).shape or ()
        length = shape[-1] if shape else None
        if not isinstance(length, int) or not isinstance(total, int) or length in {1, total}:
            return mask
        is_flag = self.view.info(mask).dtype is DType.BOOL
        pads = self._shape("mask_pads", [0] * len(shape) + [0] * (len(shape) - 1) + [total - length])
        outside = np.asarray(False) if is_flag else np.asarray(LOWEST, self.sides.dtype)
        value = self.edit.constant(f"{self.node.name}_outside", outside)
        return self._op("Pad", [mask, pads, value], "mask")

    def _list_conditions(self, query: str, key: str, tokens: Dim, total: Dim) -> list[str]:
        """Return conditions on (query, key): causal, inside the window, before the end of the filled cache."""
        valid = at(self.node.inputs, 6)
        causal = bool(self.node.attribute("is_causal", 0))
        left, right = (self.node.integer(f"{side}_window_size", -1) for side in ("left", "right"))
        past = at(self.node.inputs, 4)
        if causal and tokens == 1 and past and not valid and left < 0:
            causal = False  # the newest token may read all keys
        if not (causal or left >= 0 or right >= 0):
            return [self._valid(key, valid)] if valid else []
        earlier = self._past(past)
        if isinstance(tokens, int) and isinstance(total, int) and isinstance(earlier, int) and not valid:
            ahead = np.arange(total)[None] - (np.arange(tokens) + earlier)[:, None]
            inside = (ahead <= 0) if causal else np.ones_like(ahead, bool)
            inside &= (-ahead <= left) if left >= 0 else True
            inside &= (ahead <= right) if right >= 0 else True
            return [self.edit.constant(f"{self.node.name}_causal", inside)]
        ahead_of = self._ahead(query, key, valid, past)
        conditions = []
        zero = self._whole("zero", 0)
        if causal:
            conditions.append(self._op("LessOrEqual", [ahead_of, zero], "causal"))
        if left >= 0:
            conditions.append(self._op("GreaterOrEqual", [ahead_of, self._whole("left", -left)], "left"))
        if right >= 0:
            conditions.append(self._op("LessOrEqual", [ahead_of, self._whole("right", right)], "right"))
        return [*conditions, self._valid(key, valid)] if valid else conditions

    def _valid(self, key: str, valid: str) -> str:
        """Return flags of the keys in use in a cache, (batch, 1, 1, keys)."""
        places = self._range(self.size_of(key, _ROWS), "places")
        ends = self._op("Unsqueeze", [valid, self._shape("ends_axes", [1, 2, 3])], "ends")
        return self._op("Less", [places, ends], "valid")

    def _ahead(self, query: str, key: str, valid: str, past: str) -> str:
        """Return, for each query and key, the position of the key minus the position of the query."""
        rows = self._range(self.size_of(query, _ROWS), "rows")
        column = self._op("Unsqueeze", [rows, self._shape("row_axis", [1])], "column")
        if valid:
            unused = self._op("Sub", [valid, self.size_of(query, _ROWS)], "unused")
            offset = self._op("Unsqueeze", [unused, self._shape("offset_axes", [1, 2, 3])], "offset")
        else:
            offset = self.size_of(past, _ROWS) if past else self._whole("no_past", 0)
        at = self._op("Add", [column, offset], "positions")
        return self._op("Sub", [self._range(self.size_of(key, _ROWS), "keys"), at], "ahead")

    # --- the result ---

    def _softmax(self, scores: str) -> str:
        """Return the attention probabilities, computed in the type that the node asks for."""
        kind = self.node.integer("softmax_precision", 0)
        own = int(onnx.helper.np_dtype_to_tensor_dtype(self.sides.dtype))
        if kind in {0, own}:
            return self._op("Softmax", [scores], "Softmax", axis=-1)
        wide = self._op("Cast", [scores], "wide", to=kind)
        return self._op("Cast", [self._op("Softmax", [wide], "Softmax", axis=-1)], "narrow", to=own)

    def _result(self, probabilities: str, value: str) -> None:
        node, result = self.node, self.node.outputs[0]
        scores_output = at(node.outputs, 3)
        if scores_output:
            word = _WORDS[node.integer("qk_matmul_output_mode", 0)]
            self._op("Identity", [self.stages[word]], "asked", result=scores_output)
        rows = self.sides.rows
        is_last = not rows and "answered" not in self.stages
        name = result if is_last else self.edit.fresh(f"{node.name}_values")
        product = self.edit.node("MatMul", [probabilities, value], [name], name=f"{node.name}_MatMul")
        product.name = node.name
        guarded = self._guard_rows(name, "guarded", "" if rows else result)
        if rows:
            order = self._op("Transpose", [guarded], "in_rows", perm=[0, 2, 1, 3])
            width = -1 if self.sides.values is None else self.sides.values * self.sides.queries
            self._op("Reshape", [order, self._shape("together", [0, 0, width])], "together", result=result)

    # --- lengths ---

    def _tokens(self, index: int) -> Dim:
        shape = self.view.info(self.node.inputs[index]).shape
        return shape[1 if self.sides.rows else _ROWS] if shape else None

    def _total(self) -> Dim:
        new, earlier = self._tokens(1), self._past(at(self.node.inputs, 4))
        return new + earlier if isinstance(new, int) and isinstance(earlier, int) else None

    def _past(self, tensor: str) -> Dim:
        if not tensor:
            return 0
        shape = self.view.info(tensor).shape
        return shape[_ROWS] if shape and len(shape) == _RANK else None

    def size_of(self, tensor: str, axis: int) -> str:
        """Return a dimension of a tensor at run time, as a scalar tensor."""
        shape = self._op("Shape", [tensor], "shape")
        return self._op("Gather", [shape, self._whole("axis", axis)], "length")

    def _range(self, length: str, word: str) -> str:
        return self._op("Range", [self._whole("first", 0), length, self._whole("step", 1)], word)

    # --- nodes and constants ---

    def _op(self, op: str, inputs: Sequence[str], word: str, result: str = "", **attributes: Any) -> str:
        name = f"{self.node.name}_{word}"
        output = result or self.edit.fresh(name)
        self.edit.node(op, inputs, [output], name=name, **attributes)
        return output

    def _number(self, word: str, value: float) -> str:
        return self.edit.constant(f"{self.node.name}_{word}", np.asarray(value, self.sides.dtype))

    def _whole(self, word: str, value: int) -> str:
        return self.edit.constant(f"{self.node.name}_{word}", np.asarray(value, np.int64))

    def _shape(self, word: str, values: Sequence[int]) -> str:
        shape: NDArray[np.int64] = np.asarray(values, np.int64)
        return self.edit.constant(f"{self.node.name}_{word}", shape)
