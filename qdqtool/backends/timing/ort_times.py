"""Times an ONNX model on a device of onnxruntime: wall-clock time of one call, including transfers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.runtime.device import provider_of
from qdqtool.runtime.runner import OrtRunner, open_runner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OrtClock:
    """Clock of one model on one device."""

    def __init__(self, model: Path, device: str, feeds: Mapping[str, NDArray[Any]]) -> None:
        self._runner: OrtRunner = open_runner(
            model, description=model.name, provider=provider_of(device), faithful=False
        )
        self._feeds = feeds
        self.name = f"{model.name} on {device}"
        self.measures = "wall-clock time of one onnxruntime call, transfers included"

    def warm_up(self, milliseconds: float) -> None:
        """Run the model for at least this long, and at least once."""
        end = time.perf_counter() + milliseconds / 1000
        self._runner.run(self._feeds)
        while time.perf_counter() < end:
            self._runner.run(self._feeds)

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Measure the milliseconds of each call."""
        times = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            self._runner.run(self._feeds)
            times.append((time.perf_counter_ns() - start) / 1e6)
        return tuple(times)
