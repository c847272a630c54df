"""The engine inspector's JSON, of every generation and in every state of repair."""

from __future__ import annotations

import json
import lzma
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.engine import Certainty, Engine, Role
from qdqtool.core.tensors import DType
from qdqtool.engine import layer_info, read, read_text
from qdqtool.errors import InputFileError
from tests.shared import SHARED, shared


def tensor(
    name: str, words: str = "Thirty-two wide channel vectorized row major Int8 format", **more: Any
) -> dict:
    return {"Name": name, "Location": "Device", "Dimensions": [1, 3, 8, 8], "Format/Datatype": words, **more}


def conv(**more: Any) -> dict:
    return {
        "Name": "w + Q + conv",
        "LayerType": "CaskConvolution",
        "Inputs": [tensor("x")],
        "Outputs": [tensor("y", Dimensions=[1, 16, 4, 4])],
        "ParameterType": "Convolution",
        "Kernel": [3, 3],
        "OutMaps": 16,
        "Groups": 1,
        "Weights": {"Type": "Int8", "Count": 432},
        "Bias": {"Type": "Float", "Count": 16},
        "TacticName": "",
        "TacticValue": "0x02",
        **more,
    }


def layers(value: Any) -> Engine:
    return read_text(value if isinstance(value, str) else json.dumps(value), where="test")


def test_an_empty_list_is_an_engine_without_layers():
    assert layers({"Layers": [], "Bindings": []}).layers == ()


def test_weights_stated_as_parameters_become_constants():
    layer = layers({"Layers": [conv()], "Bindings": ["x", "y"]}).layers[0]
    assert [(c.name, c.shape, c.dtype) for c in layer.constants] == [
        ("weights", (16, 3, 3, 3), DType.INT8),
        ("bias", (16,), DType.FLOAT32),
    ]
    assert (layer.precision, layer.precision_certainty) == (DType.INT8, Certainty.STATED)


def test_bindings_take_type_and_shape_from_the_layers():
    engine = layers({"Layers": [conv()], "Bindings": ["x", "elsewhere"]})
    assert [(b.name, b.shape, b.dtype) for b in engine.bindings] == [
        ("x", (1, 3, 8, 8), DType.INT8),
        ("elsewhere", None, DType.UNKNOWN),
    ]


