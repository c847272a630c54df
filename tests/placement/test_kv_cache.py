"""Keys and values that a decoder hands to its next step, stored in few bits on request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.target import Target
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert, insert_for_engine
from qdqtool.graph.qdq.kv_caches import (
    attach_caches,
    detach_caches,
    kv_caches,
    stored_caches,
    with_float_caches,
)
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from tests import models
from tests.graph.test_attention import attention
from tests.placement import graphs
from tests.placement.building import build, table

CACHES = ("past_k0", "past_v0", "past_k1", "past_v1")
TYPES = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}


def prepared(proto: onnx.ModelProto) -> Model:
    shaped = onnx.shape_inference.infer_shapes(proto)
    return prepare(Model(proto=shaped, path=Path("decoder.onnx")), PrepareOptions())


def stored(proto: onnx.ModelProto, format_: str = "int8", types: str = "fp32", **options: object) -> Model:
    ready = prepared(proto)
    chosen = PlacementOptions.model_validate({"kv_cache": format_, "float_type": types, **options})
    placement = decide(ready.view, chosen)
    written = InsertOptions.model_validate({"types": types})
    return insert_for_engine(ready, placement, table(ready, placement), written)


def kinds(model: Model) -> dict[str, int]:
    graph = model.proto.graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


@pytest.mark.parametrize("form", ["concat", "scatter", "window"])
def test_a_cache_is_found_by_what_it_does(form: str) -> None:
    found = kv_caches(graphs.view(graphs.decoder(form=form)))
    assert [cache.inputs for cache in found] == [(name,) for name in CACHES]
    assert [cache.outputs for cache in found] == [(name.replace("past", "present"),) for name in CACHES]


@pytest.mark.parametrize("name", ["attention", "concat_cnn", "unet", "residual_cnn", "branching", "matmuls"])
def test_networks_without_a_cache_have_none(name: str) -> None:
    assert kv_caches(graphs.view(getattr(models, name)())) == ()


def test_an_input_that_is_handed_through_is_no_cache() -> None:
    s = models.Sketch()
    x = s.input("x", [1, 4, 8])
    s.output(s.node("Transpose", [x], "y", perm=[0, 2, 1]), [1, 8, 4])
    s.output(s.node("MatMul", [x, s.weight("w", 8, 8)], "z"), [1, 4, 8])
    assert kv_caches(graphs.view(s.model())) == ()


def test_caches_stay_float_unless_they_are_asked_for() -> None:
    assert set(kinds(stored(graphs.decoder(), "float")).values()) == {TensorProto.FLOAT}


@pytest.mark.parametrize("types", ["fp32", "fp16"])
@pytest.mark.parametrize("format_", ["int8", "fp8"])
@pytest.mark.parametrize("form", ["concat", "scatter", "window"])
def test_a_cache_enters_and_leaves_in_its_format_with_one_scale(form: str, format_: str, types: str) -> None:
    model = stored(graphs.decoder(form=form), format_, types)
    onnx.checker.check_model(model.proto)
    cached = {name: kind for name, kind in kinds(model).items() if name.startswith(("past", "present"))}
    assert set(cached.values()) == {TYPES[format_]}
    assert kinds(model)["x"] == TensorProto.FLOAT
    assert any("place.kv_cache" in note for note in model.notes)
    for cache in stored_caches(model.view):
        scales = {pair.scale for pair in find(model) if pair.tensor in cache.tensors and pair.scale}
        assert len(scales) == 1


@pytest.mark.parametrize("types", ["fp32", "fp16"])
@pytest.mark.parametrize("form", ["concat", "scatter", "window"])
def test_a_stored_cache_computes_what_the_same_q_and_dq_with_float_inputs_compute(
    form: str, types: str
) -> None:
    proto = graphs.decoder(form=form)
    model = stored(proto, types=types)
    feeds = models.feeds(proto)
    ours = models.run(with_float_caches(model).proto, feeds, optimize=False)
    numbers = {pair.tensor: pair.scale[0] for pair in find(model) if pair.tensor in CACHES}
    integers = {
        name: np.clip(np.round(value / np.float32(numbers[name])), -128, 127).astype(np.int8)
        if name in numbers
        else value
        for name, value in feeds.items()
    }
    direct = models.run(model.proto, integers, optimize=False)
    for name, value in direct.items():
        if value.dtype == np.int8:
            scale = np.float32(numbers[name.replace("present", "past")])
            assert np.abs(value * scale - ours[name]).max() <= scale * (1.01 if types == "fp16" else 1e-3)
        else:
            np.testing.assert_allclose(value, ours[name], atol=0.1 if types == "fp16" else 1e-5)


def test_q_and_dq_of_a_cache_come_off_and_go_on_again() -> None:
    model = stored(graphs.decoder())
    plain, numbers = detach_caches(model)
    assert set(numbers) == {*CACHES, *(name.replace("past", "present") for name in CACHES)}
    assert stored_caches(plain.view) == ()
    assert {node.op for node in plain.view.nodes} >= {"Concat"}
    again = attach_caches(plain, numbers)
    assert kinds(again) == kinds(model)
    integers = {
        name: np.ones((1, 4, 8, 16), np.int8) if name in CACHES else value
        for name, value in models.feeds(graphs.decoder()).items()
    }
    for name, value in models.run(model.proto, integers, optimize=False).items():
        np.testing.assert_array_equal(models.run(again.proto, integers, optimize=False)[name], value)


@pytest.mark.parametrize(
    ("end", "is_detached"),
    [
        ("past", True),
        ("shape", True),
        ("dequantized", False),
        ("integers", False),
        ("second scale", False),
        ("per channel", False),
    ],
)
def test_only_a_cache_that_is_dequantized_with_one_scale_comes_off(
    end: str, is_detached: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    past, new = s.input("past", [1, 2, 3, 4], TensorProto.INT8), s.input("x", [1, 2, 1, 4])
    steps = s.constant("steps", np.float32([0.1, 0.2] if end == "per channel" else 0.05))
    zero = s.constant("zero", np.zeros(2 if end == "per channel" else (), np.int8))
    floats = s.node("DequantizeLinear", [past, steps, zero], "floats", axis=1)
    whole = s.node("Concat", [floats, s.node("Relu", [new], "new")], "whole", axis=2)
    present = s.node("QuantizeLinear", [whole, steps, zero], "present", axis=1)
    s.output(present, [1, 2, 4, 4], TensorProto.INT8)
    if end == "shape":
        s.output(s.node("Shape", [past], "read"), [4], TensorProto.INT64)
    elif end == "dequantized":
        s.output(floats, [1, 2, 3, 4])
    elif end == "integers":
        s.output(s.node("Transpose", [past], "read"), [4, 3, 2, 1], TensorProto.INT8)
    elif end == "second scale":
        second = s.constant("second", np.float32(0.1))
        s.output(s.node("DequantizeLinear", [past, second, zero], "read"), [1, 2, 3, 4])
    proto = s.model(19)
    plain, numbers = detach_caches(Model(proto=proto, path=tmp_path / "m.onnx"))
    assert ("past" in numbers) is is_detached
    again = attach_caches(plain, numbers)
    feeds = {"past": np.ones((1, 2, 3, 4), np.int8), "x": np.ones((1, 2, 1, 4), np.float32)}
    for model in (plain, again):
        onnx.checker.check_model(model.proto, full_check=True)
    for name, value in models.run(proto, feeds, optimize=False).items():
        np.testing.assert_array_equal(models.run(again.proto, feeds, optimize=False)[name], value)


@pytest.mark.parametrize("format_", ["int8", "fp8"])
@pytest.mark.parametrize("queries", [1, 8])
def test_lint_says_nothing_of_a_stored_cache_and_repair_leaves_it(queries: int, format_: str) -> None:
    model = stored(graphs.decoder(queries=queries), format_)
    target = Target.parse("rtx", ("89",))
    assert not [entry for entry in lint(model, target).findings if entry.severity.value != "info"]
    repaired, _ = repair(model, target)
    assert kinds(repaired) == kinds(model)
    assert len(stored_caches(repaired.view)) == len(CACHES)


@pytest.mark.parametrize(("format_", "target"), [("int8", "sm86"), ("fp8", "sm89"), ("int8", "sm120")])
def test_the_kernel_of_one_query_reads_and_writes_the_stored_cache(format_: str, target: str) -> None:
    proto = graphs.decoder()
    plain, few = build(stored(proto, "float").proto, target), build(stored(proto, format_).proto, target)
    assert not plain.error
    assert not few.error
    assert len(few.kernels) <= len(plain.kernels)
    assert few.bytes < plain.bytes / 2
    fused = [layer for layer in few.kernels if "_gemv_mha" in layer.name]
    assert len(fused) == 2
    for layer in fused:
        assert [str(tensor.dtype) for tensor in layer.inputs].count(format_) >= 2
        assert [str(tensor.dtype) for tensor in layer.outputs].count(format_) >= 2


def test_several_queries_keep_their_int8_attention_beside_a_stored_cache() -> None:
    proto = graphs.decoder(queries=16)
    plain, few = build(stored(proto, "float").proto), build(stored(proto).proto)
    assert {precision for _, precision in few.precision} == {"int8"}
    assert few.bytes < plain.bytes
    assert len(few.kernels) <= len(plain.kernels)


def test_a_cache_is_stored_beside_weights_alone() -> None:
    model = stored(graphs.decoder(), activations="float")
    assert kinds(model)["past_k0"] == TensorProto.INT8
    assert not [pair for pair in find(model) if pair.tensor == "x"]


def test_evaluation_models_keep_float_caches() -> None:
    ready = prepared(graphs.decoder())
    placement = decide(ready.view, PlacementOptions(kv_cache="int8"))
    assert set(kinds(insert(ready, placement, table(ready, placement), InsertOptions())).values()) == {
        TensorProto.FLOAT
    }


def test_a_format_that_the_target_lacks_is_refused_with_one_that_has_it() -> None:
    with pytest.raises(UsageError, match="'kv_cache' needs fp8, which SM86 cannot run") as raised:
        stored(graphs.decoder(), "fp8", sm="86")
    assert "place.kv_cache" in (raised.value.fix or "")
    assert raised.value.where == "present_k0"


def test_a_network_without_a_cache_is_told_so() -> None:
    notes = decide(graphs.view(models.attention()), PlacementOptions(kv_cache="int8")).notes
    assert any("place.kv_cache=int8 finds no cache" in note for note in notes)


def of_tokens() -> onnx.ModelProto:
    """The decoder fed with tokens and caches of any length: no input but the caches holds floats."""
    proto = graphs.decoder()
    old = proto.graph.input[0]
    table = numpy_helper.from_array(
        np.ones((8, old.type.tensor_type.shape.dim[2].dim_value), np.float32), "table"
    )
    proto.graph.initializer.append(table)
    proto.graph.node.insert(0, onnx.helper.make_node("Gather", ["table", "tokens"], [old.name], name="embed"))
    old.CopyFrom(onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, [1, 1]))
    for value in (*proto.graph.input, *proto.graph.output):
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 4:
            dims[2].dim_param = "past" if value in proto.graph.input else "past + 1"
    return proto


@pytest.mark.slow
def test_samples_of_a_decoder_of_tokens_keep_the_types_that_its_caches_had(tmp_path: Path) -> None:
    path = models.save(of_tokens(), tmp_path)
    settings = ["place.kv_cache=fp8", "insert.types=fp16", "build.sm=[89]"]
    words = [word for setting in settings for word in ("--set", setting)]
    line = ["run", str(path), "--recipe", "transformer-fp8", *words, "--samples", "random:2"]
    assert run([*line, "--out", str(tmp_path / "out")]) == 0
    assert kinds(load(tmp_path / "out" / "model.qdq.onnx"))["past_k1"] == TYPES["fp8"]


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "sm"), [("int8", "86"), ("fp8", "89")])
def test_a_decoder_goes_through_run_with_a_stored_cache(tmp_path: Path, format_: str, sm: str) -> None:
    path = models.save(graphs.decoder(), tmp_path)
    settings = [f"place.kv_cache={format_}", "audit.fail_on_unrealised=true", "insert.types=fp16"]
    words = [word for setting in settings for word in ("--set", setting)]
    arguments = [
        "run",
        str(path),
        "--recipe",
        "llm-int4-weights",
        *words,
        "--sm",
        sm,
        "--samples",
        "random:4",
    ]
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "report.json").read_text())["data"]["summary"]
    assert summary["requested"] == summary["realised"]
    assert kinds(load(tmp_path / "out" / "model.qdq.onnx"))["past_k1"] == TYPES[format_]
    loaded = load(tmp_path / "out" / "model.qdq.onnx").proto.graph.initializer
    assert all(np.isfinite(numpy_helper.to_array(entry)).all() for entry in loaded if "scale" in entry.name)


def test_a_cache_of_the_operator_attention_is_stored() -> None:
    proto = attention((4, 2), past=7, is_causal=1)
    for name, place in (("k", 1), ("v", 2)):  # what the network computes is beside what it is given
        proto.graph.input[place].name = f"{name}_given"
        proto.graph.node.insert(0, helper.make_node("Neg", [f"{name}_given"], [name], name=f"{name}_made"))
    model = prepared(proto)
    placed = decide(model.view, PlacementOptions(kv_cache="int8"))
    assert {entry.tensor for entry in placed.quantized} >= {"past_k", "past_v"}
    assert {entry.spec.format.name for entry in placed.quantized if entry.spec} == {"int8"}


def test_a_cache_that_is_written_in_place_stays_float_and_is_named() -> None:
    s = models.Sketch()
    inputs = [
        s.input("past", [1, 4, 16, 8]),
        s.input("new", [1, 4, 1, 8]),
        s.input("at", [1], TensorProto.INT64),
    ]
    s.output(s.node("TensorScatter", inputs, "present", name="write"))
    placed = decide(graphs.view(s.model(opset=24)), PlacementOptions(kv_cache="int8"))
    assert not placed.quantized
    (note,) = (note for note in placed.notes if "place.kv_cache" in note)
    assert "'write'" in note
