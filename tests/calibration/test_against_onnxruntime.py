"""Our extremes are those of onnxruntime's own calibrator on every tensor both look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from tests import models
from tests.calibration.material import images, opened, placed

calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
SHAPES = {models.residual_cnn: (3, 16, 16), models.depthwise_cnn: (3, 16, 16), models.attention: (16, 32)}


@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
def test_minimum_and_maximum_are_those_of_onnxruntime(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    model = opened(build(), tmp_path)
    data = images(tmp_path, 6, SHAPES[build])
    rows = iter(np.load(data)["x"])

    class Reader(calibrate.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> dict[str, np.ndarray] | None:
            row = next(rows, None)
            return None if row is None else {"x": row[None]}

    calibrator = calibrate.create_calibrator(
        str(tmp_path / "model.onnx"),
        op_types_to_calibrate=["Conv", "Gemm", "MatMul"],
        augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=calibrate.CalibrationMethod.MinMax,
    )
    calibrator.collect_data(Reader())
    theirs = calibrator.compute_data().data
    ours = collect(model, placed(model), open_samples(str(data), model.view.inputs)).tensors
    common = sorted(ours.keys() & theirs.keys())
    assert len(common) >= 3
    for name in common:
        low, high = (np.asarray(value).item() for value in theirs[name].range_value)
        # Theirs runs without graph optimizations, so sums are rounded in another order.
        assert (ours[name].low, ours[name].high) == pytest.approx((low, high), rel=1e-5, abs=1e-5), name
