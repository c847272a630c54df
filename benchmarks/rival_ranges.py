"""Quantizes a model with another tool and one of its calibrators; runs inside the rivals' own environment.

    python rival_ranges.py onnxruntime|modelopt CALIBRATOR MODEL SAMPLES.npz OUT OPERATORS

Each rival is asked for what TensorRT can read: symmetric INT8, per-channel weights, float biases. OPERATORS is a list
with commas of what onnxruntime may quantize; modelopt decides that by its own rules. Imports nothing of qdqtool.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def onnxruntime(
    calibrator: str, model: Path, samples: dict[str, np.ndarray], out: Path, operators: list[str]
) -> None:
    """Static quantization as its documentation asks for TensorRT: symmetric, dedicated pairs, float biases."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    from rival_samples import Reader

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(out),
        Reader(samples),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=operators,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=methods[calibrator],
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "DedicatedQDQPair": True,
        },
    )


def modelopt(
    calibrator: str, model: Path, samples: dict[str, np.ndarray], out: Path, _operators: list[str]
) -> None:
    """The ONNX path of nvidia-modelopt with its own placement."""
    from modelopt.onnx.quantization import quantize

    quantize(
        str(model),
        quantize_mode="int8",
        calibration_data=samples,
        calibration_method=calibrator,
        calibration_eps=["cpu"],
        output_path=str(out),
        high_precision_dtype="fp32",
        log_level="ERROR",
    )


def modern(model: Path, out: Path) -> Path:
    """The model in opset 17, which both rivals need for scales per channel; itself where it is new enough."""
    import onnx
    from onnx import version_converter

    proto = onnx.load(model)
    if proto.opset_import[0].version >= 13 and proto.ir_version >= 4:
        return model
    proto.ir_version = 8
    path = out.with_suffix(".modern.onnx")
    onnx.save(version_converter.convert_version(proto, 17), path)
    return path


if __name__ == "__main__":
    tool, method, source, data, target, types = sys.argv[1:]
    with np.load(data, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    {"modelopt": modelopt, "onnxruntime": onnxruntime}[tool](
        method, modern(Path(source), Path(target)), arrays, Path(target), types.split(",")
    )
