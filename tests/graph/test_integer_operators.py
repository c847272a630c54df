"""Every operator on integers that onnxruntime writes becomes Q/DQ that computes the same, and that TensorRT builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.placement.repair import remaining, repair
from tests.graph.placing import opened
from tests.graph.repairing import Sketch, apart, kinds, legal, repaired

MICROSOFT = "com.microsoft"


class Integers(Sketch):
    """Writes operators on integers between a QuantizeLinear and a DequantizeLinear."""

    def numbers(self, name: str, step: Any, zero: Any = 0, kind: Any = np.int8) -> list[str]:
        zeros = np.broadcast_to(np.asarray(zero, kind), np.shape(step)).copy()
        return [self.constant(f"{name}_s", np.asarray(step, np.float32)), self.constant(f"{name}_z", zeros)]

    def entering(self, name: str, *shape: int, kind: Any = np.int8, zero: int = 0) -> list[str]:
        """A model input, quantized: its integers, scale and zero point."""
        numbers = self.numbers(name, 0.03, zero, kind)
        x = self.input(f"{name}_in", list(shape))
        return [self.node("QuantizeLinear", [x, *numbers], f"{name}_q", name=f"{name}/Q"), *numbers]

    def leaving(self, tensor: str, numbers: list[str]) -> onnx.ModelProto:
        self.output(self.node("DequantizeLinear", [tensor, *numbers], "y", name="y/DQ"))
        return self.model(17, domains=[MICROSOFT])

    def stored(self, name: str, *shape: int, axis: int | None = None, kind: Any = np.int8) -> list[str]:
        """Integer weights with their scale and zero point, per channel where an axis is given."""
        middle = 128 if kind is np.uint8 else 0
        step = 0.002 if axis is None else np.linspace(0.001, 0.003, shape[axis])
        return [self.integers(name, *shape, kind=kind), *self.numbers(name, step, middle, kind)]


def qlinear_conv(kind: Any = np.int8, axis: int | None = 0, domain: str = "") -> onnx.ModelProto:
    s, middle = Integers(), 128 if kind is np.uint8 else 0
    x, w = (
        s.entering("x", 1, 4, 6, 6, kind=kind, zero=middle + 3),
        s.stored("w", 8, 4, 3, 3, axis=axis, kind=kind),
    )
    out, bias = (
        s.numbers("o", 0.05, middle + 7, kind),
        s.constant("b", np.arange(-400, 400, 100, dtype=np.int32)),
    )
    extra = {"channels_last": 0} if domain else {}
    y = s.node("QLinearConv", [*x, *w, *out, bias], "c", name="c", domain=domain, pads=[1] * 4, **extra)
    return s.leaving(y, out)


def qlinear_matmul() -> onnx.ModelProto:
    s = Integers()
    x, out = s.entering("x", 1, 8, 16), s.numbers("o", 0.05)
    return s.leaving(s.node("QLinearMatMul", [*x, *s.stored("w", 16, 12), *out], "m", name="m"), out)


def qlinear_matmul_of_activations() -> onnx.ModelProto:
    s = Integers()
    a, b, out = s.entering("a", 1, 8, 16), s.entering("b", 1, 16, 8), s.numbers("o", 0.05)
    return s.leaving(s.node("QLinearMatMul", [*a, *b, *out], "m", name="m"), out)


def qgemm(transposed: int, axis: int | None, *, computed: bool = False, **scaled: float) -> onnx.ModelProto:
    s = Integers()
    x, out = s.entering("x", 4, 16), s.numbers("o", 0.05)
    w = s.stored("w", *((12, 16) if transposed else (16, 12)), axis=axis)
    values = np.arange(12) * 200
    bias = s.input("b", [12]) if computed else s.constant("b", values.astype(np.int32))
    if computed:
        large = s.node("Mul", [bias, s.constant("b_large", np.float32(2000))], "b_large_f", name="b/Mul")
        bias = s.node("Cast", [large], "b_i", name="b/Cast", to=TensorProto.INT32)
    y = s.node("QGemm", [*x, *w, bias, *out], "g", name="g", domain=MICROSOFT, transB=transposed, **scaled)
    return s.leaving(y, out)


def of_two(op: str) -> onnx.ModelProto:
    s = Integers()
    a, b, out = s.entering("a", 1, 4, 6, 6), s.entering("b", 1, 4, 6, 6, zero=-5), s.numbers("o", 0.08)
    return s.leaving(s.node(op, [*a, *b, *out], "t", name="t", domain=MICROSOFT), out)


def of_one(op: str, **attributes: Any) -> onnx.ModelProto:
    s = Integers()
    x, out = s.entering("x", 1, 4, 6, 6), s.numbers("o", 0.02)
    return s.leaving(s.node(op, [*x, *out], "t", name="t", domain=MICROSOFT, **attributes), out)


def qlinear_concat() -> onnx.ModelProto:
    s = Integers()
    a, b, out = s.entering("a", 1, 4, 6, 6), s.entering("b", 1, 4, 6, 6, zero=9), s.numbers("o", 0.05)
    return s.leaving(s.node("QLinearConcat", [*out, *a, *b], "t", name="t", domain=MICROSOFT, axis=1), out)


def dynamic(op: str, weight: tuple[int, ...], source: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    """DynamicQuantizeLinear -> ...Integer -> Cast -> Mul."""
    s = Integers()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(helper.make_node("DynamicQuantizeLinear", [s.input("x", source)], names, name="dql"))
    step = s.constant("w_s", np.float32(0.01))
    w, zero = s.integers("w", *weight), s.constant("w_z", np.zeros((), np.int8))
    y = s.node(op, ["q", w, "q_z", zero], "sum", name="core", **attributes)
    y = s.node("Cast", [y], "sum_f", name="cast", to=TensorProto.FLOAT)
    s.output(s.node("Mul", [y, s.node("Mul", ["q_s", step], "f", name="f")], "y", name="out"))
    return s.model(17)


def dynamic_with_bias() -> onnx.ModelProto:
    """The same with a bias that is rounded to the step of the sums, as onnxruntime wrote it before 1.15."""
    s = Integers()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(helper.make_node("DynamicQuantizeLinear", [s.input("x", (1, 4, 6, 6))], names, name="dql"))
    step = s.constant("w_s", np.float32(0.01))
    w, zero = s.integers("w", 8, 4, 3, 3), s.constant("w_z", np.zeros((), np.int8))
    both = s.node("Mul", ["q_s", step], "f", name="f")
    bias = s.constant("b", np.linspace(-3, 3, 8, dtype=np.float32))
    b = s.node("Floor", [s.node("Div", [bias, both], "b_d", name="b_d")], "b_r", name="b_r")
    b = s.node("Cast", [b], "b_i", name="b_i", to=TensorProto.INT32)
    b = s.node("Reshape", [b, s.constant("b_shape", np.array([1, -1, 1, 1]))], "b_x", name="b_x")
    y = s.node("ConvInteger", ["q", w, "q_z", zero], "sum", name="core", pads=[1] * 4)
    y = s.node(
        "Cast", [s.node("Add", [y, b], "sum_b", name="add")], "sum_f", name="cast", to=TensorProto.FLOAT
    )
    s.output(s.node("Mul", [y, both], "y", name="out"))
    return s.model(17)


def dynamic_in_one() -> onnx.ModelProto:
    s = Integers()
    w = [s.integers("w", 16, 8), *s.numbers("w", 0.01)]
    x = s.input("x", [4, 16])
    s.output(s.node("DynamicQuantizeMatMul", [x, *w], "y", name="core", domain=MICROSOFT))
    return s.model(17, domains=[MICROSOFT])


def integer_to_float() -> onnx.ModelProto:
    s = Integers()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(helper.make_node("DynamicQuantizeLinear", [s.input("x", [4, 16])], names, name="dql"))
    w, (step, zero) = s.integers("w", 16, 8), s.numbers("w", np.linspace(0.01, 0.02, 8))
    inputs = ["q", w, "q_s", step, "q_z", zero]
    s.output(s.node("MatMulIntegerToFloat", inputs, "y", name="core", domain=MICROSOFT))
    return s.model(17, domains=[MICROSOFT])


STATIC: dict[str, Callable[[], onnx.ModelProto]] = {
    "QLinearConv": qlinear_conv,
    "QLinearConv uint8": lambda: qlinear_conv(np.uint8, None),
    "QLinearConv com.microsoft": lambda: qlinear_conv(np.uint8, None, MICROSOFT),
    "QLinearMatMul": qlinear_matmul,
    "QLinearMatMul activations": qlinear_matmul_of_activations,
    "QGemm": lambda: qgemm(0, None),
    "QGemm per channel": lambda: qgemm(0, 1),
    "QGemm transposed per channel": lambda: qgemm(1, 0),
    "QGemm with alpha": lambda: qgemm(0, None, alpha=0.5),
    "QLinearAdd": lambda: of_two("QLinearAdd"),
    "QLinearMul": lambda: of_two("QLinearMul"),
    "QLinearSigmoid": lambda: of_one("QLinearSigmoid"),
    "QLinearLeakyRelu": lambda: of_one("QLinearLeakyRelu", alpha=0.1),
    "QLinearSoftmax": lambda: of_one("QLinearSoftmax", axis=-1, opset=13),
    "QLinearAveragePool": lambda: of_one("QLinearAveragePool", kernel_shape=[2, 2], channels_last=0),
    "QLinearGlobalAveragePool": lambda: of_one("QLinearGlobalAveragePool", channels_last=0),
    "QLinearConcat": qlinear_concat,
}
DYNAMIC: dict[str, Callable[[], onnx.ModelProto]] = {
    "ConvInteger": lambda: dynamic("ConvInteger", (8, 4, 3, 3), (1, 4, 6, 6), pads=[1] * 4),
    "ConvInteger with a bias": dynamic_with_bias,
    "MatMulInteger": lambda: dynamic("MatMulInteger", (16, 8), (4, 16)),
    "DynamicQuantizeMatMul": dynamic_in_one,
    "MatMulIntegerToFloat": integer_to_float,
}


@pytest.mark.parametrize("name", STATIC)
def test_a_static_integer_operator_computes_the_same_in_q_dq(name: str, tmp_path: Path) -> None:
    proto = STATIC[name]()
    fixed, _ = repaired(proto, tmp_path)
    assert legal(fixed)
    assert remaining(fixed) == ()
    # Asymmetric uint8 clips at other ends than symmetric INT8 does, and has steps half as wide for what is above 0.
    wide = "uint8" in name or MICROSOFT in name or name == "QLinearSoftmax"
    assert apart(proto, fixed) < (0.05 if wide else 0.03)


def test_a_softmax_of_integers_that_flattens_its_input_stays(tmp_path: Path) -> None:
    """Softmax computes along one axis only: Q/DQ around it would return other numbers."""
    fixed, _ = repair(opened(of_one("QLinearSoftmax", axis=1, opset=12), tmp_path))
    assert [node.op for node in fixed.view.nodes if "Softmax" in node.op] == ["QLinearSoftmax"]


def test_a_gemm_of_integers_keeps_its_alpha_on_a_computed_bias(tmp_path: Path) -> None:
    proto = qgemm(0, 1, computed=True, alpha=0.5)
    assert apart(proto, repaired(proto, tmp_path)[0]) < 0.03


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_integer_operator_computes_the_same_with_a_float_activation(
    name: str, tmp_path: Path
) -> None:
    proto = DYNAMIC[name]()
    fixed, _ = repaired(proto, tmp_path)
    assert legal(fixed)
    assert [left.subject for left in remaining(fixed)] != []
    assert not any("Integer" in node.op or "Dynamic" in node.op for node in fixed.view.nodes)
    assert apart(proto, fixed) < 0.03


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_tensorrt_builds_what_an_integer_operator_became(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    fixed, _ = repaired({**STATIC, **DYNAMIC}[name](), tmp_path)
    built = build(fixed.proto)
    assert built.error == ""
    if name in STATIC:
        assert {precision for _, precision in built.precision} <= {"int8"}


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_resize_that_interpolates_integers_rounds_floats_instead(mode: str, tmp_path: Path) -> None:
    s = Sketch()
    q, scale, zero = integers_of(s)
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    q = s.node("Resize", [q, "", factors], "large", name="resize", mode=mode)
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["movement"] == 1
    assert legal(fixed)
    assert {node.op for node in fixed.view.nodes} >= {"Resize", "QuantizeLinear", "Conv"}
    assert repaired(fixed.proto, tmp_path)[1] == ()


@pytest.mark.parametrize("value", [None, 7, 100], ids=["no value", "the zero point", "another value"])
def test_a_pad_of_integers_pads_with_what_they_stand_for(value: int | None, tmp_path: Path) -> None:
    s = Sketch()
    q, scale, zero = integers_of(s, 7)
    pads = s.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    filling = [] if value is None else [s.constant("filling", np.int8(value))]
    q = s.node("Pad", [q, pads, *filling], "padded", name="pad")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["movement"] == 1
    assert legal(fixed)
    assert apart(proto, fixed) < 0.02


def test_moved_integers_that_the_model_returns_leave_no_identity(tmp_path: Path) -> None:
    s = Sketch()
    q, scale, zero = integers_of(s)
    q = s.node("Transpose", [q], "turned", name="turn", perm=[0, 2, 3, 1])
    s.output(s.node("DequantizeLinear", [q, scale, zero], "y", name="d"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["movement"] == 1
    assert "Identity" not in {node.op for node in fixed.view.nodes}
    assert apart(proto, fixed) == 0


def integers_of(s: Sketch, zero: int = 0) -> tuple[str, str, str]:
    """The INT8 form of an image, its scale and zero point."""
    scale, zeros = s.constant("s", np.float32(0.02)), s.constant("z", np.int8(zero))
    return s.node("QuantizeLinear", [s.image(), scale, zeros], "q", name="q"), scale, zeros


@pytest.mark.parametrize("columns", [False, True], ids=["a scale per direction", "a scale per column"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_dynamically_quantized_lstm_becomes_an_lstm(direction: str, columns: bool, tmp_path: Path) -> None:
    s = Integers()
    ways, hidden = (2, 6) if direction == "bidirectional" else (1, 6)
    steps = np.linspace(0.004, 0.006, ways * 4 * hidden if columns else ways).astype(np.float32)
    shape = (ways, 4 * hidden) if columns else (ways,)
    weights, scales = [], []
    for part, inputs in (("w", 8), ("r", hidden)):
        weights.append(s.integers(part, ways, inputs, 4 * hidden))
        zeros = np.zeros(shape, np.int8) if columns else s.random.integers(-3, 4, shape).astype(np.int8)
        scales += [s.constant(f"{part}_s", steps.reshape(shape)), s.constant(f"{part}_z", zeros)]
    bias = s.constant("b", s.random.normal(size=(ways, 8 * hidden)).astype(np.float32))
    inputs = [s.input("x", [5, 2, 8]), *weights, bias, "", "", "", "", *scales]
    more = {"hidden_size": hidden, "direction": direction}
    s.output(s.node("DynamicQuantizeLSTM", inputs, "y", name="core", domain=MICROSOFT, **more))
    proto = s.model(17, domains=[MICROSOFT])
    fixed, changes = repaired(proto, tmp_path)
    assert legal(fixed)
    assert [node.op for node in fixed.view.nodes] == ["LSTM"]
    assert any("LSTM with float weights" in change.what for change in changes)
    assert apart(proto, fixed) < 0.03
