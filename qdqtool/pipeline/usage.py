"""Measures wall-clock seconds and peak memory of a step in this process."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from qdqtool.platform import resident_mib


class UsageMeter:
    """A context that measures how long it took and how large the process grew.

    Peak memory is sampled every 20 ms from the operating system.
    """

    def __init__(self) -> None:
        self._peak = 0.0
        self._done = threading.Event()
        self._start = 0.0
        self._seconds = 0.0
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> UsageMeter:
        self._start = time.perf_counter()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._start
        self._done.set()
        self._watcher.join()

    @property
    def measured(self) -> dict[str, float]:
        """Return `seconds` and `peak_mib`."""
        return {"seconds": round(self._seconds, 3), "peak_mib": round(self._peak, 1)}

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, resident_mib())
            if self._done.wait(0.02):
                return
