"""Calibrator classes for TensorRT up to 10, which calls them back while it builds an engine.

    from calibrators.tensorrt import EntropyCalibrator2

    with EntropyCalibrator2(samples, cache="calib.cache") as calibrator:
        config.int8_calibrator = calibrator
        engine = builder.build_serialized_network(network, config)

`samples` is anything that can be iterated again and again: dictionaries from input name to array, or objects with
such a dictionary under `feeds`, as the sample sources of qdqtool give them. Leaving the `with` block (or calling
`finish()`) frees the device memory and raises what went wrong with the data; TensorRT itself would take an error for
the end of the data and finish with half a calibration. For the same reason no cache is written after an error.

The classes exist once they are asked for: only then is TensorRT imported, and CUDA only when the first batch is
copied. TensorRT 11 has no calibrators any more; turn the model into an explicit Q/DQ one instead.

Written against the documented interface of TensorRT 8 to 10 and tested with stand-ins for its base classes and for
CUDA (order of calls, types, errors, second builds); never run on a real TensorRT, which needs a GPU.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.error import CalibrationDataError

_BASES = {
    "EntropyCalibrator2": "IInt8EntropyCalibrator2",
    "MinMaxCalibrator": "IInt8MinMaxCalibrator",
    "EntropyCalibrator": "IInt8EntropyCalibrator",
    "LegacyCalibrator": "IInt8LegacyCalibrator",
}


def __getattr__(name: str) -> Any:
    """The calibrator class called `name`, made when first asked for."""
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _class(name)


@functools.cache
def _class(name: str) -> type:
    tensorrt = import_module("tensorrt")
    base = getattr(tensorrt, _BASES[name], None)
    if base is None:
        raise ImportError(
            f"TensorRT {getattr(tensorrt, '__version__', '?')} has no {_BASES[name]}: calibrators ended with release "
            "10. Turn the float model and its calibration cache into a Q/DQ model: qdqtool cache to-qdq"
        )
    behaviour = _LegacyFeeder if name == "LegacyCalibrator" else Feeder
    return type(
        name, (behaviour, base), {"_base": base, "__doc__": behaviour.__doc__, "__module__": __name__}
    )


class Feeder:
    """Gives TensorRT the samples one by one, and keeps the calibration cache.

    Args:
        samples: dictionaries of arrays, or objects with one under `feeds`; iterable more than once.
        cache: file of the calibration cache: read if it is there, written after calibration; None keeps none.
        batch_size: what TensorRT is told; by default the leading dimension of the first array. With dynamic shapes
            it must be 1.

    Raises:
        CalibrationDataError: `samples` can only be iterated once.
    """

    _base: Any = object

    def __init__(
        self,
        samples: Iterable[Any],
        cache: str | os.PathLike[str] | None = None,
        batch_size: int | None = None,
    ) -> None:
        # TensorRT crashes in C++ when a subclass leaves this out.
        self._base.__init__(self)
        if iter(samples) is samples:
            raise CalibrationDataError(
                "samples can be read only once, so a second build would silently get no data: pass a list, or an "
                "object whose __iter__ starts anew"
            )
        self._samples = samples
        self._cache = None if cache is None else Path(cache)
        self._batch_size = batch_size
        self._pending: Iterator[Any] | None = None
        self._memory: dict[str, _DeviceMemory] = {}
        self._error: Exception | None = None
        self._count = 0

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        if kind is None:
            self.finish()

    def finish(self) -> None:
        """Free the device memory and raise what went wrong with the data, if anything did."""
        self._release()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def get_batch_size(self) -> int:
        """Samples per batch, as TensorRT wants to know."""
        if self._batch_size is None:
            first = next(iter(self._samples), None)
            arrays = list(_feeds(first).values()) if first is not None else []
            self._batch_size = int(arrays[0].shape[0]) if arrays and np.ndim(arrays[0]) else 1
        return self._batch_size

    def get_batch(self, names: list[str], *_: Any) -> list[int] | None:
        """Device addresses of the next sample in the order of `names`; None when there are no more."""
        if self._error is not None:
            return None
        if self._pending is None:
            self._pending, self._count = iter(self._samples), 0
        try:
            sample = next(self._pending, None)
            if sample is not None:
                self._count += 1
                return self._uploaded(_feeds(sample), names)
        except Exception as error:  # noqa: BLE001 -- TensorRT would swallow it; finish() raises it
            self._error = error
        if self._count == 0 and self._error is None:
            self._error = CalibrationDataError("there are no samples")
        # A second build starts from the first sample again.
        self._pending = None
        return None

    def read_calibration_cache(self) -> bytes | None:
        """The content of the cache file; None when there is none, so that TensorRT calibrates."""
        self._pending = None
        if self._cache is None or not self._cache.exists():
            return None
        return self._cache.read_bytes()

    def write_calibration_cache(self, cache: Any) -> None:
        """Keep what TensorRT found, all or nothing; never after a data error."""
        if self._cache is not None and self._error is None:
            _write(self._cache, bytes(cache))

    def _uploaded(self, feeds: Mapping[str, NDArray[Any]], names: list[str]) -> list[int]:
        missing = [name for name in names if name not in feeds]
        if missing:
            raise CalibrationDataError(
                f"sample {self._count} has no array for input {missing[0]!r}; it has {', '.join(feeds)}"
            )
        return [self._copied(name, _calibration_type(feeds[name])) for name in names]

    def _copied(self, name: str, array: NDArray[Any]) -> int:
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise CalibrationDataError(f"sample {self._count}, input {name!r}: {bad} values are NaN or Inf")
        memory = self._memory.get(name)
        if memory is None or memory.size < array.nbytes:
            if memory is not None:
                memory.free()
            memory = self._memory[name] = _DeviceMemory(array.nbytes)
        memory.copy(array)
        return memory.address

    def _release(self) -> None:
        for memory in self._memory.values():
            memory.free()
        self._memory = {}


class _LegacyFeeder(Feeder):
    """Also answers the two questions of the legacy calibrator; its histogram cache is not kept.

    Set `quantile` and `regression_cutoff` on the object; 1.0 switches the cut-off off.
    """

    quantile = 0.9999
    regression_cutoff = 1.0

    def get_quantile(self) -> float:
        """Share of values below the range."""
        return self.quantile

    def get_regression_cutoff(self) -> float:
        """Share of the maximum where TensorRT's regression stops."""
        return self.regression_cutoff

    def read_histogram_cache(self, *_: Any) -> None:
        """No histogram is kept."""

    def write_histogram_cache(self, *_: Any) -> None:
        """No histogram is kept."""


