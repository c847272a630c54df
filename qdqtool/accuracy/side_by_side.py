"""Runs two models over samples, several samples at a time, and hands the results on in the order of the samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from qdqtool.accuracy.pairing import feeds_for
from qdqtool.core.protocols import Runner, Sample

Outputs = Mapping[str, NDArray[Any]]
Both = tuple[Outputs, Outputs]
"""What reference and candidate gave for one sample."""


def abreast(
    reference: Runner, candidate: Runner, samples: Iterable[Sample]
) -> Iterator[tuple[Sample, Outputs, Outputs]]:
    """Every sample with the outputs of both; as many at a time as both runners allow, and one more is read ahead.

    Raises:
        InputFileError: a sample lacks an input, or a model fails on it; the first one in order is reported.
    """
    most = min(reference.at_once, candidate.at_once)
    if most == 1:
        for sample in samples:
            yield sample, *_run(reference, candidate, sample)
        return
    pool = ThreadPoolExecutor(most)
    pending: deque[tuple[Sample, Future[Both]]] = deque()
    try:
        for sample in samples:
            pending.append((sample, pool.submit(_run, reference, candidate, sample)))
            if len(pending) > most:
                yield _finished(*pending.popleft())
        while pending:
            yield _finished(*pending.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _run(reference: Runner, candidate: Runner, sample: Sample) -> Both:
    return (
        reference.run(feeds_for(reference, sample)),
        candidate.run(feeds_for(candidate, sample)),
    )


def _finished(sample: Sample, future: Future[Both]) -> tuple[Sample, Outputs, Outputs]:
    return sample, *future.result()
