"""Calibrator classes for TensorRT up to 10, which calls their methods while it builds an engine.

    from calibrators.tensorrt import EntropyCalibrator2

    with EntropyCalibrator2(samples, cache="calib.cache") as calibrator:
        config.int8_calibrator = calibrator
        engine = builder.build_serialized_network(network, config)

`samples` is anything that can be iterated again and again: dictionaries from input name to array, or objects with
such a dictionary under `feeds`, as the sample sources of qdqtool give them. Every sample is one batch and has the
shapes that the network is calibrated with; a last one with fewer rows is filled up with its own.

TensorRT takes an exception for the end of the data and continues with half a calibration, so errors are made loud:

- all samples are read once before the first goes to TensorRT, so that wrong data leave it with no batch at all, and
  it refuses to build (`check=False` saves that pass);
- an error is logged at once, no cache is written after it, and a second build gets neither cache nor data;
- leaving the `with` block (or calling `finish()`) frees the device memory and raises the error;
- without either, a `CalibrationDataWarning` follows when the calibrator goes or Python ends.

The classes exist once they are asked for: only then is TensorRT imported, and CUDA only when the first batch is
copied. TensorRT 11 has no calibrators any more; turn the model into an explicit Q/DQ one instead.

Tested with stand-ins for TensorRT's base classes and for CUDA (order of calls, types, errors, second builds), and through
the real Python bindings of 8.6.1 and 10.7.0 over empty libraries; never run in a real build, which needs a GPU.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from calibrators.calibrator import CalibrationDataError

# --- trouble ---------------------------------------------------------------------------------------------------------
# Errors inside a call from C++, which at most prints an exception and then ignores it.


LOG = logging.getLogger("calibrators.tensorrt")


class CalibrationDataWarning(RuntimeWarning):
    """Warning: an engine may come from an incomplete calibration, and the program did not check this."""


class Trouble:
    """The first error of a calibration. It is logged at once, and raised as soon as Python can raise it.

    Attributes:
        error: the first error that was not raised yet; None if there is none.
        unheard: the same in words, for `warn_of`: unlike the error it leads to no frame, so what keeps it keeps
            nothing else alive.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.unheard: list[str] = []

    def note(self, error: BaseException) -> None:
        """Keep the first error and log it."""
        if self.error is not None:
            return
        self.error = error
        self.unheard.append(f"calibration failed: {type(error).__name__}: {error}")
        LOG.error(
            "%s. TensorRT takes this for the end of the data: do not use the engine that it builds now",
            self.unheard[0],
        )

    def remind(self, consequence: str) -> None:
        """Log the consequence of the error."""
        LOG.error("%s: %s", consequence, *self.unheard)

    def forget(self) -> BaseException | None:
        """Return the error, and mark it as reported."""
        error, self.error = self.error, None
        self.unheard.clear()
        return error


def warn_of(unheard: list[str]) -> None:
    """If an error was never reported, warn when the calibrator is deleted or Python ends."""
    for text in unheard:
        warnings.warn(
            f"{text}. Nobody called finish() or left a `with` block, so the engine may be half calibrated",
            CalibrationDataWarning,
            stacklevel=2,
        )


# --- device ----------------------------------------------------------------------------------------------------------
# Device memory for the inputs of a network, with cuda-python.


class DeviceBuffers:
    """One block of GPU memory for each input, reused for every batch."""

    def __init__(self) -> None:
        self._pieces: dict[str, _DevicePiece] = {}

    def upload(self, name: str, array: NDArray[Any]) -> int:
        """Return the device address of the values of `array`, which must be C-contiguous.

        Raises:
            CalibrationDataError: CUDA refuses.
        """
        piece = self._pieces.get(name)
        if piece is None or piece.size < array.nbytes:
            if piece is not None:
                self._pieces.pop(name).free()
            piece = self._pieces[name] = _DevicePiece(array.nbytes)
        piece.copy(array)
        return piece.address

    def free(self) -> None:
        """Free all device memory.

        Raises:
            CalibrationDataError: CUDA refuses.
        """
        while self._pieces:
            self._pieces.popitem()[1].free()


