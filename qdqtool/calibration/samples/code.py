"""Samples from a Python callable, named as "module:function" or "file.py:function".

The function takes nothing and returns an iterable of feeds (dictionaries from input name to array), or of single
arrays for a model of one input. It is called again for every pass, so it must give the same samples each time.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qdqtool.calibration.samples.raw import RawSample
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError, UsageError
from qdqtool.io.files import digest_file


class Code:
    """What the function returns, sample by sample."""

    meaningful = True

    def __init__(self, text: str, inputs: tuple[TensorInfo, ...]) -> None:
        self.description = f"Python function {text}"
        self._text = text
        self._names = tuple(info.name for info in inputs)
        module, self._function = _function(text)
        self._source = getattr(module, "__file__", None)
        self._count: int | None = None

    def digest(self) -> str:
        """Digest of the file the function is in: code that reads other data is not seen through."""
        text = digest_file(Path(self._source)) if self._source else self._text
        return hashlib.sha256(f"{self._text} {text} {len(self)}".encode()).hexdigest()

    def __len__(self) -> int:
        if self._count is None:
            samples = self._call()
            self._count = (
                len(samples) if isinstance(samples, Sized) else sum(1 for _ in self._guarded(samples))
            )
        return self._count

    def read(self, numbers: range) -> Iterator[RawSample]:
        if not numbers:
            return
        wanted = islice(self._guarded(self._call()), numbers.start, numbers[-1] + 1, numbers.step)
        count = 0
        for number, value in zip(numbers, wanted, strict=False):
            yield RawSample(name=f"{self._text}[{number}]", arrays=self._arrays(value, number))
            count += 1
        if count < len(numbers):
            raise InputFileError(
                f"gave {count} of {counted(len(numbers), 'sample')}",
                fix="the function must return the same samples every time it is called",
                where=self._text,
            )

    def _guarded(self, samples: Iterable[Any]) -> Iterator[Any]:
        """The samples; what the foreign code raises is told as its own mistake."""
        try:
            yield from samples
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> InputFileError:
        return InputFileError(
            f"raises {type(error).__name__}: {error}",
            fix="correct the function that gives the samples",
            where=self._text,
        )

    def _call(self) -> Iterable[Any]:
        try:
            samples = self._function()
        except Exception as error:
            raise self._failed(error) from error
        if not isinstance(samples, Iterable):
            raise UsageError(
                f"returns {type(samples).__name__}, not an iterable of samples",
                fix="return a list, or make it a generator",
                where=self._text,
            )
        return samples

    def _arrays(self, value: Any, number: int) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return {str(name): np.asarray(array) for name, array in value.items()}
        if len(self._names) == 1:
            return {self._names[0]: np.asarray(value)}
        raise UsageError(
            f"sample {number} is {type(value).__name__}, not a dictionary of arrays",
            fix=f"return one dictionary per sample with the keys {', '.join(self._names)}",
            where=self._text,
        )


def _function(text: str) -> tuple[ModuleType, Callable[[], Any]]:
    place, _, name = text.rpartition(":")
    module = _module(place, text)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {name!r}", fix="name it as module:function", where=text)
    return module, function


def _module(place: str, text: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"cannot be imported: {error}",
            fix="check the name, and that the module is on PYTHONPATH or given as file.py:function",
            where=text,
        ) from error
    return module