class _DeviceMemory:
    """A piece of GPU memory."""

    def __init__(self, size: int) -> None:
        self._cuda = _cuda()
        self.size = size
        self.address = int(_checked(self._cuda.cudaMalloc(max(size, 1)))[0])

    def copy(self, array: NDArray[Any]) -> None:
        """Fill it from the host."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        _checked(self._cuda.cudaMemcpy(self.address, array.ctypes.data, array.nbytes, kind))

    def free(self) -> None:
        """Give it back."""
        _checked(self._cuda.cudaFree(self.address))


def _cuda() -> Any:
    """The CUDA runtime of cuda-python, under its new or its old name."""
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError:
        return import_module("cuda.cudart")


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = answer
    if int(status) != 0:
        raise CalibrationDataError(f"CUDA refused: {status}")
    return tuple(values)


def _feeds(sample: Any) -> Mapping[str, NDArray[Any]]:
    feeds = getattr(sample, "feeds", sample)
    if not isinstance(feeds, Mapping):
        raise CalibrationDataError(f"a sample is a {type(sample).__name__}, not a dictionary of arrays")
    return feeds


def _calibration_type(array: NDArray[Any]) -> NDArray[Any]:
    """Floats become FP32, which is all that calibration takes; integers and booleans stay."""
    array = np.asarray(array)
    wanted = np.float32 if array.dtype.kind == "f" else array.dtype
    return np.ascontiguousarray(array, wanted)


def _write(path: Path, content: bytes) -> None:
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)
