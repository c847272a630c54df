"""Models that other tools quantized become legal for TensorRT, and compute nearly the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import remaining, repair
from tests import models
from tests.placement.qdq import GRAPHS
from tests.shared import shared

SHARED = (
    "mobilenet_v2_imagenet_ort_qdq/model.onnx",
    "kws_dscnn/qdq_int8_tf2onnx.onnx",
    "mlperf_tiny_resnet8/qdq_int8_tf2onnx.onnx",
    "mobilenet_v2_100_imagenet_ptqw/qdq_int8_tf2onnx.onnx",
)
BEYOND_REPAIR = frozenset(
    {
        "int8_blocks",
        "matmul_integer",
        "fp8_times_int8",
        "fp8_weights_not_numbers",
        "half_scale_float_data",
        "resize_refused",
        "scale_integer",
        "scale_wrong_axis_of_one_half",
    }
)
"""INT4, block scales, operators that the parser refuses, and models that contradict themselves: all lint errors of others go."""


def _feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs of any type, symbolic dimensions 2."""
    random = np.random.default_rng(0)
    made = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or 2 for dim in kind.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if dtype.kind == "f":
            made[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            made[value.name] = random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return made


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    a, b = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


class _Reader:
    """Three random samples, as onnxruntime's calibration wants them."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._feeds = iter([models.feeds(proto, seed) for seed in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def _static(**options: Any) -> Callable[[Path, Path, onnx.ModelProto], None]:
    def quantize(source: Path, target: Path, proto: onnx.ModelProto) -> None:
        from onnxruntime.quantization import quantize_static

        quantize_static(str(source), str(target), _Reader(proto), **options)

    return quantize


def _dynamic(source: Path, target: Path, _: onnx.ModelProto) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(source), str(target))


def _forms() -> dict[str, Callable[[Path, Path, onnx.ModelProto], None]]:
    quantization = pytest.importorskip("onnxruntime.quantization")
    kind, form = quantization.QuantType, quantization.QuantFormat
    return {
        "qdq uint8": _static(quant_format=form.QDQ, activation_type=kind.QUInt8, weight_type=kind.QUInt8),
        "qdq int8 per channel": _static(
            quant_format=form.QDQ, activation_type=kind.QInt8, weight_type=kind.QInt8, per_channel=True
        ),
        "operators": _static(
            quant_format=form.QOperator, activation_type=kind.QUInt8, weight_type=kind.QInt8
        ),
        "dynamic": _dynamic,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["conv_chain", "residual_cnn", "concat_cnn", "gemms", "attention"])
@pytest.mark.parametrize("form", ["qdq uint8", "qdq int8 per channel", "operators", "dynamic"])
def test_models_of_onnxruntime_become_legal(name: str, form: str, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    target = tmp_path / "quantized.onnx"
    _forms()[form](models.save(proto, tmp_path), target, proto)
    fixed, changes = repair(load(target))
    assert changes
    for pair in find(fixed):
        assert pair.dtype is DType.INT8
        assert not any(pair.zero_point)
    assert [finding for finding in lint(fixed).findings if finding.severity.value == "error"] == []
    if form != "dynamic":
        assert remaining(fixed) == ()
    feeds = models.feeds(proto)
    before = models.run(onnx.load(target), feeds, optimize=False)
    after = models.run(fixed.proto, feeds, optimize=False)
    for output, value in before.items():
        assert _cosine(value, after[output]) > 0.98


@pytest.mark.parametrize("name", GRAPHS)
def test_repairing_leaves_no_error_for_lint_or_refuses_a_contradiction(name: str, tmp_path: Path) -> None:
    model = load(models.save(GRAPHS[name](), tmp_path))
    try:
        fixed, _ = repair(model)
    except InputFileError as refusal:
        assert "scales" in refusal.what  # noqa: PT017 -- refusing is one of two good ends
        return
    onnx.checker.check_model(fixed.proto)
    errors = [finding for finding in lint(fixed).findings if finding.severity.value == "error"]
    assert bool(errors) is (name in BEYOND_REPAIR)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", SHARED)
def test_real_models_compute_nearly_the_same_after_the_repair(path: str) -> None:
    file = shared(f"models/{path}")
    fixed, changes = repair(load(file))
    assert {change.rule for change in changes} >= {"bias", "zero_point"}
    assert remaining(fixed) == ()
    original = onnx.load(file)
    feeds = _feeds(original)
    after = models.run(fixed.proto, feeds, optimize=False)
    for output, value in models.run(original, feeds, optimize=False).items():
        assert after[output].dtype == value.dtype
        assert _cosine(value, after[output]) > 0.99


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.rtx
@pytest.mark.parametrize("path", SHARED)
def test_real_models_build_with_every_compute_node_in_int8(path: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    fixed, _ = repair(load(shared(f"models/{path}")))
    proto = onnx.ModelProto()
    proto.CopyFrom(fixed.proto)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 1
    built = build(proto)
    assert built.error == ""
    assert {precision for _, precision in built.precision} == {"int8"}


@pytest.mark.rtx
@pytest.mark.parametrize(
    "name",
    [
        "activation_uint8_zero",
        "activation_zero_point",
        "weight_uint8_128",
        "activation_rank_one",
        "activation_per_channel",
        "bias_int32",
        "qlinear_conv",
        "matmul_weight_axis_zero",
        "weight_transposed",
        "concat_other_scales_bare",
        "relu_behind_pair",
        "weight_bare",
        "half_weights_rank_one",
    ],
)
def test_what_tensorrt_refuses_or_runs_in_float_is_int8_after_the_repair(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    fixed, _ = repair(load(models.save(GRAPHS[name](), tmp_path)))
    built = build(fixed.proto)
    assert built.error == ""
    assert {precision for _, precision in built.precision} == {"int8"}
