"""The float part of a model becomes FP16 or BF16; INT8 stays INT8, and no Cast stands behind a DQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from qdqtool.core.preparation import Conversion, DynamicRangeReport, OutOfRangeTensor
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.errors import UsageError
from qdqtool.graph.qdq.find import find
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.trt.ops import STEP_GATES
from tests import models
from tests.graph.placing import opened

TYPES = ("fp16", "bf16")
PAIRS = {"QuantizeLinear", "DequantizeLinear"}


def _converted(proto: onnx.ModelProto, folder: Path, **options: Any) -> tuple[Model, Conversion]:
    result, found = convert(opened(proto, folder), InsertOptions(**{"types": "fp16", **options}))
    onnx.checker.check_model(result.proto, full_check=True)
    return result, found


def _pair(s: models.Sketch, tensor: str, scale: float = 0.02, name: str = "") -> str:
    """Q and DQ behind a tensor; the DQ's result."""
    stem = name or tensor
    steps, zero = (
        s.constant(f"{stem}_scale", np.float32(scale)),
        s.constant(f"{stem}_zero", np.int8(0)),
    )
    s.node("QuantizeLinear", [tensor, steps, zero], f"{stem}_q")
    return s.node("DequantizeLinear", [f"{stem}_q", steps, zero], f"{stem}_dq")


def _quantized_conv(scale: float = 0.02) -> models.Sketch:
    s = models.Sketch()
    x = _pair(s, s.input("x", [1, 4, 6, 6]), scale)
    weight = _pair(s, s.weight("w", 4, 4, 3, 3), 0.01)
    s.node("Conv", [x, weight, s.weight("b", 4)], "c", name="conv")
    s.output(s.node("Relu", ["c"], "y", name="relu"), [1, 4, 4, 4])
    return s


def _types(model: Model, node: str) -> set[str]:
    """The types of all float tensors that a node touches."""
    found = model.view.by_name[node]
    kinds = (model.view.info(name).dtype for name in (*found.inputs, *found.outputs) if name)
    return {str(kind) for kind in kinds if kind.is_float}


def _casts(model: Model) -> list[tuple[str, str]]:
    """(what makes its input, what reads its output) of every Cast; "" for the world outside."""
    view, found = model.view, []
    for node in view.nodes:
        if node.op == "Cast":
            maker = view.producer(node.inputs[0])
            readers = [use.node.op for use in view.uses(node.outputs[0])] or [""]
            found += [(maker.op if maker else "", reader) for reader in readers]
    return found


# nothing to do


def test_fp32_is_not_a_conversion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already is FP32"):
        convert(opened(models.conv_chain(), tmp_path), InsertOptions())


def test_a_model_of_integers_stays_as_it_is(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [2], TensorProto.INT64)
    s.output(s.node("Add", [x, x], "y"), [2], TensorProto.INT64)
    model = opened(s.model(), tmp_path)
    result, found = convert(model, InsertOptions(types="fp16"))
    assert result.proto == model.proto
    assert (found.narrowed, found.casts, found.kept) == (0, 0, ())


# types


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", models.ALL)
def test_a_float_model_computes_nearly_the_same(name: str, types: str, tmp_path: Path) -> None:
    proto = models.ALL[name]()
    result, found = _converted(proto, tmp_path, types=types)
    feeds = models.feeds(proto)
    mine = models.run(result.proto, feeds, optimize=False)
    for output, value in models.run(proto, feeds).items():
        assert mine[output].dtype == np.float32
        a, b = mine[output].astype(np.float64).ravel(), value.astype(np.float64).ravel()
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > (0.9999 if types == "fp16" else 0.999)
    assert found.narrowed


@pytest.mark.parametrize("types", TYPES)
def test_quantized_nodes_get_scales_of_their_neighbours_types(types: str, tmp_path: Path) -> None:
    result, found = _converted(_quantized_conv().model(), tmp_path, types=types)
    view = result.view
    assert view.opset == (19 if types == "fp16" else 22)
    assert _types(result, "conv") == {types}
    assert _types(result, "x_q") == _types(result, "x_dq") == _types(result, "w_q") == {types}
    assert _casts(result) == [("", "QuantizeLinear"), ("Relu", "")]
    assert (found.casts, found.kept) == (2, ())


