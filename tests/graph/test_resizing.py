"""A nearest Resize of TensorFlow's form: rewritten exactly where the scale is whole, left alone elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.core.recipe import PrepareOptions
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.placement.lint import lint
from tests.models import save


def network(
    scale: float, *, rounding: str = "floor", height: int = 6, sizes: bool = False
) -> onnx.ModelProto:
    """One Resize of opset 11, which is the last but one that has the name."""
    inputs = ["x", "roi", "none", "size"] if sizes else ["x", "roi", "scale"]
    node = helper.make_node(
        "Resize", inputs, ["y"], name="up", mode="nearest",
        coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode=rounding,
    )  # fmt: skip
    constants = {
        "roi": np.zeros(0, np.float32),
        "none": np.zeros(0, np.float32),
        "size": np.array([1, 1, round(height * scale), 4], np.int64),
        "scale": np.array([1, 1, scale, 1], np.float32),
    }
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, height, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in inputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@pytest.mark.parametrize("sizes", [False, True], ids=["scales", "sizes"])
@pytest.mark.parametrize("height", [1, 5, 6, 33])
@pytest.mark.parametrize("scale", [1, 2, 3, 4, 7])
def test_a_whole_scale_is_rewritten_and_takes_the_same_pixels(
    scale: int, height: int, sizes: bool, tmp_path: Path
) -> None:
    proto = network(scale, height=height, sizes=sizes)
    model = prepare(load(save(proto, tmp_path)), PrepareOptions())
    (node,) = model.view.nodes
    assert node.attribute("coordinate_transformation_mode") == "half_pixel"
    assert not lint(model, Target.parse("rtx")).findings
    x = np.arange(height * 4, dtype=np.float32).reshape(1, 1, height, 4)
    assert np.array_equal(_run(proto, x), _run(model.proto, x))


@pytest.mark.parametrize(("scale", "rounding"), [(1.5, "floor"), (0.5, "floor"), (2, "ceil")])
def test_other_scales_and_roundings_stay_and_lint_says_what_becomes_of_them(
    scale: float, rounding: str, tmp_path: Path
) -> None:
    model = prepare(load(save(network(scale, rounding=rounding), tmp_path)), PrepareOptions())
    (node,) = model.view.nodes
    assert node.attribute("nearest_mode") == rounding
    assert [finding.code for finding in lint(model, Target.parse("rtx")).findings] == ["QDQ160"]


def test_kernels_of_onnxruntime_do_not_warn_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    from qdqtool.runtime.session import RuntimeOptions, open_session

    proto = network(1.5)
    proto.opset_import[0].version = 13
    session = open_session(proto.SerializeToString(), RuntimeOptions())
    session.run(None, {"x": np.zeros((1, 1, 6, 4), np.float32)})
    assert capfd.readouterr().err == ""
