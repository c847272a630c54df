"""Random samples, for trying things out: ranges and accuracy measured on them mean nothing, and every report says so.

"random" makes 16 samples, "random:64" makes 64, "random:64:7" takes the seed 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.samples.raw import RawSample
from qdqtool.core.dtypes import DType
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import UsageError

_COUNT = 16


class Random:
    """Standard normal numbers for float inputs, zeros and ones for all others; free dimensions are 1."""

    meaningful = False

    def __init__(self, text: str, inputs: tuple[TensorInfo, ...]) -> None:
        words = text.split(":")[1:]
        if len(words) > 2 or not all(word.isdecimal() for word in words):
            raise UsageError(f"{text!r} is not random[:count[:seed]]", fix="write it like random:16")
        self._text = text
        self._count = int(words[0]) if words else _COUNT
        self._seed = int(words[1]) if len(words) > 1 else 0
        self._inputs = inputs
        self._is_batched = fixed_batch(inputs) is not None
        self.description = f"{self._count} random samples: accuracy is meaningless"

    def digest(self) -> str:
        return f"random:{self._count}:{self._seed}"

    def __len__(self) -> int:
        return self._count

    def read(self, numbers: range) -> Iterator[RawSample]:
        for number in numbers:
            generator = np.random.default_rng((self._seed, number))
            arrays = {info.name: _values(info, generator, one=self._is_batched) for info in self._inputs}
            yield RawSample(name=f"{self._text}[{number}]", arrays=arrays)


def _values(info: TensorInfo, generator: np.random.Generator, *, one: bool) -> NDArray[Any]:
    """Values of one sample: with `one`, the leading dimension is a batch of fixed size, of which this is one row."""
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in info.shape or (1,))
    shape = (1, *shape[1:]) if one else shape
    if info.dtype.is_float or info.dtype is DType.UNKNOWN:
        return generator.standard_normal(shape, np.float32)
    if info.dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    return generator.integers(0, 2, shape)
