"""Opens a model in onnxruntime and collects tensor values; keeps some, so that samples run only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.protocols import Feeds, Sample
from qdqtool.errors import InputFileError
from qdqtool.runtime.device import CPU, current
from qdqtool.runtime.session import (
    UNKNOWN_OPERATOR,
    RuntimeOptions,
    failures,
    message_of,
    open_session,
    ran_out_of_memory,
)

# --- watch -----------------------------------------------------------------------------------------------------------
# Keeps values of some samples during the pass that counts magnitudes, so that these samples need no second run.


@dataclass(frozen=True, slots=True)
class WatchedSample:
    """A sample whose values are kept: watched tensors, and channel means of averaged tensors."""

    sample: Sample
    values: dict[str, NDArray[Any]]


class WatchedValues:
    """Values and channel means of chosen tensors for some samples, and the values of the first two samples as one batch.

    Args:
        tensors: outputs of the model that is run.
        averaged: image tensors of which the mean of every channel is kept, for the counted samples.
        peaked: image tensors of which the largest magnitude of every channel is kept, over the first `first` samples.
        first: the number of these samples.
        together: tensors that a batch of the first two samples returns; without any, no such batch runs.
        numbers: positions of the samples.
    """

    def __init__(
        self,
        tensors: Iterable[str],
        averaged: Iterable[str],
        together: Sequence[str],
        numbers: Sequence[int],
        *,
        peaked: Iterable[str] = (),
        first: int = 0,
    ) -> None:
        self.tensors = frozenset(tensors)
        self.averaged = frozenset(averaged)
        self.together = tuple(together)
        self.numbers = numbers
        self._peaked = frozenset(peaked)
        self._first = first
        self._peaks: dict[int, dict[str, NDArray[np.float32]]] = {}
        self._coming: dict[int, tuple[int, Sample]] = {}
        self._watched: dict[int, WatchedSample] = {}
        self.pair: dict[str, NDArray[Any]] | None = None

    @property
    def samples_run(self) -> tuple[WatchedSample, ...]:
        """Samples that were run, in order."""
        return tuple(self._watched[number] for number in sorted(self._watched))

    @property
    def peaks(self) -> dict[str, NDArray[np.float32]]:
        """Largest magnitudes, (channels,), by tensor; empty if no sample was run."""
        return {
            name: np.maximum.reduce([peaks[name] for peaks in self._peaks.values()])
            for name in (self._peaked if self._peaks else ())
        }

    def noted(self, positions: range, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield all samples, and register those whose values will be kept."""
        for number, sample in zip(positions, samples, strict=True):
            if number in self.numbers or number < self._first:
                self._coming[id(sample.feeds)] = (number, sample)
            yield sample

    def keep(self, feeds: Feeds, values: Mapping[str, NDArray[Any]]) -> None:
        """Keep the values of a sample, and average them, if the sample is registered."""
        number, sample = self._coming.pop(id(feeds), (0, None))
        if sample is not None and number < self._first:
            self._peaks[number] = {name: peaks_of_channels(values[name]) for name in self._peaked}
        if sample is not None and number in self.numbers:
            kept = {name: values[name] for name in self.tensors}
            kept |= {name: means_of_channels(values[name]) for name in self.averaged}
            self._watched[number] = WatchedSample(sample, kept)


def two_as_one(samples: Iterable[Sample]) -> Feeds | None:
    """Join two samples into one batch; return None for fewer samples, different shapes or scalar inputs."""
    first = [sample.feeds for sample in samples][:2]
    if len(first) < 2:
        return None
    left, right = first
    if any(left[name].shape != right[name].shape or not left[name].ndim for name in left):
        return None
    return {name: np.concatenate([left[name], right[name]]) for name in left}