@pytest.mark.parametrize("types", TYPES)
def test_a_scale_is_rounded_up_to_one_that_the_type_holds(types: str, tmp_path: Path) -> None:
    result, _ = _converted(_quantized_conv(0.0123).model(), tmp_path, types=types)
    view = result.view
    assert view.by_name["x_q"].inputs[1] == view.by_name["x_dq"].inputs[1]
    scale = view.constant(view.by_name["x_q"].inputs[1])
    assert scale is not None
    assert 0.0123 <= float(scale.astype(np.float32)) < 0.0123 * (1 + 2.0**-7)


def test_narrow_inputs_and_outputs_need_no_cast_at_all(tmp_path: Path) -> None:
    result, found = _converted(_quantized_conv().model(), tmp_path, keep_io=False)
    assert found.casts == 0
    assert [str(info.dtype) for info in (*result.view.inputs, *result.view.outputs)] == ["fp16", "fp16"]


def test_a_kept_node_behind_a_pair_reads_fp32_from_it(tmp_path: Path) -> None:
    result, found = _converted(_quantized_conv().model(), tmp_path, keep_nodes=("conv",))
    assert _types(result, "conv") == {"fp32"}
    assert _types(result, "x_dq") == {"fp32"}
    assert _types(result, "relu") == {"fp16"}
    assert [(node.node, node.reason) for node in found.kept] == [("conv", "matches 'conv'")]
    assert ("DequantizeLinear", "Conv") not in _casts(result)
    assert _casts(result) == [("Conv", "Relu"), ("Relu", "")]


def test_a_pair_of_two_readers_is_made_twice_where_their_types_differ(tmp_path: Path) -> None:
    s = models.Sketch()
    shared = _pair(s, s.input("x", [1, 4]), 0.02)
    s.output(s.node("Relu", [shared], "a", name="narrow"), [1, 4])
    s.output(s.node("Sigmoid", [shared], "b", name="wide"), [1, 4])
    proto = s.model()
    result, _ = _converted(proto, tmp_path, keep_nodes=("wide",), keep_io=False)
    ops = [node.op for node in result.view.nodes]
    assert ops.count("DequantizeLinear") == ops.count("QuantizeLinear") == 2
    assert _types(result, "wide") == {"fp32"}
    assert _types(result, "narrow") == {"fp16"}
    assert all(maker != "DequantizeLinear" for maker, _ in _casts(result))


def test_one_quantizelinear_of_two_pairs_is_made_twice_where_their_types_differ(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 4])
    steps, zero = s.constant("s", np.float32(0.0123)), s.constant("z", np.int8(0))
    s.node("QuantizeLinear", [x, steps, zero], "q")
    for name, op in (("narrow", "Relu"), ("wide", "Sigmoid")):
        dequantized = s.node("DequantizeLinear", ["q", steps, zero], f"{name}_dq")
        s.output(s.node(op, [dequantized], f"{name}_y", name=name), [1, 4])
    proto = s.model()
    result, _ = _converted(proto, tmp_path, keep_nodes=("wide",))
    assert [node.op for node in result.view.nodes].count("QuantizeLinear") == 2
    assert _types(result, "wide_dq") == {"fp32"}
    assert _types(result, "narrow_dq") == {"fp16"}
    feeds = {"x": np.array([[1.5, -1.56, 0.3, 0.7]], np.float32)}
    mine, theirs = models.run(result.proto, feeds, optimize=False), models.run(proto, feeds, optimize=False)
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, atol=2e-3)


