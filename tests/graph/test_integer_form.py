"""The integer-exact form of a Q/DQ model against integer arithmetic done by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.integer_form import Axes, cut, integer_form, is_exact, windows
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened, placement_for, table_for

BUILDERS = {
    "a chain of convolutions": models.conv_chain,
    "a residual network": models.residual_cnn,
    "depthwise convolutions": models.depthwise_cnn,
    "a Concat": models.concat_cnn,
    "transposed convolutions": models.unet,
    "grouped transposed convolutions": lambda: models.unet(group=2),
    "attention": models.attention,
    "Gemm in all its forms": models.gemms,
    "MatMul": models.matmuls,
}


def quantized(
    proto: onnx.ModelProto, folder: Path, types: str = "fp32"
) -> tuple[Model, dict[str, np.ndarray]]:
    model = opened(proto, folder)
    feeds = models.feeds(proto)
    placement = placement_for(model)
    table = table_for(model, placement, feeds)
    return insert(model, placement, table, InsertOptions(types=types)), feeds


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_quantized_product_becomes_exact_and_the_result_stays(build, tmp_path: Path) -> None:
    model, feeds = quantized(build(), tmp_path)
    form = integer_form(model)
    assert form.exact
    assert form.rounded == ()
    before, after = models.run(model.proto, feeds), models.run(form.model.proto, feeds)
    for name, value in before.items():
        assert np.abs(after[name] - value).max() <= 0.03 * np.abs(value).max()


def test_a_model_without_qdq_stays_as_it_is(tmp_path: Path) -> None:
    proto = models.conv_chain()
    model = opened(proto, tmp_path)
    form = integer_form(model)
    assert form.exact == ()
    assert set(form.left) == {node.name for node in proto.graph.node if node.op_type == "Conv"}
    feeds = models.feeds(proto)
    for name, value in models.run(proto, feeds).items():
        np.testing.assert_array_equal(models.run(form.model.proto, feeds)[name], value)


def single(
    op: str, x: np.ndarray, w: np.ndarray, folder: Path, bias: np.ndarray | None = None, **attributes: object
):
    """The integer form of one product of integers with scales 0.5 and 0.25 (weights per output channel), run on x."""
    sketch = models.Sketch()
    sketch.input("x", x.shape)
    sketch.constant("sx", np.float32(0.5))
    sketch.constant("zero", np.int8(0))
    sketch.constant("w", w)
    sketch.constant("sw", np.float32(0.25))
    sketch.node("QuantizeLinear", ["x", "sx", "zero"], "xq")
    sketch.node("DequantizeLinear", ["xq", "sx", "zero"], "xd")
    sketch.node("DequantizeLinear", ["w", "sw", "zero"], "wd")
    inputs = ["xd", "wd"]
    if bias is not None:
        inputs.append(sketch.constant("b", bias))
    sketch.node(op, inputs, "y", name="product", **attributes)
    sketch.output("y")
    graph = helper.make_graph(sketch.nodes, "g", sketch.inputs, sketch.outputs, sketch.initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    form = integer_form(load(models.save(proto, folder)))
    return form, models.run(form.model.proto, {"x": x})["y"]


def test_a_long_sum_is_exact_where_fp32_would_round(tmp_path: Path) -> None:
    w = np.full((2, 4096, 1, 1), 127, np.int8)
    w[1, ::3] = -126
    x = np.full((1, 4096, 1, 1), 63.5, np.float32)
    x[0, 7] = 0.5
    form, y = single("Conv", x, w, tmp_path)
    whole = (x / 0.5).astype(np.int64).reshape(-1)
    sums = w.reshape(2, -1).astype(np.int64) @ whole
    assert abs(sums[0]) > 1 << 24
    assert form.exact == ("product",)
    np.testing.assert_array_equal(y.reshape(-1), sums.astype(np.float32) * np.float32(0.125))


@pytest.mark.parametrize("turned", [False, True], ids=["weights K x N", "weights N x K"])
def test_gemm_scales_its_sum_by_alpha_and_its_bias_by_beta(turned: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, x = (
        rng.integers(-128, 128, (3000, 5)).astype(np.int8),
        rng.integers(-60, 60, (4, 3000)).astype(np.float32),
    )
    bias = rng.normal(size=5).astype(np.float32)
    form, y = single(
        "Gemm", x, w.T.copy() if turned else w, tmp_path, bias, transB=int(turned), alpha=0.5, beta=2.0
    )
    sums = (x / 0.5).round().clip(-128, 127).astype(np.int64) @ w.astype(np.int64)
    assert form.exact == ("product",)
    np.testing.assert_array_equal(y, sums.astype(np.float32) * np.float32(0.0625) + 2 * bias)


def test_a_grouped_convolution_that_cannot_be_cut_says_that_it_may_round(tmp_path: Path) -> None:
    w = np.full((2, 2048, 1, 1), 127, np.int8)
    form, _ = single("Conv", np.ones((1, 4096, 1, 1), np.float32), w, tmp_path, group=2)
    assert form.rounded == ("product",)


@given(
    seed=st.integers(0, 999),
    shape=st.sampled_from([(3, 700, 3, 3), (4, 5000, 1, 1), (1, 1, 1, 1), (2, 17, 5, 5)]),
    magnitude=st.integers(1, 128),
)
@settings(max_examples=25, deadline=None)
def test_weights_are_cut_into_exact_pieces_and_none_is_lost(
    seed: int, shape: tuple[int, ...], magnitude: int
) -> None:
    weights = np.random.default_rng(seed).integers(-magnitude, magnitude, shape).astype(np.int8)
    place = Axes(output=0, summed=1, source=1)
    parts = cut(weights, place)
    assert all(is_exact(part, place) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), weights)


@pytest.mark.parametrize("length", [1, 1023, 1024, 5000])
def test_stretches_of_two_run_time_operands_cover_the_sum_and_stay_exact(length: int) -> None:
    found = windows(length)
    assert [start for start, _ in found] == [0, *[stop for _, stop in found[:-1]]]
    assert found[-1][1] == length
    assert all((stop - start) * 128 * 128 < 1 << 24 for start, stop in found)


@pytest.mark.parametrize(
    ("types", "element"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)]
)
def test_a_narrow_type_rounds_once_behind_a_fused_kernel_and_after_every_node_without(
    types: str, element: int, tmp_path: Path
) -> None:
    model, feeds = quantized(models.residual_cnn(), tmp_path, types)
    fused = integer_form(model).model
    apart = integer_form(model, ()).model
    halves = [
        sum(node.op_type == "Cast" and node.attribute[0].i == element for node in form.proto.graph.node)
        for form in (fused, apart)
    ]
    assert halves[0] < halves[1]
    for form in (fused, apart):
        onnx.checker.check_model(form.proto, full_check=True)
        values = models.run(form.proto, feeds)
        exact = models.run(model.proto, feeds)
        assert all(
            np.abs(values[name] - exact[name]).max() <= 0.05 * np.abs(exact[name]).max() for name in exact
        )


def test_a_region_names_the_nodes_that_one_kernel_computes(tmp_path: Path) -> None:
    model, _ = quantized(models.conv_chain(), tmp_path, "fp16")
    convs = [node.name for node in model.view.nodes if node.op == "Conv"]
    relus = [node.name for node in model.view.nodes if node.op == "Relu"]
    region = (frozenset({convs[0], relus[0]}),)
    one = integer_form(model, region).model
    makers = {output: node for node in one.proto.graph.node for output in node.output}
    types = {
        node.name: makers[node.input[0]].op_type for node in one.proto.graph.node if node.name in relus[:2]
    }
    assert types[relus[0]] != "Cast"
    assert types[relus[1]] == "Cast"


def test_reciprocals_change_ties_only(tmp_path: Path) -> None:
    model, feeds = quantized(models.conv_chain(), tmp_path)
    first = models.run(integer_form(model).model.proto, feeds)
    second = models.run(integer_form(model, reciprocal=True).model.proto, feeds)
    for name, value in first.items():
        assert np.abs(second[name] - value).max() <= 0.03 * np.abs(value).max()


def pair(s: models.Sketch, tensor: str, zero: int = 0, scale: object = 0.05) -> str:
    steps = s.constant(f"{tensor}_steps", np.asarray(scale, np.float32))
    centre = s.constant(f"{tensor}_zero", np.full(np.shape(scale), zero, np.int8))
    attributes = {"axis": 0} if np.ndim(scale) else {}
    q = s.node("QuantizeLinear", [tensor, steps, centre], f"{tensor}_q", **attributes)
    return s.node("DequantizeLinear", [q, steps, centre], f"{tensor}_dq", **attributes)


@pytest.mark.parametrize("length", [4, 1200, 5000])
@pytest.mark.parametrize("kind", ["constant", "per element", "run time"])
def test_a_vector_has_no_output_channels(kind: str, length: int, tmp_path: Path) -> None:
    s = models.Sketch()
    x = pair(s, s.input("x", [3, length]))
    vector = s.input("w", [length]) if kind == "run time" else s.weight("w", length)
    scale = s.random.uniform(0.01, 0.02, length) if kind == "per element" else 0.05
    s.output(s.node("MatMul", [x, pair(s, vector, 0, scale)], "y", name="product"), [3])
    proto = s.model(20)
    form, feeds = integer_form(opened(proto, tmp_path)), models.feeds(proto)
    onnx.checker.check_model(form.model.proto, full_check=True)
    assert (form.left if kind == "per element" else form.exact) == ("product",)
    before, after = (models.run(entry, feeds, optimize=False)["y"] for entry in (proto, form.model.proto))
    assert np.allclose(after, before, atol=1e-3)


def test_reciprocals_leave_zero_points_in_place(tmp_path: Path) -> None:
    s = models.Sketch()
    x = pair(s, s.input("x", [2, 4]), 10)
    s.output(s.node("MatMul", [x, pair(s, s.weight("w", 4, 3))], "y", name="product"), [2, 3])
    proto = s.model(20)
    form, feeds = integer_form(opened(proto, tmp_path), reciprocal=True), models.feeds(proto)
    assert np.allclose(models.run(form.model.proto, feeds)["y"], models.run(proto, feeds)["y"], atol=1e-6)


@pytest.mark.parametrize("length", [2, 6])
def test_the_makers_of_all_tensors_are_listed_once_however_long_the_network(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = models.Sketch()
    tensor = s.input("x", [1, 4])
    for number in range(length):
        tensor = s.node("MatMul", [tensor, s.weight(f"w{number}", 4, 4)], f"m{number}")
        tensor = s.node("Sigmoid", [tensor], f"r{number}")
    s.output(tensor, [1, 4])
    model, _ = quantized(s.model(), tmp_path, "fp16")
    calls: list[int] = []
    listed = Edit.producers
    monkeypatch.setattr(Edit, "producers", lambda edit: calls.append(1) or listed(edit))
    assert len(integer_form(model).exact) == length
    assert len(calls) <= 3


def test_the_type_may_be_stated_without_a_zero_point(tmp_path: Path) -> None:
    s = models.Sketch()
    step = s.constant("s", np.float32(0.02))
    s.node("QuantizeLinear", [s.input("x", [2, 8]), step], "q", output_dtype=TensorProto.INT8)
    s.node("DequantizeLinear", ["q", step], "d")
    stored = s.constant("w", np.arange(-16, 16, dtype=np.int8).reshape(8, 4))
    s.node("DequantizeLinear", [stored, step, ""], "wd")
    s.output(s.node("MatMul", ["d", "wd"], "y", name="product"), [2, 4])
    proto = s.model()
    proto.opset_import[0].version = 21
    form = integer_form(load(models.save(proto, tmp_path)))
    assert form.exact == ("product",)
    feeds = {"x": np.linspace(-3, 3, 16, dtype=np.float32).reshape(2, 8)}
    np.testing.assert_allclose(
        models.run(form.model.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-5, atol=1e-6
    )
