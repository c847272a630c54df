"""Layer information of TensorRT 11: bindings as `I/O Tensors`, type and format in fields of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from qdqtool.core.engine import Certainty, Engine, Role
from qdqtool.core.tensors import DType
from qdqtool.engine import layer_text, read, read_text
from qdqtool.trt.tensor_formats import channel_multiple, dtype_of, short
from tests.shared import SHARED, shared


def entry(name: str, dims: list[int] | str = (1, 32, 8, 8), **spelling: Any) -> dict:  # type: ignore[assignment]
    return {"Name": name, "Dimensions": dims if isinstance(dims, str) else list(dims), **spelling}


def binding(name: str, mode: str, dims: list[int], **more: Any) -> dict:
    profile = {"MinShape": [1, *dims[1:]], "OptShape": [4, *dims[1:]], "MaxShape": [8, *dims[1:]]}
    return {
        "Name": name,
        "IOMode": mode,
        "DataType": "Float",
        "Dimensions": dims,
        "Location": "Device",
        "IsShapeInferenceIO": False,
        "ProfileInfo": [{**profile, "Format": "Row major linear FP32 format (kLINEAR)"}],
        **more,
    }


INT8 = {"Datatype": "Int8", "Format": "(NHWC) Channel major format"}
CONV = {
    "Name": "conv1_myl0_1",
    "LayerType": "correlation",
    "Inputs": [entry("x_q", **INT8)],
    "Constants": [
        entry("w", (16, 32, 3, 3), **INT8),
        entry("scale", (1, 16, 1, 1), Datatype="Float", Format="Linear"),
    ],
    "Outputs": [entry("y", (1, 16, 8, 8), Datatype="Float", Format="(Linear) Row major linear format")],
    "TacticName": "sm86_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_tensor16x8x32",
    "StreamId": 0,
    "Metadata": "[ONNX Layer: conv1]\x1f[ONNX Layer: conv1/DQ]",
}


def engine(*layers: Any, bindings: list[dict] | None = None, **more: Any) -> Engine:
    value = {
        "Layers": list(layers),
        "I/O Tensors": bindings or [],
        "Engine Metadata": {"Multi-Device": "Disabled"},
    }
    return read_text(json.dumps({**value, **more}), where="test")


@pytest.mark.parametrize(
    ("spelling", "dtype", "multiple", "word"),
    [
        ({"Datatype": "Int8", "Format": "(NHWC) Channel major format"}, DType.INT8, 1, "HWC"),
        ({"DataType": "INT8", "Format": "CHW32"}, DType.INT8, 32, "CHW32"),
        ({"DataType": "kINT8", "Format": "kCHW4"}, DType.INT8, 4, "CHW4"),
        ({"DataType": "FP16", "Format": "LINEAR"}, DType.FLOAT16, 1, "linear"),
        ({"Datatype": "Half", "Format": "kHWC8"}, DType.FLOAT16, 8, "HWC8"),
        ({"DataType": "BFloat16", "Format": "kLINEAR"}, DType.BFLOAT16, 1, "linear"),
        ({"Datatype": "FP8", "Format": "(Linear) Row major linear format"}, DType.FLOAT8, 1, "linear"),
        ({"Format/Datatype": "Int8"}, DType.INT8, 1, ""),
        (
            {"Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"},
            DType.INT8,
            32,
            "CHW32",
        ),
        ({"Format": "Row major linear FP32 format (kLINEAR)"}, DType.FLOAT32, 1, "linear"),
        (
            {"Datatype": "Float", "Format": "(Arbitrary) Format with stride order = [1, 0]"},
            DType.FLOAT32,
            1,
            "",
        ),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_every_spelling_of_type_and_format_is_read(
    spelling: dict, dtype: DType, multiple: int, word: str
) -> None:
    found = engine({**CONV, "Inputs": [entry("x_q", **spelling)]}).layers[0].inputs[0]
    assert (found.dtype, channel_multiple(found.format), short(found.format)) == (dtype, multiple, word)


def test_a_convolution_is_judged_by_its_listed_constants() -> None:
    found = engine(CONV)
    layer = found.layers[0]
    assert found.form == "inspector-11"
    assert (layer.role, layer.precision, layer.precision_certainty) == (
        Role.COMPUTE,
        DType.INT8,
        Certainty.STATED,
    )
    assert layer.onnx_nodes == ("conv1", "conv1/DQ")
    assert [constant.dtype for constant in layer.constants] == [DType.INT8, DType.FLOAT32]


@pytest.mark.parametrize("mode", ["Input", "INPUT", "kINPUT"])
def test_bindings_have_type_shape_and_the_format_of_the_first_profile(mode: str) -> None:
    (found,) = engine(CONV, bindings=[binding("x", mode, [-1, 3, 8, 8])]).bindings
    assert (found.name, found.dtype, found.shape, found.location) == (
        "x",
        DType.FLOAT32,
        (-1, 3, 8, 8),
        "Device",
    )
    assert found.format == "Row major linear FP32 format (kLINEAR)"


@pytest.mark.parametrize("profiles", [[], None, "N/A", [[]], [{"Format": 7}]])
def test_odd_profile_information_is_survived(profiles: Any) -> None:
    (found,) = engine(CONV, bindings=[binding("x", "Input", [1, 3], ProfileInfo=profiles)]).bindings
    assert found.dtype is DType.FLOAT32


def test_names_only_is_told_in_the_new_schema_too() -> None:
    found = engine(
        "conv1", "relu", bindings=[binding("x", "Input", [1])], ProfilingVerbosity="LAYER_NAMES_ONLY"
    )
    assert (found.form, len(found.layers), len(found.bindings)) == ("names-only", 2, 1)
    assert "--profilingVerbosity=detailed" in found.notes[0]


def test_io_tensors_win_over_bindings_in_either_order() -> None:
    new, old = '"I/O Tensors": [{"Name": "x", "DataType": "Half"}]', '"Bindings": ["x"]'
    for first, second in ((new, old), (old, new)):
        text = f'{{{first}, "Layers": [{json.dumps(CONV)}], {second}}}'
        assert read_text(text, where="test").bindings[0].dtype is DType.FLOAT16


def test_concatenated_engines_with_raw_separators_and_profiles_give_the_last() -> None:
    second = {**CONV, "Name": "conv1 [profile 1]", "Metadata": "[ONNX Layer: a]@[ONNX Layer: b]"}
    texts = [json.dumps({"Layers": layers, "I/O Tensors": []}) for layers in ([CONV], [CONV, second])]
    found = read_text("\n".join(texts).replace("@", "\x1e"), where="test")
    assert [layer.profile for layer in found.layers] == [0, 1]
    assert found.layers[1].onnx_nodes == ("a", "b")
    assert len(found.kernels) == 1


def test_shapes_that_are_not_known_stay_unknown() -> None:
    odd = entry("x_q", "N/A due to dynamic shapes", Datatype="N/A due to dynamic shapes", Format="Linear")
    found = engine({**CONV, "Inputs": [odd]})
    assert found.layers[0].inputs[0].shape is None
    assert found.unknown_formats == (("Linear", 1),)


def test_type_words_of_every_release_mean_the_same() -> None:
    for words in ("Half", "FP16", "kHALF", "Row major linear FP16 format", "float16"):
        assert dtype_of(words) is DType.FLOAT16, words


def _records() -> Iterator[tuple[str, list[dict], Engine]]:
    """Dumps of a real builder of the new schema as the JSON it would be."""
    for path in sorted((SHARED / "corpus" / "rtx").glob("*.layers.txt")):
        text = path.read_text("utf-8")
        fields = [
            layer_text._dump_fields(record) for record in layer_text._records(text[: layer_text._end(text)])
        ]
        yield path.name, [found for found in fields if found is not None], read(path)


@pytest.mark.shared
def test_real_records_say_the_same_as_json_as_they_do_as_text() -> None:
    shared("corpus/rtx")
    for name, fields, expected in _records():
        found = engine(*fields)
        assert fields, name
        assert found.layers == expected.layers, name
