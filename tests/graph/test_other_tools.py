"""Models in the forms that nvidia-modelopt, onnxruntime and torchao write are explained, and repaired into what TensorRT reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from qdqtool.cli.app import run
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.dequantizing import with_dequantize
from qdqtool.graph.view import Model
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import remaining, repair
from qdqtool.prediction.predict import predict
from qdqtool.runtime.runner import open_runner
from tests import models
from tests.models import Sketch
from tests.placement.building import build

DEPTH, COLUMNS, BLOCK = 256, 128, 32
RANDOM = np.random.default_rng(7)
SCALES = (RANDOM.random((DEPTH // BLOCK, COLUMNS)) * 0.02 + 0.01).astype(np.float32)
Maker = Callable[[], onnx.ModelProto]


def _trt(s: Sketch, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
    node = onnx.helper.make_node(
        op, inputs, list(outputs), name=f"{outputs[0]}/{op}", domain="trt", **attributes
    )
    s.nodes.append(node)
    return outputs[0]


def _done(s: Sketch, x: str, weight: str, opset: int = 21) -> onnx.ModelProto:
    s.node("MatMul", [x, weight], "y", name="mm")
    s.output("y", [4, COLUMNS])
    return s.model(opset, domains=["trt", "com.microsoft"])


def modelopt_fp8(opset: int = 21) -> onnx.ModelProto:
    s = Sketch()
    x, step = s.input("x", [4, DEPTH]), s.constant("x_s", np.float32(0.01))
    weight, scale = s.weight("w", DEPTH, COLUMNS), s.constant("w_s", np.float32(0.002))
    x = _trt(s, "TRT_FP8DequantizeLinear", [_trt(s, "TRT_FP8QuantizeLinear", [x, step], "x_q"), step], "x_d")
    stored = _trt(s, "TRT_FP8QuantizeLinear", [weight, scale], "w_q")
    return _done(s, x, _trt(s, "TRT_FP8DequantizeLinear", [stored, scale], "w_d"), opset)


def modelopt_int4_awq(opset: int = 21) -> onnx.ModelProto:
    s = Sketch()
    factors = s.constant("pre", np.linspace(0.5, 2, DEPTH, dtype=np.float32))
    x = s.node("Mul", [s.input("x", [4, DEPTH]), factors], "x_scaled", name="pre_scale")
    stored = s.constant("w", RANDOM.integers(-8, 8, (DEPTH, COLUMNS)).astype(ml_dtypes.int4))
    inputs = [stored, s.constant("w_s", SCALES)]
    return _done(s, x, _trt(s, "TRT_INT4DequantizeLinear", inputs, "w_d", axis=0, block_size=BLOCK), opset)


def modelopt_nvfp4() -> onnx.ModelProto:
    """Activations with computed scales, a weight [N, K] that is only rounded, and a Transpose behind it."""
    s = Sketch()
    x, level = s.input("x", [4, DEPTH]), s.constant("level", np.float32(0.01))
    _trt(s, "TRT_FP4DynamicQuantize", [x, level], "x_q", "x_low", axis=-1, block_size=16, scale_type=17)
    scale = s.node("DequantizeLinear", ["x_low", level], "x_s", name="x_s/DQ")
    x = s.node("DequantizeLinear", ["x_q", scale], "x_d", name="x/DQ", axis=-1, block_size=16)
    weight = _trt(s, "TRT_FP4QDQ", [s.weight("w", COLUMNS, DEPTH)], "w_d", block_size=16)
    return _done(s, x, s.node("Transpose", [weight], "w_t", name="turn", perm=[1, 0]), 23)


def modelopt_mxfp8(product: str = "MatMul", kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Blocks of 32 with powers of two as scales: activations at run time, a weight [N, K] stored, its Transpose behind it."""
    s = Sketch()
    blocks = {"axis": -1, "block_size": 32}
    x = s.input("x", [4, DEPTH], kind)
    s.nodes.append(
        onnx.helper.make_node(
            "TRT_MXFP8DynamicQuantize",
            [x],
            ["x_q", "x_s"],
            name="x/Q",
            domain="trt",
            output_dtype=17,
            **blocks,
        )
    )
    x = _trt(s, "TRT_MXFP8DequantizeLinear", ["x_q", "x_s"], "x_d", output_dtype=kind, **blocks)
    values = RANDOM.standard_normal((COLUMNS, DEPTH)).astype(ml_dtypes.float8_e4m3fn)
    inputs = [s.constant("w", values), s.constant("w_s", np.full((COLUMNS, DEPTH // 32), 120, np.uint8))]
    weight = _trt(s, "TRT_MXFP8DequantizeLinear", inputs, "w_d", output_dtype=kind, **blocks)
    if product == "Gemm":
        s.node("Gemm", [x, weight], "y", name="mm", transB=1)
    else:
        s.node("MatMul", [x, s.node("Transpose", [weight], "w_t", name="turn", perm=[1, 0])], "y", name="mm")
    s.output("y", [4, COLUMNS], kind)
    return s.model(19, domains=["trt"])


def matmul_nbits(bits: int = 4, *, zeros: int | None = None, bias: bool = False, half: bool = False) -> Maker:
    def make() -> onnx.ModelProto:
        s, kind = Sketch(), np.float16 if half else np.float32
        x = s.input("x", [4, DEPTH], TensorProto.FLOAT16 if half else TensorProto.FLOAT)
        count = DEPTH // BLOCK
        packed = RANDOM.integers(0, 256, (COLUMNS, count, BLOCK * bits // 8)).astype(np.uint8)
        inputs = [x, s.constant("w", packed), s.constant("w_s", SCALES.T.ravel().astype(kind))]
        if zeros is not None:
            inputs.append(s.constant("w_z", np.full(COLUMNS * count * bits // 8, zeros, np.uint8)))
        if bias:
            inputs += [""] * (5 - len(inputs)) + [
                s.constant("b", RANDOM.standard_normal(COLUMNS).astype(kind))
            ]
        sizes = {"K": DEPTH, "N": COLUMNS, "bits": bits, "block_size": BLOCK}
        s.node("MatMulNBits", inputs, "y", name="mm", domain="com.microsoft", **sizes)
        s.outputs.append(
            onnx.helper.make_tensor_value_info(
                "y", TensorProto.FLOAT16 if half else TensorProto.FLOAT, [4, COLUMNS]
            )
        )
        return s.model(17, domains=["com.microsoft"])

    return make


def act_order() -> onnx.ModelProto:
    """MatMulNBits whose blocks hold rows from all over the summed axis."""
    proto = matmul_nbits()()
    groups = np.random.default_rng(5).permutation(np.arange(DEPTH, dtype=np.int32) // BLOCK)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(groups, "order"))
    proto.graph.node[0].input.extend(["", "order"])
    return proto


def packed_table(kind: Any, bits: int = 4, *, zeros: bool = False) -> Maker:
    """GatherBlockQuantized of a table with 40 rows, in front of a product."""

    def make() -> onnx.ModelProto:
        s, count = Sketch(), DEPTH // BLOCK
        if kind == np.uint8:
            table = RANDOM.integers(0, 256, (40, DEPTH * bits // 8)).astype(np.uint8)
        else:
            low, high = (0, 16) if kind == ml_dtypes.uint4 else (-8, 8)
            table = RANDOM.integers(low, high, (40, DEPTH)).astype(kind)
        steps = RANDOM.uniform(0.01, 0.02, (40, count)).astype(np.float32)
        s.inputs.append(onnx.helper.make_tensor_value_info("x", TensorProto.INT64, [4, 3]))
        inputs = [s.constant("t", table), "x", s.constant("t_s", steps)]
        if zeros:
            packed = np.full((40, -(-count * bits // 8)), 0x88 if bits == 4 else 0x80, np.uint8)
            inputs.append(s.constant("t_z", packed))
        found = s.node(
            "GatherBlockQuantized", inputs, "rows", name="table", domain="com.microsoft",
            bits=bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        s.node("MatMul", [found, s.weight("w", DEPTH, COLUMNS)], "y", name="mm")
        s.output("y", [4, 3, COLUMNS])
        return s.model(21, domains=["com.microsoft"])

    return make


def four_bits(kind: Any, zero: int | None, first_scale: float = 1.0) -> Maker:
    """Blocks of four bits; `first_scale` multiplies the scales of the first block of every column."""

    def make() -> onnx.ModelProto:
        s = Sketch()
        scales = SCALES * np.where(np.arange(len(SCALES)) == 0, first_scale, 1.0).astype(np.float32)[:, None]
        low, high = (0, 16) if kind == ml_dtypes.uint4 else (-8, 8)
        inputs = [
            s.constant("w", RANDOM.integers(low, high, (DEPTH, COLUMNS)).astype(kind)),
            s.constant("w_s", scales),
        ]
        if zero is not None:
            inputs.append(s.constant("w_z", np.full(scales.shape, zero).astype(kind)))
        weight = s.node("DequantizeLinear", inputs, "w_d", name="w/DQ", axis=0, block_size=BLOCK)
        return _done(s, s.input("x", [4, DEPTH]), weight)

    return make


def pt2e() -> onnx.ModelProto:
    """An activation with a zero point, weights [N, K] with one scale per row, and a Transpose behind them."""
    s = Sketch()
    given = [s.constant("x_s", np.float32(0.02)), s.constant("x_z", np.int8(3))]
    stored = s.node("QuantizeLinear", [s.input("x", [4, DEPTH]), *given], "x_q", name="x/Q")
    x = s.node("DequantizeLinear", [stored, *given], "x_d", name="x/DQ")
    inputs = [
        s.constant("w", RANDOM.integers(-127, 128, (COLUMNS, DEPTH)).astype(np.int8)),
        s.constant("w_s", np.full(COLUMNS, 0.001, np.float32)),
        s.constant("w_z", np.zeros(COLUMNS, np.int8)),
    ]
    weight = s.node("DequantizeLinear", inputs, "w_d", name="w/DQ", axis=0)
    return _done(s, x, s.node("Transpose", [weight], "w_t", name="turn", perm=[1, 0]))


def torchao() -> onnx.ModelProto:
    """A weight of integers that Cast and Mul make float."""
    s = Sketch()
    stored = s.constant("w", RANDOM.integers(-127, 128, (COLUMNS, DEPTH)).astype(np.int8))
    floats = s.node("Cast", [stored], "w_f", name="cast", to=TensorProto.FLOAT)
    scaled = s.node(
        "Mul", [floats, s.constant("w_s", np.full((COLUMNS, 1), 0.01, np.float32))], "w_d", name="scale"
    )
    return _done(s, s.input("x", [4, DEPTH]), s.node("Transpose", [scaled], "w_t", name="turn", perm=[1, 0]))


def torchao_behind_the_product() -> onnx.ModelProto:
    """Int8WeightOnlyConfig: the product reads bare integers, and its result is scaled."""
    s = Sketch()
    x, stored = s.input("x", [4, DEPTH]), s.constant("w", np.full((DEPTH, COLUMNS), -128, np.int8))
    product = s.node(
        "MatMul", [x, s.node("Cast", [stored], "w_f", name="cast", to=TensorProto.FLOAT)], "p", name="mm"
    )
    scales = s.constant("w_s", np.linspace(0.01, 0.02, COLUMNS, dtype=np.float32))
    s.output(s.node("Mul", [product, scales], "y", name="scale"), [4, COLUMNS])
    return s.model(20)


def torchao_blocks(low: int = -8, high: int = 7, zero: float = 0) -> Maker:
    """IntxWeightOnlyConfig by groups: a Reshape into blocks, Cast, Sub, Mul, and a Reshape back."""

    def make() -> onnx.ModelProto:
        s = Sketch()
        shape = (COLUMNS, DEPTH // BLOCK, 1)
        stored = s.constant("w", RANDOM.integers(low, high + 1, (COLUMNS, DEPTH)).astype(np.int8))
        split = s.constant("split", np.array([COLUMNS, DEPTH // BLOCK, BLOCK]))
        value = s.node("Reshape", [stored, split], "w_b", name="split")
        value = s.node("Cast", [value], "w_f", name="cast", to=TensorProto.FLOAT)
        value = s.node("Sub", [value, s.constant("z", np.full(shape, zero, np.float32))], "w_z", name="sub")
        scales = s.constant("w_s", SCALES.T.reshape(shape))
        value = s.node("Mul", [value, scales], "w_d", name="scale")
        whole = s.constant("whole", np.array([COLUMNS, DEPTH]))
        value = s.node("Reshape", [value, whole], "w_w", name="whole")
        return _done(
            s, s.input("x", [4, DEPTH]), s.node("Transpose", [value], "w_t", name="turn", perm=[1, 0]), 20
        )

    return make


FORMS: dict[str, tuple[Maker, str, str]] = {
    "modelopt fp8": (modelopt_fp8, "QDQ189", "fp8"),
    "modelopt fp8, opset 17": (lambda: modelopt_fp8(17), "QDQ189", "fp8"),
    "modelopt int4_awq": (modelopt_int4_awq, "QDQ189", "int4-weights"),
    "modelopt int4_awq, opset 17": (lambda: modelopt_int4_awq(17), "QDQ189", "int4-weights"),
    "modelopt nvfp4": (modelopt_nvfp4, "QDQ189", "nvfp4"),
    "MatMulNBits": (matmul_nbits(), "QDQ190", "int4-weights"),
    "MatMulNBits with zero points of 8": (matmul_nbits(zeros=0x88), "QDQ190", "int4-weights"),
    "MatMulNBits with a bias, in FP16": (matmul_nbits(bias=True, half=True), "QDQ190", "int4-weights"),
    "MatMulNBits with act-order": (act_order, "QDQ190", "int4-weights"),
    "MatMulNBits of 8 bits": (matmul_nbits(8), "QDQ190", "int8-weights dequantized before the kernel"),
    "INT4 blocks": (four_bits(ml_dtypes.int4, None), "", "int4-weights"),
    "UINT4 blocks with zero points of 8": (four_bits(ml_dtypes.uint4, 8), "QDQ101", "int4-weights"),
    "PT2E": (pt2e, "QDQ101", "int8"),
    "torchao": (torchao, "QDQ191", "int8-weights"),
    "torchao, scales behind the product": (torchao_behind_the_product, "QDQ191", "int8-weights"),
    "torchao, INT4 blocks in INT8": (torchao_blocks(), "QDQ191", "int4-weights"),
    "torchao, INT8 blocks": (
        torchao_blocks(-127, 127),
        "QDQ191",
        "int8-weights dequantized before the kernel",
    ),
    "torchao, zero points that make INT4 of it": (torchao_blocks(0, 15, 8), "QDQ191", "int4-weights"),
    "torchao, zero points that four bits do not hold": (
        torchao_blocks(0, 7, 9),
        "QDQ191",
        "int8-weights dequantized before the kernel",
    ),
}
"""The model, the code that explains it, and what its product computes in after repair."""
COARSER = {"PT2E": 0.06}
"""Where repair has to round again: the largest difference, as a share of the largest value."""
NVFP4 = Target.parse("rtx", ("120",))


def _computed(model: Path | Model) -> np.ndarray:
    source = model if isinstance(model, Path) else serialize(model)
    runner = open_runner(source, description="test")
    (info,) = runner.inputs
    kind = np.float16 if str(info.dtype) == "fp16" else np.float32
    feeds = {"x": np.random.default_rng(1).standard_normal((4, DEPTH)).astype(kind)}
    return runner.run(feeds)["y"].astype(np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_what_another_tool_wrote_is_explained_and_repaired_and_computes_the_same(
    form: str, tmp_path: Path
) -> None:
    make, code, realised = FORMS[form]
    path = models.save(make(), tmp_path)
    model = load(path)
    found = {finding.code for finding in lint(model, NVFP4).findings}
    assert code in found if code else found == set()
    ready, changes = repair(model)
    assert bool(changes) == bool(code)
    assert all("input 0 has no Q/DQ" in each.what for each in remaining(ready))
    assert [finding for finding in lint(ready, NVFP4).findings if finding.severity is Severity.ERROR] == []
    (product,) = (node for node in predict(ready, NVFP4).nodes if node.op == "MatMul")
    assert product.realised == realised
    if form not in {
        "modelopt nvfp4",
        "MatMulNBits with act-order",
    }:  # onnxruntime runs no TRT_FP4QDQ, and ignores g_idx
        before, after = _computed(path), _computed(ready)
        assert np.abs(before - after).max() <= COARSER.get(form, 2e-3) * np.abs(before).max()


def test_negative_scales_of_onnxruntimes_blocks_become_positive_where_the_parser_asks_for_it(
    tmp_path: Path,
) -> None:
    path = models.save(four_bits(ml_dtypes.int4, None, -1.0)(), tmp_path)
    model, classic = load(path), Target.parse("10.13")
    assert "QDQ103" in {finding.code for finding in lint(model, classic).findings}
    ready, changes = repair(model, classic)
    assert [change.error > 0 for change in changes] == [True]
    assert lint(ready, classic).findings == ()
    before, after = _computed(path), _computed(ready)
    assert np.square(before - after).sum() < 0.01 * np.square(before).sum()
    assert lint(model, NVFP4).findings == ()
    assert repair(model, NVFP4) == (model, ())


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.parametrize("scale", [-1.0, 0.0, float("nan")], ids=["negative", "zero", "not a number"])
def test_the_builder_takes_any_scale_of_int4_into_the_same_kernel(scale: float) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    odd, plain = (build(four_bits(ml_dtypes.int4, None, one)()) for one in (scale, 1.0))
    assert odd.error == plain.error == ""
    assert [kernel.name for kernel in odd.kernels] == [kernel.name for kernel in plain.kernels]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_arithmetic_makes_of_stored_integers_dequantize_linear_makes_too(
    data: st.DataObject,
) -> None:
    """Scales per tensor, per channel or in blocks, in any layout before and behind the Cast."""
    rows, blocks, length = (data.draw(st.sampled_from(sizes)) for sizes in ((1, 2, 6), (1, 2, 4), (1, 2, 8)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    high = data.draw(st.sampled_from([7, 127]))
    sharing = data.draw(st.sampled_from([(1, 1, 1), (rows, 1, 1), (rows, blocks, 1), (1, blocks, length)]))
    zero = random.integers(-7, 8, sharing) * data.draw(st.sampled_from([0, 1]))
    s = Sketch()
    s.input("x", [1])
    stored = s.constant("w", random.integers(-high - 1, high + 1, (rows, blocks * length)).astype(np.int8))
    value = s.node("Reshape", [stored, s.constant("split", np.array([rows, blocks, length]))], "b", name="b")
    value = s.node("Cast", [value], "f", name="cast", to=TensorProto.FLOAT)
    value = s.node("Sub", [value, s.constant("z", zero.astype(np.float32))], "m", name="sub")
    scale = random.uniform(0.5, 2, sharing).astype(np.float32)
    value = s.node("Mul", [value, s.constant("s", scale)], "d", name="mul")
    value = s.node("Reshape", [value, s.constant("w_shape", np.array([rows, -1]))], "r", name="r")
    value = s.node("Transpose", [value], "t", name="t", perm=[1, 0])
    s.output(s.node("Add", [value, "x"], "y", name="add"), [blocks * length, rows])
    model = Model(proto=onnx.shape_inference.infer_shapes(s.model(20)), path=Path("model.onnx"))
    made, changes = with_dequantize(model)
    assert [node.op for node in made.view.nodes].count("Cast") == 1 - len(changes)
    assert changes or length == 1  # else a scale for each value
    (before,), (after,) = (
        open_runner(serialize(each), description="test").run({"x": np.zeros(1, np.float32)}).values()
        for each in (model, made)
    )
    np.testing.assert_array_equal(before, after)


def test_weights_that_torchao_casts_are_repaired_by_the_command(tmp_path: Path) -> None:
    path = models.save(torchao(), tmp_path)
    assert run(["repair", str(path), "--out", str(tmp_path / "ready.onnx")]) == 0
    ready = load(tmp_path / "ready.onnx")
    assert lint(ready, NVFP4).findings == ()
    np.testing.assert_allclose(_computed(path), _computed(ready), rtol=1e-4, atol=1e-4)


def test_scales_of_int4_that_are_not_numbers_are_an_error_although_the_builder_takes_them(
    tmp_path: Path,
) -> None:
    model = load(models.save(four_bits(ml_dtypes.int4, None, float("nan"))(), tmp_path))
    (finding,) = lint(model, NVFP4).findings
    assert (finding.code, finding.severity) == ("QDQ103", Severity.ERROR)
    assert "NaN" in finding.effect


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_microscaled_models_are_read_explained_and_left_as_they_are(product: str, tmp_path: Path) -> None:
    path = models.save(modelopt_mxfp8(product), tmp_path)
    model = load(path)
    (finding,) = lint(model, NVFP4).findings
    assert finding.code == "QDQ186"
    assert "float" in finding.effect
    assert lint(model, Target.parse("10.12", ("100",))).findings == ()
    assert repair(model) == (model, ())
    (node,) = (entry for entry in predict(model, NVFP4).nodes if entry.op == product)
    assert node.realised == "float"
    found = _computed(path)
    values = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.proto.graph.initializer}
    exact = np.random.default_rng(1).standard_normal((4, DEPTH)) @ (values["w"].astype(np.float64).T / 128)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_microscaled_models_are_refused_where_the_builder_refuses_them(tmp_path: Path) -> None:
    model = load(models.save(modelopt_mxfp8(), tmp_path))
    findings = lint(model, Target.parse("rtx", ("86",))).findings
    assert "QDQ111" in {finding.code for finding in findings}
    assert "fp8" in build(model.proto).error


def test_a_weight_rounded_to_fp4_is_stored_within_half_a_step_of_its_blocks(tmp_path: Path) -> None:
    proto = modelopt_nvfp4()
    weight = onnx.numpy_helper.to_array(next(entry for entry in proto.graph.initializer if entry.name == "w"))
    ready, _ = repair(load(models.save(proto, tmp_path)))
    found = _computed(ready)
    exact = np.random.default_rng(1).standard_normal((4, DEPTH)).astype(np.float32) @ weight.T
    noise = np.abs(found - exact).mean() / np.abs(exact).mean()
    assert noise < 0.25


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_that_no_signed_type_holds_widen_the_steps_of_their_blocks(
    bits: int, tmp_path: Path
) -> None:
    path = models.save(matmul_nbits(bits, zeros=0x11)(), tmp_path)
    ready, changes = repair(load(path))
    assert any(change.error for change in changes)
    before, after = _computed(path), _computed(ready)
    assert 0 < np.abs(before - after).mean() < 0.1 * np.abs(before).mean()


def test_an_order_that_counts_up_is_none(tmp_path: Path) -> None:
    proto = matmul_nbits()()
    order = onnx.numpy_helper.from_array(np.arange(DEPTH, dtype=np.int32) // BLOCK, "order")
    proto.graph.initializer.append(order)
    proto.graph.node[0].input.extend(["", "order"])
    ready, _ = repair(load(models.save(proto, tmp_path)))
    assert not remaining(ready)


def test_act_order_weights_are_sorted_as_their_blocks_are(tmp_path: Path) -> None:
    proto = act_order()
    ready, changes = repair(load(models.save(proto, tmp_path)))
    assert not remaining(ready)
    assert "sorts its input" in changes[0].what
    values = {entry.name: onnx.numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    packed = values["w"].reshape(COLUMNS, -1)
    integers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(COLUMNS, DEPTH).T.astype(np.float64) - 8
    weight = integers * values["w_s"].reshape(COLUMNS, -1).T[values["order"]]
    x = np.random.default_rng(1).standard_normal((4, DEPTH)).astype(np.float32)
    np.testing.assert_allclose(_computed(ready), x @ weight, atol=2e-3 * np.abs(x @ weight).max())


def test_act_order_with_blocks_of_different_lengths_is_named_with_its_way_out(tmp_path: Path) -> None:
    proto = act_order()
    groups = np.zeros(DEPTH, np.int32)
    proto.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(groups, "order"))
    model = load(models.save(proto, tmp_path))
    (finding,) = lint(model).findings
    assert "`qdqtool repair`" not in finding.fix
    assert "act-order" in finding.fix
    assert [entry.what for entry in remaining(repair(model)[0])] == ["TensorRT does not import MatMulNBits"]


def _with(proto: onnx.ModelProto, values: dict[str, Any], **sizes: int) -> onnx.ModelProto:
    """The model with other constants, and other attributes of its first node."""
    for entry in proto.graph.initializer:
        if entry.name in values:
            entry.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values[entry.name]), entry.name))
    for attribute in proto.graph.node[0].attribute:
        attribute.i = sizes.get(attribute.name, attribute.i)
    return proto


UNFIT = {
    "rows beyond any memory": lambda: _with(matmul_nbits()(), {}, K=2**40, block_size=2**30),
    "fewer rows than none": lambda: _with(matmul_nbits()(), {}, K=-DEPTH, N=-COLUMNS),
    "no columns": lambda: _with(matmul_nbits()(), {"w": np.zeros(0, np.uint8), "w_s": SCALES[:0]}, N=0),
    "blocks of nothing": lambda: _with(matmul_nbits()(), {}, block_size=0),
    "weights in float": lambda: _with(matmul_nbits()(), {"w": np.zeros((COLUMNS, DEPTH // 2), np.float32)}),
    "a zero point too few": lambda: _with(
        matmul_nbits(zeros=0x88)(), {"w_z": np.zeros(COLUMNS - 1, np.uint8)}
    ),
    "a table in blocks of nothing": lambda: _with(packed_table(np.uint8)(), {}, block_size=0),
    "a table that is a number": lambda: _with(
        packed_table(np.uint8)(), {"t": np.uint8(1), "t_s": np.float32(1)}
    ),
    "a table without rows": lambda: _with(packed_table(np.uint8)(), {"t": np.zeros((0, 8), np.uint8)}),
    "one zero point of a table": lambda: _with(packed_table(np.uint8, zeros=True)(), {"t_z": np.uint8(8)}),
    "zero points in float": lambda: _with(
        packed_table(np.uint8, zeros=True)(), {"t_z": np.zeros((40, 2), np.float32)}
    ),
}


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
def test_packed_weights_whose_sizes_do_not_fit_are_told_and_left(make: Maker, tmp_path: Path) -> None:
    """A file of a stranger: no size of it is believed before the bytes are there."""
    model = load(models.save(make(), tmp_path))
    assert "QDQ190" in {finding.code for finding in lint(model).findings}
    repaired, _ = repair(model)
    assert {node.op for node in repaired.view.nodes} & {"MatMulNBits", "GatherBlockQuantized"}


TABLES = {
    "INT4": packed_table(ml_dtypes.int4),
    "UINT4": packed_table(ml_dtypes.uint4),
    "two in a byte": packed_table(np.uint8),
    "two in a byte, zero points": packed_table(np.uint8, zeros=True),
    "bytes": packed_table(np.uint8, 8),
    "bytes, zero points": packed_table(np.uint8, 8, zeros=True),
}


@pytest.mark.parametrize("form", TABLES)
def test_a_packed_table_becomes_a_dequantized_one_that_computes_the_same(form: str, tmp_path: Path) -> None:
    path = models.save(TABLES[form](), tmp_path)
    model = load(path)
    assert {finding.code for finding in lint(model).findings} == {"QDQ190"}
    ready, changes = repair(model)
    assert remaining(ready) == ()
    assert changes
    feeds = {"x": np.random.default_rng(1).integers(0, 40, (4, 3))}
    before = open_runner(path, description="before").run(feeds)["y"]
    after = open_runner(serialize(ready), description="after").run(feeds)["y"]
    coarser = 0.15 if form == "UINT4" else 2e-3  # zero points of 0 for all: steps get wider
    assert np.abs(before - after).max() <= coarser * np.abs(before).max()


@pytest.mark.parametrize("form", ["INT4", "two in a byte"])
def test_the_builder_looks_four_bits_up_in_a_repaired_table(form: str, tmp_path: Path) -> None:
    ready, _ = repair(load(models.save(TABLES[form](), tmp_path)))
    found = build(ready.proto)
    assert not found.error
    looked_up, product = found.kernels
    assert looked_up.name.removeprefix("__myl_").startswith(
        "Cast"
    )  # the table is dequantized in the kernel that looks up
    assert "Gath" in looked_up.name
    assert product.name.startswith("mm")


def test_the_builder_reads_four_bits_behind_sorted_inputs(tmp_path: Path) -> None:
    ready, _ = repair(load(models.save(act_order(), tmp_path)))
    found = build(ready.proto)
    assert not found.error
    sorting, product = found.kernels
    assert "Gath" in sorting.name
    assert "CastMulCastFc" in product.name  # dequantized inside


def test_the_command_repairs_a_model_that_has_nothing_but_packed_weights(tmp_path: Path) -> None:
    path = models.save(matmul_nbits()(), tmp_path)
    assert run(["repair", str(path), "--out", str(tmp_path / "repaired.onnx")]) == 0
    assert not remaining(load(tmp_path / "repaired.onnx"))


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_blocks_of_onnxruntime_with_negative_scales_are_unpacked_and_lose_little(
    bits: int, tmp_path: Path
) -> None:
    proto = matmul_nbits(bits)()
    scales = next(tensor for tensor in proto.graph.initializer if tensor.name == "w_s")
    given = numpy_helper.to_array(scales).copy()
    given[::2] *= -1
    scales.CopyFrom(numpy_helper.from_array(given, "w_s"))
    made = repair(load(models.save(proto, tmp_path)))[0]
    if bits == 8:
        assert not [finding for finding in lint(made).findings if finding.code == "QDQ103"]
    feeds = {"x": RANDOM.standard_normal((4, DEPTH)).astype(np.float32)}
    wanted, found = models.run(proto, feeds)["y"], models.run(made.proto, feeds)["y"]
    assert np.abs(found - wanted).max() < (0.02 if bits == 8 else 0.05) * np.abs(wanted).max()
