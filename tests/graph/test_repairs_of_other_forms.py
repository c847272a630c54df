"""Operators, types and borders of other tools become plain Q/DQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.qdq.find import find
from qdqtool.matching.weights import quantize_activations, tensors_without_range
from qdqtool.placement.repair import remaining, repair
from tests import models
from tests.graph.placing import opened
from tests.graph.repairing import STEP, Sketch, apart, dynamic_layer, kinds, legal, repaired


def test_standard_operators_replace_those_of_the_microsoft_domain(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", domain="com.microsoft"), s.filters()))
    proto = s.model(domains=["com.microsoft"])
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"domain": 2}
    assert apart(proto, fixed) == 0


def test_movement_of_integers_becomes_movement_of_floats(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.input("x", [1, 6, 6, 4]), scale, zero], "q", name="q")
    q = s.node("Transpose", [q], "qt", name="turn", perm=[0, 3, 1, 2])
    q = s.node("Identity", [q], "qi", name="same")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"movement": 1}
    turn = fixed.view.by_name["turn_float"]
    maker = fixed.view.producer(turn.inputs[0])
    assert maker is not None
    assert maker.op == "DequantizeLinear"
    assert apart(proto, fixed) == 0


@pytest.mark.parametrize(
    ("kind", "code", "zero"),
    [(np.uint8, TensorProto.UINT8, 127), (np.int8, TensorProto.INT8, 83), (np.int8, TensorProto.INT8, -128)],
    ids=["uint8 127", "int8 83", "int8 -128"],
)
def test_integer_inputs_and_outputs_keep_type_and_meaning(
    kind: Any, code: int, zero: int, tmp_path: Path
) -> None:
    s = Sketch()
    x = s.dequantize(s.input("x", [1, 4, 6, 6], code), "x", STEP, zero, kind)
    y = s.convolved(x, s.filters())
    scale, zeros = s.constant("s", np.float32(0.02)), s.constant("z", np.asarray(zero, kind))
    s.output(s.node("QuantizeLinear", [y, scale, zeros], "y", name="out"), [1, 4, 6, 6], code)
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"border": 2}
    assert legal(fixed)
    random = np.random.default_rng(0)
    limits = np.iinfo(kind)
    feeds = {"x": random.integers(limits.min, limits.max + 1, (1, 4, 6, 6)).astype(kind)}
    before, after = (models.run(found, feeds, optimize=False)["y"] for found in (proto, fixed.proto))
    assert after.dtype == kind
    assert np.abs(after.astype(int) - before.astype(int)).max() <= 2


def test_casts_to_fp16_fold_into_the_scales(tmp_path: Path) -> None:
    s = Sketch()
    x = s.input("x", [1, 4, 6, 6], TensorProto.FLOAT16)
    wide = s.node("Cast", [x], "wide", name="up", to=TensorProto.FLOAT)
    x = s.node("Cast", [s.pair(wide, "x", 0.0203)], "half", name="down", to=TensorProto.FLOAT16)
    weight = s.node("Cast", [s.filters()], "w_half", name="w_down", to=TensorProto.FLOAT16)
    s.output(s.convolved(x, weight), None, TensorProto.FLOAT16)
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"cast": 4}
    assert fixed.view.opset == 19
    assert "Cast" not in {node.op for node in fixed.view.nodes}
    assert apart(proto, fixed) < 0.01


def test_dangling_nodes_are_dropped_and_told(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    s.pair(x, "lost")
    s.output(s.convolved(s.pair(x, "x"), s.filters()))
    _, changes = repaired(s.model(), tmp_path)
    assert [(change.rule, change.subject) for change in changes] == [
        ("dangling", "lost/Q"),
        ("dangling", "lost/DQ"),
    ]


def test_qlinear_operators_become_float_operators_between_pairs(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.uint8(128))
    w_scale = s.constant("ws", np.linspace(0.001, 0.002, 4).astype(np.float32))
    w_zero = s.constant("wz", np.zeros(4, np.int8))
    weight, bias = s.integers("w", 4, 4, 3, 3), s.constant("b", np.array([900, -900, 50, 0], np.int32))
    q = s.node("QuantizeLinear", [s.image(), scale, zero], "q", name="q")
    y = s.node(
        "QLinearConv",
        [q, scale, zero, weight, w_scale, w_zero, scale, zero, bias],
        "c",
        name="c",
        pads=[1] * 4,
    )
    y = s.node(
        "QLinearAdd", [y, scale, zero, q, scale, zero, scale, zero], "a", name="a", domain="com.microsoft"
    )
    concat = [scale, zero, y, scale, zero, q, scale, zero]
    y = s.node("QLinearConcat", concat, "k", name="k", axis=1, domain="com.microsoft")
    s.output(s.node("DequantizeLinear", [y, scale, zero], "y", name="d"))
    proto = s.model(domains=["com.microsoft"])
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["operator"] == 3
    assert {node.op for node in fixed.view.nodes} == {
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
        "Add",
        "Concat",
    }
    assert legal(fixed)
    assert apart(proto, fixed) < 0.02


def test_dynamic_layers_keep_their_weights_and_ask_for_ranges(tmp_path: Path) -> None:
    proto = dynamic_layer()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"dynamic": 1}
    assert ["--samples" in left.fix for left in remaining(fixed)] == [True]
    assert apart(proto, fixed) < 0.02


def test_a_measured_range_completes_a_dynamic_layer(tmp_path: Path) -> None:
    proto = dynamic_layer()
    fixed, _ = repaired(proto, tmp_path)
    assert tensors_without_range(fixed) == ("x",)
    done, changes = quantize_activations(fixed, {"x": 3.0})
    assert [change.rule for change in changes] == ["half_quantized"]
    assert remaining(done) == ()
    assert apart(proto, done) < 0.05


def test_a_range_that_is_no_number_is_passed_over(tmp_path: Path) -> None:
    fixed, _ = repaired(dynamic_layer(), tmp_path)
    assert quantize_activations(fixed, {"x": float("nan")}) == (fixed, ())


def test_integer_operators_of_no_known_form_are_told(tmp_path: Path) -> None:
    s = models.Sketch()
    a = s.input("a", [2, 2], TensorProto.INT8)
    s.output(s.node("MatMulInteger", [a, a], "y", name="mmi"), [2, 2], TensorProto.INT32)
    fixed, changes = repair(opened(s.model(), tmp_path))
    assert changes == ()
    assert [left.subject for left in remaining(fixed)] == ["mmi"]


def test_pairs_inside_bodies_are_left_alone_and_told(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.uint8(3))
    bodies = {}
    for branch in ("then_branch", "else_branch"):
        nodes = [
            helper.make_node("QuantizeLinear", [x, scale, zero], [f"{branch}_q"]),
            helper.make_node("DequantizeLinear", [f"{branch}_q", scale, zero], [f"{branch}_y"]),
        ]
        out = helper.make_tensor_value_info(f"{branch}_y", TensorProto.FLOAT, [1, 4, 6, 6])
        bodies[branch] = helper.make_graph(nodes, branch, [], [out])
    flag = s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(helper.make_node("If", [flag], ["y"], name="choose", **bodies))
    s.output("y", [1, 4, 6, 6])
    fixed, changes = repaired(s.model(), tmp_path)
    assert changes == ()
    assert [left.subject for left in remaining(fixed)] == ["choose"]


def test_optional_zero_points_of_integer_operators_may_be_left_out(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(0.05)), s.constant("z", np.uint8(0))
    q = s.node("QuantizeLinear", [s.image(), scale, zero], "q", name="q")
    y = s.node("QLinearAdd", [q, scale, zero, q, scale, zero, scale], "a", name="a", domain="com.microsoft")
    s.output(s.node("DequantizeLinear", [y, scale, zero], "y", name="d"))
    proto = s.model(domains=["com.microsoft"])
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["operator"] == 1
    assert legal(fixed)
    assert apart(proto, fixed) < 0.05


def test_an_integer_operator_without_its_scales_is_told_not_guessed(tmp_path: Path) -> None:
    s = Sketch()
    q = s.input("q", [2], TensorProto.UINT8)
    s.output(
        s.node("QLinearAdd", [q, "", "", q], "a", name="a", domain="com.microsoft"), [2], TensorProto.UINT8
    )
    fixed, changes = repair(opened(s.model(domains=["com.microsoft"]), tmp_path))
    assert changes == ()
    assert [left.subject for left in remaining(fixed)] == ["a"]


def test_a_dynamic_sum_that_multiplies_itself_is_no_known_form(tmp_path: Path) -> None:
    proto = dynamic_layer()
    last = next(node for node in proto.graph.node if node.name == "out")
    last.input[1] = last.input[0]
    fixed, changes = repair(opened(proto, tmp_path))
    assert changes == ()
    assert {left.subject for left in remaining(fixed)} == {"mm", "dql"}


def test_an_integer_input_that_is_scaled_in_float_gets_no_pair_of_ours(tmp_path: Path) -> None:
    s = Sketch()
    x = s.dequantize(s.input("x", [1, 4, 6, 6], TensorProto.UINT8), "x", STEP, 3, np.uint8)
    s.output(s.node("Mul", [x, s.constant("factor", np.full((1, 4, 1, 1), 2.0, np.float32))], "y"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"border": 1}
    assert find(fixed) == ()
