"""Damaged, hostile and meaningless files end in one clear error that names place and fix."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from qdqtool.errors import InputFileError, QdqError
from qdqtool.graph.onnx_io.load import load
from tests import models


def _refusal(path: Path) -> str:
    with pytest.raises(InputFileError) as caught:
        load(path)
    assert caught.value.fix
    assert caught.value.where == str(path)
    return caught.value.what


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\0" * 100, "empty"),
        (b"hello, this is no model\n" * 20, "text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (bytes(range(256)) * 4, "damaged"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no nodes"),
    ],
    ids=["nothing", "zeros", "text", "lfs pointer", "noise", "no graph"],
)
def test_a_file_that_is_no_model_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert words in _refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in _refusal(tmp_path / "none.onnx")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in _refusal(tmp_path)


def test_half_a_model_is_refused(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "damaged" in _refusal(path)


@pytest.mark.parametrize("name", ["attention", "branching", "gemms", "weight_transpose"])
def test_flipped_bits_open_or_are_refused_but_never_crash(name: str, tmp_path: Path) -> None:
    content = models.ALL[name]().SerializeToString(deterministic=True)
    path = tmp_path / "model.onnx"
    refusals = []
    for seed in range(60):
        dice = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(3):
            damaged[dice.randrange(min(len(damaged), 3000))] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            load(path).view.nodes  # noqa: B018 -- reading the attributes is part of the trial
        except QdqError as error:
            refusals.append(error)
    assert refusals
    assert all(error.fix for error in refusals)


def _without(proto: onnx.ModelProto) -> None:
    del proto.opset_import[:]


def _future(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 99


def _hole(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].input[0] = "nowhere"


def _no_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nowhere"


def _cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "relu2_y"


def _twice(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].output[0] = "conv1_y"


def _shape(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = 9


def _negative(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -8


def _huge(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = 1 << 60


def _type(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = 77


def _attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute[0].name = "kernel_shapf"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without, "declares no opset"),
        (_future, "uses opset 99"),
        (_hole, "'nowhere', which no node produces"),
        (_no_output, "'nowhere', which no node produces"),
        (_cycle, "cycle"),
        (_twice, "produced twice"),
        (_shape, "'conv1_w' has shape [9, 8, 3, 3]"),
        (_negative, "impossible shape"),
        (_huge, "impossible shape"),
        (_type, "element type number 77"),
        (_attribute, "kernel_shapf"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_broken_graph_is_refused_at_the_broken_place(
    damage: Callable[[onnx.ModelProto], None], words: str, tmp_path: Path
) -> None:
    proto = models.conv_chain()
    damage(proto)
    assert words in _refusal(models.save(proto, tmp_path))


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "2 NaN and 0 infinite"), (np.inf, "0 NaN and 2 infinite")]
)
def test_weights_that_are_no_numbers_are_refused_by_name_and_count(
    value: float, words: str, tmp_path: Path
) -> None:
    proto = models.conv_chain()
    weight = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    weight[1, 2, 0, :2] = value
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "conv1_w"))
    what = _refusal(models.save(proto, tmp_path))
    assert f"'conv1_w' holds {words} of 576 values, read by Conv 'conv1'" in what


def test_an_opset_that_cannot_be_raised_is_refused_with_the_reason(tmp_path: Path) -> None:
    s = models.Sketch()
    names = [s.weight(name, 3, 2, 2) for name in "abcd"]
    x = s.input("x", [1, 3, 2, 2])
    s.output(s.node("BatchNormalization", [x, *names], "y", spatial=0))
    what = _refusal(models.save(s.model(opset=8), tmp_path))
    assert what == "the model has opset 8 and cannot be converted to 13: Attribute spatial must have value 1"


def _external(folder: Path, location: str, **entries: object) -> Path:
    """A model whose first weight lies in a file called `location`."""
    proto = models.conv_chain()
    tensor = proto.graph.initializer[0]
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return models.save(proto, folder)


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    expected = numpy_helper.to_array(models.conv_chain().graph.initializer[0])
    found = load(_external(tmp_path, "weights.bin", offset=0, length=2304)).view.constant("conv1_w")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("location", "entries", "words"),
    [
        ("gone.bin", {}, "'gone.bin', which is missing"),
        ("../weights.bin", {}, "outside the model's folder"),
        ("/etc/passwd", {}, "outside the model's folder"),
        ("sub/../../weights.bin", {}, "outside the model's folder"),
        ("", {}, "names no file"),
        ("weights.bin", {"length": 4}, "needs 2304 bytes"),
        ("weights.bin", {"offset": -1}, "at offset -1"),
        ("weights.bin", {"offset": 100}, "too short"),
        ("weights.bin", {"offset": "x"}, "broken offset"),
    ],
    ids=["missing", "parent", "absolute", "detour", "nameless", "length", "negative", "short", "no number"],
)
def test_external_data_is_trusted_in_nothing(
    location: str, entries: dict[str, object], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(b"\0" * 4096)
    what = _refusal(_external(folder, location, **entries))
    assert words in what
    assert "'conv1_w'" in what


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4096)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    assert "outside the model's folder" in _refusal(_external(folder, "link.bin"))


@pytest.mark.parametrize("place", ["name", "doc_string", "external_data", "node", "attribute"])
def test_a_name_that_is_no_text_is_refused_wherever_it_stands(place: str, tmp_path: Path) -> None:
    proto = models.conv_chain()
    weight = proto.graph.initializer[0]
    if place == "node":
        proto.graph.node[0].name = "broken_name"
    elif place == "attribute":
        proto.graph.node[0].attribute[0].t.name = "broken_name"
    elif place == "external_data":
        weight.external_data.add(key="broken_name", value="0")
    else:
        setattr(weight, place, "broken_name")
    content = proto.SerializeToString()
    assert b"broken_name" in content
    path = tmp_path / "model.onnx"
    path.write_bytes(content.replace(b"broken_name", b"broken\xffname"))
    assert "names that are not UTF-8" in _refusal(path)


def test_an_attribute_of_a_later_opset_is_told_with_its_node_and_the_opset(tmp_path: Path) -> None:
    s = models.Sketch()
    cast = s.node("Cast", [s.input("x", [1, 4])], "y", name="narrow", to=onnx.TensorProto.FLOAT, saturate=0)
    s.output(cast, [1, 4])
    path = models.save(s.model(17), tmp_path)
    with pytest.raises(InputFileError) as raised:
        load(path)
    assert "'narrow'" in raised.value.what
    assert "opset 19" in raised.value.what
    assert "opset 19" in raised.value.fix


@pytest.mark.skipif(not hasattr(TensorProto, "FLOAT6E2M3"), reason="this onnx has no values of six bits")
def test_a_type_that_no_runtime_computes_is_named(tmp_path: Path) -> None:
    values = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT6E2M3, [4, 8], [1.0] * 32)
    cast = onnx.helper.make_node("Cast", ["w"], ["y"], to=onnx.TensorProto.FLOAT)
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 8])
    graph = onnx.helper.make_graph([cast], "g", [], [result], [values])
    path = tmp_path / "model.onnx"
    path.write_bytes(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 28)]).SerializeToString()
    )
    with pytest.raises(InputFileError, match="values of type FLOAT6E2M3"):
        load(path)
