"""`Layer(...)` lines of verbose logs, lists of names, and tactic replays."""

from __future__ import annotations

import lzma
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.engine import Certainty, Role
from qdqtool.core.tensors import DType
from qdqtool.engine import read_text
from qdqtool.trt.tensor_formats import padded_bytes
from tests.shared import shared

NEW = (
    "[05/26/2023-16:10:25] [V] [TRT] Engine Layer Information:\n"
    "Layer(Reformat): QuantizeLinear_2, Tactic: 0x0000000000000000, x (Float[1,3,224,224]) -> q (Int8[1,3:4,224,224])\n"
    "Layer(CaskConvolution): w + Q + conv + relu, Tactic: 0xf64396b97c889179, q (Int8[1,3:4,224,224]), "
    "r (Half[1,64:8,112,112]) -> y (Int8[1,64:32,112,112])\n"
    "Layer(Constant): c, Tactic: 0x0000000000000000,  -> c_out (Float[1,64,1,1])\n"
    "Layer(TrainStation): [trainStation1], Tactic: 0x0000000000000000,  -> \n"
    "[05/26/2023-16:10:25] [I] [TRT] [MemUsageStats]\n"
)


def test_both_sides_of_a_line_become_tensors():
    engine = read_text(NEW, where="test")
    quantize, conv, constant, station = engine.layers
    assert (quantize.role, conv.role, constant.role, station.role) == (
        Role.QDQ,
        Role.COMPUTE,
        Role.NONE,
        Role.NONE,
    )
    assert [tensor.name for tensor in conv.inputs] == ["q", "r"]
    assert [tensor.dtype for tensor in conv.inputs] == [DType.INT8, DType.FLOAT16]
    assert conv.outputs[0].shape == (1, 64, 112, 112)
    assert constant.inputs == ()
    assert station.outputs == ()
    assert (engine.form, engine.unread) == ("layer-lines", 0)


def test_the_precision_of_a_line_is_inferred_because_weights_are_not_shown():
    conv = read_text(NEW, where="test").layers[1]
    assert (conv.precision, conv.precision_certainty) == (DType.INT8, Certainty.INFERRED)


def test_the_colon_pads_the_channels():
    quantize = read_text(NEW, where="test").layers[0]
    assert quantize.outputs[0].bytes == 3 * 224 * 224
    assert padded_bytes(quantize.outputs[0]) == 4 * 224 * 224


def test_the_older_spelling_with_decimal_tactics_and_negative_dimensions():
    text = "Layer(CudnnConvolution): a [Convolution], Tactic: -7144526460361122478, t:0[Float(-4,256,-6,7)] -> u[Half(-4,1)]\n"
    layer = read_text(text, where="test").layers[0]
    assert (layer.name, layer.inputs[0].name, layer.inputs[0].shape) == (
        "a [Convolution]",
        "t:0",
        (-1, 256, -1, 7),
    )
    assert layer.outputs[0].dtype is DType.FLOAT16


@pytest.mark.parametrize(
    "name",
    ["a, b", "a -> b", "a (Unnamed Layer* 3) [Shuffle]", "x[0]"],
    ids=["comma", "arrow", "brackets", "index"],
)
def test_tensor_names_may_hold_separators(name: str):
    text = f"Layer(Shuffle): s, Tactic: 0x1, {name} (Half[1,2]) -> {name}_out (Half[2,1])\n"
    layer = read_text(text, where="test").layers[0]
    assert [tensor.name for tensor in (*layer.inputs, *layer.outputs)] == [name, f"{name}_out"]


def test_a_line_that_is_not_understood_is_counted():
    engine = read_text(NEW.replace("(Int8[1,64:32,112,112])", "Int8"), where="test")
    assert (len(engine.layers), engine.unread) == (3, 1)


def test_only_the_last_build_of_a_log_counts():
    again = NEW.replace("conv", "other")
    assert [layer.name for layer in read_text(NEW + again, where="test").layers][1] == "w + Q + other + relu"


@given(st.text(max_size=200))
def test_any_line_is_survived(text: str):
    engine = read_text(f"{NEW}Layer(x): {text}, Tactic: 0x1, {text} -> {text}\n", where="test")
    assert len(engine.layers) >= 3


@pytest.mark.parametrize(
    "evil",
    [
        "Layer(): " * 30_000,
        "Layer(A): x" + ", Tactic: 1, " * 20_000,
        "Layer(A): x, Tactic: 1, " + "a[Half(" * 30_000,
    ],
    ids=["beginnings", "tactics", "types"],
)
def test_evil_lines_take_linear_time(evil: str) -> None:
    begin = time.process_time()
    engine = read_text(f"{NEW}{evil}\n", where="test")
    assert time.process_time() - begin < 5.0
    assert len(engine.layers) >= 4


def test_a_name_may_hold_a_tactic_and_the_last_one_counts() -> None:
    (layer,) = read_text(
        "Layer(A): x, Tactic: 1, y, Tactic: 2, a[Half(1)] -> b[Half(1)]\n", where="test"
    ).layers
    assert layer.name == "x, Tactic: 1, y"
    assert dict(layer.attributes)["TacticValue"] == "0x0000000000000002"


def test_a_list_of_names_is_read_and_explained():
    text = "Layers:\nconv1 + relu1\npool1\n\nBindings:\nx\ny\n[I] next line\n"
    engine = read_text(text, where="test")
    assert [layer.name for layer in engine.layers] == ["conv1 + relu1", "pool1"]
    assert [binding.name for binding in engine.bindings] == ["x", "y"]
    assert "detailed" in engine.notes[0]


def test_a_tactic_replay_gives_names_and_types():
    text = (
        "[I] Layer: conv1 + relu1\n"
        "        Algorithm: (Implementation: 2147483657, Tactic: -65) | Inputs: (TensorInfo(DataType.INT8, (784, 1), -1, 1),)"
        " | Outputs: (TensorInfo(DataType.HALF, (784, 1), -1, 1),)\n"
    )
    layer = read_text(text, where="test").layers[0]
    assert (layer.name, layer.inputs[0].dtype, layer.outputs[0].dtype) == (
        "conv1 + relu1",
        DType.INT8,
        DType.FLOAT16,
    )
    assert layer.inputs[0].shape is None


@pytest.mark.shared
def test_a_log_and_its_json_tell_the_same_of_the_precision():
    folder = shared("corpus/verbose_log")
    (path,) = folder.glob("*trt-engine-explorer__src__notebooks__trt.out.xz")
    engine = read_text(lzma.decompress(path.read_bytes()).decode(), where="log")
    computing = [layer for layer in engine.kernels if layer.role is Role.COMPUTE]
    assert (len(engine.layers), engine.unread) == (86, 0)
    assert {layer.precision for layer in computing} == {DType.INT8}