def test_casts_of_the_original_that_cast_nothing_any_more_are_gone(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.node("Cast", [s.input("x", [1, 4, 6, 6], TensorProto.FLOAT16)], "x32", to=TensorProto.FLOAT)
    x = s.node("Cast", [_pair(s, x)], "x16", to=TensorProto.FLOAT16)
    weight = s.constant("w", s.random.standard_normal((4, 4, 1, 1)).astype(np.float16))
    s.output(s.node("Conv", [x, weight], "y", name="conv"), [1, 4, 6, 6], TensorProto.FLOAT16)
    result, _ = _converted(s.model(19), tmp_path)
    assert [node.op for node in result.view.nodes] == ["QuantizeLinear", "DequantizeLinear", "Conv"]


def test_stored_integers_keep_their_meaning_where_their_scale_is_tiny(tmp_path: Path) -> None:
    s = models.Sketch()
    integers = s.constant("wi", s.random.integers(-127, 128, (4, 4, 1, 1)).astype(np.int8))
    scale = s.constant("ws", np.array([0.01, 3e-8, 1e-12, 0.002], np.float32))
    zero = s.constant("wz", np.zeros(4, np.int8))
    weight = s.node("DequantizeLinear", [integers, scale, zero], "wd", axis=0)
    s.output(s.node("Conv", [s.input("x", [1, 4, 2, 2]), weight], "y", name="conv"), [1, 4, 2, 2])
    proto = s.model()
    result, found = _converted(proto, tmp_path)
    feeds = models.feeds(proto)
    mine = models.run(result.proto, feeds, optimize=False)["y"]
    theirs = models.run(proto, feeds)["y"]
    np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-3 * float(np.abs(theirs).max()))
    assert np.abs(mine[:, 2]).max() < 1e-5, "a dead channel stays dead"
    assert any("1 integer constant was rescaled" in note for note in found.notes)


def test_an_int32_bias_follows_its_coarser_scale_exactly(tmp_path: Path) -> None:
    s = models.Sketch()
    bias = s.constant("bi", np.array([123456, -98765, 17, 0], np.int32))
    scale = s.constant("bs", np.float32(3.3e-5))
    bias = s.node("DequantizeLinear", [bias, scale], "bd")
    s.output(s.node("Conv", [s.input("x", [1, 4, 2, 2]), s.weight("w", 4, 4, 1, 1), bias], "y"), [1, 4, 2, 2])
    proto = s.model()
    for types in TYPES:
        result, _ = _converted(proto, tmp_path, types=types)
        view = result.view
        dequantize = next(node for node in view.nodes if node.op == "DequantizeLinear")
        integers, stored = (view.constant(name) for name in dequantize.inputs[:2])
        assert integers is not None
        assert stored is not None
        kept = integers.astype(np.float64) * float(stored.astype(np.float32))
        np.testing.assert_allclose(kept, np.array([123456, -98765, 17, 0]) * 3.3e-5, atol=4e-5)


# what stays FP32


def test_a_norm_written_out_stays_fp32_until_its_square_root(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 8])
    mean = s.node("ReduceMean", [x], "mean", axes=[-1])
    centred = s.node("Sub", [x, mean], "centred")
    square = s.node("Pow", [centred, s.constant("two", np.float32(2))], "square")
    spread = s.node("ReduceMean", [square], "spread", axes=[-1])
    safe = s.node("Add", [spread, s.constant("eps", np.float32(1e-5))], "safe")
    root = s.node("Sqrt", [safe], "root")
    s.output(s.node("Div", [centred, root], "y"), [1, 8])
    result, found = _converted(s.model(), tmp_path)
    assert [node.node for node in found.kept] == ["square", "spread", "safe", "root"]
    assert _types(result, "y") == {"fp16"}
    feeds = {"x": np.array([[900.0, -900, 400, 3, 0, 1, -5, 8]], np.float32)}
    mine, theirs = models.run(result.proto, feeds, optimize=False)["y"], models.run(s.model(), feeds)["y"]
    np.testing.assert_allclose(mine, theirs, atol=2e-3)


