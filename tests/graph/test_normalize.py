"""Every repair mends its habit, tells what it did, and keeps the meaning; models without that habit stay untouched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.dtypes import DType
from qdqtool.core.repair import Change
from qdqtool.errors import InputFileError
from qdqtool.graph.find import find
from qdqtool.graph.load import load
from qdqtool.graph.model import Model
from qdqtool.graph.normalize.ranges import quantize_activations, wanted
from qdqtool.graph.normalize.run import ORDER, REPAIRS, normalize, remaining
from qdqtool.graph.save import serialize
from tests import models
from tests.graph.placing import opened

STEP = 0.02


class Sketch(models.Sketch):
    """Writes pairs of any kind."""

    def pair(
        self, x: str, name: str, step: Any = STEP, zero: Any = 0, kind: Any = np.int8, **attributes: Any
    ) -> str:
        scale = self.constant(f"{name}_s", np.asarray(step, np.float32))
        zeros = self.constant(f"{name}_z", np.asarray(zero, kind))
        q = self.node("QuantizeLinear", [x, scale, zeros], f"{name}_q", name=f"{name}/Q", **attributes)
        return self.node("DequantizeLinear", [q, scale, zeros], f"{name}_d", name=f"{name}/DQ", **attributes)

    def integers(self, name: str, *shape: int, kind: Any = np.int8) -> str:
        limits = np.iinfo(kind)
        return self.constant(name, self.random.integers(limits.min, limits.max + 1, shape).astype(kind))

    def dequantize(
        self, x: str, name: str, step: Any, zero: Any = 0, kind: Any = np.int8, **attributes: Any
    ) -> str:
        scale = self.constant(f"{name}_s", np.asarray(step, np.float32))
        zeros = self.constant(f"{name}_z", np.broadcast_to(np.asarray(zero, kind), np.shape(step)))
        return self.node("DequantizeLinear", [x, scale, zeros], f"{name}_d", name=f"{name}/DQ", **attributes)

    def filters(self, name: str = "w", kind: Any = np.int8, zero: Any = 0, channels: int = 4) -> str:
        """Pre-quantized weights of a 3x3 Conv from 4 channels, one scale per output channel."""
        values = self.integers(name, channels, 4, 3, 3, kind=kind)
        return self.dequantize(values, name, np.linspace(0.001, 0.002, channels), zero, kind, axis=0)

    def image(self) -> str:
        return self.input("x", [1, 4, 6, 6])

    def convolved(self, x: str, weight: str, *bias: str, name: str = "conv") -> str:
        return self.node("Conv", [x, weight, *bias], f"{name}_y", name=name, pads=[1, 1, 1, 1])


def _repaired(proto: onnx.ModelProto, folder: Path) -> tuple[Model, tuple[Change, ...]]:
    mended, changes = normalize(opened(proto, folder))
    onnx.checker.check_model(mended.proto, full_check=True)
    assert all(change.what and change.reason and change.subject for change in changes)
    return mended, changes


def _kinds(changes: tuple[Change, ...]) -> dict[str, int]:
    return dict(Counter(change.repair for change in changes))


def _apart(proto: onnx.ModelProto, mended: Model) -> float:
    """Largest difference of any output, as a share of its largest value."""
    feeds = models.feeds(proto)
    after = models.run(mended.proto, feeds, optimize=False)
    shares = []
    for name, before in models.run(proto, feeds, optimize=False).items():
        assert after[name].dtype == before.dtype
        wide = before.astype(np.float64)
        shares.append(np.abs(after[name] - wide).max() / np.abs(wide).max())
    return float(max(shares))


def _legal(mended: Model) -> bool:
    return all(
        pair.dtype is DType.INT8 and not any(pair.zero_point) and all(scale > 0 for scale in pair.scale)
        for pair in find(mended)
    )


def test_the_order_names_every_repair_on_the_shelf() -> None:
    assert sorted(ORDER) == list(REPAIRS.names())


@pytest.mark.parametrize("name", REPAIRS.names())
def test_a_repair_has_a_plug_and_a_manual(name: str) -> None:
    assert callable(REPAIRS.load(name))
    assert len(REPAIRS.manual(name).splitlines()) > 2


@pytest.mark.parametrize("name", models.ALL)
def test_float_models_have_nothing_to_repair(name: str, tmp_path: Path) -> None:
    assert _repaired(models.ALL[name](), tmp_path)[1] == ()


def test_a_good_model_has_nothing_to_repair(tmp_path: Path) -> None:
    s = Sketch()
    y = s.relu("relu", s.convolved(s.pair(s.image(), "x"), s.filters()))
    s.output(s.convolved(s.pair(y, "y"), s.filters("v"), name="conv2"))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert changes == ()
    assert remaining(mended) == ()
    assert _apart(proto, mended) == 0


@pytest.mark.parametrize(
    ("kind", "zero", "largest"),
    [
        (np.uint8, 128, 0.0),
        (np.uint8, 0, 0.05),
        (np.int8, -128, 0.05),
        (np.int8, 9, 0.05),
        (np.uint8, 200, 0.03),
    ],
    ids=["uint8 128 exactly", "uint8 0", "int8 -128", "int8 9", "uint8 100"],
)
def test_zero_points_of_activations_go(kind: Any, zero: int, largest: float, tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", 0.04, zero, kind), s.filters()))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"zero_points": 1}
    assert _legal(mended)
    assert _apart(proto, mended) <= largest
    assert changes[0].error == (0.0 if largest == 0 else None)


def test_a_zero_point_that_stood_for_a_relu_brings_the_relu_back_once(tmp_path: Path) -> None:
    s = Sketch()
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    left = s.convolved(s.pair(y, "a", zero=-128), s.filters("v"), name="left")
    right = s.convolved(s.pair(y, "b", zero=-128), s.filters("u"), name="right")
    s.output(s.node("Concat", [left, right], "z", axis=1))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert [node.op for node in mended.view.nodes].count("Relu") == 1
    assert "Relu" in changes[0].what
    assert _apart(proto, mended) < 0.03


def test_a_relu_that_is_there_is_not_doubled(tmp_path: Path) -> None:
    s = Sketch()
    y = s.relu("relu", s.convolved(s.pair(s.image(), "x"), s.filters()))
    s.output(s.convolved(s.pair(y, "y", zero=-128), s.filters("v"), name="conv2"))
    mended, _ = _repaired(s.model(), tmp_path)
    assert [node.op for node in mended.view.nodes].count("Relu") == 1


def test_a_missing_zero_point_is_written_out(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.image(), scale, zero], "q")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale], "d"), s.filters()))
    mended, changes = _repaired(s.model(), tmp_path)
    assert _kinds(changes) == {"zero_points": 1}
    assert all(len(node.inputs) == 3 for node in mended.view.nodes if node.op.endswith("quantizeLinear"))


@pytest.mark.parametrize(
    ("kind", "zero", "exact"),
    [(np.uint8, 128, True), (np.int8, 5, False), (np.uint8, 100, False)],
    ids=["uint8 128", "int8 5", "uint8 100"],
)
def test_zero_points_of_weights_go(kind: Any, zero: int, exact: bool, tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x"), s.filters(kind=kind, zero=zero)))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"weights": 1}
    assert _legal(mended)
    assert changes[0].error is not None
    assert (changes[0].error == 0) is exact
    assert changes[0].error < 0.01
    assert _apart(proto, mended) <= (1e-6 if exact else 0.02)


def test_a_small_zero_point_of_weights_goes_exactly_where_the_range_allows(tmp_path: Path) -> None:
    s = Sketch()
    values = s.constant("w", s.random.integers(-60, 60, (4, 4, 3, 3)).astype(np.int8))
    weight = s.dequantize(values, "w", np.full(4, 0.01), 7, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert changes[0].error == 0
    assert _apart(proto, mended) < 1e-6


def test_float_weights_behind_an_unsigned_pair_become_int8(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.pair(s.weight("w", 4, 4, 3, 3), "w", 0.01, 128, np.uint8)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"weights": 1}
    assert changes[0].error == 0
    assert _apart(proto, mended) < 1e-6


def test_integer_biases_become_float(tmp_path: Path) -> None:
    s = Sketch()
    bias = s.dequantize(s.integers("b", 4, kind=np.int32), "b", np.full(4, 1e-10), 0, np.int32, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), s.filters(), bias))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"bias": 1}
    assert mended.view.info(mended.view.by_name["conv"].inputs[2]).dtype is DType.FLOAT32
    assert _apart(proto, mended) < 1e-6


def test_weights_behind_a_transpose_and_a_reshape_come_to_the_node(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 2, 4, 4), "w", np.full(4, 0.01), 0, axis=2)
    weight = s.node("Transpose", [weight], "w_t", name="turn", perm=[2, 1, 0])
    weight = s.node("Reshape", [weight, s.constant("to", np.array([4, 8, 1, 1]))], "w_r", name="shape")
    x = s.input("x", [1, 8, 6, 6])
    s.output(s.node("Conv", [s.pair(x, "x"), weight], "y", name="conv"))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"weights": 1}
    assert changes[0].error == 0
    assert "Transpose" not in {node.op for node in mended.view.nodes}
    assert find(mended)[-1].axis == 0
    assert _apart(proto, mended) < 1e-6


def test_scales_along_the_wrong_axis_are_made_again(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 16, 8), "w", np.linspace(0.001, 0.01, 16), 0, axis=0)
    s.output(s.node("MatMul", [s.pair(s.input("x", [2, 16]), "x"), weight], "y", name="mm"))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"weights": 1}
    assert find(mended)[-1].axis == 1
    assert _apart(proto, mended) < 0.02


def test_a_quantized_number_becomes_a_float_number(tmp_path: Path) -> None:
    s = Sketch()
    half = s.dequantize(s.constant("h", np.int8(50)), "h", 0.01)
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    s.output(s.node("Mul", [y, half], "y", name="mul"))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"weights": 1}
    assert _apart(proto, mended) < 1e-6


@pytest.mark.parametrize("shape", [(1,), (4,)], ids=["rank one", "per channel"])
def test_scales_of_activations_become_one_number(shape: tuple[int, ...], tmp_path: Path) -> None:
    s = Sketch()
    steps = np.linspace(0.02, 0.03, shape[0])
    x = s.pair(s.image(), "x", steps, np.zeros(shape), axis=1)
    s.output(s.convolved(x, s.filters()))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"scales": 1}
    assert find(mended)[0].scale_shape == ()
    assert _apart(proto, mended) <= (0 if shape == (1,) else 0.03)


def test_negative_scales_become_positive(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", -STEP), s.filters()))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"scales": 1}
    assert _legal(mended)
    assert _apart(proto, mended) < 1e-6


def _with_scale(step: float) -> onnx.ModelProto:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", step), s.filters()))
    return s.model()


@pytest.mark.parametrize("step", [0.0, float("inf")])
def test_pairs_without_a_usable_scale_go_and_leave_a_remainder(step: float, tmp_path: Path) -> None:
    mended, changes = _repaired(_with_scale(step), tmp_path)
    assert _kinds(changes) == {"scales": 1}
    assert [left.subject for left in remaining(mended)] == ["conv"]


def test_a_scale_that_is_no_number_is_refused_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="'x_s' holds 1 NaN"):
        opened(_with_scale(float("nan")), tmp_path)


def test_computed_scales_go_because_the_builder_crashes_on_them(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    scale = s.node("ReduceMax", [s.node("Abs", [x], "abs")], "scale", keepdims=0)
    zero = s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [x, scale, zero], "q", name="q")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    mended, changes = _repaired(s.model(), tmp_path)
    assert _kinds(changes) == {"scales": 1}
    assert "ReduceMax" not in {node.op for node in mended.view.nodes}


def test_scales_that_do_not_fit_their_axis_are_refused(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 4, 4, 3, 3), "w", np.full(3, 0.01), 1, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    with pytest.raises(InputFileError, match="3 scales do not fit axis 0 of 'w'"):
        normalize(opened(s.model(), tmp_path))


def test_shared_pairs_become_dedicated_ones(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x")
    left = s.convolved(x, s.filters("v"), name="left")
    right = s.convolved(x, s.filters("u"), name="right")
    s.output(s.node("Concat", [left, right, x], "z", axis=1))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"dedicated": 2}
    assert all(len(pair.slots) == 1 for pair in find(mended))
    assert _apart(proto, mended) == 0


def test_a_returned_pair_keeps_its_output_name(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x")
    s.output(x)
    s.output(s.convolved(x, s.filters()))
    proto = s.model()
    mended, _ = _repaired(proto, tmp_path)
    assert [info.name for info in mended.view.outputs] == ["x_d", "conv_y"]
    assert _apart(proto, mended) == 0


def test_pairs_between_conv_and_activation_go(tmp_path: Path) -> None:
    s = Sketch()
    y = s.pair(s.convolved(s.pair(s.image(), "x"), s.filters()), "inner", 0.05)
    y = s.pair(s.relu("relu", y), "outer", 0.05)
    s.output(s.convolved(y, s.filters("v"), name="conv2"))
    mended, changes = _repaired(s.model(), tmp_path)
    assert [change.subject for change in changes] == ["inner/Q"]
    assert mended.view.by_name["relu"].inputs == ("conv_y",)


def test_pairs_inside_silu_go(tmp_path: Path) -> None:
    s = Sketch()
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    gate = s.node("Sigmoid", [s.pair(y, "a", 0.05)], "gate", name="sigmoid")
    y = s.node("Mul", [s.pair(y, "b", 0.05), s.pair(gate, "c", 0.01)], "silu", name="mul")
    s.output(s.convolved(s.pair(y, "out", 0.05), s.filters("v"), name="conv2"))
    mended, changes = _repaired(s.model(), tmp_path)
    assert {change.subject for change in changes} == {"a/Q", "b/Q", "c/Q"}
    assert mended.view.by_name["mul"].inputs == ("conv_y", "gate")


def test_a_pair_before_a_lone_relu_moves_behind_it(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.relu("relu", s.pair(s.image(), "x")), s.filters()))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"activation": 1}
    assert find(mended)[0].tensor == "relu_y"
    assert _apart(proto, mended) == 0


@pytest.mark.parametrize(("first", "second", "gone"), [(0.05, 0.02, "a/Q"), (0.02, 0.05, "b/Q")])
def test_of_two_pairs_in_a_row_the_wider_one_goes(
    first: float, second: float, gone: str, tmp_path: Path
) -> None:
    s = Sketch()
    x = s.pair(s.pair(s.image(), "a", first), "b", second)
    s.output(s.convolved(x, s.filters()))
    mended, changes = _repaired(s.model(), tmp_path)
    assert [change.subject for change in changes] == [gone]
    assert [pair.scale[0] for pair in find(mended)][:1] == [float(np.float32(min(first, second)))]


def test_the_conv_side_of_a_residual_add_loses_its_pair(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    y = s.convolved(s.pair(x, "x"), s.filters())
    s.output(s.node("Add", [s.pair(x, "shortcut"), s.pair(y, "branch", 0.05)], "z", name="add"))
    mended, changes = _repaired(s.model(), tmp_path)
    assert _kinds(changes) == {"residual": 1}
    assert mended.view.by_name["add"].inputs[1] == "conv_y"


def test_a_float_weight_beside_a_quantized_activation_is_quantized(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x"), s.weight("w", 4, 4, 3, 3)))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"missing": 1}
    assert changes[0].error is not None
    assert 0 < changes[0].error < 0.005
    assert find(mended)[-1].scale_shape == (4,)
    assert _apart(proto, mended) < 0.02


def test_branches_of_concat_and_what_follows_share_the_largest_scale(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    y = s.node("Concat", [s.pair(x, "a", 0.01), s.pair(x, "b", 0.03)], "cat", name="cat", axis=1)
    y = s.node("MaxPool", [s.pair(y, "c", 0.02)], "pool", name="pool", kernel_shape=[2, 2])
    weight = s.dequantize(s.integers("w", 4, 8, 1, 1), "w", np.full(4, 0.01), axis=0)
    s.output(s.node("Conv", [s.pair(y, "d", 0.05), weight], "y", name="conv"))
    mended, changes = _repaired(s.model(), tmp_path)
    assert len(changes) == 1
    scales = {pair.scale[0] for pair in find(mended) if pair.quantize}
    assert scales == {float(np.float32(0.05))}


def test_standard_operators_replace_those_of_the_microsoft_domain(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", domain="com.microsoft"), s.filters()))
    proto = s.model(domains=["com.microsoft"])
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"domain": 2}
    assert _apart(proto, mended) == 0


def test_movement_of_integers_becomes_movement_of_floats(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.input("x", [1, 6, 6, 4]), scale, zero], "q", name="q")
    q = s.node("Transpose", [q], "qt", name="turn", perm=[0, 3, 1, 2])
    q = s.node("Identity", [q], "qi", name="same")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    proto = s.model()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"movement": 1}
    turn = mended.view.by_name["turn_float"]
    maker = mended.view.producer(turn.inputs[0])
    assert maker is not None
    assert maker.op == "DequantizeLinear"
    assert _apart(proto, mended) == 0


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
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"interface": 2}
    assert _legal(mended)
    random = np.random.default_rng(0)
    limits = np.iinfo(kind)
    feeds = {"x": random.integers(limits.min, limits.max + 1, (1, 4, 6, 6)).astype(kind)}
    before, after = (models.run(found, feeds, optimize=False)["y"] for found in (proto, mended.proto))
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
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"casts": 4}
    assert mended.view.opset == 19
    assert "Cast" not in {node.op for node in mended.view.nodes}
    assert _apart(proto, mended) < 0.01


def test_dangling_nodes_are_dropped_and_told(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    s.pair(x, "lost")
    s.output(s.convolved(s.pair(x, "x"), s.filters()))
    _, changes = _repaired(s.model(), tmp_path)
    assert [(change.repair, change.subject) for change in changes] == [
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
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes)["operators"] == 3
    assert {node.op for node in mended.view.nodes} == {
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
        "Add",
        "Concat",
    }
    assert _legal(mended)
    assert _apart(proto, mended) < 0.02


def _dynamic() -> onnx.ModelProto:
    """What onnxruntime's dynamic quantization makes of a MatMul."""
    s = Sketch()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(helper.make_node("DynamicQuantizeLinear", [s.input("x", ["N", 16])], names, name="dql"))
    weight, zero = s.integers("w", 16, 8), s.constant("wz", np.zeros(8, np.int8))
    y = s.node("MatMulInteger", ["q", weight, "q_z", zero], "sum", name="mm")
    y = s.node("Cast", [y], "sum_f", name="cast", to=TensorProto.FLOAT)
    factor = s.node(
        "Mul", ["q_s", s.constant("ws", np.linspace(0.01, 0.02, 8).astype(np.float32))], "f", name="f"
    )
    s.output(s.node("Mul", [y, factor], "y", name="out"))
    return s.model()


