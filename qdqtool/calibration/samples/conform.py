"""Raw samples, as their sources give them, and how one is fitted to the inputs of the model or refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.transform import scale_values, shape_array
from qdqtool.core.commands import Command, Setting
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import InputFileError

# --- raw -------------------------------------------------------------------------------------------------------------
# Raw samples and their sources, before they are fitted to the model.


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSample:
    """One sample as stored in its source.

    Attributes:
        name: its source, for messages ("cat.jpg", "x.npz[17]").
        arrays: by model input name.
        label: class index, or None.
        is_image: whether the arrays are decoded images, which are always preprocessed.
        is_ready: whether the arrays are made for the model's inputs, and never preprocessed.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    label: int | None = None
    is_image: bool = False
    is_ready: bool = False


class RawSource(Protocol):
    """Source of samples of one kind, in an order that never changes."""

    @property
    def description(self) -> str:
        """Description of the samples."""

    @property
    def meaningful(self) -> bool:
        """False for random data."""

    def digest(self) -> str:
        """Return a digest that changes whenever the samples change."""

    def __len__(self) -> int: ...

    def read(self, numbers: range) -> Iterator[RawSample]:
        """Yield the samples with these ascending numbers."""


# --- conform ---------------------------------------------------------------------------------------------------------


_COLOURS = frozenset({1, 3, 4})
NUMPY_TYPES = {
    DType.FLOAT16: np.float16,
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.BOOL: np.bool_,
}
"""numpy types of arrays for model inputs; numpy has none for other types."""


def conform(raw: RawSample, inputs: tuple[TensorInfo, ...], preprocess: Preprocess) -> Sample:
    """Fit a raw sample to the model: one array per input, of its type and shape, with a batch dimension of 1.

    Raises:
        InputFileError: names, shapes or types do not fit; names the tensor and the sample.
    """
    names = {info.name for info in inputs}
    missing, extra = sorted(names - raw.arrays.keys()), sorted(raw.arrays.keys() - names)
    if missing:
        raise InputFileError(
            f"has no array for input {', '.join(map(repr, missing))}; it has {', '.join(map(repr, extra)) or 'none'}",
            fix=f"name the arrays like the model's inputs: {', '.join(sorted(names))}",
            where=raw.name,
        )
    feeds = {info.name: _fit_sample(raw, info, preprocess) for info in single(inputs)}
    return Sample(name=raw.name, feeds=feeds, label=raw.label)


