"""The embedded example is small, honest (no sample on both sides) and has something for every placement rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(DIGITS / "digits.onnx")


def _images(name: str) -> np.ndarray:
    with np.load(DIGITS / name, allow_pickle=False) as archive:
        return archive["image"]


def test_model_and_samples_stay_under_one_megabyte() -> None:
    assert sum(path.stat().st_size for path in DIGITS.iterdir() if path.is_file()) < 1_000_000


@pytest.mark.parametrize("name", ["calibration.npz", "evaluation.npz"], ids=["calibration", "evaluation"])
def test_samples_fit_the_only_input_of_the_model(model: onnx.ModelProto, name: str) -> None:
    (entry,) = model.graph.input
    dims = [dim.dim_value or dim.dim_param for dim in entry.type.tensor_type.shape.dim]
    images = _images(name)
    assert entry.name == "image"
    assert dims == ["batch", *images.shape[1:]]
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0.0, 1.0)


def test_no_image_is_in_both_calibration_and_evaluation() -> None:
    calibration = {image.tobytes() for image in _images("calibration.npz")}
    evaluation = {image.tobytes() for image in _images("evaluation.npz")}
    assert len(evaluation) >= 500
    assert not calibration & evaluation


def test_float_model_reads_at_least_98_of_100_digits() -> None:
    session = onnxruntime.InferenceSession(DIGITS / "digits.onnx", providers=["CPUExecutionProvider"])
    labels = np.load(DIGITS / "labels.npy", allow_pickle=False)
    (logits,) = session.run(["logits"], {"image": _images("evaluation.npz")})
    assert labels.dtype == np.int64
    assert np.mean(logits.argmax(axis=1) == labels) >= 0.98


def test_model_has_work_for_folding_and_for_every_placement_rule(model: onnx.ModelProto) -> None:
    ops = Counter(node.op_type for node in model.graph.node)
    groups = {
        attribute.i
        for node in model.graph.node
        if node.op_type == "Conv"
        for attribute in node.attribute
        if attribute.name == "group"
    }
    wanted = {
        "Conv",
        "BatchNormalization",
        "Relu",
        "Clip",
        "Add",
        "Concat",
        "MaxPool",
        "GlobalAveragePool",
        "Gemm",
    }
    assert wanted <= set(ops)
    assert groups == {1, 32}
    assert model.opset_import[0].version == 17


def test_node_names_are_unique_and_say_where_the_node_is(model: onnx.ModelProto) -> None:
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))
    assert {"stem/conv/Conv", "refine/Add", "separable/depthwise/conv/Conv", "classify/Gemm"} <= set(names)
