"""Threads that run samples and count magnitudes; each thread has its own histograms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Condition, Event, Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

import numpy as np

from calibrators.histogram import Histogram, Tally, scratch
from qdqtool.calibration.histograms import merge_histograms
from qdqtool.calibration.samples.opening import Batch, NanPolicy
from qdqtool.calibration.session import (
    Fetcher,
    MemoryShortageError,
    WatchedValues,
    open_collecting,
)
from qdqtool.core.protocols import Feeds
from qdqtool.core.wording import Setting, count_noun
from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_files
from qdqtool.platform import processors
from qdqtool.runtime.device import device_use
from qdqtool.runtime.session import run_giving_back

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqtool.graph.view import GraphView, Model


# --- room ------------------------------------------------------------------------------------------------------------
# Fits samples into the memory of a device: if memory runs out, runs fewer at once, then fetches fewer tensors at once.
#
# Neither changes a result: each sample is run as before, and histograms add up in any order.


class Room:
    """Limits how many samples run at the same time. The limit is halved each time memory runs out."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._running = 0
        self._use = (
            device_use()
        )  # the device of the thread that opens the collection: workers do not have their own
        self._changed = Condition()

    @contextmanager
    def sample(self) -> Iterator[int]:
        """Wait until another sample may run, and run it in this block.

        Yield the limit of parallel samples at the start of the block.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._running < self._allowed)
            self._running += 1
            allowed = self._allowed
        try:
            yield allowed
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def shrink(self, count: int) -> None:
        """Halve the limit of parallel samples, unless another thread has done so already."""
        with self._changed:
            if self._allowed == count:
                self._allowed = max(1, count // 2)
                self.note(
                    f"out of memory with {count_noun(count, 'sample')} at once: using {self._allowed} at once from now on"
                )

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes of the calibration."""
        self._use.shortages.append(f"{self._use.provider.word}: {sentence}")


def fetch_tensors(room: Room, fetcher: Fetcher, feeds: Feeds, where: str) -> dict[str, NDArray[Any]]:
    """Return all tensors of one sample. If memory runs out, run the sample alone, then fetch the tensors in two halves.

    Raises:
        MemoryShortageError: not even a single tensor can be fetched.
        InputFileError: the model cannot run on this sample.
    """
    while True:
        with room.sample() as allowed:
            if allowed == 1:
                return _whole_or_parts(room, fetcher, feeds, where)
            with suppress(MemoryShortageError):
                return dict(fetcher.run(feeds, where))
        room.shrink(allowed)


def _in_parts(room: Room, fetcher: Fetcher, feeds: Feeds, where: str) -> dict[str, NDArray[Any]]:
    """Fetch the tensors of a sample in two halves, while no other sample runs; divide halves that are too large again."""
    halves = fetcher.halves()
    if not halves:
        return dict(fetcher.run(feeds, where))
    room.note("out of memory with all tensors of one sample: half of them are fetched at a time")
    return {
        name: value for half in halves for name, value in _whole_or_parts(room, half, feeds, where).items()
    }


def _whole_or_parts(room: Room, fetcher: Fetcher, feeds: Feeds, where: str) -> dict[str, NDArray[Any]]:
    try:
        return dict(fetcher.run(feeds, where))
    except MemoryShortageError:
        return _in_parts(room, fetcher, feeds, where)


