"""Quantizes a model with another tool; runs inside the rivals' own environment, so it imports nothing of ours.

    python rivals.py modelopt|onnxruntime MODEL SAMPLES.npz OUT TYPES

Each rival is asked for what TensorRT can read: symmetric INT8, per-channel weights, float biases, pairs of its own for
every consumer; ranges are the largest magnitudes, as ours are in this comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def modelopt(model: Path, samples: dict[str, np.ndarray], out: Path, types: str) -> None:
    from modelopt.onnx.quantization import quantize

    quantize(
        str(model),
        quantize_mode="int8",
        calibration_data=samples,
        calibration_method="max",
        calibration_eps=["cpu"],
        output_path=str(out),
        high_precision_dtype=types,
        log_level="ERROR",
    )


def onnxruntime(model: Path, samples: dict[str, np.ndarray], out: Path, types: str) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from rival_samples import Reader

    if types != "fp32":
        raise SystemExit("onnxruntime quantizes FP32 models only")

    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(out),
        Reader(samples),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "DedicatedQDQPair": True,
        },
    )


if __name__ == "__main__":
    tool, source, data, target, kind = sys.argv[1:]
    with np.load(data, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    {"modelopt": modelopt, "onnxruntime": onnxruntime}[tool](Path(source), arrays, Path(target), kind)
