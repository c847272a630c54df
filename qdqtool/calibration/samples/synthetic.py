"""Random samples for trials. Ranges and accuracy from random samples mean nothing, and every report says so.

"random" makes 16 samples, "random:64" makes 64, "random:64:7" takes the seed 7. If the model leaves dimensions free,
their lengths follow a comma: "random:16,image:1x3x224x224".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.conform import RawSample, fixed_batch
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError

# Enough for stable ranges; random values show nothing about accuracy anyway.
_COUNT = 16
_MOST = 1 << 20
"""Largest number of random samples; a larger number is most likely a typing error."""
_MOST_ELEMENTS = 1 << 28
"""Largest number of elements of one input: 1 GiB in FP32."""


class Random:
    """Random source: standard normal numbers for float inputs, zeros and ones for others. A dynamic first dimension is 1.

    An integer input that holds the lengths of other inputs ("input_lengths") gets the real lengths. With zeros,
    attention would be masked everywhere and give NaN.
    """

    meaningful = False

    def __init__(self, text: str, inputs: tuple[TensorInfo, ...]) -> None:
        head, _, shapes = text.partition(",")
        usual = _parse_spelling(shapes)
        unknown = sorted(set(usual) - {info.name for info in inputs})
        if unknown:
            raise UsageError(
                f"the model has no input called {unknown[0]!r}",
                fix=f"use one of its inputs: {', '.join(info.name for info in inputs)}",
                where=text,
            )
        words = head.split(":")[1:]
        if len(words) > 2 or not all(word.isdecimal() and len(word) < 20 for word in words):
            raise UsageError(
                f"{head!r} is not random[:count[:seed]]", fix="write random:16 for 16 random samples"
            )
        self._text = text
        self._count = int(words[0]) if words else _COUNT
        if self._count > _MOST:
            raise UsageError(
                f"{count_noun(self._count, 'random sample')} are too many",
                fix=f"use at most {_MOST}; 16 are enough for a first try",
            )
        self._seed = int(words[1]) if len(words) > 1 else 0
        self._inputs = tuple((info, _shape(info, usual.get(info.name))) for info in inputs)
        for info, shape in self._inputs:
            # NumPy has the same limit: it makes no empty array if the product of its other lengths is too large.
            elements = math.prod(max(dim, 1) for dim in shape)
            if elements > _MOST_ELEMENTS:
                raise UsageError(
                    f"a random {info.name!r} of {'x'.join(map(str, shape))} has {elements} elements",
                    fix=f"give a smaller shape; {_MOST_ELEMENTS} elements are the limit",
                    where=text,
                )
        self._is_batched = fixed_batch(inputs) is not None
        self._lengths = _lengths(self._inputs)
        self.description = f"{count_noun(self._count, 'random sample')}: accuracy is meaningless"

    def digest(self) -> str:
        shapes = [list(shape) for _, shape in self._inputs]
        return f"random:{self._count}:{self._seed}:{shapes}"

    def __len__(self) -> int:
        return self._count

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        for number in numbers:
            generator = np.random.default_rng((self._seed, number))
            arrays = {
                info.name: _values(info.dtype, shape, generator, one_row=self._is_batched)
                for info, shape in self._inputs
            }
            for name, length in self._lengths.items():
                arrays[name] = np.full_like(arrays[name], length)
            yield RawSample(name=f"{self._text}[{number}]", arrays=arrays, is_ready=True)


def _parse_spelling(text: str) -> dict[str, tuple[int, ...]]:
    """Parse shapes by input from "image:1x3x224x224,mask:1x64"."""
    shapes = {}
    for entry in filter(None, text.split(",")):
        name, _, dims = entry.rpartition(":")
        if not name or not all(dim.isdecimal() and int(dim) for dim in dims.split("x")):
            raise UsageError(
                f"cannot read the shape {entry!r}",
                fix="write shapes such as random:16,image:1x3x224x224",
                where=text,
            )
        shapes[name] = tuple(int(dim) for dim in dims.split("x"))
    return shapes


_INTEGERS = frozenset({DType.INT32, DType.INT64})
_LIKELY_LENGTHS = {2: (1, 128), 3: (1, 128, 64), 4: (1, 3, 224, 224), 5: (1, 3, 16, 112, 112)}
"""Typical shapes of inputs by number of dimensions: tokens, rows of features, images, clips."""


def _likely(shape: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """Return a likely shape of a random sample: typical lengths for dynamic dimensions, and a batch of one."""
    usual = _LIKELY_LENGTHS.get(len(shape), (1,) * len(shape))
    return tuple(dim if isinstance(dim, int) else length for dim, length in zip(shape, usual, strict=True))


def _shape(info: TensorInfo, usual: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of one random sample. Dynamic dimensions get their lengths from `usual`."""
    if info.shape is None:
        return usual or (1,)
    if usual is not None and len(usual) == len(info.shape):
        return tuple(
            dim if isinstance(dim, int) else length for dim, length in zip(info.shape, usual, strict=True)
        )
    if not all(isinstance(dim, int) for dim in info.shape[1:]):
        declared = "x".join(str(dim) for dim in info.shape)
        example = "x".join(map(str, _likely(info.shape)))
        raise UsageError(
            f"random samples need the shape of the input {info.name!r}, which is dynamic in the model: {declared}",
            fix=f"add the shape, as in random:16,{info.name}:{example}, or pass your own samples",
        )
    return tuple(dim if isinstance(dim, int) else 1 for dim in info.shape)


def _lengths(inputs: tuple[tuple[TensorInfo, tuple[int, ...]], ...]) -> dict[str, int]:
    """Return values for inputs that hold the lengths of other inputs, recognized by name, type and shape."""
    longest = max(
        (
            length
            for info, shape in inputs
            for dim, length in zip((info.shape or ())[1:], shape[1:], strict=False)
            if isinstance(dim, str)
        ),
        default=0,
    )
    saying = (
        info
        for info, shape in inputs
        if len(shape) <= 1 and "len" in info.name.lower() and info.dtype in _INTEGERS
    )
    return {info.name: longest for info in saying} if longest else {}


def _values(
    dtype: DType, shape: tuple[int, ...], generator: np.random.Generator, *, one_row: bool
) -> NDArray[Any]:
    """Draw the values of one random sample. With `one_row`, the first dimension is a fixed batch size, and one row is drawn."""
    shape = (1, *shape[1:]) if one_row else shape
    if dtype.is_float or dtype is DType.UNKNOWN:
        return generator.standard_normal(shape, np.float32)
    if dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    return generator.integers(0, 2, shape)
