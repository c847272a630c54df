"""Samples in the form that a TensorRT calibrator needs: equal shapes in every batch, finite values, FP32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.error import CalibrationDataError
from calibrators.trouble import LOG


def feeds_of(sample: Any) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a sample. A sample is a dictionary, or an object with a dictionary in `feeds`.

    Raises:
        CalibrationDataError: neither.
    """
    feeds = getattr(sample, "feeds", sample)
    if not isinstance(feeds, Mapping):
        raise CalibrationDataError(f"a sample is a {type(sample).__name__}, not a dictionary of arrays")
    return feeds


def uniform(samples: Iterable[Any], names: Sequence[str]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Return the arrays called `names` of every sample, in that order.

    TensorRT reads as many bytes as the network's shape has, whatever was copied: every sample has the shapes of the
    first. One with fewer rows (the rest of a data set) is filled up with its own rows, so that nothing is left out.

    Raises:
        CalibrationDataError: no samples, an array is missing or has another shape, or holds NaN or Inf.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    number = 0
    for number, sample in enumerate(samples, start=1):
        feeds = feeds_of(sample)
        missing = [name for name in names if name not in feeds]
        if missing:
            raise CalibrationDataError(
                f"sample {number} has no array for input {missing[0]!r}; it has {', '.join(map(str, feeds))}"
            )
        yield tuple(_fitted(f"sample {number}, input {name!r}", name, feeds[name], shapes) for name in names)
    if number == 0:
        raise CalibrationDataError("there are no samples")


def calibration_type(array: Any) -> NDArray[Any]:
    """Return a C-contiguous array. Floats become FP32, the only float type of calibration; integers and booleans stay."""
    array = np.asarray(array)
    wanted = np.float32 if array.dtype.kind == "f" else array.dtype
    return np.ascontiguousarray(array, wanted).reshape(array.shape)


def _fitted(where: str, name: str, given: Any, shapes: dict[str, tuple[int, ...]]) -> NDArray[Any]:
    array = calibration_type(given)
    if array.dtype.kind not in "fiub":
        raise CalibrationDataError(f"{where}: {array.dtype} is no type of numbers")
    if array.size == 0:
        raise CalibrationDataError(f"{where}: has no values, its shape is {array.shape}")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise CalibrationDataError(f"{where}: {bad} of {array.size} values NaN or Inf")
    wanted = shapes.setdefault(name, array.shape)
    if array.shape == wanted:
        return array
    is_short = array.ndim > 0 and 0 < array.shape[0] < wanted[0] and array.shape[1:] == wanted[1:]
    if not is_short:
        raise CalibrationDataError(f"{where}: shape {array.shape}, but the first sample has {wanted}")
    LOG.warning(
        "%s: batch of %d instead of %d, filled up with its own rows", where, array.shape[0], wanted[0]
    )
    return np.resize(array, wanted)
