"""onnxruntime computes what the Q/DQ nodes say, and its errors are sentences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.runtime import runner as ort
from qdqtool.runtime.runner import open_model, open_runner
from qdqtool.runtime.session import RuntimeOptions, session_options
from tests.backends import graphs
from tests.models import Sketch, save

Array = np.ndarray


def quantize_dequantize(x: Array, scale: float) -> Array:
    return np.clip(np.rint(x / np.float32(scale)), -128, 127).astype(np.float32) * np.float32(scale)


def convolve(x: Array, weight: Array) -> Array:
    """A plain 3x3 convolution without padding, in double precision."""
    out = np.zeros((x.shape[0], weight.shape[0], x.shape[2] - 2, x.shape[3] - 2))
    for row in range(3):
        for column in range(3):
            patch = x[:, :, row : row + out.shape[2], column : column + out.shape[3]].astype(np.float64)
            out += np.einsum("nchw,oc->nohw", patch, weight[:, :, row, column].astype(np.float64))
    return out


def test_what_the_model_wants_and_gives_is_known() -> None:
    runner = open_runner(graphs.conv_relu("N").SerializeToString(), description="float")
    assert runner.description == "float"
    assert runner.inputs == (TensorInfo(name="x", dtype=DType.FLOAT32, shape=("N", 3, 8, 8)),)
    assert runner.outputs == ("y",)


def test_a_model_in_a_file_and_in_memory_compute_the_same(tmp_path: Path) -> None:
    model = graphs.conv_relu()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)}
    from_file = open_runner(save(model, tmp_path), description="").run(feeds)["y"]
    from_memory = open_runner(model.SerializeToString(), description="").run(feeds)["y"]
    assert np.array_equal(from_file, from_memory)


def test_a_quantized_conv_computes_what_its_nodes_say() -> None:
    model = graphs.quantized_conv(scale=0.02)
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
    x = np.random.default_rng(1).standard_normal((1, 4, 8, 8), np.float32)
    expected = convolve(quantize_dequantize(x, 0.02), quantize_dequantize(weight, 0.01))
    computed = open_runner(model.SerializeToString(), description="").run({"x": x})["y"]
    assert np.allclose(computed, expected, atol=1e-5)


def test_a_pair_after_the_conv_rounds_the_float_result() -> None:
    """Where onnxruntime fused DQ -> Conv -> Q into an integer kernel, its rounding would be another one."""
    model = graphs.quantized_conv(scale=0.02)
    model.graph.node[-1].output[0] = "conv_y"
    for op, inputs, output in (("QuantizeLinear", "conv_y", "y_q"), ("DequantizeLinear", "y_q", "y")):
        model.graph.node.append(
            onnx.helper.make_node(op, [inputs, "x_scale", "x_zero"], [output], name=output)
        )
    x = np.random.default_rng(2).standard_normal((1, 4, 8, 8), np.float32)
    weight = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
    exact = convolve(quantize_dequantize(x, 0.02), quantize_dequantize(weight, 0.01))
    computed = open_runner(model.SerializeToString(), description="").run({"x": x})["y"]
    near_a_tie = np.abs(exact / 0.02 - np.floor(exact / 0.02) - 0.5) < 1e-3
    assert np.allclose(
        computed[~near_a_tie], quantize_dequantize(exact.astype(np.float32), 0.02)[~near_a_tie], atol=1e-6
    )


def test_no_integer_kernel_takes_the_place_of_a_qdq_pattern(tmp_path: Path) -> None:
    model = graphs.quantized_conv()
    model.graph.node[-1].output[0] = "conv_y"
    for op, inputs, output in (("QuantizeLinear", "conv_y", "y_q"), ("DequantizeLinear", "y_q", "y")):
        model.graph.node.append(
            onnx.helper.make_node(op, [inputs, "x_scale", "x_zero"], [output], name=output)
        )
    options = session_options(RuntimeOptions())
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "QLinearConv" not in ops
    assert ops.count("QuantizeLinear") == 2


def test_two_sessions_give_the_same_bits() -> None:
    x = np.random.default_rng(3).standard_normal((1, 4, 8, 8), np.float32)
    model = graphs.quantized_conv().SerializeToString()
    first, second = (open_runner(model, description="").run({"x": x})["y"] for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        pytest.param({}, "'x' is missing", id="nothing fed"),
        pytest.param({"X": np.zeros((1, 3, 8, 8), np.float32)}, "'x' is missing", id="another name"),
        pytest.param({"x": np.zeros((1, 3, 8, 8))}, "needs fp32, not fp64", id="double"),
        pytest.param(
            {"x": np.zeros((1, 3, 9, 8), np.float32)}, "needs 1x3x8x8, not 1x3x9x8", id="another size"
        ),
        pytest.param({"x": np.zeros((3, 8, 8), np.float32)}, "needs 1x3x8x8, not 3x8x8", id="another rank"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(feeds: dict[str, Array], words: str) -> None:
    runner = open_runner(graphs.conv_relu().SerializeToString(), description="")
    with pytest.raises(InputFileError) as caught:
        runner.run(feeds)
    assert words in caught.value.what


def frobnicate() -> bytes:
    sketch = Sketch()
    sketch.node("Frobnicate", [sketch.input("x", [1])], "y")
    sketch.output("y", [1])
    return sketch.model().SerializeToString()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(lambda: b"hello", "ONNX model", id="text"),
        pytest.param(lambda: b"", "ONNX model", id="empty"),
        pytest.param(lambda: graphs.conv_relu().SerializeToString()[:300], "ONNX model", id="cut short"),
        pytest.param(frobnicate, "operator", id="unknown operator"),
    ],
)
def test_a_model_that_cannot_be_opened_is_explained(
    content: Callable[[], bytes], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content())
    with pytest.raises(InputFileError) as caught:
        open_runner(path, description="")
    assert words in caught.value.fix
    assert caught.value.where == str(path)
    assert capfd.readouterr().err == ""


def test_a_missing_model_is_called_missing(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="does not exist"):
        open_runner(tmp_path / "none.onnx", description="")


def test_a_model_that_fails_on_a_sample_says_so() -> None:
    sketch = Sketch()
    x, index = sketch.input("x", [4]), sketch.input("index", [1], onnx.TensorProto.INT64)
    sketch.node("Gather", [x, index], "y", name="gather")
    sketch.output("y", [1])
    runner = open_runner(sketch.model().SerializeToString(), description="")
    with pytest.raises(InputFileError, match="fails on this sample"):
        runner.run({"x": np.zeros(4, np.float32), "index": np.array([9])})


def test_a_graph_that_the_optimizer_cannot_open_runs_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = onnxruntime.InferenceSession
    levels = []

    def stumbling(*given: object, sess_options: onnxruntime.SessionOptions, **named: object) -> object:
        levels.append(sess_options.graph_optimization_level)
        if sess_options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            message = "Exception during initialization: attempt to replace the existing tensor"
            raise RuntimeError(message)
        return opened(*given, sess_options=sess_options, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", stumbling)
    runner = open_runner(graphs.conv_relu().SerializeToString(), description="", faithful=False)
    assert runner.outputs
    assert levels[-1] == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_no_room_for_the_optimized_model_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What onnxruntime says where TMPDIR is full; its fix was to export the model again."""

    def full(*_: object, **__: object) -> object:
        raise RuntimeError("Protobuf serialization failed.")

    monkeypatch.setattr(onnxruntime, "InferenceSession", full)
    with pytest.raises(InputFileError) as caught:
        open_runner(graphs.conv_relu().SerializeToString(), description="", faithful=False)
    assert "TMPDIR" in caught.value.fix


def test_a_large_model_goes_through_a_folder_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(save(graphs.conv_relu(), tmp_path))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)}
    in_memory = open_model(model, description="")
    expected = in_memory.run(feeds)["y"]
    monkeypatch.setattr(ort, "LARGE", 1)
    monkeypatch.setattr(ort, "serialize", None)  # nobody makes a block of bytes of it
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    runner = open_model(model, description="")
    assert list(temporary.iterdir())
    assert np.array_equal(runner.run(feeds)["y"], expected)
    with pytest.raises(InputFileError) as raised:
        runner.run({})
    assert raised.value.where is None, "nobody knows the folder"
    del raised, runner
    assert not list(temporary.iterdir())