class _DevicePiece:
    def __init__(self, size: int) -> None:
        self._cuda = _cuda()
        self.size = size
        self.address = int(_check_answer(self._cuda.cudaMalloc(max(size, 1)))[0])

    def copy(self, array: NDArray[Any]) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        _check_answer(self._cuda.cudaMemcpy(self.address, array.ctypes.data, array.nbytes, kind))

    def free(self) -> None:
        _check_answer(self._cuda.cudaFree(self.address))


def _cuda() -> Any:
    """Return the CUDA runtime module of cuda-python, under its new or its old name."""
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError:
        return import_module("cuda.cudart")


def _check_answer(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = answer
    if int(status) != 0:
        raise CalibrationDataError(f"CUDA refused: {status}")
    return tuple(values)


# --- feeds -----------------------------------------------------------------------------------------------------------
# Samples in the form that a TensorRT calibrator needs: equal shapes in every batch, finite values, FP32.


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
        yield tuple(
            _fit_values(f"sample {number}, input {name!r}", name, feeds[name], shapes) for name in names
        )
    if number == 0:
        raise CalibrationDataError("there are no samples")


def calibration_type(array: Any) -> NDArray[Any]:
    """Return a C-contiguous array. Floats become FP32, the only float type of calibration; integers and booleans stay."""
    array = np.asarray(array)
    dtype = np.float32 if array.dtype.kind == "f" else array.dtype
    return np.ascontiguousarray(array, dtype).reshape(array.shape)


def _fit_values(where: str, name: str, values: Any, shapes: dict[str, tuple[int, ...]]) -> NDArray[Any]:
    array = calibration_type(values)
    if array.dtype.kind not in "fiub":
        raise CalibrationDataError(f"{where}: {array.dtype} is no type of numbers")
    if array.size == 0:
        raise CalibrationDataError(f"{where}: has no values, its shape is {array.shape}")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise CalibrationDataError(f"{where}: {bad} of {array.size} values NaN or Inf")
    expected = shapes.setdefault(name, array.shape)
    if array.shape == expected:
        return array
    is_short = array.ndim > 0 and 0 < array.shape[0] < expected[0] and array.shape[1:] == expected[1:]
    if not is_short:
        raise CalibrationDataError(f"{where}: shape {array.shape}, but the first sample has {expected}")
    LOG.warning(
        "%s: batch of %d instead of %d, filled up with its own rows", where, array.shape[0], expected[0]
    )
    return np.resize(array, expected)


# --- tensorrt --------------------------------------------------------------------------------------------------------


_BASES = {
    "EntropyCalibrator2": "IInt8EntropyCalibrator2",
    "MinMaxCalibrator": "IInt8MinMaxCalibrator",
    "EntropyCalibrator": "IInt8EntropyCalibrator",
    "LegacyCalibrator": "IInt8LegacyCalibrator",
}


def __getattr__(name: str) -> Any:
    """Return the calibrator class called `name`, created at its first use."""
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
    """Passes samples to TensorRT one by one, and keeps the calibration cache.

    Args:
        samples: dictionaries of arrays, or objects with one under `feeds`; iterable more than once.
        cache: file of the calibration cache: read if it is there, written after calibration; None keeps none.
        batch_size: what TensorRT is told; by default the leading dimension of the first array. With dynamic shapes
            it must be 1.
        check: whether all samples are read once before TensorRT gets the first.

    Raises:
        CalibrationDataError: `samples` can only be iterated once.
    """

    _base: Any = object

    def __init__(
        self,
        samples: Iterable[Any],
        cache: str | os.PathLike[str] | None = None,
        batch_size: int | None = None,
        *,
        check: bool = True,
    ) -> None:
        # TensorRT crashes in C++ when a subclass leaves this out.
        self._base.__init__(self)
        if iter(samples) is samples:
            raise CalibrationDataError(
                "samples can be read only once, so a second build would silently get no data: pass a list, or an "
                "object whose __iter__ starts again"
            )
        self._samples = samples
        self._cache = None if cache is None else Path(cache)
        self._batch_size = batch_size
        self._unchecked = check
        self._pending: Iterator[tuple[NDArray[Any], ...]] | None = None
        self._buffers = DeviceBuffers()
        self._trouble = Trouble()
        # The exit handler is for scripts that never close the calibrator: CUDA ends before Python does.
        finalize(self, warn_of, self._trouble.unheard)
        finalize(self, _abandon, self._buffers).atexit = False

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
            return
        _abandon(self._buffers)
        if self._trouble.error is not None:
            self._trouble.remind("before the build failed")
            self._trouble.forget()

    def finish(self) -> None:
        """Free the device memory, and raise the error of the data if there was one."""
        self._pending = None
        error = self._trouble.forget()
        if error is None:
            self._buffers.free()
            return
        _abandon(self._buffers)
        raise error

    def get_batch_size(self) -> int:
        """Return the number of samples per batch."""
        if self._batch_size is None:
            try:
                self._batch_size = self._leading()
            except BaseException as error:  # noqa: BLE001 -- as in get_batch
                self._trouble.note(error)
                return 1
        return self._batch_size

    def get_batch(self, names: list[str], *_: Any) -> list[int] | None:
        """Return the device addresses of the next sample in the order of `names`; None at the end."""
        if self._trouble.error is not None:
            return None
        try:
            if self._unchecked:
                for _sample in uniform(self._samples, names):
                    pass
                self._unchecked = False
            if self._pending is None:
                self._pending = uniform(self._samples, names)
            arrays = next(self._pending, None)
            if arrays is not None:
                return [self._buffers.upload(*pair) for pair in zip(names, arrays, strict=True)]
        except BaseException as error:  # noqa: BLE001 -- TensorRT would swallow even Ctrl-C; finish() raises it
            self._trouble.note(error)
        # A second build starts from the first sample again.
        self._pending = None
        return None

    def read_calibration_cache(self) -> bytes | None:
        """Return the content of the cache file; None if there is none, and then TensorRT calibrates."""
        self._pending = None
        if self._trouble.error is not None:
            self._trouble.remind("a second build gets neither cache nor data, because the first")
            return None
        try:
            return (self._cache.read_bytes() or None) if self._cache is not None else None
        except FileNotFoundError:
            return None
        except OSError as error:
            self._trouble.note(error)
            return None

    def write_calibration_cache(self, cache: Any) -> None:
        """Write the cache of TensorRT in one step; writes nothing after a data error."""
        if self._cache is None:
            return
        if self._trouble.error is not None:
            self._trouble.remind(f"{self._cache} is not written, because")
            return
        try:
            _write(self._cache, bytes(cache))
        except OSError as error:
            self._trouble.note(error)

    def _leading(self) -> int:
        first = next(iter(self._samples), None)
        arrays = list(feeds_of(first).values()) if first is not None else []
        return int(np.shape(arrays[0])[0]) if arrays and np.ndim(arrays[0]) else 1


class _LegacyFeeder(Feeder):
    """Answers the two additional questions of the legacy calibrator; its histogram cache is not kept.

    Set `quantile` and `regression_cutoff` on the object; 1.0 switches the cut-off off.
    """

    quantile = 0.9999
    regression_cutoff = 1.0

    def get_quantile(self) -> float:
        """Return the share of values below the range."""
        return self.quantile

    def get_regression_cutoff(self) -> float:
        """Return the share of the maximum at which TensorRT's regression stops."""
        return self.regression_cutoff

    def read_histogram_cache(self, *_: Any) -> None:
        """Return nothing: no histogram is kept."""

    def write_histogram_cache(self, *_: Any) -> None:
        """Do nothing: no histogram is kept."""


def _abandon(buffers: DeviceBuffers) -> None:
    """Free the memory of a deleted calibrator. If CUDA is already unloaded, there is nothing to free."""
    with suppress(CalibrationDataError, ImportError):
        buffers.free()


def _write(path: Path, content: bytes) -> None:
    # a folder of its own: a file of mkstemp could be read by its owner only
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        draft.write_bytes(content)
        draft.replace(path)
