"""Preparing folds what can be folded, says so, and never changes what a model computes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened
from tests.shared import shared

EVERYTHING = PrepareOptions()


def _ops(model: Model) -> Counter[str]:
    return Counter(node.op for node in model.view.nodes)


def _same(proto: onnx.ModelProto, model: Model) -> None:
    feeds = models.feeds(proto)
    mine = models.run(model.proto, feeds)
    for output, value in models.run(proto, feeds).items():
        np.testing.assert_allclose(mine[output], value, rtol=1e-4, atol=1e-5)


def test_a_clean_model_stays_as_it_is(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert prepare(model, EVERYTHING).proto == model.proto


def test_a_model_with_nothing_to_prepare_is_not_copied(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert prepare(model, EVERYTHING) is model


@pytest.mark.parametrize("name", models.ALL)
def test_a_prepared_model_computes_the_same(name: str, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    _same(proto, prepare(opened(proto, tmp_path), EVERYTHING))


@pytest.mark.parametrize(
    ("proto", "folded"),
    [
        (models.residual_cnn(batchnorm=True), 6),
        (models.depthwise_cnn(), 3),
        (models.unet(), 1),
        (models.unet(group=4), 1),
        (models.gemms(), 1),
    ],
    ids=["conv", "depthwise", "convtranspose", "grouped convtranspose", "gemm with alpha and beta"],
)
def test_batchnorm_folds_into_the_layer_before_it(
    proto: onnx.ModelProto, folded: int, tmp_path: Path
) -> None:
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert "BatchNormalization" not in _ops(model)
    assert f"{folded} BatchNormalization node" in " ".join(model.notes)
    _same(proto, model)


def test_batchnorm_stays_where_the_recipe_says_so(tmp_path: Path) -> None:
    model = prepare(opened(models.depthwise_cnn(), tmp_path), PrepareOptions(fold_batchnorm=False))
    assert _ops(model)["BatchNormalization"] == 3


def test_batchnorm_in_training_mode_stays(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.batchnorm("bn", s.conv("conv", s.input("x", [1, 4, 4, 4]), (4, 4)), 4, training_mode=1)
    s.nodes[-1].output.extend(["mean", "var"])
    s.output(x)
    assert _ops(prepare(opened(s.model(), tmp_path), EVERYTHING))["BatchNormalization"] == 1


def test_batchnorm_behind_a_conv_that_others_read_stays(tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.conv("conv", s.input("x", [1, 4, 4, 4]), (4, 4))
    s.output(s.node("Add", [s.batchnorm("bn", y, 4), y], "y"))
    proto = s.model()
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert _ops(model)["BatchNormalization"] == 1
    _same(proto, model)


def test_a_weight_that_two_convs_share_is_folded_into_copies(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 4, 4, 4])
    weight = s.weight("w", 4, 4, 1, 1)
    left = s.batchnorm("bn", s.node("Conv", [x, weight], "left"), 4)
    s.output(s.node("Add", [left, s.node("Conv", [x, weight], "right")], "y"))
    proto = s.model()
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert "BatchNormalization" not in _ops(model)
    _same(proto, model)


def test_nodes_that_depend_on_constants_only_are_computed(tmp_path: Path) -> None:
    model = prepare(opened(models.weight_transpose(), tmp_path), EVERYTHING)
    assert _ops(model) == {"MatMul": 1, "Relu": 1}
    assert model.view.constant_shape("w_t") == (32, 24)
    assert "2 nodes that depend on constants only were computed" in model.notes


def test_the_shape_of_a_static_tensor_is_a_constant(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [2, 3, 4])
    shape = s.node("Shape", [x], "shape", start=1)
    tail = s.node(
        "Concat", [s.constant("batch", np.array([2])), s.node("ReduceProd", [shape], "all")], "to", axis=0
    )
    s.output(s.node("Reshape", [x, tail], "y"))
    model = prepare(opened(s.model(), tmp_path), EVERYTHING)
    assert _ops(model) == {"Reshape": 1}
    assert model.view.info("y").shape == (2, 12)


def test_quantized_constants_are_not_folded_away(tmp_path: Path) -> None:
    s = models.Sketch()
    scale, zero = s.constant("scale", np.float32(0.1)), s.constant("zero", np.int8(0))
    weight = s.node("QuantizeLinear", [s.weight("w", 4, 4, 1, 1), scale, zero], "q")
    weight = s.node("DequantizeLinear", [weight, scale, zero], "dq")
    s.output(s.node("Conv", [s.input("x", [1, 4, 2, 2]), weight], "y"))
    model = prepare(opened(s.model(), tmp_path), EVERYTHING)
    assert _ops(model) == {"QuantizeLinear": 1, "DequantizeLinear": 1, "Conv": 1}


def test_division_by_zero_is_not_folded_into_a_harmless_number(tmp_path: Path) -> None:
    s = models.Sketch()
    zero = s.node("Div", [s.constant("one", np.array([1])), s.constant("none", np.array([0]))], "bad")
    s.output(s.node("Add", [s.input("x", [1], TensorProto.INT64), zero], "y"), None, TensorProto.INT64)
    assert "Div" in _ops(prepare(opened(s.model(), tmp_path), EVERYTHING))


def test_a_constant_that_would_explode_is_not_computed(tmp_path: Path) -> None:
    s = models.Sketch()
    big = s.node(
        "Expand", [s.constant("one", np.float32(1)), s.constant("to", np.array([1 << 16, 1 << 16]))], "big"
    )
    s.output(s.node("ReduceMax", [big], "y", keepdims=0), [])
    assert "Expand" in _ops(prepare(opened(s.model(), tmp_path), EVERYTHING))


def test_random_numbers_stay_random(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [2, 2])
    s.output(s.node("Add", [x, s.node("RandomUniform", [], "noise", shape=[2, 2])], "y"))
    assert "RandomUniform" in _ops(prepare(opened(s.model(), tmp_path), EVERYTHING))


def test_constants_stay_uncomputed_where_the_recipe_says_so(tmp_path: Path) -> None:
    model = prepare(opened(models.weight_transpose(), tmp_path), PrepareOptions(fold_constants=False))
    assert "Transpose" in _ops(model)


def test_idle_nodes_go_and_outputs_keep_their_names(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [2, 4])
    y = s.node("Identity", [s.relu("relu", s.node("Identity", [x], "a"))], "b")
    y = s.node("Dropout", [s.node("Cast", [y], "c", to=TensorProto.FLOAT)], "d")
    s.output(s.node("Identity", [y], "out"))
    s.output(s.node("Sigmoid", [y], "other"))
    proto = s.model()
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert _ops(model) == {"Relu": 1, "Sigmoid": 1}
    assert [info.name for info in model.view.outputs] == ["out", "other"]
    _same(proto, model)


def test_an_identity_between_input_and_output_stays(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Identity", [s.input("x", [2])], "y"))
    assert _ops(prepare(opened(s.model(), tmp_path), EVERYTHING)) == {"Identity": 1}


def test_one_tensor_returned_twice_keeps_both_names(tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.relu("relu", s.input("x", [2]))
    s.output(s.node("Identity", [y], "first"))
    s.output(s.node("Identity", [y], "second"))
    proto = s.model()
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert [info.name for info in model.view.outputs] == ["first", "second"]
    _same(proto, model)


def test_a_tensor_that_a_body_reads_keeps_its_name(tmp_path: Path) -> None:
    proto = models.branching()
    conv = proto.graph.node[0]
    conv.output[0] = "inner"
    proto.graph.node.insert(1, helper.make_node("Identity", ["inner"], ["conv_y"], name="same"))
    _same(proto, prepare(opened(proto, tmp_path), EVERYTHING))


def test_nodes_that_no_output_needs_are_removed(tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.graph.node.append(helper.make_node("Relu", ["x"], ["unused"], name="unused"))
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert "unused" not in {node.name for node in model.view.nodes}
    assert "1 node that no output needs was removed" in model.notes


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    ["cifar10_resnet20", "kws_dscnn", "squeezenet1_1_imagenet", "vit_cifar10_pgd_2_3_16", "yolox_nano"],
)
def test_real_models_compute_the_same_after_preparation(name: str) -> None:
    from qdqtool.graph.onnx_io.deferred import whole
    from qdqtool.graph.onnx_io.load import load

    path = shared(f"models/{name}/model.onnx")
    proto = onnx.load(path)
    feeds = models.feeds(proto)
    # weights of large models stand in their files
    mine = models.run(whole(prepare(load(path), EVERYTHING).proto), feeds)
    for output, value in models.run(proto, feeds).items():
        np.testing.assert_allclose(mine[output], value, rtol=1e-3, atol=1e-4 * float(np.abs(value).max()))


@pytest.mark.parametrize("opset", [11, 17])
def test_a_squeeze_of_a_shape_with_free_dimensions_names_its_axes(opset: int, tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("MatMul", [sketch.input("x", ["frames", 16]), sketch.weight("w", 16, 1)], "m", name="mm")
    sketch.output(sketch.node("Squeeze", [x], "y", name="squeeze"), ["frames"])
    proto = sketch.model(opset)
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    for frames in (2, 7):
        feeds = {"x": np.ones((frames, 16), np.float32)}
        (mine,), (theirs,) = models.run(model.proto, feeds).values(), models.run(proto, feeds).values()
        assert mine.shape == theirs.shape == (frames,)
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert models.run(model.proto, {"x": np.ones((1, 16), np.float32)})["y"].shape == (1,)
    assert any("Squeeze node without axes" in note for note in model.notes)


def test_a_squeeze_of_a_shape_without_free_dimensions_stays(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.node("MatMul", [sketch.input("x", [3, 16]), sketch.weight("w", 16, 1)], "m", name="mm")
    sketch.output(sketch.node("Squeeze", [x], "y", name="squeeze"), [3])
    model = opened(sketch.model(), tmp_path)
    assert prepare(model, EVERYTHING).proto == model.proto


@pytest.mark.parametrize("behind", ["", "Sigmoid", "Neg"])
def test_a_rank_that_is_noted_of_one_frame_is_dropped(behind: str, tmp_path: Path) -> None:
    sketch = models.Sketch()
    squeezed = sketch.node("Squeeze", [sketch.input("x", ["frames", 1, 6])], "s", name="squeeze")
    sketch.output(sketch.node(behind, [squeezed], "y", name="behind") if behind else squeezed, [6])
    proto = sketch.model()
    if behind:
        proto.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [6]))
    made = prepare(opened(proto, tmp_path), EVERYTHING)
    (node,) = (node for node in made.view.nodes if node.op == "Squeeze")
    assert len(node.inputs) == 2
    assert made.view.info("s").shape == ("frames", 6)
    assert len(made.proto.graph.output[0].type.tensor_type.shape.dim) == 2
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 1, 6)).astype(np.float32)}
    (mine,), (theirs,) = models.run(made.proto, feeds).values(), models.run(proto, feeds).values()
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("norms", [1, 2, 3])
def test_normalizations_in_a_row_are_folded_into_a_layer_without_bias(
    op: str, norms: int, tmp_path: Path
) -> None:
    sketch = models.Sketch()
    shape = (1, 4) if op == "Gemm" else (1, 4, 6, 6)
    x = sketch.input("x", shape)
    tensor = sketch.node(op, [x, sketch.weight("w", 4, 4, *(3, 3)[: 2 * (op != "Gemm")])], "layer")
    for number in range(norms):
        parts = [
            sketch.constant(
                f"{word}{number}", np.abs(sketch.random.standard_normal(4)).astype(np.float32) + 0.5
            )
            for word in ("gain", "shift", "mean", "var")
        ]
        tensor = sketch.node("BatchNormalization", [tensor, *parts], f"norm{number}")
    sketch.output(tensor)
    proto = sketch.model()
    ready = prepare(opened(proto, tmp_path), PrepareOptions(conv_transpose=False))
    assert _ops(ready) == {op: 1}
    assert len(ready.proto.graph.initializer) == 2
    _same(proto, ready)


def image_reader(after: list[onnx.NodeProto], outputs: dict[str, int]) -> onnx.ModelProto:
    """An image in UINT8, its axes moved as "t" by two operators, and what reads it."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["s"], perm=[0, 3, 1, 2]),
        helper.make_node("Slice", ["s", "from", "to", "axis"], ["t"]),
    ]
    numbers = {"from": 0, "to": 2, "axis": 1}
    return helper.make_model(
        helper.make_graph(
            [*nodes, *after],
            "image",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 4, 4, 3])],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
            [helper.make_tensor(name, TensorProto.INT64, [1], [number]) for name, number in numbers.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )


