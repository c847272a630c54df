"""Fits samples into the memory of a device: if memory runs out, runs fewer at once, then fetches fewer tensors at once.

Neither changes a result: each sample is run as before, and histograms add up in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import TYPE_CHECKING, Any

from qdqtool.calibration.fetch import Fetcher, MemoryShortageError
from qdqtool.core.protocols import Feeds
from qdqtool.core.wording import counted
from qdqtool.runtime.device import device_use

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Room:
    """Limit for samples that run at once; it is halved each time memory runs out."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._running = 0
        self._use = (
            device_use()
        )  # of the thread that opens the collection: workers have no device of their own
        self._changed = Condition()

    @contextmanager
    def sample(self) -> Iterator[int]:
        """Wait for a free place and run one sample in this block. Yields the limit at its start."""
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

    def shrink(self, seen: int) -> None:
        """Halve the limit `seen`, unless another thread has changed it already."""
        with self._changed:
            if self._allowed == seen:
                self._allowed = max(1, seen // 2)
                self.note(
                    f"out of memory with {counted(seen, 'sample')} at once: using {self._allowed} at once from now on"
                )

    def note(self, sentence: str) -> None:
        """Add a sentence to the notes of the calibration."""
        self._use.shortages.append(f"{self._use.provider.word}: {sentence}")


def fetched(room: Room, fetcher: Fetcher, feeds: Feeds, where: str) -> dict[str, NDArray[Any]]:
    """Return all tensors of one sample. If memory runs out, run the sample alone, then fetch half of the tensors at a time.

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
    """Fetch each half of the tensors separately; a half that is too large is divided again. The sample runs alone."""
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