def single(inputs: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Return the inputs as a single sample feeds them, with a batch of 1 if the model has a fixed batch size."""
    if fixed_batch(inputs) is None:
        return inputs
    return tuple(replace(info, shape=(1, *info.shape[1:]) if info.shape else info.shape) for info in inputs)


def nonfinite(sample: Sample) -> dict[str, int]:
    """Count the NaN and Inf values of each input; inputs without any are left out."""
    counts = {
        name: array.size - int(np.count_nonzero(np.isfinite(array)))
        for name, array in sample.feeds.items()
        if array.dtype.kind == "f"
    }
    return {name: count for name, count in counts.items() if count}


def fixed_batch(inputs: tuple[TensorInfo, ...]) -> int | None:
    """Return the fixed batch size, if it is the same for all inputs; None if it is free."""
    leading = {info.shape[0] for info in inputs if info.shape}
    size = leading.pop() if len(leading) == 1 else None
    return size if isinstance(size, int) else None


def without_batch(inputs: tuple[TensorInfo, ...]) -> frozenset[str]:
    """Return the inputs whose free first dimension is no batch, because the model uses its name for another axis too.

    A graph network reads [n, 8] features of its nodes beside an [n, n] matrix: n rows are one sample.
    """
    inner = {dim for info in inputs for dim in (info.shape or ())[1:] if isinstance(dim, str) and dim != "?"}
    return frozenset(info.name for info in inputs if info.shape and info.shape[0] in inner)


def tile_sample(sample: Sample, copies: int) -> Sample:
    """Repeat the sample `copies` times along the batch dimension."""
    if copies == 1:
        return sample
    feeds = {
        name: np.concatenate([array] * copies) if array.ndim else array
        for name, array in sample.feeds.items()
    }
    return replace(sample, feeds=feeds)


def _fit_sample(raw: RawSample, info: TensorInfo, preprocess: Preprocess) -> NDArray[Any]:
    array = raw.arrays[info.name]
    where = f"{raw.name}, input {info.name!r}"
    if raw.is_image or (preprocess.arrays and not raw.is_ready):
        rows = array if raw.is_image else shape_array(_without_batch(array, info, preprocess), preprocess)
        array = scale_values(rows, preprocess)
    typed = _convert_type(array, info, where)
    shape = fitted_shape(typed.shape, info.shape, where, picture=raw.is_image)
    return np.asarray(typed.reshape(shape), order="C")


def _without_batch(array: NDArray[Any], info: TensorInfo, preprocess: Preprocess) -> NDArray[Any]:
    """Remove a leading batch dimension of 1 from a raw array; it is kept if it is the only dimension."""
    rank = len(info.shape or ()) if preprocess.reshape is None else array.ndim + 1
    has_batch = array.ndim > 1 and array.shape[0] == 1 and array.ndim >= rank
    return array[0] if has_batch else array


def _convert_type(array: NDArray[Any], info: TensorInfo, where: str) -> NDArray[Any]:
    numpy_type = NUMPY_TYPES.get(info.dtype)
    if numpy_type is None or array.dtype == numpy_type:
        return array
    target = np.dtype(numpy_type)
    if array.dtype.kind == "f" and target.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(target)
    if array.dtype.kind in "iub" and target.kind in "iub":
        cast = array.astype(target)
        if np.array_equal(cast, array):
            return cast
        raise InputFileError(
            f"contains values that {target} cannot represent", fix=f"store the array as {target}", where=where
        )
    is_raw = array.dtype.kind in "iu" and target.kind == "f"
    hint = "; for raw pixels set samples.preprocess.arrays=true with scale, mean and std" if is_raw else ""
    raise InputFileError(
        f"is {array.dtype}, but the model needs {target}",
        fix=f"store the array as {target}{hint}",
        where=where,
    )


def fitted_shape(
    have: tuple[int, ...], declared: tuple[int | str, ...] | None, where: str, *, picture: bool = False
) -> tuple[int, ...]:
    """Return the shape in which an array of shape `have` is fed.

    A missing batch dimension is added, and dimensions of 1 may change.

    Raises:
        InputFileError: no allowed change of the shape fits the model.
    """
    if declared is None or fits(have, declared):
        return have
    if fits((1, *have), declared):
        return (1, *have)
    dims = tuple(1 if isinstance(dim, str) else dim for dim in declared)
    is_same = tuple(dim for dim in have if dim != 1) == tuple(dim for dim in dims if dim != 1)
    if is_same and math.prod(have) == math.prod(dims):
        return dims
    turned = len(have) >= 3 and fits((*have[:-3], have[-1], *have[-3:-1]), declared[-len(have) :])
    raise InputFileError(
        f"has shape {_text(have)}, but the model needs {_text(declared)}",
        fix=_resizing(declared)
        if picture
        else "the channels come last: set samples.preprocess.arrays=true, or transpose the array"
        if turned
        else "resize, crop or reshape the samples (samples.preprocess), or choose others",
        where=where,
    )


def _resizing(declared: tuple[int | str, ...]) -> str:
    """Return the setting that resizes images to the size of an input, ready to copy if the size is known."""
    sizes = declared[2:4] if len(declared) == 4 and declared[1] in _COLOURS else declared[1:3]
    size = ",".join(map(str, sizes)) if all(isinstance(dim, int) for dim in sizes) else "HEIGHT,WIDTH"
    return f"{Setting('samples.preprocess.resize', f'[{size}]')}, or crop or letterbox instead ({Command('recipe', ('new', 'MODEL'))})"


def fits(shape: tuple[int, ...], declared: tuple[int | str, ...]) -> bool:
    """Return whether an array of `shape` may be fed to an input of shape `declared`; names stand for any length."""
    return len(shape) == len(declared) and all(
        isinstance(want, str) or have == want for have, want in zip(shape, declared, strict=True)
    )


def _text(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
