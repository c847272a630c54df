"""A layer's record means the same in a log and in layer information: one parser, and laws over names of any kind."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qdqtool import buildlog
from qdqtool.core.tensors import DType
from qdqtool.engine import read_text
from qdqtool.trt.layer_records import layer_of, line_fields, record_fields
from qdqtool.trt.tactics import tactic_id

RECORD = (
    "Name: c1_myl0_1, LayerType: correlation, Inputs: [ {{ Name: {name}, Location: Device, Dimensions: [1,8,8,8], "
    "Format/Datatype: Thirty-two wide channel vectorized row major Int8 format }}], Outputs: [ {{ Name: y, Location: "
    "Device, Dimensions: [1,8,8,8], Format/Datatype: Row major linear FP32 }}], TacticName: "
    "sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_tensor16x8x32, TacticValue: -1, StreamId: 0, Metadata: "
    "[ONNX Layer: conv1]__gemm_from_conv1x1"
)
LINE = "Layer(CaskConvolution): conv1 + relu1, Tactic: 0x0000000000000005, {name} (Int8[1,3:4,8,8]) -> y (Half[1,8,8,8])"
NAMES = st.text(st.sampled_from("ab,[](){}->: /+|"), min_size=1, max_size=12).map(lambda text: f"n{text}n")


@pytest.mark.parametrize(
    ("heading", "line"),
    [("Layers:", RECORD.format(name="x")), ("Engine Layer Information:", LINE.format(name="x"))],
    ids=["record", "line"],
)
def test_a_log_and_layer_information_tell_the_same_of_a_layer(heading: str, line: str):
    text = f"[11/22/2026-10:00:00] [V] [TRT] {heading}\n{line}\n"
    (logged,) = buildlog.read(io.StringIO(text)).runs[0].engine_layers
    (listed,) = read_text(text, where="test").layers
    for field in ("name", "kind", "inputs", "outputs", "tactic", "onnx_nodes", "certainty", "attributes"):
        assert getattr(logged, field) == getattr(listed, field), field


def test_what_became_of_a_node_stands_behind_its_name_in_metadata():
    rest = RECORD.format(name="x").partition("LayerType: ")[2]
    assert layer_of(record_fields("c1", rest) or {}).onnx_nodes == ("conv1",)


@settings(deadline=None)
@given(NAMES)
@example("n}]n")
@example("n}], n")
def test_names_of_tensors_may_hold_anything_but_the_words_of_the_form(name: str):
    rest = RECORD.format(name=name).partition("LayerType: ")[2]
    layer = layer_of(record_fields("c1", rest) or {})
    assert layer.inputs[0].name == name
    assert (layer.inputs[0].dtype, layer.outputs[0].dtype) == (DType.INT8, DType.FLOAT32)


@pytest.mark.parametrize("dims", ["1,3:4,8,8", "-1,3:4,8,8", "-17,3:4,8,8"])
def test_a_vectorized_extent_is_its_number_and_a_negative_one_is_dynamic(dims: str):
    layer = layer_of(line_fields("Reformat", "q", "1", f"x (Int8[{dims}]) -> y (Half[1])") or {})
    assert layer.inputs[0].shape == (max(int(dims.split(",", maxsplit=1)[0]), -1), 3, 8, 8)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_tactic_id_is_one_number_in_every_spelling(number: int):
    unsigned = number % (1 << 64)
    assert tactic_id(str(number)) == tactic_id(hex(unsigned)) == tactic_id(f"0x{unsigned:016x}")


@given(st.text(max_size=30))
def test_other_words_are_no_tactic_id(words: str):
    found = tactic_id(words)
    assert found is None or int(found, 16) == int(words.strip(), 0 if "x" in words else 10) % (1 << 64)
