"""Integers that a network computes in float stay exact in FP16 and BF16: indices, lengths, comparisons, angles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from qdqtool.core.recipe import InsertOptions
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.typed.emulate import emulate_types
from qdqtool.graph.typed.narrow import NARROW, Types
from tests import models
from tests.graph.placing import opened
from tests.placement import zoo

TYPES: tuple[Types, ...] = ("fp16", "bf16")
IDS = np.array([[3, 2049, 2050, 4099, 77777, 100000]], np.int64)


def _kept(proto: onnx.ModelProto, folder: Path, types: Types) -> tuple[onnx.ModelProto, dict[str, str]]:
    result, found = convert(opened(proto, folder), InsertOptions(types=types))
    onnx.checker.check_model(result.proto, full_check=True)
    return result.proto, {node.node: node.reason for node in found.kept}


def _runnable(proto: onnx.ModelProto) -> onnx.ModelProto:
    rounded = emulate_types(proto.SerializeToString())
    return proto if rounded is None else rounded[0].proto


def _same_integers(proto: onnx.ModelProto, folder: Path, types: Types, seed: int = 0) -> dict[str, str]:
    """Convert, run both, and demand equal integers and flags; which nodes stayed FP32, and why."""
    result, kept = _kept(proto, folder, types)
    feeds = models.feeds(proto, seed)
    for name in {value.name for value in proto.graph.input} & {"i"}:
        feeds[name] = IDS
    theirs = models.run(proto, feeds, optimize=False)
    mine = models.run(_runnable(result), feeds, optimize=False)
    for name, value in theirs.items():
        if value.dtype.kind in "iub":
            np.testing.assert_array_equal(mine[name], value, err_msg=name)
    return kept


def _cast(s: models.Sketch, tensor: str, to: int, name: str) -> str:
    return s.node("Cast", [tensor], name, name=name, to=to)


def _float_ids(s: models.Sketch) -> str:
    return _cast(s, s.input("i", [1, 6], TensorProto.INT64), TensorProto.FLOAT, "f")


def _gathered() -> onnx.ModelProto:
    """ids + 1, in float, choose rows of a table."""
    s = models.Sketch()
    moved = s.node("Add", [_float_ids(s), s.constant("one", np.float32(1))], "moved", name="add")
    index = _cast(s, moved, TensorProto.INT64, "index")
    s.output(index, [1, 6], TensorProto.INT64)
    s.node("Gather", [s.weight("table", 100002, 4), index], "rows", name="gather")
    s.output(s.node("MatMul", ["rows", s.weight("w", 4, 4)], "y", name="mm"), [1, 6, 4])
    return s.model()


def _masked() -> onnx.ModelProto:
    """A mask of lengths, counted in float, on the scores of an attention."""
    s = models.Sketch()
    ids = _float_ids(s)
    lengths = s.input("x", [1, 6])
    far = s.node("Mul", [lengths, s.constant("far", np.float32(4099))], "far_y", name="far")
    s.output(s.node("Less", [ids, far], "mask", name="less"), [1, 6], TensorProto.BOOL)
    flags = _cast(s, "mask", TensorProto.FLOAT, "flags")
    against = s.node("Sub", [s.constant("one", np.float32(1)), flags], "against", name="sub")
    bias = s.node("Mul", [against, s.constant("much", np.float32(-1e4))], "bias", name="much")
    scores = s.node("Add", [s.node("MatMul", [lengths, s.weight("w", 6, 6)], "scores", name="mm"), bias], "a")
    s.output(s.node("Softmax", [scores], "y", name="softmax"), [1, 6])
    return s.model()


def _places() -> onnx.ModelProto:
    """Row and column of the largest value of a map, in float."""
    s = models.Sketch()
    x = s.node("Relu", [s.input("x", [1, 5000])], "r", name="relu")
    best = _cast(s, s.node("ArgMax", [x], "best", axis=1), TensorProto.FLOAT, "place")
    row = s.node(
        "Floor",
        [s.node("Div", [best, s.constant("width", np.float32(7))], "share", name="div")],
        "row",
        name="floor",
    )
    s.output(s.node("Mul", [row, s.constant("stride", np.float32(8))], "y", name="stride_mul"), [1, 1])
    return s.model()


def _angles(op: str) -> onnx.ModelProto:
    """Positions times frequencies, as rotary embeddings and time steps have them."""
    s = models.Sketch()
    ids = _float_ids(s)
    column = s.node("Unsqueeze", [ids, s.constant("axis", np.array([2], np.int64))], "column", name="column")
    rates = s.constant("rates", np.array([[[1.0, 0.1, 0.01]]], np.float32))
    angle = s.node(op, [column, rates], "angle", name="angle")
    both = s.node(
        "Concat", [s.node(each, [angle], each, name=each) for each in ("Sin", "Cos")], "both", axis=-1
    )
    s.output(s.node("MatMul", [both, s.weight("w", 6, 4)], "y", name="mm"), [1, 6, 4])
    return s.model()


def _timesteps() -> onnx.ModelProto:
    """The same of a float input, as diffusion models have it."""
    s = models.Sketch()
    angle = s.node(
        "Mul", [s.input("t", [1, 1]), s.constant("rates", np.float32([[1, 0.5, 0.1]]))], "angle", name="angle"
    )
    s.output(
        s.node("MatMul", [s.node("Sin", [angle], "sin", name="sin"), s.weight("w", 3, 4)], "y", name="mm"),
        [1, 4],
    )
    return s.model()


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    ("make", "kept", "narrow"),
    [
        (_gathered, {"f", "add", "index"}, {"gather", "mm"}),
        (_masked, {"f", "far", "less"}, {"flags", "sub", "much", "mm", "softmax"}),
        (_places, {"place", "div", "floor", "stride_mul"}, {"relu"}),
        (lambda: _angles("Mul"), {"f", "column", "angle", "Sin", "Cos"}, {"mm"}),
        (lambda: _angles("MatMul"), {"f", "column", "angle", "Sin", "Cos"}, {"mm"}),
        (_timesteps, {"angle", "sin"}, {"mm"}),
    ],
)
def test_what_counts_stays_fp32_and_the_network_does_not(
    make: Callable[[], onnx.ModelProto], kept: set[str], narrow: set[str], types: Types, tmp_path: Path
) -> None:
    found = _same_integers(make(), tmp_path, types)
    assert kept <= set(found)
    assert not narrow & set(found)
    assert all(
        "rounds integers beyond" in found[name] or "rounds large angles" in found[name] for name in kept
    )


@pytest.mark.parametrize("types", TYPES)
def test_an_integer_mask_of_an_attention_is_no_count(types: Types, tmp_path: Path) -> None:
    s = models.Sketch()
    ones = s.constant("one", np.float32(1))
    against = s.node("Sub", [ones, _float_ids(s)], "against", name="sub")
    bias = s.node("Mul", [against, s.constant("much", np.float32(-3e38))], "bias", name="much")
    scores = s.node("MatMul", [s.input("x", [1, 6]), s.weight("w", 6, 6)], "scores", name="mm")
    s.output(s.node("Softmax", [s.node("Add", [scores, bias], "a", name="add")], "y"), [1, 6])
    assert not _kept(s.model(), tmp_path, types)[1]


def test_small_integers_are_exact_in_fp16_and_not_in_bf16(tmp_path: Path) -> None:
    def small(limit: int) -> onnx.ModelProto:
        s = models.Sketch()
        x = s.input("x", [1, limit])
        place = _cast(s, s.node("ArgMax", [x], "best", axis=1), TensorProto.FLOAT, "place")
        s.output(
            _cast(s, s.node("Add", [place, place], "twice", name="add"), TensorProto.INT64, "y"),
            [1, 1],
            TensorProto.INT64,
        )
        return s.model()

    assert not _kept(small(1000), tmp_path, "fp16")[1]
    assert set(_kept(small(1100), tmp_path, "fp16")[1]) == {"add", "y"}
    assert set(_kept(small(1000), tmp_path, "bf16")[1]) == {"place", "add", "y"}
    assert not _kept(small(100), tmp_path, "bf16")[1]


# laws

_STEPS = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Floor",
    "Ceil",
    "Round",
    "Abs",
    "Neg",
    "Max",
    "Min",
    "Where",
    "Concat",
    "Clip",
    "Sqrt",
    "Log",
    "CumSum",
)


def _end(s: models.Sketch, end: str, last: str, other: str) -> None:
    """Turn a chain into integers, flags or indices, and return them."""
    if end in {"Less", "Equal"}:
        s.output(s.node(end, [last, other], "end", name="end"), dtype=TensorProto.BOOL)
    elif end == "ArgMax":
        s.output(s.node("ArgMax", [last], "end", name="end", axis=1), dtype=TensorProto.INT64)
    else:
        limits = [s.constant(name, np.float32(value)) for name, value in (("low", -1e9), ("high", 1e9))]
        index = _cast(s, s.node("Clip", [last, *limits], "bounded"), TensorProto.INT64, "end")
        s.output(index, dtype=TensorProto.INT64)
        if end == "Gather":
            row = s.node("Mod", [index, s.constant("rows", np.int64(50000))], "row")
            table = s.constant("table", np.arange(50000, dtype=np.int64))
            s.output(s.node("Gather", [table, row], "which"), dtype=TensorProto.INT64)


@st.composite
def _chains(draw: st.DrawFn) -> onnx.ModelProto:
    """Random arithmetic on integers in float that ends in integers, flags or indices, beside a layer of a network."""
    s = models.Sketch(draw(st.integers(0, 99)))
    x = s.input("x", ["n", 6])
    s.output(s.node("Relu", [s.node("MatMul", [x, s.weight("w", 6, 6)], "m", name="mm")], "y", name="relu"))
    lengths = s.node("Shape", [x], "shape")
    chosen = s.node("ArgMax", [x], "chosen", axis=1, keepdims=1)
    sources = [
        _float_ids(s),
        _cast(s, lengths, TensorProto.FLOAT, "lengths_f"),
        _cast(s, chosen, TensorProto.FLOAT, "chosen_f"),
    ]
    tensors = [
        s.node("ReduceMax", [each], f"{each}_1", axes=[0, 1] if each != "lengths_f" else [0], keepdims=1)
        for each in sources[1:]
    ]
    tensors = [
        s.node("Reshape", [each, s.constant(f"{each}_to", np.array([1, 1], np.int64))], f"{each}_r")
        for each in tensors
    ]
    tensors.append(sources[0])

    def number(name: str) -> str:
        value = draw(
            st.one_of(st.integers(-100000, 100000), st.sampled_from((0.1, 0.5, 7, 16, 1 / 3, 2047, 2049)))
        )
        return s.constant(name, np.float32([[value or 1]]))

    for step in range(draw(st.integers(1, 8))):
        op, name = draw(st.sampled_from(_STEPS)), f"n{step}"
        # the last one always goes on, so that the chain is as deep as it is long
        first = tensors[-1] if draw(st.booleans()) else draw(st.sampled_from(tensors))
        second = number(f"{name}_c") if draw(st.booleans()) else draw(st.sampled_from(tensors))
        inputs, attributes = [first, second], {}
        if op == "Mod":
            inputs, attributes = [first, number(f"{name}_m")], {"fmod": 1}
        elif op == "Div":
            inputs = [first, number(f"{name}_d")]
        elif op == "Where":
            inputs = [s.node("Less", [first, second], f"{name}_less", name=f"{name}_less"), first, second]
        elif op == "Concat":
            inputs, attributes = [first, tensors[0]], {"axis": 1}
        elif op in {"Floor", "Ceil", "Round", "Abs", "Neg"}:
            inputs = [first]
        elif op == "Clip":
            inputs = [
                first,
                s.constant(f"{name}_low", np.float32(-70000)),
                s.constant(f"{name}_high", np.float32(70000)),
            ]
        elif op in {"Log", "Sqrt"}:
            inputs = [s.node("Abs", [first], f"{name}_abs", name=f"{name}_abs")]
            if op == "Log":
                inputs = [s.node("Add", [*inputs, s.constant(f"{name}_one", np.float32(1))], f"{name}_more")]
        elif op == "CumSum":
            inputs = [first, s.constant(f"{name}_axis", np.int64(1))]
        made = s.node(op, inputs, f"{name}_y", name=name, **attributes)
        if op == "Concat":
            made = s.node("ReduceMax", [made], f"{name}_max", name=f"{name}_max", axes=[1], keepdims=1)
        tensors.append(made)
    _end(
        s,
        draw(st.sampled_from(("Cast", "Less", "Equal", "ArgMax", "Gather"))),
        tensors[-1],
        draw(st.sampled_from(tensors)),
    )
    return s.model()


@pytest.mark.parametrize("types", TYPES)
@given(proto=_chains(), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_no_integer_and_no_index_changes(
    tmp_path_factory: pytest.TempPathFactory, proto: onnx.ModelProto, seed: int, types: Types
) -> None:
    kept = _same_integers(proto, tmp_path_factory.mktemp("law"), types, seed)
    assert not {"mm", "relu"} & set(kept)


_WITH_FACTS = {"spectrogram": set(TYPES), "normalized stream, written out": {"fp16"}}
"""Models of the zoo that take a logarithm of a spectrogram, or write squares out; none counts in float."""


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", [*models.ALL, *zoo.FLOAT])
def test_ordinary_networks_become_as_narrow_as_before(name: str, types: Types, tmp_path: Path) -> None:
    make = models.ALL.get(name) or zoo.FLOAT[name]
    found = sensitive(opened(make(), tmp_path).view, NARROW[types].float_type)
    assert bool(found) is (types in _WITH_FACTS.get(name, ()))
