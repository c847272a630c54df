"""A prediction says what it does not hold for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.predict import predict
from tests import models
from tests.placement.qdq import GRAPHS, Quantized


def notes(proto: onnx.ModelProto, folder: Path) -> str:
    return " ".join(predict(load(models.save(proto, folder))).notes)


def with_scales(name: str, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    s = Quantized()
    proto = s.done(s.qconv("c", s.image()))
    for stored in proto.graph.initializer:
        if stored.name == name:
            values = change(onnx.numpy_helper.to_array(stored))
            stored.CopyFrom(onnx.numpy_helper.from_array(values, name))
    return proto


@pytest.mark.parametrize("value", [-0.05, 0.0, np.nan], ids=["negative", "zero", "not a number"])
@pytest.mark.parametrize("name", ["c_x_s", "c_w_s"], ids=["activation", "weight"])
def test_scales_that_the_parser_refuses_are_named(name: str, value: float, tmp_path: Path) -> None:
    proto = with_scales(name, lambda scale: np.full_like(scale, value))
    assert "scales that are not positive numbers" in notes(proto, tmp_path)


@pytest.mark.parametrize("name", ["c_x_s", "c_w_s"], ids=["activation", "weight"])
def test_an_infinite_scale_is_built_and_no_doubt(name: str, tmp_path: Path) -> None:
    assert notes(with_scales(name, lambda scale: np.full_like(scale, np.inf)), tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "count"), [("c_w_s", 5), ("c_x_s", 0)], ids=["too few channels", "none at all"]
)
def test_numbers_of_scales_that_do_not_fit_are_named(name: str, count: int, tmp_path: Path) -> None:
    proto = with_scales(name, lambda scale: np.resize(scale, count).astype(np.float32))
    assert "numbers of scales that do not match the tensor" in notes(proto, tmp_path)


def test_zero_points_are_named(tmp_path: Path) -> None:
    s = Quantized()
    x = s.pair(s.image(), "x", dtype=np.uint8, zero=3)
    proto = s.done(s.raw_conv("c", x, s.weights("c", 16, 16, 3, 3)))
    assert "zero points other than 0" in notes(proto, tmp_path)


def test_a_sound_model_leaves_no_doubt(tmp_path: Path) -> None:
    assert notes(GRAPHS["chain_ok"](), tmp_path) == ""
