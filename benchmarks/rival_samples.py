"""Samples as onnxruntime's calibration wants them; imported in the rivals' own environment only."""

from __future__ import annotations

import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataReader


class Reader(CalibrationDataReader):
    """One sample after the other."""

    def __init__(self, samples: dict[str, np.ndarray]) -> None:
        count = len(next(iter(samples.values())))
        self._feeds = ({name: values[i : i + 1] for name, values in samples.items()} for i in range(count))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)
