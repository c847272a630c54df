"""Shapes are known behind symbolic dimensions and shape arithmetic, and never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import qdqtool
from qdqtool.core.tensors import DType
from qdqtool.graph.onnx_io.load import load
from tests import models
from tests.graph.placing import opened
from tests.shared import shared


def _split_heads(s: models.Sketch, x: str) -> str:
    """What exporters write for `x.view(x.shape[0], -1, 4, 8)`."""
    shape = s.node("Shape", [x], "shape")
    batch = s.node("Gather", [shape, s.constant("first", np.array(0))], "batch", axis=0)
    batch = s.node("Unsqueeze", [batch, s.constant("axes", np.array([0]))], "batch1")
    to = s.node("Concat", [batch, s.constant("rest", np.array([-1, 4, 8]))], "to", axis=0)
    return s.node("Reshape", [x, to], "heads")


def test_a_reshape_to_symbol_and_minus_one_is_known(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Relu", [_split_heads(s, s.input("x", ["batch", 7, 32]))], "y"))
    view = opened(s.model(), tmp_path).view
    assert view.info("heads").shape == ("batch", 7, 4, 8)
    assert view.info("y").shape == ("batch", 7, 4, 8)


def _group_normalized(s: models.Sketch, *, batch: str = "batch") -> str:
    parameters = [s.weight("scale", 32), s.weight("shift", 32)]
    x = s.conv("first", s.input("x", [batch, 16, 8, 8]), (16, 32))
    y = s.node("GroupNormalization", [x, *parameters], "norm_y", name="norm", num_groups=4)
    return s.conv("last", s.node("Gelu", [y], "gelu_y", name="gelu"), (32, 16))


def test_what_stands_behind_a_group_normalization_is_known(tmp_path: Path) -> None:
    s = models.Sketch()
    last = _group_normalized(s)
    s.output(last)
    view = opened(s.model(opset=21), tmp_path).view
    assert view.info("gelu_y").shape == ("batch", 32, 8, 8)
    assert view.info(last).shape == ("batch", 16, 8, 8)
    assert view.info(last).dtype is DType.FLOAT32


def test_an_engine_in_half_floats_reads_one_type_behind_a_group_normalization(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(_group_normalized(s, batch="1"))
    plain = models.save(s.model(opset=21), tmp_path)
    settings = {"insert.types": "fp16", "build.sm": 89, "place.sm": []}
    made = load(
        models.save(qdqtool.quantize(plain, "random:2", recipe="conv-fp8", settings=settings).model, tmp_path)
    )
    (last,) = (node for node in made.view.nodes if node.name == "last")
    assert {made.view.info(name).dtype for name in last.inputs[:2]} == {DType.FLOAT16}


def test_two_symbols_stay_apart(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(_split_heads(s, s.input("x", ["batch", "tokens", 32])))
    assert opened(s.model(), tmp_path).view.info("heads").shape == ("batch", "tokens", 4, 8)


def test_expressions_of_a_symbol_are_written_out(tmp_path: Path) -> None:
    s = models.Sketch()
    x = _split_heads(s, s.input("x", ["N", 7, 32]))
    y = s.node("Concat", [x, s.constant("token", np.zeros((1, 7, 4, 8), np.float32))], "longer", axis=0)
    s.node("Reshape", [x, s.constant("flat", np.array([-1, 8]))], "flattened")
    s.nodes.append(helper.make_node("Identity", ["flattened"], ["z"]))
    s.output("z")
    s.output(y)
    view = opened(s.model(), tmp_path).view
    assert view.info("longer").shape == ("N+1", 7, 4, 8)
    assert view.info("flattened").shape == ("28*N", 8)


def test_a_dimension_that_depends_on_values_stays_unknown(tmp_path: Path) -> None:
    s = models.Sketch()
    found = s.node("NonZero", [s.input("x", ["N", 3])], "found")
    s.output(s.node("Cast", [found], "y", to=1))
    shape = opened(s.model(), tmp_path).view.info("found").shape
    assert shape is not None
    assert shape[0] == 2
    assert isinstance(shape[1], str)


@pytest.mark.shared
def test_every_tensor_of_the_vision_transformer_has_a_shape() -> None:
    view = load(shared("models/vit_cifar10_pgd_2_3_16/model.onnx")).view
    assert [name for node in view.nodes for name in node.outputs if view.info(name).shape is None] == []
    assert {view.info(node.outputs[0]).shape for node in view.nodes if node.op == "Softmax"} == {
        ("batch_size", 3, 5, 5)
    }


def test_a_mask_over_two_symbols_is_known_and_never_made(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", "tokens", 8])
    shape = s.node("Shape", [x], "shape")
    size = s.node(
        "Slice", [shape, *(s.constant(f"c{i}", np.array([v])) for i, v in enumerate((0, 2)))], "size"
    )
    ones = s.node("ConstantOfShape", [size], "ones")
    s.output(s.node("Unsqueeze", [ones, s.constant("last", np.array([2]))], "mask"))
    s.output(s.node("Relu", [x], "y"))
    assert opened(s.model(), tmp_path).view.info("mask").shape == ("batch", "tokens", 1)


@pytest.mark.parametrize("count", [11, 64])
def test_any_number_of_symbols_stays_apart(count: int, tmp_path: Path) -> None:
    s = models.Sketch()
    for number in range(count):
        heads = _split_heads(_Renamed(s, f"_of_{number}"), s.input(f"x{number}", [f"n{number}", 7, 32]))
        joined = s.node(
            "Concat",
            [heads, s.constant(f"token{number}", np.zeros((3, 7, 4, 8), np.float32))],
            f"j{number}",
            axis=0,
        )
        s.output(s.node("Relu", [joined], f"y{number}"))
    view = opened(s.model(), tmp_path).view
    assert [view.info(f"y{number}").shape for number in range(count)] == [
        (f"n{number}+3", 7, 4, 8) for number in range(count)
    ]


class _Renamed:
    """A sketch whose tensors get a suffix, so that one pattern can be written many times."""

    def __init__(self, sketch: models.Sketch, suffix: str) -> None:
        self._sketch, self._suffix = sketch, suffix

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        return self._sketch.node(op, inputs, output + self._suffix, **attributes)

    def constant(self, name: str, value: np.ndarray) -> str:
        return self._sketch.constant(name + self._suffix, value)


def test_a_product_or_sum_of_symbols_is_not_taken_for_a_third(tmp_path: Path) -> None:
    s = models.Sketch()
    x, y = s.input("x", ["a", "b", 4]), s.input("y", ["c", 4])
    rows = s.node("Reshape", [x, s.constant("rows", np.array([-1, 4]))], "rows_of_x")
    both = s.node("Concat", [rows, y], "both", axis=0)
    twice = s.node("Concat", [y, y], "twice", axis=0)
    for name in (both, twice):
        s.output(s.node("Relu", [name], f"{name}_y"))
    view = opened(s.model(), tmp_path).view
    assert [
        isinstance(dim, str) and dim not in {"a", "b", "c"} for dim in view.info("both_y").shape or ()
    ] == [
        True,
        False,
    ]
    assert not set("*+") & set(str((view.info("both_y").shape or ("",))[0]))
    assert (view.info("twice_y").shape or ())[1:] == (4,)


def test_half_a_spectrum_is_inferred_as_onnxruntime_computes_it(tmp_path):
    """What onnx infers of an STFT without its attribute is a whole one, and matrices behind it do not fit."""
    s = models.Sketch()
    window, hop = s.constant("window", np.hanning(16).astype(np.float32)), s.constant("hop", np.int64(4))
    parts = s.node("STFT", [s.input("x", ["batch", "samples"]), hop, window], "image", name="stft")
    power = s.node("ReduceSumSquare", [parts], "power", name="power", axes=[-1], keepdims=0)
    s.output(s.node("MatMul", [power, s.weight("mel", 9, 5)], "y", name="mel"), ["batch", "frames", 5])
    proto = s.model(17)
    model = load(models.save(proto, tmp_path))
    assert (model.view.info("image").shape or ())[2:] == (9, 2)
    feeds = {"x": np.ones((1, 64), np.float32)}
    assert models.run(model.proto, feeds)["y"].shape == models.run(proto, feeds)["y"].shape
