"""Zero points for a builder that has none: a constant is subtracted before Q, and added again in the next bias.

    x -> Q(zero point z) -> DQ -> Conv(b).
    x -> Sub(c) -> Q -> DQ -> Conv(b + c * sum(W)), c = -z * scale.

Both compute the same integers. The constant `c` is followed through the graph:

- A product with constant weights takes it into its bias. A convolution with padding reads a border of -c: zero has become -c.
  The border is a Pad before Q. The builder computes it in the kernel that writes the integers.
- Operators that only move values, averages and Concat pass it on. An Add sums the constants of its inputs.
- Relu and Clip before Q go if Q saturates at the same values. This holds for Relu with zero point -128.
  Then the bias of the product before takes the Sub too, and nothing is between this product and Q.
- Every other operator, and every model output, gets an Add of c before it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import INT8, DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.integer_form import attribute
from qdqtool.graph.products import InputReading
from qdqtool.graph.qdq.changes import BIAS
from qdqtool.graph.qdq.encode import decode, encode
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.qdq.lower import FLOAT_TYPES
from qdqtool.graph.view import Model
from qdqtool.trt.ops import (
    BIASED,
    CLAMPS,
    CONVOLUTIONS,
    GLOBAL_AVERAGES,
    LAYOUT,
    MOVING,
    PRODUCTS,
    RESAMPLING,
    STANDARD_DOMAINS,
)

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView

    Sums = NDArray[np.float64]

RECORD: Final = "qdqtool.zero_points"
"""Metadata key of a model. The value gives, by the name of a Q, its zero point and the bounds of the Relu or
Clip that it replaces.
"""
_FLOATS: Final = frozenset(FLOAT_TYPES.values())
"""Types of constants that can take a shift, bfloat16 among them."""
_ALIKE: Final = 1e-3
"""Largest relative difference of two scales that are written one representable number apart."""
_ROUNDING: Final = 1e-6
"""Relative difference below which two constants are equal except for rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """How the zero point of one tensor was replaced: the nodes that were added, and their effects.

    Attributes:
        tensor: the float tensor, by its name in the float model.
        zero_point: the integer that stands for 0.
        saturates: whether the saturation of Q replaces a Relu or a Clip.
        nodes: Sub and Add nodes that were added for it; 0 if biases take all of it.
        borders: Pad nodes that were added for it.
        is_lost: whether a product that reads it has to read the float value, so that it computes in float.
    """

    tensor: str
    zero_point: int
    saturates: bool
    nodes: int
    borders: int
    is_lost: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftedPair:
    """A QuantizeLinear from whose input a constant is subtracted.

    Attributes:
        tensor: the float tensor that it read.
        constant: what is subtracted.
        step: its scale.
        zero: its zero point.
        code: the zero point that it gets.
    """

    tensor: str
    constant: float
    step: float
    zero: int
    code: int = 0

    def saturates(self, low: float, high: float) -> bool:
        """Return True if Q clips values outside these bounds."""
        codes = [np.rint((bound - self.constant) / self.step) for bound in (low, high)]
        return bool(codes[0] <= INT8.qmin and codes[1] >= INT8.qmax)


def with_constants(model: Model) -> tuple[Model, tuple[Written, ...]]:
    """Return the Q/DQ model with activation zero points of 0 and unchanged integers, and the changes in graph order.

    Pairs of 8 bits with one constant scale and one constant zero point are rewritten; all other pairs are not
    changed.
    """
    edit = Edit(model)
    pairs = _asymmetric(edit)
    if not pairs:
        return model, ()
    writer = ConstantWriter(edit, model.view, pairs)
    writer.run()
    edit.prune()
    result = edit.finish()
    codes = {name: [pair.zero, *_record_bounds(writer.clamps.get(name))] for name, pair in pairs.items()}
    result.proto.metadata_props.add(key=RECORD, value=json.dumps(codes, sort_keys=True))
    return result, writer.written()


def _record_bounds(bounds: tuple[float, float] | None) -> list[float | None]:
    """Return the bounds of a Relu or a Clip for the record; an infinite bound is None."""
    return [] if bounds is None else [bound if math.isfinite(bound) else None for bound in bounds]


