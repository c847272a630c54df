"""Collects a histogram of every tensor to quantize, in one pass over the samples.

Only tensors that placement asks for are fetched, graph optimizations stay on, and a compiled loop counts magnitudes.
Samples run one by one, and histograms merge exactly. So the number of threads, the order and interruptions do not
change a single bit of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.calibration.histograms import (
    Histograms,
    Span,
    load_histograms,
    merge_histograms,
    save_histograms,
)
from qdqtool.calibration.pool import PLAIN, CollectOptions, CollectorPool
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.samples.opening import Batch, Samples, batches
from qdqtool.calibration.session import WatchedValues, two_as_one
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.errors import InputFileError
from qdqtool.io.json_files import digest_of
from qdqtool.runtime.device import current

if TYPE_CHECKING:
    from qdqtool.graph.view import Model

OnProgress = Callable[[int, "int | None"], None]
_SECONDS_PER_PART = 10.0
"""Seconds of work that may be lost when the process is killed."""
_FIRST_PART = 16
"""Number of batches in the first part, before the speed is known."""


def collect(
    model: Model,
    placement: Placement,
    samples: SampleSource,
    *,
    options: CollectOptions = PLAIN,
    on_progress: OnProgress | None = None,
) -> Histograms:
    """Run all samples and count the magnitudes of every activation that `placement` quantizes.

    Args:
        model: the float model.
        placement: which tensors are needed.
        samples: model inputs.
        options: bins or extremes, NaN policy, processors.
        on_progress: called with the number of finished samples and their total.

    Raises:
        InputFileError: a sample does not fit, or a tensor holds NaN or Inf; names tensor and sample.
    """
    collection = Collection(model, placement, samples, options=options)
    return collection.run(Span(total=len(samples)), on_progress=on_progress)


def activations(placement: Placement) -> tuple[str, ...]:
    """Return the tensors that need a range, sorted: quantized activations, and tensors that share a scale with them."""
    quantized = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    tied = {name for tie in placement.ties if quantized & set(tie.tensors) for name in tie.tensors}
    return tuple(sorted(quantized | tied))


class Collection:
    """Collects histograms for one model and one set of samples. Parts from several machines can be added.

    `resumable` says that parts will be kept, which needs digests of the model and of all samples. A `watch` keeps
    values of samples that run in one pass; the model must return them.
    """

    def __init__(
        self,
        model: Model,
        placement: Placement,
        samples: SampleSource,
        *,
        options: CollectOptions = PLAIN,
        resumable: bool = False,
        watch: WatchedValues | None = None,
    ) -> None:
        assert watch is None or not resumable
        self._watch = watch
        self._samples = samples
        self._tensors = activations(placement)
        # Only our own sample sources give single rows; other sources already give whole inputs.
        self._fixed = fixed_batch(model.view.inputs) if isinstance(samples, Samples) else 1
        self._options = options
        self._pool = CollectorPool(model, self._tensors, options, identify=resumable, watch=watch)
        # One sample at a time, unless the model has a larger fixed batch: kernels round differently for other sizes.
        self._batch = self._fixed or 1

    def identity(self) -> dict[str, str]:
        """Return digests of the model, the samples and the options, and the name of the device.

        Histograms can be added only if all of these are equal.

        This reads all samples, and needs `resumable`.
        """
        assert self._pool.digest is not None
        return {
            "model": self._pool.digest,
            "samples": self._samples.digest,
            "collected": digest_of([self._tensors, self._options.bins, self._options.on_nan]),
            "device": current().name,
        }

    def run(self, span: Span, *, on_progress: OnProgress | None = None) -> Histograms:
        """Collect the histograms of a part of the samples, without saving intermediate results.

        The batch of two samples runs first: it allocates the memory for all fetched tensors, which every processor
        will use.
        """
        if self._watch is not None and self._watch.together:
            pair = two_as_one(self._rows(self._watch.numbers[:2]))
            if pair is not None:
                self._pool.look(pair)
        return self._extend_histograms(self._nothing(span), span.left, on_progress)

    def resume(self, span: Span, path: Path, *, on_progress: OnProgress | None = None) -> Histograms:
        """Collect the histograms of a part of the samples. Every few seconds, save the progress in `path`; resume from it.

        Raises:
            InputFileError: `path` has other content, which this call would destroy.
        """
        identity = self.identity()
        kept = self._saved_histograms(path, identity, span)
        histograms = kept or replace(self._nothing(span), identity=identity)
        if kept is None and histograms.span.is_complete:
            save_histograms(path, histograms)  # an empty shard is also a result
        size = _FIRST_PART * self._batch
        while not histograms.span.is_complete:
            began = time.monotonic()
            histograms = self._extend_histograms(histograms, histograms.span.left[:size], on_progress)
            save_histograms(path, histograms)
            seconds = time.monotonic() - began
            pace = min(8.0, _SECONDS_PER_PART / max(seconds, 1e-3))
            size = max(1, round(size * pace / self._batch)) * self._batch
        return histograms

    def _extend_histograms(
        self, histograms: Histograms, positions: range, on_progress: OnProgress | None
    ) -> Histograms:
        before, total = histograms.span.done, 0

        def on_done(count: int) -> None:
            nonlocal total
            total += count
            if on_progress is not None:
                on_progress(before + total, len(histograms.span.positions))

        fresh = self._pool.run(self._work(positions), on_done)
        return replace(
            histograms,
            tensors=merge_histograms((histograms.tensors, fresh)),
            samples=histograms.samples + total,
            span=replace(histograms.span, done=before + len(positions)),
        )

    def _work(self, positions: range) -> Iterator[Batch]:
        rows = self._rows(positions)
        if self._watch is not None:
            rows = self._watch.noted(positions, rows)
        return batches(rows, self._batch, fill=self._fixed is not None)

    def _rows(self, positions: Sequence[int]) -> Iterator[Sample]:
        if isinstance(self._samples, Samples):
            return self._samples.rows(positions)
        numbers = set(positions)
        return (sample for number, sample in enumerate(self._samples) if number in numbers)

    def _nothing(self, span: Span) -> Histograms:
        return Histograms(
            tensors={},
            samples=0,
            meaningful=self._samples.meaningful,
            source=self._samples.description,
            span=replace(span, done=0),
        )

    def _saved_histograms(self, path: Path, identity: dict[str, str], span: Span) -> Histograms | None:
        """Load the histograms that an earlier run saved at `path`.

        Return None if there is no file, or if it is for another model, other samples or another number of shards.

        Raises:
            InputFileError: the file has other content, or another shard of these samples.
        """
        if not path.exists():
            return None
        try:
            saved = load_histograms(path)
        except InputFileError as error:
            raise InputFileError(
                f"refusing to overwrite: {error.what}",
                fix="choose another file for the histograms",
                where=str(path),
            ) from error
        is_same_span = replace(saved.span, done=0) == replace(span, done=0)
        if saved.identity == identity and saved.span.shards == span.shards and saved.span.shard != span.shard:
            raise InputFileError(
                f"refusing to overwrite: the file holds shard {saved.span.shard + 1}/{saved.span.shards}",
                fix="choose another file for each shard",
                where=str(path),
            )
        return saved if saved.identity == identity and is_same_span else None