def cast_to(kind: int, name: str) -> onnx.NodeProto:
    return helper.make_node("Cast", ["t"], [name], to=kind)


@pytest.mark.parametrize(
    ("after", "outputs", "first"),
    [
        ([cast_to(TensorProto.FLOAT, "y")], {"y": TensorProto.FLOAT}, ["Cast", "Transpose", "Slice"]),
        ([cast_to(TensorProto.FLOAT16, "y")], {"y": TensorProto.FLOAT16}, ["Cast", "Transpose", "Slice"]),
        ([cast_to(TensorProto.FLOAT, "y"), cast_to(TensorProto.INT32, "z")], {"y": TensorProto.FLOAT, "z": TensorProto.INT32}, ["Transpose"]),
        ([cast_to(TensorProto.FLOAT, "y"), helper.make_node("Max", ["t", "t"], ["z"])], {"y": TensorProto.FLOAT, "z": TensorProto.UINT8}, ["Transpose"]),
        ([cast_to(TensorProto.FLOAT, "y")], {"y": TensorProto.FLOAT, "t": TensorProto.UINT8}, ["Transpose"]),
        ([cast_to(TensorProto.INT8, "y")], {"y": TensorProto.INT8}, ["Transpose"]),
    ],
    ids=["float", "half", "two types", "read otherwise", "an output", "a type that wraps"],
)  # fmt: skip
def test_an_image_is_cast_before_its_axes_move_if_nothing_else_reads_it(
    after: list[onnx.NodeProto], outputs: dict[str, int], first: list[str], tmp_path: Path
) -> None:
    proto = image_reader(after, outputs)
    model = prepare(opened(proto, tmp_path), EVERYTHING)
    assert [node.op for node in model.view.nodes][: len(first)] == first
    if first[0] == "Cast":
        assert len(model.view.nodes) == len(first)
    feeds = {"x": np.arange(208, 256, dtype=np.uint8).reshape(1, 4, 4, 3)}
    for name, value in models.run(proto, feeds).items():
        np.testing.assert_array_equal(models.run(model.proto, feeds)[name], value)