def test_dynamic_layers_keep_their_weights_and_ask_for_ranges(tmp_path: Path) -> None:
    proto = _dynamic()
    mended, changes = _repaired(proto, tmp_path)
    assert _kinds(changes) == {"dynamic": 1}
    assert [left.fix for left in remaining(mended)] == ["pass --samples, so that its range can be measured"]
    assert _apart(proto, mended) < 0.02


def test_a_measured_range_completes_a_dynamic_layer(tmp_path: Path) -> None:
    proto = _dynamic()
    mended, _ = _repaired(proto, tmp_path)
    assert wanted(mended) == ("x",)
    done, changes = quantize_activations(mended, {"x": 3.0})
    assert [change.repair for change in changes] == ["ranges"]
    assert remaining(done) == ()
    assert _apart(proto, done) < 0.05


def test_a_range_that_is_no_number_is_passed_over(tmp_path: Path) -> None:
    mended, _ = _repaired(_dynamic(), tmp_path)
    assert quantize_activations(mended, {"x": float("nan")}) == (mended, ())


def test_integer_operators_of_no_known_form_are_told(tmp_path: Path) -> None:
    s = models.Sketch()
    a = s.input("a", [2, 2], TensorProto.INT8)
    s.output(s.node("MatMulInteger", [a, a], "y", name="mmi"), [2, 2], TensorProto.INT32)
    mended, changes = normalize(opened(s.model(), tmp_path))
    assert changes == ()
    assert [left.subject for left in remaining(mended)] == ["mmi"]


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
    mended, changes = _repaired(s.model(), tmp_path)
    assert changes == ()
    assert [left.subject for left in remaining(mended)] == ["choose"]


def test_repairing_twice_changes_nothing_more(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x", zero=-100)
    y = s.pair(
        s.relu("relu", s.pair(s.convolved(x, s.filters(kind=np.uint8, zero=120)), "c", 0.05)), "r", 0.05, -128
    )
    s.output(s.node("Add", [y, s.pair(s.convolved(y, s.filters("v"), name="conv2"), "b")], "z", name="add"))
    mended, changes = _repaired(s.model(), tmp_path)
    assert changes
    again, more = normalize(mended)
    assert more == ()
    assert serialize(again) == serialize(mended)


def test_the_original_is_not_touched(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", zero=3), s.filters()))
    path = models.save(s.model(), tmp_path)
    model = load(path)
    before, content = serialize(model), path.read_bytes()
    normalize(model)
    assert (serialize(model), path.read_bytes()) == (before, content)