def means_of_channels(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the means of the channels of images (rows, channels, ...): (rows, channels)."""
    rows, channels = values.shape[:2]
    means: NDArray[np.float32] = values.reshape(rows, channels, -1).mean(axis=2, dtype=np.float32)
    return means


def peaks_of_channels(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the largest magnitude of each channel, (channels,), of images (rows, channels, ...)."""
    rows, channels = values.shape[:2]
    parts = values.reshape(rows, channels, -1)
    peaks: NDArray[np.float32] = np.maximum(parts.max(axis=2), -parts.min(axis=2)).max(axis=0)
    return peaks.astype(np.float32, copy=False)


# --- session ---------------------------------------------------------------------------------------------------------


_COLLECTING = RuntimeOptions(faithful=False)
"""Options for collecting: models are float, so Q/DQ need not be exact, and waiting threads may spin."""


def open_collecting(model: Path, threads: int, home: Path | None = None) -> Any:
    """Open an onnxruntime session that uses `threads` threads for each run.

    Weights outside the file are looked for in `home`, if that is not its folder.

    Optimizations stay on: the fetched values are equal, and fusions between them are kept.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    return _open_session(model, replace(_COLLECTING, provider=current(), threads=threads, home=home))


def _open_session(model: Path, options: RuntimeOptions) -> Any:
    try:
        return open_session(model, options)
    except failures() as error:
        # The file is a copy that only this process uses.
        message = message_of(error).replace(f"Load model from {model} failed:", "")
        fix = "check that the float model itself runs: qdqtool calibrates on onnxruntime"
        if options.provider != CPU:
            fix = f"remove --device {options.provider.word}: the CPU may run models that this provider cannot compile"
        if UNKNOWN_OPERATOR in message:
            fix = (
                "qdqtool calibrates on onnxruntime, which does not know this operator: export the model with ONNX's own "
                "operators, or, if a quantization tool added this operator, start from the float model"
            )
        raise InputFileError(f"onnxruntime cannot run the model: {message}", fix=fix) from error


# --- fetch -----------------------------------------------------------------------------------------------------------


class MemoryShortageError(InputFileError):
    """A sample needs more memory than the CPU or the device has free."""


class Fetcher:
    """Runs an onnxruntime session and returns chosen tensors. Each thread has its own fetcher; all share the session.

    Args:
        session: an onnxruntime session.
        tensors: outputs of the session.
        options: options of its runs; None takes onnxruntime's defaults.
    """

    def __init__(self, session: Any, tensors: Iterable[str], options: Any = None) -> None:
        self._session = session
        self._options = options
        self._tensors = tuple(tensors)
        self._inputs = {entry.name: entry.shape for entry in session.get_inputs()}

    def run(self, feeds: Feeds, where: str) -> Iterator[tuple[str, NDArray[Any]]]:
        """Run the session and return the fetched tensors with their values.

        Raises:
            MemoryShortageError: memory was not enough.
            InputFileError: the model cannot run on this sample.
        """
        fed = {name: feeds[name] for name in self._inputs}
        try:
            values = self._session.run(list(self._tensors), fed, self._options)
        except failures() as error:
            if ran_out_of_memory(error):
                raise MemoryShortageError(
                    f"not enough memory to run this sample: {message_of(error)}",
                    fix="free memory on this device, choose another --device, or calibrate fewer tensors (place.exclude)",
                    where=where,
                ) from error
            raise InputFileError(
                f"the model cannot run on this sample: {message_of(error)}",
                fix=f"check the values of the sample{_other_sizes(fed, self._inputs)}",
                where=where,
            ) from error
        return zip(self._tensors, values, strict=True)

    def halves(self) -> tuple[Fetcher, ...]:
        """Return two fetchers, each for half of the outputs; () for a single output."""
        middle = len(self._tensors) // 2
        parts = (self._tensors[:middle], self._tensors[middle:]) if middle else ()
        return tuple(Fetcher(self._session, part, self._options) for part in parts)


def _other_sizes(fed: Feeds, declared: Mapping[str, Sequence[Any]]) -> str:
    """Return a hint to try random samples of other sizes; a letter stands for each dynamic dimension.

    The sizes of this sample have failed. If no size is free, they are not the reason.
    """
    letters: dict[Any, str] = {}
    shapes = []
    for name, array in fed.items():
        free = declared[name] if len(declared[name]) == array.ndim else [None] * array.ndim
        dims = [
            str(size)
            if isinstance(dim, int)
            else letters.setdefault(
                dim or (name, place), ascii_uppercase[len(letters) % len(ascii_uppercase)]
            )
            for place, (dim, size) in enumerate(zip(free, array.shape, strict=True))
        ]
        if dims:
            shapes.append(f"{name}:{'x'.join(dims)}")
    if not letters:
        return ""
    named = ", ".join(letters.values())
    return f", and whether the model accepts the sizes of the sample (each row of a batch is a sample; a model for a fixed batch size must declare it): for random samples of other sizes, use {','.join(['random:16', *shapes])} with numbers for {named}"