def _asymmetric(edit: Edit) -> dict[str, ShiftedPair]:
    """Return the Q/DQ pairs with a zero point to rewrite, by the name of their Q."""
    pairs: dict[str, ShiftedPair] = {}
    for node in edit.nodes:
        if node.op_type != QUANTIZE or node.domain not in STANDARD_DOMAINS or len(node.input) < 3:
            continue
        step, zero = edit.value(node.input[1]), edit.value(node.input[2])
        if (
            step is None
            or zero is None
            or step.size != 1
            or zero.size != 1
            or node.input[0] in edit.constants
        ):
            continue
        if zero.dtype not in _OFFSETS or not np.isfinite(step).all() or float(step.reshape(())) <= 0:
            continue
        backs = [back for back, _ in edit.readers(node.output[0])]
        if node.output[0] in edit.pinned or not all(_returns(edit, node, back) for back in backs):
            continue
        size, code = float(step.reshape(())), int(zero.reshape(())) - _OFFSETS[zero.dtype]
        if code == 0 and zero.dtype == np.int8:
            continue
        alike = (
            pair.constant
            for pair in pairs.values()
            if pair.zero == code and abs(pair.step - size) < _ALIKE * size
        )
        constant = next(alike, float(np.asarray(-code * size, step.dtype)))
        pairs[node.name] = ShiftedPair(tensor=node.input[0], constant=constant, step=size, zero=code)
    return pairs


_OFFSETS: Final = {np.dtype(np.int8): 0, np.dtype(np.uint8): 128}
"""Offset that is subtracted from the codes of each type to make them INT8."""


def _returns(edit: Edit, node: onnx.NodeProto, back: onnx.NodeProto) -> bool:
    """Return True if `back` is the DequantizeLinear with the parameters of the QuantizeLinear `node`."""
    if back.op_type != DEQUANTIZE or len(back.input) < 3 or back.output[0] in edit.pinned:
        return False
    values = [
        (edit.value(left), edit.value(right))
        for left, right in zip(node.input[1:], back.input[1:], strict=True)
    ]
    return all(
        left is not None and right is not None and np.array_equal(left, right) for left, right in values
    )


