"""What FP16 and BF16 destroy besides integers: logarithms of small values, and squares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.typed.emulate import emulate_types
from tests import models
from tests.graph.placing import opened
from tests.placement import graphs


def _both(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], types: str, folder: Path
) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """The first output before and after conversion, and the nodes that stayed FP32."""
    result, found = convert(opened(proto, folder), InsertOptions.model_validate({"types": types}))
    rounded = emulate_types(result.proto.SerializeToString())
    runnable = result.proto if rounded is None else rounded[0].proto
    (name, before), *_ = models.run(proto, feeds, optimize=False).items()
    after = models.run(runnable, feeds, optimize=False)[name]
    return before, after, {node.node for node in found.kept}


def _log_of_probabilities() -> onnx.ModelProto:
    s = models.Sketch()
    p = s.node("Softmax", [s.input("x", [1, 4])], "p", name="softmax")
    s.output(s.node("Log", [p], "y", name="log"), [1, 4])
    return s.model()


def test_the_logarithm_of_a_small_probability_is_finite(tmp_path: Path) -> None:
    feeds = {"x": np.array([[30, 0, 12, 11]], np.float32)}
    before, after, kept = _both(_log_of_probabilities(), feeds, "fp16", tmp_path)
    assert kept == {"softmax", "log"}
    np.testing.assert_allclose(after, before, rtol=2e-3)
    assert not _both(_log_of_probabilities(), feeds, "bf16", tmp_path)[2], "BF16 reaches as far as FP32"


@pytest.mark.parametrize("types", ["fp16", "bf16"])
def test_what_is_left_of_a_probability_keeps_its_digits(types: str, tmp_path: Path) -> None:
    s = models.Sketch()
    p = s.node("Sigmoid", [s.input("x", [1, 4])], "p", name="sigmoid")
    rest = s.node("Sub", [s.constant("one", np.float32(1)), p], "rest", name="sub")
    s.output(s.node("Log", [rest], "y", name="log"), [1, 4])
    feeds = {"x": np.array([[0.3, 5, 7.5, 9.25]], np.float32)}
    before, after, kept = _both(s.model(), feeds, types, tmp_path)
    assert kept == {"sigmoid", "sub", "log"}
    np.testing.assert_allclose(after, before, rtol=2e-2)


def test_squares_written_as_products_stay_fp32_until_their_root(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 8])
    mean = s.node("ReduceMean", [s.node("Mul", [x, x], "square")], "mean", axes=[-1])
    root = s.node("Sqrt", [s.node("Add", [mean, s.constant("eps", np.float32(1e-6))], "safe")], "root")
    s.output(s.node("Div", [x, root], "y"), [1, 8])
    feeds = {"x": np.array([[900.0, -900, 400, 3, 0, 1, -5, 8]], np.float32)}
    before, after, kept = _both(s.model(), feeds, "fp16", tmp_path)
    assert kept == {"square", "mean", "safe", "root"}
    np.testing.assert_allclose(after, before, atol=2e-3)


def test_a_square_without_a_root_is_as_narrow_as_any_product(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 8])
    s.output(s.node("Add", [s.node("Mul", [x, x], "square"), x], "y"), [1, 8])
    assert not _both(s.model(), models.feeds(s.model()), "fp16", tmp_path)[2]


@pytest.mark.parametrize("types", ["fp16", "bf16"])
def test_a_spectrogram_stays_fp32_with_the_tables_that_it_reads(types: str, tmp_path: Path) -> None:
    proto = graphs.spectrogram()
    feeds = models.feeds(proto)
    feeds["x"] *= np.float32(1e-3)
    before, after, kept = _both(proto, feeds, types, tmp_path)
    assert {"Cos_table", "Cos_mm", "Cos_square", "power", "mel_mm", "floored", "log"} <= kept
    assert not {"bands", "conv1", "relu1"} & kept
    np.testing.assert_allclose(after, before, atol=2e-2)
