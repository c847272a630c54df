"""Inputs become constants by a setting, and the branches that they decide are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqtool
from qdqtool.core.recipe import PrepareOptions
from qdqtool.errors import UsageError
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from tests import models
from tests.graph.placing import opened


def two_rates() -> onnx.ModelProto:
    """A network for two sampling rates: an If over the input `sr`, whose branches give different ranks."""
    s = models.Sketch()
    x, sr = s.input("x", [4, 8]), s.input("sr", [], TensorProto.INT64)
    chosen = s.node("Equal", [sr, s.constant("high", np.int64(16000))], "is_high", name="equal")

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)]
        )

    flat = helper.make_node("ReduceSum", ["x"], ["high_out"], name="sum", keepdims=0)
    whole = helper.make_node("Neg", ["x"], ["low_out"], name="neg")
    made = s.node(
        "If",
        [chosen],
        "y",
        name="rate",
        then_branch=branch("high", [flat]),
        else_branch=branch("low", [whole]),
    )
    s.output(s.node("Relu", [made], "z", name="relu"))
    assert x == "x"
    return s.model()


def given(tmp_path: Path, **values: object) -> Model:
    options = PrepareOptions.model_validate({"constants": values})
    return prepare(opened(two_rates(), tmp_path), options)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_an_input_that_is_given_decides_its_branches_and_leaves_the_results_alone(
    rate: int, tmp_path: Path
) -> None:
    made = given(tmp_path, sr=rate)
    assert [value.name for value in made.proto.graph.input] == ["x"]
    assert not [node for node in made.proto.graph.node if node.op_type == "If"]
    assert any(f"sr = {rate}" in note for note in made.notes)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    theirs = models.run(two_rates(), {"x": x, "sr": np.array(rate)})["z"]
    np.testing.assert_allclose(models.run(made.proto, {"x": x})["z"], theirs, rtol=1e-6)


def test_a_prepared_model_without_given_inputs_is_the_same_object(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert prepare(model, PrepareOptions()).proto is model.proto


def test_one_number_fills_an_input_and_a_list_has_all_of_its_values(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Add", [s.input("x", [2, 3]), s.input("bias", [2, 3])], "y", name="add"))
    proto, x = s.model(), np.ones((2, 3), np.float32)
    for value, wanted in ((0.5, np.full((2, 3), 0.5)), ((0, 1, 2, 3, 4, 5), np.arange(6).reshape(2, 3))):
        made = prepare(opened(proto, tmp_path), PrepareOptions(constants={"bias": value}))
        np.testing.assert_allclose(models.run(made.proto, {"x": x})["y"], x + wanted)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate": 1}, "no input 'rate'"),
        ({"sr": 1.5}, "not a value of int64"),
        ({"sr": [1, 2]}, "1 value, but 2 are given"),
        ({"sr": 1, "x": 0}, "every input"),
    ],
)
def test_what_no_input_can_hold_is_refused_with_a_way_out(
    values: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        given(tmp_path, **values)
    assert caught.value.fix


def test_the_setting_that_a_refusal_prints_is_one_of_a_recipe() -> None:
    from qdqtool.core.advice import settings_in
    from qdqtool.trt.causes import CAUSES

    fixes = {cause.fix for cause in CAUSES if "prepare.constants" in cause.fix}
    (fix,) = fixes
    assert recipes.load(None, list(settings_in(fix))).prepare.constants == {"sr": 16000}


def test_a_network_for_two_rates_is_quantized_for_one(tmp_path: Path) -> None:
    made = qdqtool.quantize(
        two_rates(), samples="random:2", settings=["prepare.constants={sr: 16000}", "place.ops=[Add]"]
    )
    saved = made.save(tmp_path / "model.onnx")
    assert [value.name for value in onnx.load(saved).graph.input] == ["x"]
