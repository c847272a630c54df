"""A Q/DQ model is a float graph and an assignment: reading and writing them are each other's reverse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qdqtool.core.placement import Slot
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import FP8, FP8_E5M2, INT4, INT8, MXFP8, NVFP4, QuantFormat
from qdqtool.errors import UsageError
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.emulation.emulate_blocks import with_emulated_blocks
from qdqtool.graph.qdq.encode import block_scales
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph, lower
from qdqtool.graph.qdq.unquantize import float_graph, unquantize
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened, placement_for
from tests.placement.qdq import GRAPHS

_BLOCK = 16


def at_opset(model: Model, opset: int) -> Model:
    return Model(proto=raise_opset(model.proto, opset, model.path)[0], path=model.path)


def quantized(model: Model, format_: QuantFormat, *, stored: bool) -> QuantizedGraph:
    """Every factor of every product, weights per channel or in blocks of 16 where these fit."""
    model = at_opset(model, format_.opset)
    assignment = {}
    for decision in placement_for(model).decisions:
        value = model.view.constant(decision.tensor)
        axis = decision.spec.axis if decision.spec else None
        if format_.block is None:
            scale = np.asarray(0.05 if axis is None or value is None else _steps(value, axis), np.float32)
            used = axis if scale.ndim else None
            here = stored and value is not None
            assignment[decision.slot] = Quantization(format=format_, scale=scale, axis=used, stored=here)
            continue
        block = format_.block if format_ != INT4 else _BLOCK
        if value is None:
            shape = model.view.info(decision.tensor).shape or ()
            if format_ != INT4 and shape and shape[-1] % block == 0:
                level = 2.0**-7 if format_.two_level else None
                assignment[decision.slot] = Quantization(
                    format=format_, scale=None, axis=len(shape) - 1, block=block, global_scale=level
                )
        elif value.ndim >= 2 and value.shape[0] % block == 0:
            found, level = block_scales(value, format_, 0, block)
            level = None if level is None else float(np.float32(level))
            assignment[decision.slot] = Quantization(
                format=format_, scale=found, axis=0, block=block, global_scale=level, stored=True
            )
    return QuantizedGraph(model=model, assignment=assignment)


def _steps(value: np.ndarray, axis: int) -> np.ndarray:
    others = tuple(dim for dim in range(value.ndim) if dim != axis)
    return np.maximum(np.abs(value).max(axis=others), 0.01) / 100


def run(model: Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.proto.SerializeToString(), options)
    return session.run(None, feeds)


def feeds_of(model: Model) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(0), {}
    kinds = {"fp32": np.float32, "fp16": np.float16, "int64": np.int64, "int8": np.int8, "bool": np.bool_}
    for info in model.view.inputs:
        shape = [size if isinstance(size, int) else 2 for size in info.shape or ()]
        found[info.name] = np.asarray(random.standard_normal(shape), kinds[str(info.dtype)])
    return found


@pytest.mark.parametrize("format_", [INT8, FP8, FP8_E5M2, INT4, NVFP4, MXFP8], ids=str)
@pytest.mark.parametrize("stored", [False, True], ids=["float weights", "stored weights"])
@pytest.mark.parametrize("name", models.ALL)
def test_lifting_what_was_lowered_gives_it_back(name, stored, format_, tmp_path):
    graph = quantized(opened(models.ALL[name](), tmp_path), format_, stored=stored)
    lifted, left = lift(lower(graph))
    assert not left
    assert dict(lifted.assignment) == dict(graph.assignment)
    again, _ = lift(lower(lifted))
    assert again == lifted
    if not any(entry.stored for entry in graph.assignment.values()):
        assert lifted == graph


@pytest.mark.parametrize("name", models.ALL)
def test_a_float_model_is_lifted_as_it_is(name, tmp_path):
    model = opened(models.ALL[name](), tmp_path)
    assert lift(model) == (QuantizedGraph(model=model), ())
    assert QuantizedGraph(model=lower(QuantizedGraph(model=model))) == QuantizedGraph(model=model)


TOO_OLD = {"fp8_old_opset"}
"""Graphs whose opset has no such type, which is not written again."""


@pytest.mark.parametrize("name", GRAPHS)
def test_lowering_what_was_lifted_computes_the_same(name, tmp_path):
    model = opened(GRAPHS[name](), tmp_path)
    lifted, left = lift(model)
    if name in TOO_OLD:
        with pytest.raises(UsageError, match="opset 17 cannot hold fp8"):
            lower(lifted)
        return
    written = lower(lifted)
    again, _ = lift(written)
    assert dict(again.assignment) == dict(lifted.assignment)
    try:
        before = run(model, feeds_of(model))
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime"):
            pytest.skip(f"onnxruntime does not run it: {str(error)[:60]}")
        raise
    for one, other in zip(before, run(written, feeds_of(model)), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=str(left))


def pair(*, source: str = "x", **changes: object) -> onnx.ModelProto:
    """x [2,8] -> Q -> DQ -> MatMul with constant weights behind a DQ, one thing changed."""
    take = changes.get
    s = models.Sketch()
    s.input("x", (2, 8))
    s.constant("s", np.asarray(take("scale", 0.1), np.float32))
    s.constant("t", np.asarray(take("other", take("scale", 0.1)), np.float32))
    s.constant("z", np.asarray(take("zero", 0), take("kind", np.int8)))
    s.node("QuantizeLinear", [source, "s", "z"], "q", **take("more", {}))
    s.node("DequantizeLinear", ["q", "t", "z"], "d", **take("more", {}))
    s.weight("w", 8, 4)
    s.node("MatMul", ["d", "w"], "y")
    s.output("y", (2, 4))
    return s.model(opset=19)


@pytest.mark.parametrize(
    ("changes", "is_lifted"),
    [
        ({"zero": 3}, False),
        ({"zero": 0, "kind": np.uint8}, False),
        ({"scale": [0.1]}, True),
        ({"scale": [0.1] * 8, "zero": [0] * 8}, True),
        ({"scale": 0.0}, False),
        ({"other": 0.2}, False),
    ],
    ids=["zero point", "unsigned", "scale of shape [1]", "per channel", "scale of 0", "two scales"],
)
def test_a_pair_that_quantizes_no_slot_stays(changes, is_lifted, tmp_path):
    lifted, left = lift(opened(pair(**changes), tmp_path))
    assert left == (() if is_lifted else ("d",))
    assert (Slot(node="y", index=0) in lifted.assignment) is is_lifted


def test_a_pair_that_two_nodes_read_stays_one_pair(tmp_path):
    s = models.Sketch()
    s.input("x", (2, 8))
    s.constant("s", np.asarray(0.1, np.float32))
    s.constant("z", np.asarray(0, np.int8))
    s.node("QuantizeLinear", ["x", "s", "z"], "q")
    s.node("DequantizeLinear", ["q", "s", "z"], "d")
    s.node("Relu", ["d"], "a")
    s.node("Abs", ["d"], "b")
    s.output("a", (2, 8))
    s.output("b", (2, 8))
    lifted, left = lift(opened(s.model(opset=17), tmp_path))
    first = Slot(node="a", index=0)
    assert not left
    assert [entry.pair for entry in lifted.assignment.values()] == [first, first]
    written = lower(lifted)
    assert sum(node.op == "QuantizeLinear" for node in written.view.nodes) == 1
    assert lift(written)[0] == lifted


def test_an_opset_below_that_of_the_format_is_refused(tmp_path):
    model = opened(models.gemms(), tmp_path)
    graph = quantized(model, FP8, stored=False)
    with pytest.raises(UsageError, match="opset 17 cannot hold fp8, which needs opset 19"):
        lower(replace(graph, model=model))


def test_blocks_that_do_not_divide_their_axis_are_refused(tmp_path):
    model = at_opset(opened(models.gemms(), tmp_path), INT4.opset)
    slot = next(
        entry.slot for entry in placement_for(model).decisions if model.view.is_constant(entry.tensor)
    )
    odd = Quantization(format=INT4, scale=np.ones((1, 1), np.float32), axis=0, block=7, stored=True)
    with pytest.raises(UsageError, match="blocks of 7 do not divide axis 0"):
        lower(QuantizedGraph(model=model, assignment={slot: odd}))


@pytest.mark.parametrize("format_", [INT8, FP8, INT4, NVFP4, MXFP8], ids=str)
@pytest.mark.parametrize("name", ["gemms", "matmuls", "residual_cnn"])
def test_the_float_form_of_a_model_in_any_format_has_no_quantizer_and_its_constants_are_those_stored(
    name, format_, tmp_path
):
    graph = quantized(opened(models.ALL[name](), tmp_path), format_, stored=True)
    model = lower(graph)
    plain = float_graph(model)
    assert not quantized_ops(plain)
    assert QuantizedGraph(model=plain) == QuantizedGraph(model=lift(model)[0].model)
    if format_ != MXFP8:
        names = [node.name for node in model.view.nodes]
        apart = unquantize(model, names)
        assert not quantized_ops(apart)
        held = {
            slot: lift(model)[0].model.view.by_name[slot.node].inputs[slot.index] for slot in graph.assignment
        }
        for slot, tensor in held.items():
            value = plain.view.constant(tensor)
            if value is not None:
                mine = apart.view.constant(apart.view.by_name[slot.node].inputs[slot.index])
                assert mine is not None
                assert np.array_equal(mine, value)


def test_a_pair_between_two_float_types_leaves_a_cast_behind(tmp_path):
    sketch = models.Sketch()
    x = sketch.input("x", [2, 4])
    half = sketch.node("Cast", [x], "half", to=onnx.TensorProto.FLOAT16)
    scales = [
        sketch.constant(name, np.asarray(0.05, kind))
        for name, kind in (("s16", np.float16), ("s32", np.float32))
    ]
    zero = sketch.constant("zero", np.int8(0))
    integers = sketch.node("QuantizeLinear", [half, scales[0], zero], "integers")
    floats = sketch.node("DequantizeLinear", [integers, scales[1], zero], "floats")
    for name in ("first", "second"):
        sketch.output(sketch.node("MatMul", [floats, sketch.weight(f"w_{name}", 4, 3)], name))
    plain = float_graph(opened(sketch.model(opset=19), tmp_path))
    assert sorted({node.op for node in plain.view.nodes}) == ["Cast", "MatMul"]
    feeds = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)}
    for made, name in zip(run(plain, feeds), ("first", "second"), strict=True):
        expected = feeds["x"].astype(np.float16).astype(np.float32) @ plain.view.constant(f"w_{name}")
        np.testing.assert_allclose(made, expected, rtol=1e-5)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("length", "block"), [(6, 4), (8, 4), (10, 4), (12, 5), (3, 4)])
def test_the_float_form_of_weights_in_blocks_computes_the_same(length, block, centred, tmp_path):
    s = models.Sketch()
    shape = (-(-length // block), 3)
    stored = s.constant("stored", s.random.integers(-128, 128, (length, 3)).astype(np.int8))
    scale = s.constant("scale", s.random.uniform(0.1, 1, shape).astype(np.float32))
    zero = [] if centred else [s.constant("zero", s.random.integers(-3, 3, shape).astype(np.int8))]
    weight = s.node("DequantizeLinear", [stored, scale, *zero], "w", axis=0, block_size=block)
    s.output(s.node("MatMul", [s.input("x", [2, length]), weight], "y", name="matmul"), [2, 3])
    proto = s.model(21)
    result = float_graph(opened(proto, tmp_path))
    feeds = models.feeds(proto)
    assert [node.op for node in result.view.nodes] == ["MatMul"]
    assert np.allclose(models.run(result.proto, feeds)["y"], models.run(proto, feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize("types", ["fp16", "bf16"])
@pytest.mark.parametrize("format_", [MXFP8, NVFP4], ids=str)
def test_emulated_blocks_have_the_type_of_their_activation(format_, types, tmp_path):
    s = models.Sketch()
    x = s.node("Relu", [s.input("x", [4, 64])], "r", name="relu")
    s.output(s.node("MatMul", [x, s.weight("w", 64, 8)], "y", name="matmul"), [4, 8])
    model = at_opset(convert(opened(s.model(), tmp_path), InsertOptions(types=types))[0], format_.opset)
    level = 2.0**-7 if format_.two_level else None
    entry = Quantization(format=format_, scale=None, axis=1, block=format_.block, global_scale=level)
    assignment = {Slot(node="matmul", index=0): entry}
    emulated = with_emulated_blocks(lower(QuantizedGraph(model=model, assignment=assignment)))
    onnx.checker.check_model(emulated.proto, full_check=True)
