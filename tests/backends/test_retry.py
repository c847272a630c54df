"""A node without a kernel loses its Q/DQ, and only that node; then the build goes through, or stops after a few."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.backends.building.failures import NoKernelError, refusal
from qdqtool.backends.building.procedure import MODEL, build_with_retries
from qdqtool.core.protocols import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save as save_model
from qdqtool.graph.qdq.unquantize import unquantize
from qdqtool.runtime.runner import open_runner
from tests.backends import graphs
from tests.models import Sketch, save

BUILT = BuildResult(
    builder="picky",
    version="1",
    targets=(),
    engine="engine.plan",
    log="build.log",
    layers=None,
    engine_bytes=1,
)


class PickyBuilder:
    """Has no kernel for the engine layers it is told, one after the other, as long as they read Q/DQ."""

    def __init__(self, layers: Sequence[str]) -> None:
        self.layers = list(layers)
        self.models: list[Path] = []

    def version(self) -> str:
        return "1"

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        del on_progress
        self.models.append(request.model)
        if self.layers:
            layer = self.layers.pop(0)
            raise NoKernelError(f"no kernel for {layer}", fix="none", node=layer)
        return BUILT, BuildCost(seconds=0.0, peak_mib=None, cached=False)


def two_convs() -> onnx.ModelProto:
    """conv1 and conv2 read the same quantized activation, each its own quantized weight; conv2's is stored as INT8."""
    sketch = Sketch()
    x = sketch.input("x", [1, 4, 8, 8])
    scale, zero = sketch.constant("scale", np.float32(0.02)), sketch.constant("zero", np.int8(0))
    scales = sketch.constant("scales", np.linspace(0.01, 0.04, 4, dtype=np.float32))
    zeros = sketch.constant("zeros", np.zeros(4, np.int8))
    sketch.node(
        "DequantizeLinear", [sketch.node("QuantizeLinear", [x, scale, zero], "x_q"), scale, zero], "x_dq"
    )
    weight = sketch.weight("w1", 4, 4, 3, 3)
    quantized = sketch.node("QuantizeLinear", [weight, scales, zeros], "w1_q", axis=0)
    sketch.node("DequantizeLinear", [quantized, scales, zeros], "w1_dq", axis=0)
    stored = sketch.constant("w2", sketch.random.integers(-128, 128, (4, 4, 3, 3)).astype(np.int8))
    sketch.node("DequantizeLinear", [stored, scales, zeros], "w2_dq", axis=0)
    sketch.node("Conv", ["x_dq", "w1_dq"], "y1", name="conv1")
    sketch.node("Conv", ["x_dq", "w2_dq"], "y2", name="conv2")
    sketch.output("y1", [1, 4, 6, 6])
    sketch.output("y2", [1, 4, 6, 6])
    return sketch.model()


def build(
    model: onnx.ModelProto, folder: Path, layers: Sequence[str], most: int = 3
) -> tuple[BuildResult, PickyBuilder]:
    builder = PickyBuilder(layers)
    request = BuildRequest(model=save(model, folder), folder=folder / "out")
    return build_with_retries(builder, request, most=most)[0], builder


def ops_before(path: Path, node: str) -> set[str]:
    view = load(path).view
    return {maker.op for name in view.by_name[node].inputs if (maker := view.producer(name))}


def test_a_build_that_goes_through_is_left_alone(tmp_path: Path) -> None:
    result, builder = build(graphs.quantized_conv(), tmp_path, [])
    assert result == BUILT
    assert builder.models == [tmp_path / "model.onnx"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "layer",
    [
        "conv1",
        "w1 + w1_q + conv1",
        "{ForeignNode[conv1...y1]}",
        "conv1 || other",
        "conv1 + PWN(PWN(act/Sigmoid), act/Mul)",
        "PWN(conv1)",
        "{ForeignNode[w[Constant]...conv1]}",
        "conv1 + conv22",
    ],
)
def test_the_node_without_a_kernel_loses_its_qdq_and_the_others_keep_theirs(
    layer: str, tmp_path: Path
) -> None:
    result, builder = build(two_convs(), tmp_path, [layer])
    assert builder.models == [tmp_path / "model.onnx", tmp_path / "out" / MODEL]
    assert ops_before(builder.models[1], "conv1") == set()
    assert ops_before(builder.models[1], "conv2") == {"DequantizeLinear"}
    assert result.notes == (
        "no INT8 kernel for conv1: built without its Q/DQ",
        f"{MODEL} is the model that was built",
    )


def test_a_foreign_node_means_all_between_its_ends(tmp_path: Path) -> None:
    result, builder = build(two_convs(), tmp_path, ["{ForeignNode[conv1...conv2]}"])
    assert len(builder.models) == 2
    assert result.notes[0] == "no INT8 kernel for conv1, conv2: built without its Q/DQ"


def test_a_longer_name_is_another_node(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError):
        build(two_convs(), tmp_path, ["conv11 + /head/conv1"])


NO_KERNEL = "Could not find any implementation for node "


