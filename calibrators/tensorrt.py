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
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from calibrators.device import DeviceBuffers
from calibrators.error import CalibrationDataError
from calibrators.feeds import feeds_of, uniform
from calibrators.trouble import Trouble, warn_of

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
        # The first is for scripts that never say that they are done; CUDA itself ends before Python does.
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
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)
