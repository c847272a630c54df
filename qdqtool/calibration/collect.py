"""One pass over the samples gives a histogram of every tensor that is to be quantized.

Where the time goes, and what is done about it: only tensors that placement asks for are fetched, graph
optimizations stay on, outputs land in memory that is used again, and a compiled loop counts them while they are
still in the cache. Each processor runs whole samples by itself (onnxruntime with one thread, then counting), which
wastes less than several threads on one sample and lets inference and counting overlap. Histograms merge exactly, so
neither the number of threads nor the order matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from calibrators.histogram import Histogram, Tally, scratch
from qdqtool.calibration.fetch import Fetcher
from qdqtool.calibration.histograms import Histograms, merged
from qdqtool.calibration.samples.batches import Batch, batches
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.samples.opening import Samples
from qdqtool.calibration.samples.spec import NanPolicy
from qdqtool.calibration.session import open_session, processors
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import SampleSource
from qdqtool.errors import InputFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qdqtool.graph.model import Model
    from qdqtool.graph.view import GraphView

OnProgress = Callable[[int, "int | None"], None]
_ROOMY = 128 << 20
"""Bytes of fetched tensors per sample up to which every processor works on a sample of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collecting:
    """How a collection is done.

    Attributes:
        bins: count magnitudes; False notes minimum and maximum only, which is enough for the calibrator `max`.
        on_nan: what happens when a tensor holds NaN or Inf: an error, or those values are left out.
        threads: processors to use; None takes all.
    """

    bins: bool = True
    on_nan: NanPolicy = "error"
    threads: int | None = None


def collect(
    model: Model,
    placement: Placement,
    samples: SampleSource,
    *,
    batch: int = 1,
    on_progress: OnProgress | None = None,
    how: Collecting = Collecting(),
) -> Histograms:
    """Run all samples and count the magnitudes of every activation that `placement` wants quantized.

    Args:
        model: the float model.
        placement: which tensors are needed.
        samples: model inputs.
        batch: samples per run where the model's batch dimension is free; a fixed one rules.
        on_progress: told how many samples are done, and of how many.
        how: bins or extremes, NaN policy, processors.

    Raises:
        InputFileError: a sample does not fit, or a tensor holds NaN or Inf; names tensor and sample.
    """
    tensors = activations(placement)
    crew = Crew(model, tensors, how)
    fixed = fixed_batch(model.view.inputs)
    rows = samples.rows(range(len(samples))) if isinstance(samples, Samples) else iter(samples)
    work = batches(rows, fixed or batch, fill=fixed is not None)
    tensors_seen, count = crew.run(work, len(samples), on_progress)
    notes = crew.notes()
    return Histograms(
        tensors=tensors_seen,
        samples=count,
        meaningful=samples.meaningful,
        source=samples.description,
        notes=notes,
    )


def activations(placement: Placement) -> tuple[str, ...]:
    """The tensors that need a range: every quantized activation, and whatever is tied to one; sorted."""
    wanted = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    tied = {name for tie in placement.ties if wanted & set(tie.tensors) for name in tie.tensors}
    return tuple(sorted(wanted | tied))


class Crew:
    """Threads that each run samples and count; their counts are added up at the end."""

    def __init__(self, model: Model, tensors: tuple[str, ...], how: Collecting) -> None:
        from qdqtool.graph.probe import probe

        self._how = how
        fed = {info.name for info in model.view.inputs}
        self._fed = tuple(name for name in tensors if name in fed)
        self._fetched = tuple(name for name in tensors if name not in fed)
        processors_free = how.threads or processors()
        self._workers = processors_free if fetched_bytes(model.view, self._fetched) <= _ROOMY else 1
        with TemporaryDirectory(prefix="qdqtool-") as folder:
            source = probe(model, self._fetched, Path(folder)).source if self._fetched else None
            threads = max(1, processors_free // self._workers)
            self._session = None if source is None else open_session(source, threads)
        self._lock = Lock()
        self._stopped = False
        self._nonfinite: dict[str, tuple[str, int]] = {}

    def run(
        self, work: Iterator[Batch], total: int, on_progress: OnProgress | None
    ) -> tuple[dict[str, Histogram], int]:
        """All batches; the histograms and the number of samples in them."""
        done = 0

        def finished(batch: Batch) -> None:
            nonlocal done
            done += len(batch.names)
            if on_progress is not None:
                on_progress(done, total)

        with ThreadPoolExecutor(self._workers, thread_name_prefix="collect") as pool:
            hands = [pool.submit(self._work, work, finished) for _ in range(self._workers)]
            try:
                wait(hands, return_when=FIRST_EXCEPTION)
            finally:
                self._stopped = True
        return merged(hand.result() for hand in hands), done

    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        return tuple(
            f"{tensor}: {count} NaN or Inf values left out, first in {sample}"
            for tensor, (sample, count) in sorted(self._nonfinite.items())
        )

    def _work(self, work: Iterator[Batch], finished: Callable[[Batch], None]) -> dict[str, Histogram]:
        fetcher = None if self._session is None else Fetcher(self._session, self._fetched)
        tallies = {name: Tally() for name in (*self._fed, *self._fetched)}
        lanes = scratch()
        while not self._stopped:
            with self._lock:
                batch = next(work, None)
            if batch is None:
                break
            for name in self._fed:
                self._count(name, batch.feeds[name], batch, tallies[name], lanes)
            for name, values in fetcher.run(batch.feeds, ", ".join(batch.names)) if fetcher else ():
                self._count(name, values, batch, tallies[name], lanes)
            with self._lock:
                finished(batch)
        return {name: tally.histogram() for name, tally in tallies.items()}

    def _count(
        self, name: str, values: NDArray[Any], batch: Batch, tally: Tally, lanes: NDArray[Any]
    ) -> None:
        if batch.padding and values.ndim:
            whole = len(batch.names) + batch.padding
            if values.shape[0] % whole == 0:
                values = values[: values.shape[0] // whole * len(batch.names)]
        before = tally.nonfinite
        if self._how.bins:
            tally.add(values, lanes)
        else:
            tally.add_extremes(values)
        if tally.nonfinite > before:
            self._complain(name, tally.nonfinite - before, batch)

    def _complain(self, name: str, count: int, batch: Batch) -> None:
        where = ", ".join(batch.names)
        if self._how.on_nan == "error":
            raise InputFileError(
                f"tensor {name!r} holds {count} NaN or Inf values",
                fix="repair the model or leave the sample out; --nan skip leaves out such values",
                where=where,
            )
        with self._lock:
            first, total = self._nonfinite.get(name, (where, 0))
            self._nonfinite[name] = (first, total + count)


def fetched_bytes(view: GraphView, tensors: tuple[str, ...]) -> int:
    """Estimated size of the fetched values of one sample in FP32; free dimensions count as 1."""
    shapes = (view.info(name).shape or () for name in tensors)
    return sum(4 * prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes)