@pytest.mark.parametrize(
    ("message", "node"),
    [
        pytest.param(f"10: {NO_KERNEL}002_convolutional.", "002_convolutional", id="plain"),
        pytest.param(
            f"Error[10]: [optimizer.cpp::computeCosts::3897] Error Code 10: Internal Error ({NO_KERNEL}w + q + y.)",
            "w + q + y",
            id="in brackets",
        ),
        pytest.param(
            f"Error[10]: {NO_KERNEL}/m/Conv + PWN(PWN(/m/Sigmoid), /m/Mul).",
            "/m/Conv + PWN(PWN(/m/Sigmoid), /m/Mul)",
            id="pointwise",
        ),
        pytest.param(
            f"Internal Error ({NO_KERNEL}/m/Conv + PWN(PWN(/m/Sigmoid), /m/Mul).)",
            "/m/Conv + PWN(PWN(/m/Sigmoid), /m/Mul)",
            id="pointwise in brackets",
        ),
        pytest.param(
            f"Error Code: 10: {NO_KERNEL}{{ForeignNode[/a/Slice_4_output_0[Constant].../t/Reshape_6]}}.",
            "{ForeignNode[/a/Slice_4_output_0[Constant].../t/Reshape_6]}",
            id="foreign node",
        ),
        pytest.param(
            f"({NO_KERNEL}(Unnamed Layer* 0) [RNN].)", "(Unnamed Layer* 0) [RNN]", id="unnamed layer"
        ),
    ],
)
def test_the_engines_name_is_read_whole(message: str, node: str) -> None:
    error = refusal([], [message], where="m.onnx", log="build.log")
    assert isinstance(error, NoKernelError)
    assert error.node == node


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        pytest.param(
            [f"{NO_KERNEL}a due to insufficient workspace. See verbose log."], "workspace", id="workspace"
        ),
        pytest.param(
            [f"Internal error: {NO_KERNEL}a, try increasing the workspace size"],
            "workspace",
            id="old workspace",
        ),
        pytest.param(
            ["Error Code 1: Cuda Runtime (out of memory)", f"{NO_KERNEL}a."], "out of memory", id="memory"
        ),
        pytest.param(
            ["Error Code 1: Cuda Runtime (an illegal memory access was encountered)", f"{NO_KERNEL}a."],
            "crashed on the GPU",
            id="crashed kernel",
        ),
    ],
)
def test_what_only_looks_like_a_missing_kernel_is_not_retried(messages: list[str], words: str) -> None:
    error = refusal([], messages, where="m.onnx", log="build.log")
    assert not isinstance(error, NoKernelError)
    assert words in error.what


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(
            "[graphScope.cpp::analyze::471] Error Code 2: Internal Error (Assertion tScope.getType() != "
            "ScopeType::kUNDEFINED failed.",
            "an If inside a branch of another",
            id="nested",
        ),
        pytest.param(
            "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (IConditionalOutputLayer o: Must have inputs "
            "with equal ranks when condition is not a build-time constant.",
            "different ranks",
            id="ranks",
        ),
    ],
)
def test_an_if_that_the_builder_cannot_take_is_named_with_what_helps(message: str, words: str) -> None:
    error = refusal([], [message], where="m.onnx", log="build.log")
    assert words in error.what
    assert "make_dynamic_shape_fixed" in error.fix


def test_one_node_after_the_other_is_given_up(tmp_path: Path) -> None:
    result, builder = build(two_convs(), tmp_path, ["conv1", "conv2"])
    assert len(builder.models) == 3
    assert "DequantizeLinear" not in {node.op for node in load(builder.models[2]).view.nodes}
    assert len(result.notes) == 3


def test_no_more_nodes_are_given_up_than_allowed(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError) as caught:
        build(two_convs(), tmp_path, ["conv1", "conv2"], most=1)
    assert caught.value.node == "conv2"


def test_a_node_without_qdq_cannot_be_helped(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError):
        build(graphs.conv_relu(), tmp_path, ["conv"])


def test_an_int8_constant_becomes_the_float_constant_it_stands_for(tmp_path: Path) -> None:
    model = load(save(two_convs(), tmp_path))
    save_model(unquantize(model, ["conv2"]), tmp_path / "float.onnx")
    view = load(tmp_path / "float.onnx").view
    weight = view.constant(view.by_name["conv2"].inputs[1])
    stored = next(onnx.numpy_helper.to_array(t) for t in two_convs().graph.initializer if t.name == "w2")
    scales = np.linspace(0.01, 0.04, 4, dtype=np.float32).reshape(4, 1, 1, 1)
    assert weight is not None
    assert np.array_equal(weight, stored.astype(np.float32) * scales)


def test_the_rest_of_the_model_computes_what_it_did(tmp_path: Path) -> None:
    before = save(two_convs(), tmp_path)
    save_model(unquantize(load(before), ["conv1"]), tmp_path / "after.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 8, 8), np.float32)}
    old, new = (open_runner(path, description="").run(feeds) for path in (before, tmp_path / "after.onnx"))
    assert np.array_equal(old["y2"], new["y2"])
    assert not np.array_equal(old["y1"], new["y1"])
    assert np.abs(old["y1"] - new["y1"]).max() < 0.5