class ConstantWriter:
    """Moves the constants that replace zero points through a graph, into biases where possible.

    Attributes:
        edit: the graph.
        pairs: the pairs whose constants are taken, by the name of their Q.
        clamps: bounds of the Relu or Clip that went, by the name of a Q that saturates instead.
    """

    def __init__(self, edit: Edit, view: GraphView, pairs: Mapping[str, ShiftedPair]) -> None:
        self.edit = edit
        self._view = view
        self.pairs = pairs
        self.clamps: dict[str, tuple[float, float]] = {}
        self._held: dict[str, float] = {}
        self._whole_ones: dict[str, str] = {}
        self._lesser: dict[tuple[str, float], str] = {}
        self._bordered: dict[tuple[str, tuple[int, ...]], str] = {}
        self._kinds: dict[str, np.dtype[Any]] = {}
        self._codes: dict[int, str] = {}
        self._nodes: Counter[str] = Counter()
        self._borders: Counter[str] = Counter()
        self._saturating: set[str] = set()
        self._owner: dict[str, str] = {}
        self._lost: set[str] = set()
        self._visited = {value.name for value in self.edit.inputs} | self.edit.constants.keys()

    def run(self) -> None:
        """Rewrite every node once, in graph order."""
        for node in tuple(self.edit.nodes):
            self._visit(node)
            self._visited.update(node.output)

    def written(self) -> tuple[Written, ...]:
        """Return one entry per tensor with a zero point."""
        return tuple(
            Written(
                tensor=name,
                zero_point=pair.zero,
                saturates=name in self._saturating,
                nodes=self._nodes[name],
                borders=self._borders[name],
                is_lost=name in self._lost,
            )
            for name, pair in {pair.tensor: pair for pair in self.pairs.values()}.items()
        )

    def _visit(self, node: onnx.NodeProto) -> None:
        op = node.op_type if node.domain in STANDARD_DOMAINS else ""
        if op == QUANTIZE:
            self._quantize(node)
        elif op == DEQUANTIZE:
            self._dequantize(node)
        elif op in PRODUCTS:
            self._multiply(node)
        elif op in CLAMPS and self._find_dissolving_pair(node) is not None:
            self._dissolve(node)
        elif op == "Add" or (op == "Sub" and node.input[1] in self.edit.constants):
            self._add(node)
        elif any(name in self._held for name in node.input):
            self._pass(node)

    # --- Q and DQ ----------------------------------------------------------------------------------------------------

    def _quantize(self, node: onnx.NodeProto) -> None:
        pair = self.pairs.get(node.name)
        if pair is None:
            self.edit.connect(node, 0, self._whole(node.input[0]))
            return
        self.edit.connect(node, 0, self._less(node.input[0], pair.constant, pair.tensor))
        zero = self._code(pair.code)
        self.edit.forget_shapes([node.output[0]])  # it may have been UINT8
        for reader in (node, *(back for back, _ in self.edit.readers(node.output[0]))):
            self.edit.connect(reader, 2, zero)

    def _code(self, code: int) -> str:
        """Return the name of the constant that holds a zero point."""
        if code not in self._codes:
            self._codes[code] = self.edit.constant("zero_point", np.asarray(code, np.int8))
        return self._codes[code]

    def _dequantize(self, node: onnx.NodeProto) -> None:
        maker = self.edit.maker(node.input[0])
        pair = None if maker is None else self.pairs.get(maker.name)
        if pair is not None:
            self._hold(node, pair.constant, owner=pair.tensor)

    # --- what a tensor holds -----------------------------------------------------------------------------------------

    def _hold(self, node: onnx.NodeProto, constant: float, index: int = 0, *, owner: str) -> None:
        """Record that a node's output is smaller by `constant`, because of the Q/DQ pair of `owner`.

        A tensor whose name must stay gets its full value back.
        """
        name = node.output[index]
        if not constant or not name:
            return
        if name in self.edit.pinned:
            inner = self._rename_output(node, index)
            self.edit.redirect(name, inner)
            self._sum(inner, np.asarray(constant), name)
            name = inner
        self._held[name], self._owner[name] = constant, owner

    def _whole(self, tensor: str) -> str:
        """Return a tensor with its original values: the subtracted constant is added again."""
        constant = self._held.get(tensor, 0.0)
        if not constant:
            return tensor
        if tensor not in self._whole_ones:
            result = self.edit.fresh(f"{tensor}_whole")
            self._nodes[self._owner[tensor]] += 1
            self._sum(tensor, np.asarray(constant), result)
            self._whole_ones[tensor] = result
        return self._whole_ones[tensor]

    def _less(self, tensor: str, amount: float, owner: str) -> str:
        """Return a tensor from which exactly `amount` is subtracted."""
        held = self._held.get(tensor, 0.0)
        if _is_nothing(amount - held, amount):
            return tensor
        if (tensor, amount) not in self._lesser:
            result = self.edit.fresh(f"{tensor}_less")
            self._sum(tensor, np.asarray(held - amount), result)
            self._nodes[owner] += 1
            self._lesser[tensor, amount] = result
            self._held[result], self._owner[result] = amount, owner
        return self._lesser[tensor, amount]

    def _sum(self, tensor: str, constant: NDArray[Any], result: str) -> None:
        """Make `result` the sum of a tensor and a constant."""
        kind = self._kind(tensor)
        is_less = not constant.ndim and constant < 0
        name = self.edit.constant(
            f"{result}_constant", np.abs(constant).astype(kind) if is_less else constant.astype(kind)
        )
        self.edit.node("Sub" if is_less else "Add", [tensor, name], [result], name=f"{result}_shift")
        self._kinds[result] = kind

    def _rename_output(self, node: onnx.NodeProto, index: int = 0) -> str:
        """Rename an output of a node, so that its old name becomes free; return the new name."""
        name = node.output[index]
        inner = self.edit.fresh(f"{name}_inner")
        self._kinds[inner] = self._kind(name)
        self.edit.write(node, index, inner)
        return inner

    def _kind(self, tensor: str) -> np.dtype[Any]:
        kind = self._kinds.get(tensor)
        return kind or FLOAT_TYPES.get(self._view.info(tensor).dtype, FLOAT_TYPES[DType.FLOAT32])

    # --- what consumers ask for --------------------------------------------------------------------------------------

    def _common_shift(self, tensor: str) -> float:
        """Return the constant that all consumers of a tensor need subtracted from it; 0 if they differ."""
        if tensor in self.edit.pinned:
            return 0.0
        shifts = [self._shift_of_consumer(node, index) for node, index in self.edit.readers(tensor)]
        first = shifts[0] if shifts else 0.0
        return first if all(_is_nothing(shift - first, first) for shift in shifts) else 0.0

    def _shift_of_consumer(self, node: onnx.NodeProto, index: int) -> float:
        if node.domain not in STANDARD_DOMAINS:
            return 0.0
        if node.op_type == QUANTIZE and index == 0:
            pair = self.pairs.get(node.name)
            return 0.0 if pair is None else pair.constant
        if node.op_type in CLAMPS:
            pair = self._find_dissolving_pair(node)
            return 0.0 if pair is None else pair.constant
        if node.op_type in LAYOUT | {"Pad"} and index == 0:
            return self._common_shift(node.output[0])
        if node.op_type == "Add" and self._is_run_time(node.input[1 - index]):
            return self._common_shift(node.output[0]) - self._held.get(node.input[1 - index], 0.0)
        return 0.0

    def _is_run_time(self, tensor: str) -> bool:
        """Return True if a tensor is computed at run time; constants store a shift in their values."""
        return tensor in self._visited and tensor not in self.edit.constants

    # --- Relu and Clip -----------------------------------------------------------------------------------------------

    def _find_dissolving_pair(self, node: onnx.NodeProto) -> ShiftedPair | None:
        """Return the Q/DQ pair whose saturation can replace a Relu or Clip for all consumers; else None."""
        bounds = self._bounds(node)
        if bounds is None or node.output[0] in self.edit.pinned:
            return None
        readers = [reader for reader, _ in self.edit.readers(node.output[0])]
        pairs = [self.pairs.get(reader.name) if reader.op_type == QUANTIZE else None for reader in readers]
        first = pairs[0] if pairs else None
        if first is None:
            return None
        fits = all(
            pair is not None and pair.constant == first.constant and pair.saturates(*bounds) for pair in pairs
        )
        return first if fits else None

    def _bounds(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """Return the bounds of a Relu or a Clip; None if they are not constant."""
        if node.op_type == "Relu":
            return 0.0, np.inf
        limits = []
        for index, word, missing in ((1, "min", -np.inf), (2, "max", np.inf)):
            limit = attribute(node, word, missing)
            if len(node.input) > index and node.input[index]:
                value = self.edit.value(node.input[index])
                if value is None or value.size != 1:
                    return None
                limit = float(value.reshape(()))
            limits.append(float(limit))
        return limits[0], limits[1]

    def _dissolve(self, node: onnx.NodeProto) -> None:
        """Remove a Relu or a Clip. If the previous node has no other consumer, the name of the result stays."""
        edit, source, result = self.edit, node.input[0], node.output[0]
        self._saturating.add(result)
        bounds = self._bounds(node)
        assert bounds is not None
        self.clamps |= {reader.name: bounds for reader, _ in edit.readers(result)}
        maker = edit.maker(source)
        alone = len(edit.readers(source)) == 1 and source not in edit.pinned
        edit.remove([node])
        if maker is None or not alone:
            edit.redirect(result, source)
            return
        edit.write(maker, list(maker.output).index(source), result)
        if source in self._held:
            self._held[result], self._owner[result] = self._held.pop(source), self._owner.pop(source)

    # --- products ----------------------------------------------------------------------------------------------------

    def _multiply(self, node: onnx.NodeProto) -> None:
        edit = self.edit
        for index in range(1, len(node.input)):
            if node.input[index] in self._held:
                self._lost.add(self._owner[node.input[index]])
                edit.connect(node, index, self._whole(node.input[index]))
        held = self._held.get(node.input[0], 0.0)
        response: Sums | None = np.zeros(())
        if held:
            response = self._response(node, held)
        if response is None:
            self._lost.add(self._owner[node.input[0]])
            edit.connect(node, 0, self._whole(node.input[0]))
            response = np.zeros(())
        bias = self._bias(node)
        if bias is None:
            self._behind(node, response)
            return
        shift = self._common_shift(node.output[0])
        change = response.reshape(-1) if _is_per_channel(response) else np.zeros(())
        change = change - shift
        if change.any():
            new = np.asarray(bias.astype(np.float64) + change if bias.size else change)
            new = np.broadcast_to(new, (self._channels(node),)) if new.size == 1 else new
            kind = bias.dtype if bias.size else self._kind(node.input[0])
            name = edit.constant(f"{node.name}_bias_with_constant", new.astype(kind))
            edit.rewire(node, [*node.input[:BIAS], name])
        self._hold(node, shift, owner=node.output[0])
        if not _is_per_channel(response):
            self._behind(node, response)

    def _behind(self, node: onnx.NodeProto, response: Sums) -> None:
        """Add a constant (the effect of the zero points) to the result of a compute node: in the next Add, or in a new Add."""
        if not response.any():
            return
        edit, name = self.edit, node.output[0]
        readers = edit.readers(name)
        if len(readers) == 1 and name not in edit.pinned and node.op_type == "MatMul":
            follower, index = readers[0]
            bias = edit.value(follower.input[1 - index]) if follower.op_type == "Add" else None
            if bias is not None and bias.ndim <= 1 and _is_per_channel(response):
                new = (bias.astype(np.float64) + response.reshape(-1)).astype(bias.dtype)
                edit.connect(follower, 1 - index, edit.constant(f"{follower.name}_with_constant", new))
                return
        owner = self._owner[node.input[0]]
        if response.size > 1 and _is_per_channel(response) and node.op_type in CONVOLUTIONS:
            rank = len(self._view.info(node.input[1]).shape or ())
            response = response.reshape(
                1, -1, *[1] * (rank - 2)
            )  # the channels of a picture are not its last axis
        inner = self._rename_output(node)
        self._sum(inner, response, name)
        self._nodes[owner] += 1

    def _bias(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        """Return the constant bias of a compute node, empty if it has none; None if a constant bias is impossible."""
        if node.op_type not in BIASED or attribute(node, "beta", 1.0) != 1.0:
            return None
        if len(node.input) <= BIAS or not node.input[BIAS]:
            return np.zeros(0)
        value = self.edit.value(node.input[BIAS])
        return value if value is not None and value.dtype in _FLOATS else None

    def _channels(self, node: onnx.NodeProto) -> int:
        weights = self._view.info(node.input[1]).shape or ()
        if node.op_type == "ConvTranspose":
            return int(weights[1]) * attribute(node, "group", 1)
        return int(weights[0] if node.op_type == "Conv" or attribute(node, "transB", 0) else weights[1])

    def _response(self, node: onnx.NodeProto, held: float) -> Sums | None:
        """Return how much smaller a node's result is if its input is smaller by `held`; None if unknown.

        The shape is (channels,) or (1, ..., channels, 1, ...) if the response is equal everywhere; otherwise it is
        the shape of the result.
        """
        weights = self._weights(node.input[1])
        if weights is None or weights.ndim < 2:
            return None
        if node.op_type == "MatMul":
            matrix: Sums = held * weights.sum(-2, keepdims=weights.ndim > 2)
            return matrix
        if node.op_type == "Gemm":
            axis = 1 if attribute(node, "transB", 0) else 0
            vector: Sums = held * attribute(node, "alpha", 1.0) * weights.sum(axis)
            return vector
        groups = attribute(node, "group", 1)
        if node.op_type == "ConvTranspose":
            taps = weights.reshape(groups, -1, *weights.shape[1:]).sum(1).reshape(-1, *weights.shape[2:])
        else:
            taps, pads = weights.sum(1), self._pads(node)
            if pads is None:
                return None
            if not pads or self._is_bordered(node, pads, held):
                alike: Sums = held * taps.reshape(len(taps), -1).sum(1)
                return alike
        return self._map(node, held * taps)

    def _map(self, node: onnx.NodeProto, taps: Sums) -> Sums | None:
        """Return the constant missing at each position of a convolution's result; per channel if positions agree."""
        input_shape, result_shape = (self._view.info(name).shape for name in (node.input[0], node.output[0]))
        input_shape = input_shape or self._view.info(self._owner[node.input[0]]).shape
        pads, rank = self._pads(node), taps.ndim - 1
        if input_shape is None or result_shape is None or pads is None:
            return None
        pads = pads or (0,) * 2 * rank
        steps, gaps = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
        sums = taps
        for dim in range(rank):
            size, places = input_shape[2 + dim], result_shape[2 + dim]
            if not isinstance(size, int) or not isinstance(places, int):
                return None
            tap = np.arange(taps.shape[1 + dim])[:, None] * gaps[dim] - pads[dim]
            place = np.arange(places)[None, :]
            if node.op_type == "Conv":
                source = place * steps[dim] + tap
            else:
                source, remainder = np.divmod(place - tap, steps[dim])
                source = np.where(remainder == 0, source, -1)
            sums = np.tensordot(sums, ((source >= 0) & (source < size)).astype(np.float64), ([1], [0]))
        flat = sums.reshape(len(sums), -1)
        return flat[:, 0] if np.ptp(flat, axis=1).max() == 0 else sums[None]

    def _pads(self, node: onnx.NodeProto) -> tuple[int, ...] | None:
        """Return the padding before and after each dimension; empty without padding; None if unknown."""
        if any(field.name == "output_shape" for field in node.attribute):
            return None  # a ConvTranspose computes its padding from the shape
        mode = attribute(node, "auto_pad", b"NOTSET")
        if mode in {b"SAME_UPPER", b"SAME_LOWER"}:
            return self._same_pads(node)
        pads = () if mode == b"VALID" else tuple(attribute(node, "pads", ()))
        return pads if any(pads) else ()

    def _same_pads(self, node: onnx.NodeProto) -> tuple[int, ...] | None:
        """Return the padding that auto_pad means for an image of fixed size; None if unknown."""
        shape, weights = (self._view.info(name).shape for name in node.input[:2])
        sizes = [size for size in (shape or ())[2:] if isinstance(size, int)]
        if node.op_type != "Conv" or not weights or not sizes or len(sizes) != len(weights) - 2:
            return None
        units = [1] * len(sizes)
        borders = InputReading(
            tensor=node.input[0],
            kernel=tuple(int(size) for size in weights[2:]),
            strides=tuple(attribute(node, "strides", units)),
            dilations=tuple(attribute(node, "dilations", units)),
            auto_pad=attribute(node, "auto_pad", b"").decode(),
        ).borders(sizes)
        pads = (*(begin for begin, _ in borders), *(end for _, end in borders))
        return pads if any(pads) else ()

    def _is_bordered(self, node: onnx.NodeProto, pads: tuple[int, ...], held: float) -> bool:
        """Pad a convolution with the quantized zero; return False if other nodes share its Q/DQ pair."""
        edit = self.edit
        back = edit.maker(node.input[0])
        pair = None if back is None else edit.maker(back.input[0])
        if pair is None or back is None or pair.name not in self.pairs or back.op_type != DEQUANTIZE:
            return False
        if any(
            len(edit.readers(name)) != 1 or name in edit.pinned for name in (pair.output[0], back.output[0])
        ):
            return False
        source, owner = pair.input[0], self._owner[node.input[0]]
        if (source, pads) not in self._bordered:
            half, kind = len(pads) // 2, self._kind(source)
            whole = np.array((0, 0, *pads[:half], 0, 0, *pads[half:]), np.int64)
            result = edit.fresh(f"{source}_bordered")
            inputs = [
                source,
                edit.constant(f"{result}_pads", whole),
                edit.constant(f"{result}_value", np.asarray(-held, kind)),
            ]
            edit.node("Pad", inputs, [result], name=result)
            self._kinds[result], self._bordered[source, pads] = kind, result
            self._borders[owner] += 1
        edit.connect(pair, 0, self._bordered[source, pads])
        edit.forget_shapes([pair.output[0], back.output[0]])
        kept = [field for field in node.attribute if field.name not in {"pads", "auto_pad"}]
        del node.attribute[:]
        node.attribute.extend(kept)
        return True

    def _weights(self, tensor: str) -> Sums | None:
        """Return a constant operand, quantized as the compute node reads it; None if it is not constant."""
        edit = self.edit
        value, back = edit.value(tensor), edit.maker(tensor)
        if value is not None:
            return value.astype(np.float64)
        if back is None or back.op_type != DEQUANTIZE:
            return None
        pair, scale = edit.maker(back.input[0]), edit.value(back.input[1])
        zero = edit.value(back.input[2]) if len(back.input) > 2 and back.input[2] else None
        if (
            scale is None
            or zero is None
            or zero.dtype != np.int8
            or zero.any()
            or attribute(back, "block_size", 0)
        ):
            return None
        axis = attribute(back, "axis", 1) if scale.ndim else None
        stored = edit.value(back.input[0])
        if stored is None and pair is not None and pair.op_type == QUANTIZE:
            floats = edit.value(pair.input[0])
            stored = None if floats is None else encode(floats, scale, INT8, axis)
        return None if stored is None else decode(stored, scale, axis).astype(np.float64)

    # --- everything else ---------------------------------------------------------------------------------------------

    def _add(self, node: onnx.NodeProto) -> None:
        """Add up the constants missing from the inputs of an Add; a constant operand absorbs the sum."""
        edit = self.edit
        held = sum(self._held.get(name, 0.0) for name in node.input)
        owner = next((self._owner[name] for name in node.input if name in self._held), node.output[0])
        constant = next((index for index in (1, 0) if node.input[index] in edit.constants), None)
        value = None if constant is None else edit.value(node.input[constant])
        if constant is not None and value is not None and value.dtype in _FLOATS:
            shift = self._common_shift(node.output[0])
            if not _is_nothing(shift - held, shift):
                change = held - shift if node.op_type == "Add" else shift - held
                new = value.astype(np.float64) + change
                if _is_nothing(float(np.abs(new).max(initial=0)), float(np.abs(value).max(initial=0))):
                    new = np.zeros_like(new)
                name = edit.constant(f"{node.name}_with_constant", new.astype(value.dtype))
                edit.connect(node, constant, name)
            held = shift
        self._hold(node, held, owner=owner)

    def _pass(self, node: onnx.NodeProto) -> None:
        """Record the constant missing from a node's result; if it varies, add it to the node's inputs."""
        held = [self._held.get(name, 0.0) for name in node.input]
        owner = next(self._owner[name] for name in node.input if name in self._held)
        outputs = range(len(node.output)) if node.op_type == "Split" else range(1)
        is_alike = node.op_type == "Concat" and all(amount == held[0] for amount in held)
        if is_alike or (node.op_type == "Pad" and held[0] and self._is_padded(node, held[0])):
            self._hold(node, held[0], owner=owner)
        elif held[0] and not any(held[1:]) and self._hands_on(node):
            for index in outputs:
                self._hold(node, held[0], index, owner=owner)
        else:
            for index, name in enumerate(node.input):
                self.edit.connect(node, index, self._whole(name))

    def _hands_on(self, node: onnx.NodeProto) -> bool:
        """Return True if an operator keeps a tensor of one constant value unchanged."""
        op = node.op_type
        if op == "AveragePool":
            padded = any(attribute(node, "pads", ())) or attribute(node, "auto_pad", b"").startswith(b"SAME")
            return not padded or not attribute(node, "count_include_pad", 0)
        if op in RESAMPLING:
            mode = attribute(node, "mode", b"nearest"), attribute(node, "coordinate_transformation_mode", b"")
            return mode[0] in {b"nearest", b"linear"} and mode[1] != b"tf_crop_and_resize"
        return op in MOVING or op in GLOBAL_AVERAGES

    def _is_padded(self, node: onnx.NodeProto, held: float) -> bool:
        """Make a Pad fill with the quantized zero; return False if its fill value is unknown."""
        if attribute(node, "mode", b"constant") != b"constant":
            return True
        value = np.zeros((), self._kind(node.input[0]))
        if len(node.input) > 2 and node.input[2]:
            fill = self.edit.value(node.input[2])
            if fill is None:
                return False
            value = fill
        elif len(node.input) < 2:
            return False
        name = self.edit.constant(f"{node.name}_value", (value.astype(np.float64) - held).astype(value.dtype))
        self.edit.rewire(node, [*node.input[:2], name, *node.input[3:]])
        return True


def _is_per_channel(response: Sums) -> bool:
    """Return True if a response of `_response` has one value per channel, equal at all positions."""
    return response.ndim <= 1


def _is_nothing(value: float, beside: float) -> bool:
    """Return True if a value is small enough to be a rounding error of another one."""
    return abs(value) <= _ROUNDING * abs(beside)