@pytest.mark.parametrize(
    ("layer", "extra", "form"),
    [
        (conv(), {}, "inspector-8.2"),
        (conv(Metadata="[ONNX Layer: conv]"), {}, "inspector-8.6"),
        (conv(LayerType="kgen", Metadata=""), {}, "inspector-9"),
        (conv(), {"I/O Tensors": [{"Name": "x", "IOMode": "Input", "DataType": "Float"}]}, "inspector-11"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_form_is_told_by_its_fields(layer: dict, extra: dict, form: str):
    assert layers({"Layers": [layer], **extra}).form == form


@pytest.mark.parametrize(
    "fields",
    [
        {"Format/Datatype": "Half"},
        {"Datatype": "Half", "Format": "(Linear) Row major linear format"},
        {"DataType": "FP16", "Format": "Row major linear FP16 format (kLINEAR)"},
        {"Format/Datatype": "Channel major FP16 format where channel % 8 == 0"},
    ],
    ids=["one word", "split", "split with capitals", "prose"],
)
def test_every_spelling_of_type_and_format_is_understood(fields: dict):
    entry = {"Name": "x", "Dimensions": [1, 2], **fields}
    assert layers({"Layers": [conv(Inputs=[entry])]}).layers[0].inputs[0].dtype is DType.FLOAT16


def test_formats_that_are_not_known_stay_text_and_are_counted():
    engine = layers(
        {"Layers": [conv(Inputs=[tensor("x", "N/A due to dynamic shapes", Dimensions=[-1, 3, 8, 8])])]}
    )
    entry = engine.layers[0].inputs[0]
    assert (entry.dtype, entry.format, entry.bytes) == (DType.UNKNOWN, "N/A due to dynamic shapes", None)
    assert engine.unknown_formats == (("N/A due to dynamic shapes", 1),)


def test_an_unknown_type_is_not_guessed_from_its_format():
    entry = {
        "Name": "x",
        "Dimensions": [1],
        "DataType": "INT3",
        "Format": "Row major linear FP32 format (kLINEAR)",
    }
    found = layers({"Layers": [conv(Inputs=[entry])]}).layers[0].inputs[0]
    assert found.dtype is DType.UNKNOWN


def test_names_only_are_read_and_explained():
    engine = layers({"Layers": ["conv1 + relu1", "pool"], "Bindings": ["x"]})
    assert [layer.name for layer in engine.layers] == ["conv1 + relu1", "pool"]
    assert engine.form == "names-only"
    assert "--profilingVerbosity=detailed" in engine.notes[0]


def test_a_raw_record_separator_is_read_though_json_forbids_it():
    text = json.dumps({"Layers": [conv(Metadata="[ONNX Layer: a]@[ONNX Layer: b]")]}).replace("@", "\x1e")
    assert layers(text).layers[0].onnx_nodes == ("a", "b")


def test_layers_of_a_second_optimization_profile_are_kept_but_are_no_kernels():
    marked = conv(Name="w + Q + conv [profile 1]", Inputs=[tensor("x [profile 1]")])
    generated = conv(Name="__myl_Resh_myl4_0", LayerType="kgen")
    engine = layers({"Layers": [conv(), marked, generated]})
    assert [layer.profile for layer in engine.layers] == [0, 1, 1]
    assert [layer.name for layer in engine.kernels] == ["w + Q + conv"]


def test_a_json_inside_a_log_is_found():
    text = f"[V] hello\n{json.dumps({'Layers': [conv()], 'Bindings': ['x']}, indent=1)}\n[V] bye\n"
    assert len(layers(text).layers) == 1


def test_the_last_of_several_engines_counts():
    first, second = json.dumps({"Layers": [conv()]}), json.dumps({"Layers": [conv(Name="second")]})
    assert [layer.name for layer in layers(f"{first}\n{second}").layers] == ["second"]


def test_a_damaged_layer_costs_itself_only():
    whole = json.dumps({"Layers": [conv(Name="a"), conv(Name="b"), conv(Name="c")]})
    broken = whole.replace('"b", "LayerType": "CaskConvolution"', '"b", "LayerType": Cask')
    engine = layers(broken)
    assert [layer.name for layer in engine.layers] == ["a", "c"]
    assert engine.unread == 1


def test_a_cut_file_gives_its_whole_layers():
    text = json.dumps({"Layers": [conv(Name="a"), conv(Name="b")]})
    engine = layers(text[: text.rindex("TacticName")])
    assert [layer.name for layer in engine.layers] == ["a"]
    assert engine.unread == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"Layers": [' + "[" * 100_000,
        '{"Layers": [' + '{"Name": ' * 20_000,
        '{"Layers": [{"Name": 1e999}, 7, null]}',
    ],
    ids=["brackets", "objects", "odd values"],
)
def test_nested_and_odd_files_end_quickly(text: str):
    assert layers(text).unread >= 1


def test_reading_stops_where_no_engine_comes_near(monkeypatch):
    monkeypatch.setattr(layer_info, "MOST_LAYERS", 3)
    engine = layers({"Layers": [conv()] * 5})
    assert len(engine.layers) == 3
    assert "only the first 3 layers" in engine.notes[0]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    [
        "Name",
        "LayerType",
        "Inputs",
        "Outputs",
        "Constants",
        "Weights",
        "Kernel",
        "OutMaps",
        "Metadata",
        "StreamId",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(_FIELDS, _JSON, max_size=6), max_size=4))
def test_fields_of_any_type_are_survived(entries: list[dict]):
    assert len(layers({"Layers": entries}).layers) == len(entries)


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 3000), junk=st.text(max_size=8), drop=st.integers(0, 30))
def test_damaged_files_raise_nothing_but_the_file_error(at: int, junk: str, drop: int):
    text = json.dumps({"Layers": [conv(), conv(Name="second")], "Bindings": ["x"]})
    at %= len(text)
    try:
        engine = layers(text[:at] + junk + text[at + drop :])
    except InputFileError:
        assert at < 12
    else:
        assert engine.form


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "form", "count", "kernels", "int8"),
    [
        ("trt-engine-explorer__examples__pytorch__resnet__A100__qat__", "inspector-8.2", 37, 35, 21),
        ("trt-engine-explorer__examples__pytorch__resnet__A100__qat-residual__", "inspector-8.2", 26, 25, 21),
        ("trt-engine-explorer__examples__pytorch__resnet__A100__fp16__", "inspector-8.2", 36, 25, 0),
        ("camera.backbone.json", "inspector-8.6", 78, 76, 63),
        ("head.bbox.json", "inspector-8.6", 11, 11, 3),
        ("desktop__torch_trt__results__mobilenet_v2__", "inspector-9", 123, 100, 0),
        ("as__layers_.json", "inspector-8.6", 104, 104, 81),
        ("resnet50-int8.engine.graph.json", "inspector-8.6", 59, 57, 54),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_real_files_give_the_recorded_figures(name: str, form: str, count: int, kernels: int, int8: int):
    shared("corpus/layer_info")
    (path,) = [path for path in (SHARED / "corpus" / "layer_info").iterdir() if name in path.name]
    engine = read(path)
    computing = [layer for layer in engine.kernels if layer.role is Role.COMPUTE]
    assert (engine.form, len(engine.layers), len(engine.kernels)) == (form, count, kernels)
    assert sum(layer.precision is DType.INT8 for layer in computing) == int8
    assert (engine.unread, engine.unknown_formats) == (0, ())


@pytest.mark.shared
def test_all_layer_information_there_is_reads_without_a_rest():
    shared("corpus/layer_info")
    silent = []
    for path in sorted((SHARED / "corpus" / "layer_info").iterdir()):
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        try:
            engine = read_text(content.decode("utf-8", "replace"), where=path.name)
        except InputFileError:
            silent.append(path.name)
        else:
            assert engine.layers, path.name
            assert engine.unread == 0, path.name
    assert all("EnginePrinter" in name for name in silent), "these logs hold no layers; all others must read"
