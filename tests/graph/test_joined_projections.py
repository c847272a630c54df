"""Queries, keys and values of an attention are computed by a single MatMul, which computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool.core.recipe import PlacementOptions, PrepareOptions, Recipe
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened

WIDTH, HEADS, LENGTH = 16, 2, 5
JOIN = PrepareOptions(join_projections=True)


def attention(
    draw: np.random.Generator,
    *,
    biases: str = "qkv",
    scaled: str = "scores",
    memory: bool = False,
    rotated: bool = False,
    kept: bool = False,
) -> models.Sketch:
    """An attention with weights of very different sizes; letters say which parts have a bias, and what is scaled."""
    s = models.Sketch()
    x = s.input("x", (1, LENGTH, WIDTH))
    source = s.input("memory", (1, LENGTH, WIDTH)) if memory else x
    parts = {}
    for part in "qkv":
        weight = draw.standard_normal((WIDTH, WIDTH)) * draw.choice([0.02, 0.3, 4.0])
        tensor = s.node(
            "MatMul",
            [x if part == "q" else source, s.constant(f"w{part}", weight.astype(np.float32))],
            f"{part}_product",
            name=f"{part}_proj",
        )
        if part in biases:
            bias = s.constant(f"b{part}", draw.standard_normal(WIDTH).astype(np.float32))
            tensor = s.node("Add", [tensor, bias], f"{part}_sum", name=f"{part}_bias")
        if rotated and part != "v":
            tensor = s.node("Sin", [tensor], f"{part}_turned", name=f"{part}_turn")
        to = s.constant(f"to_{part}", np.asarray([0, 0, HEADS, WIDTH // HEADS], np.int64))
        order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        tensor = s.node(
            "Transpose", [s.node("Reshape", [tensor, to], f"{part}_heads")], f"{part}_moved", perm=order
        )
        if part in scaled:
            tensor = s.node("Mul", [tensor, s.constant(f"f{part}", np.float32(0.6))], f"{part}_scaled")
        parts[part] = tensor
    scores = s.node("MatMul", [parts["q"], parts["k"]], "scores", name="scores")
    if scaled == "scores":
        scores = s.node("Div", [scores, s.constant("root", np.float32(2.8))], "divided")
    values = s.node(
        "MatMul", [s.node("Softmax", [scores], "soft", axis=-1), parts["v"]], "values", name="values"
    )
    back = s.node("Transpose", [values], "back", perm=[0, 2, 1, 3])
    flat = s.node("Reshape", [back, s.constant("to_out", np.asarray([0, 0, WIDTH], np.int64))], "flat")
    y = s.node("MatMul", [flat, s.weight("wo", WIDTH, WIDTH)], "y", name="out")
    s.output(s.node("Neg", [y], "z"))
    if kept:
        s.output(s.node("Neg", [parts["k"]], "present"))
    return s


def projections(model: Model) -> list[str]:
    return [node.name for node in model.view.nodes if node.op == "MatMul" and "_proj" in node.name]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("biases", ["", "qv", "qkv"])
@pytest.mark.parametrize("scaled", ["", "scores", "q", "qk"])
@pytest.mark.parametrize("kept", [False, True])
def test_the_joined_network_computes_the_same(
    opset: int, biases: str, scaled: str, *, kept: bool, tmp_path: Path
) -> None:
    draw = np.random.default_rng(opset)
    s = attention(draw, biases=biases, scaled=scaled, kept=kept)
    model = prepare(opened(s.model(opset), tmp_path), JOIN)
    assert projections(model) == ["q_proj_joined"]
    feeds = {"x": draw.standard_normal((1, LENGTH, WIDTH)).astype(np.float32)}
    expected, result = models.run(s.model(opset), feeds), models.run(model.proto, feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_bias_of_more_dimensions_keeps_its_dimensions(rank: int, tmp_path: Path) -> None:
    s = attention(np.random.default_rng(0))
    s.inputs.clear()
    s.input("x", (LENGTH, WIDTH))
    for tensor in s.initializers:
        if tensor.name in {"wq", "wk", "wv"}:  # equally large, so that no tensor gets a new name
            tensor.CopyFrom(numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), tensor.name))
        if tensor.name in {"bq", "bk", "bv"}:
            value = np.ones([1] * (rank - 1) + [WIDTH], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        if tensor.name.startswith("to_") and tensor.name != "to_out":
            value = np.asarray([1, LENGTH, HEADS, WIDTH // HEADS], np.int64)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    model = prepare(opened(s.model(), tmp_path), JOIN)
    onnx.checker.check_model(model.proto, full_check=True)
    feeds = models.feeds(s.model())
    np.testing.assert_allclose(
        models.run(model.proto, feeds)["z"], models.run(s.model(), feeds)["z"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("scaled", ["", "scores", "qk"])
def test_parts_become_about_equally_large(scaled: str, tmp_path: Path) -> None:
    for seed in range(8):
        s = attention(np.random.default_rng(seed), scaled=scaled, biases="")
        model = prepare(opened(s.model(), tmp_path), JOIN)
        weight = model.view.constant(model.view.by_name["q_proj_joined"].inputs[1])
        assert weight is not None
        sizes = [np.linalg.norm(part, axis=0).max() for part in np.split(weight, 3, axis=1)]
        # a power of two for queries and keys leaves up to its square between them
        assert max(sizes) / min(sizes) < 2.1


def test_keys_that_are_an_output_keep_their_values(tmp_path: Path) -> None:
    s = attention(np.random.default_rng(1), kept=True)
    feeds = {"x": np.random.default_rng(2).standard_normal((1, LENGTH, WIDTH)).astype(np.float32)}
    model = prepare(opened(s.model(), tmp_path), JOIN)
    np.testing.assert_allclose(
        models.run(model.proto, feeds)["present"],
        models.run(s.model(), feeds)["present"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_keys_and_values_of_another_sequence_are_joined_without_the_queries(tmp_path: Path) -> None:
    model = prepare(opened(attention(np.random.default_rng(3), memory=True).model(), tmp_path), JOIN)
    assert projections(model) == ["q_proj", "k_proj_joined"] or projections(model) == [
        "k_proj_joined",
        "q_proj",
    ]


def test_rotated_queries_and_keys_stay_alone(tmp_path: Path) -> None:
    model = prepare(opened(attention(np.random.default_rng(4), rotated=True).model(), tmp_path), JOIN)
    assert sorted(projections(model)) == ["k_proj", "q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("setting", "is_joined"),
    [
        ({"place": {"exclude": ["k_proj"]}}, False),
        ({"place": {"exclude": ["*_proj*"]}}, True),
        ({"place": {"formats": {"v_*": "float"}}}, False),
        ({"calibrate": {"overrides": {"q_product": "max"}}}, False),
        ({"prepare": {"not_joined": ["q_proj"]}}, False),
        ({"place": {"exclude": ["out"]}}, True),
        ({"place": {"exclude": ["q_proj", "k_proj", "v_proj"]}}, False),
    ],
)
def test_a_setting_for_one_of_them_keeps_them_apart(
    setting: dict[str, dict[str, object]], *, is_joined: bool, tmp_path: Path
) -> None:
    model = prepare(
        opened(attention(np.random.default_rng(5)).model(), tmp_path),
        Recipe.model_validate(setting).preparing,
    )
    assert (len(projections(model)) == 1) is is_joined


@pytest.mark.parametrize(
    ("place", "is_joined"),
    [
        ({}, True),
        ({"format": "fp8"}, True),
        ({"format": "int4-weights"}, False),
        ({"activations": "float"}, False),
        ({"target": "10.13"}, False),
    ],
)
def test_they_are_joined_where_a_single_pair_then_serves_all(
    place: dict[str, object], *, is_joined: bool
) -> None:
    recipe = Recipe(place=PlacementOptions.model_validate(place))
    assert recipe.preparing.join_projections is is_joined


def test_projections_in_fp16_are_joined_without_factors(tmp_path: Path) -> None:
    proto = attention(np.random.default_rng(6), biases="").model()
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    before = opened(proto, tmp_path)
    model = prepare(before, JOIN)
    joint = model.view.constant(model.view.by_name["q_proj_joined"].inputs[1])
    parts = [before.view.constant(before.view.by_name[f"{part}_proj"].inputs[1]) for part in "qkv"]
    np.testing.assert_array_equal(joint, np.concatenate(parts, axis=1))
