"""Estimated times: what they are made of, and that the stated error is what recorded engines show."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.core.engine import Role
from qdqtool.core.explore import EngineView
from qdqtool.core.tensors import DType
from qdqtool.engine.layer_info import read
from qdqtool.engine.roofline import RATIO_ERROR, ROOF, SPREAD, device_of_metadata, estimate, find_device
from qdqtool.engine.view import view
from tests.shared import ROOT, shared

A10 = find_device("NVIDIA A10")


def engine(tmp_path: Path) -> EngineView:
    """An engine of one INT8 convolution: 64 channels, 56 x 56, kernel 3."""
    form = {"Format/Datatype": "Channel major FP32 format", "Dimensions": [1, 64, 56, 56]}
    layer = {
        "Name": "conv",
        "LayerType": "CaskConvolution",
        "Inputs": [{"Name": "x", **form}],
        "Outputs": [{"Name": "y", **form}],
        "ParameterType": "Convolution",
        "Kernel": [3, 3],
        "Stride": [1, 1],
        "Groups": 1,
        "OutMaps": 64,
        "Weights": {"Type": "Float", "Count": 36864},
    }
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"Layers": [layer], "Bindings": ["x", "y"]}), "utf-8")
    return view(read(path))


def test_an_engine_without_kernels_takes_no_time(tmp_path: Path) -> None:
    assert estimate(replace(engine(tmp_path), layers=()), A10).ms == 0


def test_a_kernel_of_unknown_size_takes_its_start_only_and_is_counted(tmp_path: Path) -> None:
    known = engine(tmp_path)
    blind = replace(known, layers=(replace(known.layers[0], bytes=None),))
    found = estimate(blind, A10)
    assert (found.ms, found.blind) == (ROOF.start_ms, 1)


def test_more_bytes_never_take_less_time(tmp_path: Path) -> None:
    known = engine(tmp_path)
    times = [
        estimate(replace(known, layers=(replace(known.layers[0], bytes=size),)), A10).ms
        for size in (0, 10**6, 10**8)
    ]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(ROOF.start_ms + 100 / (A10.bandwidth_gbs * ROOF.bandwidth), rel=0.01)


def test_int8_arithmetic_is_faster_than_float(tmp_path: Path) -> None:
    layer = replace(engine(tmp_path).layers[0], role=Role.COMPUTE, bytes=1, macs=10**10)
    times = {
        dtype: estimate(
            replace(engine(tmp_path), layers=(replace(layer, precision=dtype),)), find_device("L40S")
        ).ms
        for dtype in (DType.INT8, DType.FLOAT16, DType.FLOAT32)
    }
    assert times[DType.INT8] < times[DType.FLOAT16] < times[DType.FLOAT32]


def test_figures_with_their_units_describe_a_device_too(tmp_path: Path) -> None:
    fields = {
        "Selected Device": "NVIDIA GeForce RTX 3060 Laptop GPU",
        "Compute Capability": "8.6",
        "SMs": "30",
        "Memory Bus Width": "192 bits (ECC disabled)",
        "Application Compute Clock Rate": "1.425 GHz",
        "Application Memory Clock Rate": "7.001 GHz",
    }
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"device_information": fields}), "utf-8")
    device = device_of_metadata(path)
    assert device.bandwidth_gbs == pytest.approx(336, rel=0.001)
    assert device.sms == 30


@pytest.mark.shared
def test_the_stated_error_is_what_recorded_engines_show() -> None:
    corpus = shared("corpus")
    command = [sys.executable, str(ROOT / "benchmarks" / "roofline.py"), "--corpus", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["pairs"] >= 8
    assert found["best_fit"] == str(ROOF)
    assert found["builds_right"] == found["builds_ranked"] >= 7
    assert 0 <= RATIO_ERROR[0] - found["ratio_error_median"] < 0.01
    assert 0 <= RATIO_ERROR[1] - found["ratio_error_largest"] < 0.01
    low, high = found["left_out"]
    assert SPREAD[0] <= low <= SPREAD[0] + 0.05
    assert SPREAD[1] - 0.05 <= high <= SPREAD[1]