# --- pool ------------------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_ROOMY = 192 << 20
"""Bytes of fetched tensors in all samples that run at once. If fewer samples than processors fit, processors share a sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectOptions:
    """Options for collecting histograms.

    Attributes:
        bins: count magnitudes; False notes minimum and maximum only, which is enough for the calibrator `max`.
        on_nan: action if a tensor holds NaN or Inf: raise an error, or skip these values.
        threads: processors to use; None takes all.
    """

    bins: bool = True
    on_nan: NanPolicy = "error"
    threads: int | None = None


PLAIN: Final = CollectOptions()
"""Default options: count magnitudes, treat NaN as an error, use all processors."""


class CollectorPool:
    """A pool of threads for one model. It is opened once, and used for any number of parts.

    Each processor runs whole samples (onnxruntime with one thread, then counting). This is faster than several
    threads per sample, and lets inference and counting overlap.

    With a `watch`, the model also returns the tensors of the watch.

    Attributes:
        workers: how many samples run at once.
        threads: processors that share one sample.
        digest: digest of everything that determines the fetched values, including weights; None unless it was
            requested.
    """

    def __init__(
        self,
        model: Model,
        tensors: tuple[str, ...],
        options: CollectOptions,
        *,
        identify: bool = False,
        watch: WatchedValues | None = None,
    ) -> None:
        self._options = options
        self._watch = watch
        watched = () if watch is None else watch.tensors.difference(tensors)
        fed = {info.name for info in model.view.inputs}
        self._fed = tuple(name for name in tensors if name in fed)
        # In graph order, so that the first tensor with NaN is named.
        self._fetched = _in_order(model.view, set(tensors) - fed)
        free = options.threads or processors()
        bytes_per_sample = fetched_bytes(model.view, self._fetched)
        self.workers = max(1, min(free, _ROOMY // max(1, bytes_per_sample)))
        self.threads = max(1, free // self.workers)
        self._room = Room(self.workers)
        self._returned = (*self._fetched, *sorted(watched))
        self._probe = _Probe(model, self._returned, staying=not identify) if self._returned else None
        self.digest = (self._probe.digest() if self._probe else "") if identify else None
        self._session: Any = None
        self._lock = Lock()

    def run(self, work: Iterator[Batch], on_done: Callable[[int], None]) -> dict[str, Histogram]:
        """Run all batches and return their merged histograms. `on_done` gets the size of each finished batch.

        Raises:
            InputFileError: the model fails on a sample, or a tensor holds NaN or Inf.
        """
        self._open()
        stopped = Event()  # of this run: the pool runs again after an error
        with ThreadPoolExecutor(self.workers, thread_name_prefix="collect") as pool:
            futures = [pool.submit(self._work, work, on_done, stopped) for _ in range(self.workers)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:
                stopped.set()
                raise
            if any(future.done() and future.exception() for future in futures):
                stopped.set()
        return merge_histograms(future.result() for future in futures)

    def look(self, batch: Feeds) -> None:
        """Run the first two samples as one batch, and keep the watched tensors.

        Do nothing if the model refuses such a batch. The memory of the run is freed.
        """
        assert self._watch is not None
        self._open()
        fetcher = Fetcher(self._session, self._watch.together, run_giving_back())
        try:
            values = fetcher.run(batch, "")
        except InputFileError as error:
            _log.info("the model does not accept a batch of two samples: %s", error.what)
            return
        # an array that the session allocated keeps all of its memory alive
        self._watch.pair = {name: value.copy() for name, value in values}

    def _open(self) -> None:
        """Open the session if tensors must be fetched; as late as possible, so that the caller can free the model before."""
        with self._lock:
            if self._probe is None or self._session is not None:
                return
            self._session = open_collecting(self._probe.file, self.threads, self._probe.home)
            self._probe.remove()

    def _work(
        self, work: Iterator[Batch], on_done: Callable[[int], None], stopped: Event
    ) -> dict[str, Histogram]:
        fetcher = None if self._session is None else Fetcher(self._session, self._returned)
        tallies = {name: Tally() for name in (*self._fed, *self._fetched)}
        lanes = scratch()
        while not stopped.is_set():
            with self._lock:
                batch = next(work, None)
            if batch is None:
                break
            for name in self._fed:
                self._count(name, batch.feeds[name], batch, tallies[name], lanes)
            values = (
                fetch_tensors(self._room, fetcher, batch.feeds, ", ".join(batch.names)) if fetcher else {}
            )
            for name in self._fetched:
                self._count(name, values[name], batch, tallies[name], lanes)
            if self._watch is not None:
                self._watch.keep(batch.feeds, {**batch.feeds, **values})
            with self._lock:
                on_done(len(batch.names))
        return {name: tally.histogram() for name, tally in tallies.items()}

    def _count(
        self, name: str, values: NDArray[Any], batch: Batch, tally: Tally, lanes: NDArray[Any]
    ) -> None:
        if batch.padding and values.ndim:
            values = _without_padding(values, batch)
        before = tally.nonfinite
        if self._options.bins:
            tally.add(values, lanes)
        else:
            tally.add_extremes(values)
        if tally.nonfinite > before and self._options.on_nan == "error":
            raise InputFileError(
                f"tensor {name!r} holds {tally.nonfinite - before} NaN or Inf values",
                fix=f"correct the model or the sample; {Setting('samples.nan', 'skip')} skips such values",
                where=", ".join(batch.names),
            )


class _Probe:
    """Temporary file of a model that returns chosen tensors. Its folder is removed with this object at the latest.

    With `staying`, its weights may stay in their original files.
    """

    def __init__(self, model: Model, tensors: tuple[str, ...], *, staying: bool) -> None:
        from qdqtool.graph.instrumented.probe import probe

        folder = mkdtemp(prefix="qdqtool-")
        self.remove = finalize(self, rmtree, folder, ignore_errors=True)
        probed = probe(model, tensors, Path(folder), staying=staying)
        assert isinstance(probed.source, Path)
        self.file, self.home = probed.source, probed.home

    def digest(self) -> str:
        """Return the digest of the model and of the weights beside it."""
        return digest_files(sorted(self.file.parent.iterdir()))


def _in_order(view: GraphView, tensors: set[str]) -> tuple[str, ...]:
    """Return the tensors in the order in which the graph computes them, constants first."""
    computed = [name for node in view.nodes for name in node.outputs if name in tensors]
    return (*sorted(tensors.difference(computed)), *computed)


def fetched_bytes(view: GraphView, tensors: tuple[str, ...]) -> int:
    """Estimate the bytes of the fetched values of one sample in FP32. Dynamic dimensions count as 1."""
    shapes = (view.info(name).shape or () for name in tensors)
    return sum(4 * prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes)


def _without_padding(values: NDArray[Any], batch: Batch) -> NDArray[Any]:
    """Remove the rows of samples that only fill the batch: copies of the last sample, on the first or second axis.

    Keep all rows if neither axis ends with such copies. Recurrent networks have the samples on the second axis.
    """
    whole = len(batch.names) + batch.padding
    for axis in range(min(2, values.ndim)):
        rows, remainder = divmod(values.shape[axis], whole)
        if remainder or not rows:
            continue
        kept, copies = np.split(values, [rows * len(batch.names)], axis)
        last = np.split(kept, [rows * (len(batch.names) - 1)], axis)[1]
        tiled = np.concatenate([last] * batch.padding, axis)
        if np.allclose(copies, tiled, rtol=1e-4, atol=0, equal_nan=True):
            return kept
    return values
