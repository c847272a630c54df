"""`qdqtool recipe new`: the recipe that fits a model, valid as it is and with its suggestions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run as command
from qdqtool.pipeline import recipes
from qdqtool.pipeline.suggest import suggest
from tests.shared import shared

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits" / "digits.onnx"


def network(
    path: Path, nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], ranks: tuple[int, int]
) -> Path:
    dims = [["batch", 3, 16, 16][: ranks[0]], ["batch", *(None for _ in range(ranks[1] - 1))]]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims[0])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims[1])],
        [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_depthwise_network_gets_the_depthwise_recipe(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=3),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    path = network(tmp_path / "m.onnx", nodes, {"w": (3, 1, 3, 3)}, (4, 2))
    assert "extends: conv-depthwise-int8" in suggest(path)


def test_a_network_of_pictures_gets_the_unet_recipe(tmp_path: Path) -> None:
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])]
    assert "extends: unet-int8" in suggest(network(tmp_path / "m.onnx", nodes, {"w": (3, 4, 2, 2)}, (4, 4)))


def test_a_network_along_one_dimension_gets_the_audio_recipe(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    assert "extends: audio-int8" in suggest(network(tmp_path / "m.onnx", nodes, {"w": (4, 3, 5)}, (3, 3)))


@pytest.mark.parametrize(
    ("given", "made", "name"),
    [
        (2048, 2048, "audio-to-audio-int8"),
        ("length", "length", "audio-to-audio-int8"),
        (2048, 12, "audio-int8"),
        (16, 16, "audio-int8"),
        ("length", "frames", "audio-int8"),
        (None, None, "audio-int8"),
    ],
)
def test_a_network_that_returns_sound_keeps_the_layer_that_makes_it(
    given: int | str | None, made: int | str | None, name: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[2, 2])]
    path = network(tmp_path / "m.onnx", nodes, {"w": (3, 3, 5)}, (3, 3))
    model = onnx.load(path)
    for value, length in ((model.graph.input[0], given), (model.graph.output[0], made)):
        dim = value.type.tensor_type.shape.dim[2]
        dim.Clear()
        if isinstance(length, int):
            dim.dim_value = length
        elif length is not None:
            dim.dim_param = length
    del model.graph.value_info[:]
    onnx.save(model, path)
    assert f"extends: {name}" in suggest(path)


def test_attention_gets_the_transformer_recipe(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    assert "extends: transformer-int8" in suggest(network(tmp_path / "m.onnx", nodes, {}, (3, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("cifar10_resnet20/model.onnx", "conv-int8"),
        ("squeezenet1_1_imagenet/model.onnx", "conv-int8"),
        ("mlperf_tiny_resnet8/model.onnx", "conv-int8"),
        ("kws_dscnn/model.onnx", "conv-depthwise-int8"),
        ("vit_cifar10_pgd_2_3_16/model.onnx", "transformer-int8"),
        ("yolox_nano/model.onnx", "detector-int8"),
        ("super_resolution_x3/model.onnx", "unet-int8"),
        ("mobilenet_v1_025_imagenet/model.onnx", "conv-depthwise-int8"),
        ("mobilenet_v2_imagenet_ort_qdq/model.onnx", "third-party-qdq"),
        ("silero_vad_16k/model.onnx", "audio-int8"),
    ],
)
def test_real_models_get_the_recipe_of_their_family(file: str, name: str) -> None:
    assert f"extends: {name}" in suggest(shared(f"models/{file}"))


def test_the_recipe_is_valid_with_and_without_its_suggestions(tmp_path: Path) -> None:
    text = suggest(DIGITS)
    for number, content in enumerate((text, _uncommented(text))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(content, "utf-8")
        assert recipes.load(str(path)).name == "digits"


def _uncommented(text: str) -> str:
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("extends"))
    return "\n".join([*lines[: head + 1], *(line.removeprefix("# ") for line in lines[head + 1 :])]) + "\n"


def test_scores_of_one_pixel_are_no_picture(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GlobalAveragePool", ["c"], ["y"])]
    path = network(tmp_path / "m.onnx", nodes, {"w": (4, 3, 3, 3)}, (4, 4))
    model = onnx.load(path)
    for place, size in enumerate((1, 4, 1, 1)):
        model.graph.output[0].type.tensor_type.shape.dim[place].dim_value = size
    onnx.save(model, path)
    assert "extends: conv-int8" in suggest(path)


@pytest.mark.parametrize(
    ("file", "title"),
    [("1e5.onnx", "1e5"), ("null.onnx", "null"), ("it's\n#odd.onnx", "it-s--odd"), ("own/model.onnx", "own")],
    ids=["a number", "a word of YAML", "quote and line break", "a name that says nothing"],
)
def test_any_file_name_becomes_a_recipe_name(file: str, title: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    network(path, [helper.make_node("Relu", ["x"], ["y"])], {}, (4, 4))
    out = tmp_path / "recipe.yaml"
    out.write_text(suggest(path), "utf-8")
    assert recipes.load(str(out)).name == title


def test_names_of_inputs_are_quoted_and_inputs_of_no_known_rank_left_out(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["im'age\n", "b"], ["y"])],
        "network",
        [
            helper.make_tensor_value_info("im'age\n", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    path = tmp_path / "recipe.yaml"
    path.write_text(_uncommented(suggest(tmp_path / "m.onnx")), "utf-8")
    assert recipes.load(str(path)).build.opt_shapes == "im'age\n:1x4"


def test_pictures_with_colours_last_are_told_apart(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    path = network(tmp_path / "m.onnx", nodes, {"w": (4, 3, 3, 3)}, (4, 4))
    model = onnx.load(path)
    for place, size in enumerate((1, 32, 24, 3)):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_value = size
    onnx.save(model, path)
    assert "layout: nhwc" in suggest(path)
    assert "resize: [32, 24]" in suggest(path)


def test_a_model_without_weights_says_so(tmp_path: Path) -> None:
    path = network(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, (2, 2))
    assert "there is nothing to quantize" in suggest(path)


def test_the_command_writes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    assert command(["recipe", "new", str(DIGITS), "--out", str(out)]) == 0
    assert out.read_text("utf-8") == suggest(DIGITS)
    assert command(["recipe", "new", str(DIGITS), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_editors_find_the_schema_that_the_site_publishes() -> None:
    first, *_ = suggest(DIGITS).splitlines()
    prefix, _, address = first.partition("=")
    assert prefix == "# yaml-language-server: $schema"
    assert recipes.schema()["$id"] == address
    root = DIGITS.parents[3]
    site, _, name = address.rpartition("/")
    assert f"site_url: {site}/\n" in (root / "mkdocs.yml").read_text("utf-8")
    assert f'"{name}": output("recipe", "schema")' in (root / "docs" / "hooks" / "reference.py").read_text(
        "utf-8"
    )


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    assert command(["recipe", "new", str(path)]) == 5
