"""Samples as onnxruntime's calibration wants them; imported in the rivals' own environment only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationDataReader


class Reader(CalibrationDataReader):
    """One sample after the other; a row of an input without dimensions is one value."""

    def __init__(self, model: Path, samples: dict[str, np.ndarray]) -> None:
        count = len(next(iter(samples.values())))
        inputs = onnx.load(model, load_external_data=False).graph.input
        scalars = {entry.name for entry in inputs if not entry.type.tensor_type.shape.dim}
        self._feeds = (
            {
                name: np.asarray(values[i]).reshape(()) if name in scalars else values[i : i + 1]
                for name, values in samples.items()
            }
            for i in range(count)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)