def test_the_list_of_operators_can_be_emptied(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Exp", [s.input("x", [2])], "y", name="exp"), [2])
    assert _converted(s.model(), tmp_path)[1].kept[0].reason == "Exp makes large values of small ones"
    assert _converted(s.model(), tmp_path, keep_ops=())[1].kept == ()


def _hot() -> tuple[onnx.ModelProto, DynamicRangeReport]:
    s = models.Sketch()
    x = s.node("Mul", [s.input("x", [1, 4]), s.constant("gain", np.float32(3e4))], "hot", name="gain")
    x = s.node("Relu", [x], "still_hot", name="relu")
    s.output(s.node("Mul", [x, s.constant("loss", np.float32(1e-4))], "y", name="loss"), [1, 4])
    strayed = tuple(
        OutOfRangeTensor(tensor=name, kind="overflow", largest=9e4) for name in ("hot", "still_hot")
    )
    return s.model(), DynamicRangeReport(dtype=DType.FLOAT16, samples=1, tensors=3, strayed=strayed)


def test_tensors_that_overflow_are_named(tmp_path: Path) -> None:
    proto, reach = _hot()
    _, found = convert(opened(proto, tmp_path), InsertOptions(types="fp16", overflow="name"), reach)
    assert found.kept == ()
    assert (
        "2 tensors reach beyond FP16 on the samples and become infinite: 'hot' (9e+04), 'still_hot' (9e+04)"
        in found.notes
    )


def test_what_touches_an_overflow_stays_fp32(tmp_path: Path) -> None:
    proto, reach = _hot()
    result, found = convert(opened(proto, tmp_path), InsertOptions(types="fp16", keep_io=False), reach)
    assert [node.node for node in found.kept] == ["gain", "relu", "loss"]
    feeds = {"x": np.array([[3.0, -1, 2, 0]], np.float16)}
    assert models.run(result.proto, feeds, optimize=False)["y"].max() == pytest.approx(9.0, rel=1e-3)


def test_a_quantized_overflow_stays_fp32_behind_its_pair_too(tmp_path: Path) -> None:
    s = models.Sketch()
    s.node("Mul", [s.input("x", [1, 4, 2, 2]), s.constant("gain", np.float32(3e4))], "hot", name="gain_up")
    weight = _pair(s, s.weight("w", 4, 4, 1, 1), 0.01)
    s.output(s.node("Conv", [_pair(s, "hot", 900.0), weight], "y", name="conv"), [1, 4, 2, 2])
    proto = s.model()
    strayed = (OutOfRangeTensor(tensor="hot", kind="overflow", largest=1.1e5),)
    reach = DynamicRangeReport(dtype=DType.FLOAT16, samples=1, tensors=2, strayed=strayed)
    options = InsertOptions(types="fp16", overflow="keep")
    result, found = convert(opened(proto, tmp_path), options, reach)
    assert [node.node for node in found.kept] == ["gain_up", "conv"]
    feeds = {"x": np.full((1, 4, 2, 2), 3.5, np.float32)}
    mine, theirs = (models.run(each, feeds, optimize=False)["y"] for each in (result.proto, proto))
    np.testing.assert_allclose(mine, theirs, rtol=1e-2)
    assert np.isfinite(mine).all()


@pytest.mark.parametrize("largest", [3e5, 1e30])
@pytest.mark.parametrize("form", ["bare", "pair", "stored", "moved"])
def test_a_product_whose_weights_reach_beyond_fp16_stays_fp32_and_computes_as_before(
    form: str, largest: float, tmp_path: Path
) -> None:
    """Clipped, its weights would be others; the FP16 values around it are none of its business."""
    s = models.Sketch()
    s.node("Mul", [s.input("x", [2, 8]), s.constant("gain", np.float32(0.5))], "small", name="gain")
    step = np.float32(largest / 127)
    weight = np.random.default_rng(3).integers(-127, 128, (8, 8)).astype(np.int8)
    weight[1, 2] = 127
    if form == "stored":
        name = s.node(
            "DequantizeLinear", [s.constant("w", weight), s.constant("w_s", step)], "w_d", name="dq"
        )
    else:
        name = s.constant("w", weight * step)
        name = _pair(s, name, float(step)) if form == "pair" else name
        name = s.node("Transpose", [name], "w_t", name="turn", perm=[1, 0]) if form == "moved" else name
    s.node("MatMul", ["small", name], "large", name="mm")
    s.output(
        s.node("Mul", ["large", s.constant("loss", np.float32(100 / largest))], "y", name="loss"), [2, 8]
    )
    proto = s.model()
    reach = DynamicRangeReport(
        dtype=DType.FLOAT16,
        samples=1,
        tensors=3,
        strayed=(OutOfRangeTensor(tensor="large", kind="overflow", largest=largest),),
    )
    result, found = convert(opened(proto, tmp_path), InsertOptions(types="fp16"), reach)
    assert found.clipped == ()
    assert _types(result, "mm") == {"fp32"}
    assert "gain" not in {node.node for node in found.kept}
    feeds = {"x": np.random.default_rng(4).standard_normal((2, 8)).astype(np.float32)}
    mine, theirs = (models.run(each, feeds, optimize=False)["y"] for each in (result.proto, proto))
    assert np.abs(mine - theirs).max() <= 2e-3 * np.abs(theirs).max()


def test_a_glob_that_matches_nothing_is_told(tmp_path: Path) -> None:
    _, found = _converted(models.conv_chain(), tmp_path, keep_nodes=("convv*",))
    assert "no node matches 'convv*'" in found.notes


def test_operators_without_a_bf16_form_are_named(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Shrink", [s.input("x", [2])], "y", name="shrink"), [2])
    _, found = _converted(s.model(), tmp_path, types="bf16")
    assert [(node.node, node.reason) for node in found.kept] == [
        ("shrink", "ONNX (opset 22) or onnxruntime has no bf16 form of the operator")
    ]


STATED = {
    schema.name
    for schema in onnx.defs.get_all_schemas()
    if not schema.domain
    and {"dtype", "output_datatype"} & schema.attributes.keys()
    and "tensor(float)" in {kind for kinds in schema.type_constraints for kind in kinds.allowed_type_strs}
}
"""Every operator with an attribute that states the type of its result."""
MAKERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **dict.fromkeys(("RandomNormal", "RandomUniform"), ([], {"shape": [4, 4]})),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike", "Bernoulli", "EyeLike"), (["x"], {})),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), ([np.int64(4)], {})),
    "MelWeightMatrix": ([np.int64(4), np.int64(6), np.int64(8000), np.float32(0), np.float32(4000)], {}),
    "Multinomial": (["x"], {"sample_size": 4}),
}


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("op", sorted(STATED))
def test_operators_that_state_the_type_of_their_result_run_as_before(
    op: str, types: str, stated: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    x = s.node("Relu", [s.input("x_in", [4, 4])], "x", name="relu")
    operands, attributes = MAKERS[op]
    names = [
        value if value == "x" else s.constant(f"c{index}", value) for index, value in enumerate(operands)
    ]
    if stated:
        key = next(iter({"dtype", "output_datatype"} & onnx.defs.get_schema(op).attributes.keys()))
        attributes = {**attributes, key: TensorProto.INT32 if op == "Multinomial" else TensorProto.FLOAT}
    made = s.node(op, names, "made", name="made", **attributes)
    made = s.node("Cast", [made], "cast", to=TensorProto.FLOAT) if op == "Multinomial" else made
    s.output(s.node("MatMul", [x, made], "y", name="matmul"), [4] if "Window" in op else [4, 4])
    result, _ = _converted(s.model(21), tmp_path, types=types)
    assert _types(result, "matmul") == {types}
    if types == "fp16":
        feeds = {"x_in": np.ones((4, 4), np.float32)}
        assert np.isfinite(models.run(result.proto, feeds)["y"]).all()


def test_bf16_holds_large_constants_that_fp16_clips(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Add", [s.input("x", [1]), s.constant("mask", np.array([-1e9], np.float32))], "y"), [1])
    assert _converted(s.model(), tmp_path)[1].clipped == ("mask",)
    assert _converted(s.model(), tmp_path, types="bf16")[1].clipped == ()


def test_constants_that_lose_their_digits_are_named(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Mul", [s.input("x", [1]), s.constant("tiny", np.array([1e-6], np.float32))], "y"), [1])
    _, found = _converted(s.model(), tmp_path)
    assert found.faint == ("tiny",)
    assert "1 constant is so small that FP16 loses digits: 'tiny'" in found.notes


def test_foreign_pairs_are_sent_to_repair(tmp_path: Path) -> None:
    s = models.Sketch()
    steps, zero = s.constant("s", np.float32(0.1)), s.constant("z", np.int8(0))
    x = s.node("QuantizeLinear", [s.input("x", [2]), steps, zero], "q", domain="com.microsoft")
    s.output(s.node("DequantizeLinear", [x, steps, zero], "y", domain="com.microsoft"), [2])
    with pytest.raises(UsageError, match=r"com\.microsoft") as caught:
        convert(opened(s.model(domains=["com.microsoft"]), tmp_path), InsertOptions(types="fp16"))
    assert "qdqtool repair" in caught.value.fix


# laws

_OPS = ("Relu", "Sigmoid", "Exp", "Add", "Mul", "Pair", "Conv", "Softmax", "Pow")


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A random graph of small operators and Q/DQ pairs over one shape, and nodes to keep."""
    s = models.Sketch(draw(st.integers(0, 99)))
    tensors = [s.input("x", [1, 3, 2, 2])]
    names = []
    for number in range(draw(st.integers(1, 10))):
        op, source = draw(st.sampled_from(_OPS)), draw(st.sampled_from(tensors))
        name = f"n{number}"
        if op == "Pair":
            tensors.append(_pair(s, source, draw(st.sampled_from((0.013, 1e-9, 0.5))), name))
            continue
        names.append(name)
        inputs = [source]
        if op in {"Add", "Mul"}:
            inputs.append(draw(st.sampled_from(tensors)))
        elif op == "Pow":
            inputs.append(s.constant(f"{name}_two", np.float32(2)))
        elif op == "Conv":
            inputs.append(s.weight(f"{name}_w", 3, 3, 1, 1))
        tensors.append(s.node(op, inputs, f"{name}_y", name=name))
    for tensor in dict.fromkeys((tensors[-1], draw(st.sampled_from(tensors[1:])))):
        s.output(tensor, [1, 3, 2, 2])
    return s.model(), tuple(draw(st.sets(st.sampled_from(names)))) if names else ()


@pytest.mark.slow
@given(graph=_graphs(), types=st.sampled_from(TYPES), keep_io=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_cast_ever_stands_behind_a_pair_and_kept_nodes_are_fp32(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[onnx.ModelProto, tuple[str, ...]],
    types: str,
    keep_io: bool,
) -> None:
    proto, kept = graph
    result, found = _converted(
        proto, tmp_path_factory.mktemp("law"), types=types, keep_nodes=kept, keep_io=keep_io
    )
    assert "DequantizeLinear" not in {maker for maker, _ in _casts(result)}
    for pair in find(result):
        both = [result.view.by_name[name].inputs[1] for name in (pair.quantize, pair.dequantize) if name]
        assert len({result.view.info(name).dtype for name in both}) == 1
    for node in found.kept:
        assert _types(result, node.node) == {"fp32"}
    assert set(kept) <= {node.node for node in found.kept}
    again, _ = _converted(
        proto, tmp_path_factory.mktemp("law"), types=types, keep_nodes=kept, keep_io=keep_io
    )
    assert again.proto.SerializeToString(deterministic=True) == result.proto.SerializeToString(
        deterministic=True
    )


@pytest.mark.rtx
@pytest.mark.parametrize("has_lengths", [True, False])
@pytest.mark.parametrize("types", TYPES)
def test_recurrent_nodes_build_in_every_type_with_and_without_lengths(
    types: str, has_lengths: bool, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    s = models.Sketch()
    x = s.input("x", [8, 1, 16])
    lengths = s.input("lengths", [1], TensorProto.INT32) if has_lengths else ""
    for op, gates in STEP_GATES.items():
        weights = [s.weight(f"{op}_{part}", 1, gates * 16, 16) for part in "wr"]
        s.node(op, [x, *weights, "", lengths], op, name=op, hidden_size=16)
        s.output(op, [8, 1, 1, 16])
    converted, conversion = _converted(s.model(), tmp_path, types=types)
    bound = [op for op in STEP_GATES if has_lengths or (op, types) == ("GRU", "bf16")]
    assert [node.node for node in conversion.kept] == bound
    assert build(converted.proto).error == ""
