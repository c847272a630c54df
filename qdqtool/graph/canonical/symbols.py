"""Finds shapes that depend on symbolic dimensions or on shape arithmetic, where onnx's inference stops.

Inference stops at a Reshape to (N, -1, 48). With a number instead of N, inference continues, if the shape arithmetic
is computed too. So this module runs inference three times with different numbers. A dimension that is equal in all
runs is static. A dimension that changes in proportion to a symbol becomes an expression of the symbol. Any other
dimension stays unknown. Two runs always fit some expression; the third run checks it.

The numbers are large and even, so that splits, strides and skip connections have possible sizes. But with such
numbers "N padded up to a multiple of 6" looks like N, and "the first 512 of N" looks like 512. A wrong expression is
harmful: onnxruntime assumes that dimensions with one name have equal lengths, and stops with "Shape mismatch
attempting to re-use buffer". So every expression must also hold for the least even numbers that the model accepts,
which include small ones. If an expression does not hold, the dimension stays unknown.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from qdqtool.graph.canonical.constants import computable, compute
from qdqtool.trt.ops import POOLS

# --- lengths ---------------------------------------------------------------------------------------------------------
# Expressions for the length of a dimension, and how convolutions and pooling change them.
#
# A window with stride 2 over a height of N gives a length such as `floor((N+1)/2)`, for even and odd sizes. Several
# strides in a row round down once, because floor((floor(x) + m) / n) is floor((x + m) / n).


WINDOWED = POOLS | {"Conv", "ConvInteger", "LpPool"}
"""Operators that move a window over their input; step and size of the window determine the length of the result."""


_SAME = frozenset({b"SAME_UPPER", b"SAME_LOWER"})


@dataclass(frozen=True, kw_only=True)
class Length:
    """A dimension as `floor((over * symbol + shift) / under) + offset`; a number if there is no symbol.

    Attributes:
        exact: nothing is rounded off for any size that the model accepts.
    """

    symbol: str = ""
    over: int = 0
    under: int = 1
    shift: int = 0
    offset: int = 0
    exact: bool = True

    def fits(self, size: int, numbers: Mapping[str, int]) -> bool:
        """Return True if a dimension of length `size` agrees with this expression, for these numbers of the symbols."""
        whole = Fraction(self.over * numbers.get(self.symbol, 0) + self.shift, self.under)
        return (whole if self.exact else whole // 1) + self.offset == size

    def text(self) -> str | int:
        """Return the expression as text: "N", "4*N", "N/2+1", and "floor((N+1)/2)" if it is rounded."""
        if not self.symbol:
            return self.offset
        text = self.symbol if self.over == 1 else f"{self.over}*{self.symbol}"
        text = f"({text}{self.shift:+d})" if self.shift else text
        text += "" if self.under == 1 else f"/{self.under}"
        text = text if self.exact else f"floor({text})"
        return text + (f"{self.offset:+d}" if self.offset else "")

    def stepped(self, more: int, step: int) -> Length:
        """Return `floor((this + more) / step) + 1`, the length after a window that moves in steps."""
        shift = self.shift + self.under * (self.offset + more)
        common = gcd(self.over, self.under * step)
        under, shift = self.under * step // common, shift // common
        return Length(
            symbol=self.symbol,
            over=self.over // common,
            under=under,
            shift=shift % under,
            offset=shift // under + 1,
            exact=under == 1,
        )


def compute_window_lengths(
    node: onnx.NodeProto, lengths: Sequence[Length | None], kernel: Sequence[int]
) -> Iterator[Length | None]:
    """Yield the spatial dimensions after a convolution or pooling; None for unknown ones.

    `kernel` is the shape of the weights without channels, empty for pooling. Source: the operators' specifications.
    """
    if node.op_type not in WINDOWED:
        return
    attributes = {field.name: onnx.helper.get_attribute_value(field) for field in node.attribute}
    sizes = list(attributes.get("kernel_shape") or kernel)
    rank = len(sizes)
    steps = list(attributes.get("strides") or [1] * rank)
    gaps = list(attributes.get("dilations") or [1] * rank)
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    mode = attributes.get("auto_pad", b"NOTSET")
    if {len(lengths), len(steps), len(gaps), len(pads) // 2} != {rank} or min(*steps, *gaps, *sizes, 1) < 1:
        return
    for place, length in enumerate(lengths):
        step, reach = steps[place], gaps[place] * (sizes[place] - 1) + 1
        border = 0 if mode == b"VALID" else pads[place] + pads[rank + place]
        more = -1 if mode in _SAME else border - reach
        is_known = length is not None
        if attributes.get("ceil_mode"):
            more += step - 1
            # a last window that starts after the input is omitted, so this is not plain rounding up
            is_known = is_known and mode not in _SAME and not border and step <= reach
        yield length.stepped(more, step) if length is not None and is_known else None


# --- symbols ---------------------------------------------------------------------------------------------------------


KEEPS_COUNT = frozenset({"Reshape", "SpaceToDepth"})
"""Operators whose number of elements does not change; onnx infers their sizes without counting elements."""


# --- symbols ---------------------------------------------------------------------------------------------------------

_EVEN = 20160
"""Divisible by all small numbers and by 64, so that splits and strides have no remainder."""
_PRIMES = (2, 3, 5, 7)
"""Prime factors of `_EVEN`; a strided network needs few of them, and mostly 2."""
_FEWER = (1, 64)
"""Divisors to try before `_EVEN`: most models take any size, and most others a size that can be halved six times."""
# Two runs give an expression for every dimension; the third run must agree with it.
_RUNS = 3
_LEAST, _ROOM = 11, 80
"""Range of factors of `_EVEN` for the numbers of few symbols, 11 to 90: products of three numbers still fit 64 bits."""
_MOST = _EVEN * (_LEAST + _ROOM)
_MANY = 10_007
"""Factor of a number that is large, but small enough to be multiplied by 64."""
_SIZES = ((101, 499), (51, 97), (23, 47), (11, 19), (5, 9), (1, 3))
"""Ranges of factors for smaller numbers. They are on both sides of usual limits (512 tokens, 100 boxes, 8 heads)."""
_FEW = 8
"""Most symbols for which a separate divisor is searched."""
_SPATIAL = 2
"""First dimension that a window moves over, after batch and channels."""

_Checks = list[tuple[Mapping[str, int], int]]
"""Numbers for the symbols, each with the resulting length of a dimension."""


def resolve(light: onnx.ModelProto, opset: int) -> dict[str, onnx.ValueInfoProto]:
    """Return the type and shape of every tensor. A dimension is unknown if the trial runs do not agree on it."""
    symbols = symbols_of(light)
    runs = [SizedRun(light, numbers, opset) for numbers in _even(symbols)]
    for run in runs:
        run.passes()
    probes = _Probes(
        light, symbols, opset, frozenset.intersection(*(frozenset(run.accepted) for run in runs))
    )
    # without symbols there is nothing to check
    checks = _Sizes(list(probes.accepted()) if symbols else runs)
    even = _Sizes(runs)
    lengths = {
        name: [
            _length(moved, runs, checks.of(name, place))
            for place, moved in enumerate(zip(*even.shapes(name), strict=True))
        ]
        for name in even.names()
        if len({len(shape) for shape in (*even.shapes(name), *checks.shapes(name))}) == 1
        and checks.shapes(name)
    }
    for node in light.graph.node:
        _hand_on(node, lengths, checks)
    return {
        name: onnx.helper.make_tensor_value_info(
            name, even.kind(name), [None if length is None else length.text() for length in lengths[name]]
        )
        for name in sorted(lengths)
    }


class _Sizes:
    """Shapes of tensors in several trial runs."""

    def __init__(self, runs: Sequence[SizedRun]) -> None:
        self._runs = [(run.numbers, run.shapes()) for run in runs]

    def names(self) -> set[str]:
        """Return the tensors whose shape is known in all trial runs."""
        return set.intersection(*(set(shapes) for _, shapes in self._runs))

    def kind(self, name: str) -> int:
        """Return the element type of a tensor whose shape is known in all trial runs."""
        return self._runs[0][1][name][0]

    def shapes(self, name: str) -> list[Shape]:
        """Return the shapes of a tensor in the trial runs in which its shape is known."""
        return [shapes[name][1] for _, shapes in self._runs if name in shapes]

    def of(self, name: str, place: int) -> _Checks:
        """Return, for each trial run, the numbers of the symbols and the resulting length of one dimension."""
        return [(numbers, shapes[name][1][place]) for numbers, shapes in self._runs if name in shapes]


def _hand_on(node: onnx.NodeProto, lengths: dict[str, list[Length | None]], checks: _Sizes) -> None:
    """Set unknown output lengths of a node, from its window or the only rounded input length that fits."""
    shapes = [lengths.get(name, []) for name in node.input]
    windows: list[Length | None] = []
    if shapes and len(shapes[0]) > _SPATIAL:
        weights = [length.offset for length in shapes[1][_SPATIAL:] if length] if len(shapes) > 1 else []
        windows = list(compute_window_lengths(node, shapes[0][_SPATIAL:], weights))
    kept = dict.fromkeys(
        length for shape in shapes for length in shape if length is not None and not length.exact
    )
    for name in node.output:
        for place, length in enumerate(lengths.get(name, [])):
            if length is not None:
                continue
            window = windows[place - _SPATIAL] if windows and place >= _SPATIAL else None
            sizes = checks.of(name, place)
            fitting = [
                form
                for form in ([window] if window else kept)
                if all(form.fits(size, at) for at, size in sizes)
            ]
            if len(fitting) == 1:
                lengths[name][place] = fitting[0]


def _even(symbols: tuple[str, ...]) -> list[dict[str, int]]:
    """Return even numbers for the symbols in each trial run, so that no two symbols change alike."""
    dice = random.Random(0)  # noqa: S311 -- nothing is secret; the same numbers every time
    room = range(_LEAST, _LEAST + max(_ROOM, 4 * _RUNS * len(symbols)))
    drawn = [_EVEN * factor for factor in dice.sample(room, _RUNS * len(symbols))]
    return [
        {symbol: drawn[_RUNS * place + run] for place, symbol in enumerate(symbols)}
        for run in range(_RUNS if symbols else 1)
    ]


class _Probes:
    """Trial runs of shape inference; input lengths are multiples of the smallest possible divisors.

    A run is rejected if an operator fails that accepts the even numbers. Such a run describes sizes that the model
    does not accept. The shapes after the failed operator are unknown, so only accepted runs can contradict
    expressions.
    """

    def __init__(
        self, light: onnx.ModelProto, symbols: tuple[str, ...], opset: int, expected: frozenset[int]
    ) -> None:
        self._light = light
        self._symbols = symbols
        self._opset = opset
        self._expected = expected
        self._dice = random.Random(1)  # noqa: S311 -- the same numbers every time

    def accepted(self) -> Iterator[SizedRun]:
        """Yield the trial runs that the model accepts."""
        safe, runs = self._least(dict.fromkeys(self._symbols, _EVEN), self._symbols)
        yield from runs
        divisors = safe
        if 1 < len(self._symbols) <= _FEW:
            for symbol in (symbol for symbol in self._symbols if safe[symbol] > 1):
                divisors, runs = self._least(divisors, (symbol,))
                yield from runs
        yield from self._beside(divisors)
        for low, high in _SIZES:
            halved = dict.fromkeys(divisors, max(_FEWER))
            tries = (self._try_run(sizes, low, high) for sizes in (divisors, safe, halved))
            yield from next(filter(None, tries), [])

    def _least(
        self, divisors: Mapping[str, int], moved: tuple[str, ...]
    ) -> tuple[dict[str, int], list[SizedRun]]:
        """Return the smallest divisors of the symbols `moved` with which the model runs, and the trial runs.

        Returns no runs if the model accepts no smaller divisor. If all symbols were changed, there is always a run,
        because the model accepts the even numbers.
        """
        best, accepted = dict(divisors), []
        for first in (*_FEWER, _EVEN):
            if first >= divisors[moved[0]] and len(moved) < len(self._symbols):
                break
            accepted = self._twice({**best, **dict.fromkeys(moved, first)})
            if accepted:
                best |= dict.fromkeys(moved, first)
                break
        for prime in _PRIMES:
            while best[moved[0]] % prime == 0:
                smaller = {**best, **dict.fromkeys(moved, best[moved[0]] // prime)}
                runs = self._twice(smaller)
                if not runs:
                    break
                best, accepted = smaller, runs
        return best, accepted

    def _beside(self, divisors: Mapping[str, int]) -> Iterator[SizedRun]:
        """Yield trial runs in which the number of one symbol is slightly above or below a multiple.

        If a network halves its sizes and rounds up before two sizes must agree, it accepts 255 as well as 256. The
        other symbols stay even, because the model may have accepted smaller multiples by chance.
        """
        even = dict.fromkeys(divisors, _EVEN)
        for symbol, divisor in divisors.items() if len(divisors) <= _FEW else ():
            for remainder in (remainder for remainder in range(1, divisor) if divisor % remainder == 0):
                for moved in (remainder, -remainder):
                    yield from self._try_run(even, rests={symbol: moved})

    def _twice(self, divisors: Mapping[str, int]) -> list[SizedRun]:
        """Return two trial runs with multiples of the divisors if the model accepts both. It may accept one by chance."""
        first = self._try_run(divisors)
        second = self._try_run(divisors) if first else []
        return [*first, *second] if second else []

    def _try_run(
        self,
        divisors: Mapping[str, int],
        low: int = 1009,
        high: int = _MANY,
        rests: Mapping[str, int] = MappingProxyType({}),
    ) -> list[SizedRun]:
        """Return a list with one trial run at random multiples of the divisors plus `rests`.

        The list is empty if the model rejects these lengths.
        """
        factors = self._factors(max(divisors.values()), low, high)
        numbers = {
            symbol: divisor * factor + rests.get(symbol, 0)
            for (symbol, divisor), factor in zip(divisors.items(), factors, strict=True)
        }
        run = SizedRun(self._light, numbers, self._opset)
        return [run] if run.passes(self._expected) else []

    def _factors(self, divisor: int, low: int, high: int) -> list[int]:
        """Return a different random factor per symbol, without the small divisors of padded lengths."""
        high = min(high, _MOST // divisor)
        low = min(low, _LEAST) if high < low else low
        count = len(self._symbols)
        odd = [number for number in range(low, high + 1) if _is_odd(number)]
        while len(odd) < count:
            high += 1
            odd += [high] if _is_odd(high) else []
        return self._dice.sample(odd, count)


def _is_odd(number: int) -> bool:
    """Return True if no small prime divides the number, except the number itself."""
    return all(number % prime or number == prime for prime in (*_PRIMES, 11, 13))


def _length(moved: Shape, runs: Sequence[SizedRun], checks: _Checks) -> Length | None:
    """Return the expression of a dimension with length `moved[i]` in run `i`; None if `checks` reject all."""
    forms = _forms(moved, [run.numbers for run in runs])
    true = (form for form in forms if all(form.fits(size, numbers) for numbers, size in checks))
    return min(true, default=None, key=lambda form: abs(form.offset))


def _forms(moved: Shape, numbers: Sequence[Mapping[str, int]]) -> Iterator[Length]:
    """Yield the expressions that give these lengths of a dimension in the trial runs."""
    if len(set(moved)) == 1:
        yield Length(offset=moved[0])
        return
    for symbol in numbers[0]:
        low, high = numbers[0][symbol], numbers[1][symbol]
        slope = Fraction(moved[1] - moved[0], high - low)
        offset = moved[0] - slope * low
        if offset.denominator == 1 and slope > 0 and abs(offset) < _EVEN:
            form = Length(symbol=symbol, over=slope.numerator, under=slope.denominator, offset=int(offset))
            if form.fits(moved[2], numbers[2]):
                yield form


# --- one pass with numbers -------------------------------------------------------------------------------------------
# One pass of shape inference over the nodes of a model, with a number in the place of each symbol.
#
# With numbers, shape arithmetic can be computed, so inference continues where it would stop with symbols. A pass also
# shows whether the model accepts these numbers: the two sides of a U-Net fit only if the size is even.

_SMALL = 64
"""Most elements of a value that is computed only to find shapes."""

_FAILURES = (
    onnx.defs.SchemaError,
    onnx.checker.ValidationError,
    InferenceError,
    RuntimeError,
    ValueError,
)

Shape = tuple[int, ...]


def symbols_of(light: onnx.ModelProto) -> tuple[str, ...]:
    """Return the dynamic dimensions of the inputs; a dimension without a name gets a separate name."""
    names: dict[str, None] = {}
    for value in light.graph.input:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                names[dim.dim_param or _invent_name(value.name, index)] = None
    return tuple(names)


def _invent_name(tensor: str, index: int) -> str:
    return f"{tensor}_{index}"


class SizedRun:
    """One trial run: a pass over the nodes with a number for each symbol.

    Attributes:
        numbers: the number for each symbol.
        accepted: the nodes, by index, whose operators accepted these sizes. The others failed, made an empty tensor, or
            were not reached.
    """

    def __init__(self, light: onnx.ModelProto, numbers: Mapping[str, int], opset: int) -> None:
        self.numbers = numbers
        self.accepted: set[int] = set()
        self._graph = light.graph
        self._opset = opset
        self._opsets = list(light.opset_import)
        self._ir = light.ir_version
        self._types: dict[str, onnx.TypeProto] = {}
        self._values: dict[str, NDArray[Any]] = {}
        for value in light.graph.input:
            kind = onnx.TypeProto()
            kind.CopyFrom(value.type)
            for index, dim in enumerate(kind.tensor_type.shape.dim):
                if not dim.HasField("dim_value"):
                    dim.dim_value = numbers[dim.dim_param or _invent_name(value.name, index)]
            self._types[value.name] = kind
        for tensor in light.graph.initializer:
            self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._learn(tensor.name, numpy_helper.to_array(tensor))

    def passes(self, expected: frozenset[int] = frozenset()) -> bool:
        """Compute the shapes of all nodes in this trial run; False at the first node of `expected` that fails."""
        for index, node in enumerate(self._graph.node):
            if self._visit(node):
                self.accepted.add(index)
            elif index in expected:
                return False
        return True

    def shapes(self) -> dict[str, tuple[int, Shape]]:
        """Return element type and shape of every tensor whose dimensions all became numbers."""
        shapes = {}
        for name, kind in self._types.items():
            dims = _numbers(kind)
            if dims is not None:
                shapes[name] = (kind.tensor_type.elem_type, dims)
        return shapes

    def _visit(self, node: onnx.NodeProto) -> bool:
        names = {name for name in node.input if name}
        if not names <= self._types.keys():
            return False
        values = None
        if node.op_type == "Shape" and len(node.attribute) == 0:
            dims = _numbers(self._types[node.input[0]])
            values = None if dims is None else {node.output[0]: np.asarray(dims, np.int64)}
        elif names and names <= self._values.keys() and computable(node) and self._is_small(node, names):
            values = compute(node, {name: self._values[name] for name in sorted(names)}, self._opset)
            if values is not None and not self._has_shapes(node, names, values):
                values = None
        if values is None:
            types = self._infer_outputs(node, names)
            self._types.update(types or {})
            return types is not None and self._fits(node)
        for name, value in values.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            self._types[name] = onnx.helper.make_tensor_type_proto(kind, value.shape)
            self._learn(name, value)
        return True

    def _fits(self, node: onnx.NodeProto) -> bool:
        """Return True if the inferred shapes are possible. Inference does not count elements or check windows."""
        outputs = [
            dims for name in node.output if name in self._types and (dims := _numbers(self._types[name]))
        ]
        if any(size < 1 for dims in outputs for size in dims):
            return False
        inputs = [_numbers(self._types[name]) for name in node.input[:2] if name]
        if not outputs or not inputs or inputs[0] is None:
            return True
        if node.op_type in KEEPS_COUNT:
            return math.prod(inputs[0]) == math.prod(outputs[0])
        places = [Length(offset=size) for size in inputs[0][2:]]
        kernel = (inputs[1] or ())[2:] if len(inputs) > 1 else ()
        # onnx divides towards zero: half of -1 and one more is 1
        return all(end is None or end.offset > 0 for end in compute_window_lengths(node, places, kernel))

    def _is_small(self, node: onnx.NodeProto, names: set[str]) -> bool:
        """Return True if no output of a node is known to be large. Short constants can ask for terabytes."""
        shapes = map(_numbers, (self._infer_outputs(node, names) or {}).values())
        return all(math.prod(shape) <= _SMALL for shape in shapes if shape is not None)

    def _has_shapes(self, node: onnx.NodeProto, names: set[str], values: Mapping[str, NDArray[Any]]) -> bool:
        """Return True if computed values have the inferred shapes; onnx's reference is wrong for some operators."""
        shapes = {name: _numbers(kind) for name, kind in (self._infer_outputs(node, names) or {}).items()}
        return all(shapes.get(name) in {None, value.shape} for name, value in values.items())

    def _infer_outputs(self, node: onnx.NodeProto, names: set[str]) -> dict[str, onnx.TypeProto] | None:
        """Return the output types that the schema infers from types and known values; None if inference fails."""
        constants = {
            name: numpy_helper.from_array(self._values[name], name) for name in names if name in self._values
        }
        types = {name: self._types[name] for name in names}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, node.domain)
            return dict(
                infer_node_outputs(
                    schema, node, types, constants, opset_imports=self._opsets, ir_version=self._ir
                )
            )
        except _FAILURES:
            return None

    def _learn(self, name: str, value: NDArray[Any]) -> None:
        if value.size <= _SMALL:
            self._values[name] = value


def _numbers(kind: onnx.TypeProto) -> Shape | None:
    """Return the dimensions of a tensor type if all are numbers; otherwise None."""
    dims = kind.tensor_type.shape.dim
    is_shaped = kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
    return (
        tuple(dim.dim_value for dim in dims)
        if is_shaped and all(dim.HasField("dim_value") for dim in dims)
        else None
    )
