"""`qdqtool recipe new`: the recipe that fits a model, valid as it is and with its suggestions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.backends.shapes import parse_shapes, usual_shapes
from qdqtool.cli.app import run as command
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.pipeline.preparations import read_stated
from qdqtool.pipeline.suggest import suggest
from tests import models
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


@pytest.mark.parametrize("waves", [True, False])
@pytest.mark.parametrize("step", [[], ["N"]], ids=["a number", "a number per picture"])
def test_a_network_that_reads_a_step_of_time_as_waves_gets_the_diffusion_recipe(
    step: list[str], waves: bool, tmp_path: Path
) -> None:
    s = models.Sketch(0)
    x, t = s.input("sample", ["N", 4, 16, 16]), s.input("timestep", step)
    row = s.node("Reshape", [t, s.constant("row", np.array([-1, 1], np.int64))], "t0")
    angles = s.node("MatMul", [row, s.weight("f", 1, 4)], "t1")
    parts = [s.node(op if waves else "Tanh", [angles], f"t_{op}") for op in ("Sin", "Cos")]
    time = s.node("MatMul", [s.node("Concat", parts, "t2", axis=1), s.weight("wt", 8, 8)], "t3")
    column = s.node("Reshape", [time, s.constant("column", np.array([-1, 8, 1, 1], np.int64))], "t4")
    x = s.node("Add", [s.conv("c0", x, (4, 8)), column], "a")
    s.output(s.conv("c2", s.conv("c1", x, (8, 8)), (8, 4)), ["N", 4, 16, 16])
    name = "diffusion-int8" if waves else "unet-int8"
    assert f"extends: {name}" in suggest(models.save(s.model(), tmp_path))


def test_a_network_along_one_dimension_gets_the_audio_recipe(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    assert "extends: audio-int8" in suggest(network(tmp_path / "m.onnx", nodes, {"w": (4, 3, 5)}, (3, 3)))


def test_a_kernel_of_one_is_no_sound(tmp_path: Path) -> None:
    """Classifiers of point clouds multiply every point by one matrix, which exporters write as Conv."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    assert "extends: conv-int8" in suggest(network(tmp_path / "m.onnx", nodes, {"w": (4, 3, 1)}, (3, 3)))


@pytest.mark.parametrize("mixed", [0, 1, 3])
def test_short_convolutions_between_matrix_products_are_no_sound(mixed: int, tmp_path: Path) -> None:
    """State-space language models mix a few tokens by a depthwise Conv before each scan."""
    s = models.Sketch(0)
    x = s.input("x", ["N", 8, 16])
    for number in range(3):
        if number < mixed:
            weight = s.weight(f"k{number}", 8, 1, 3)
            x = s.node("Conv", [x, weight], f"c{number}", group=8, pads=[1, 1])
        for part in range(3):
            x = s.node("MatMul", [x, s.weight(f"w{number}{part}", 16, 16)], f"m{number}{part}")
    s.output(s.node("MatMul", [x, s.weight("h", 16, 16)], "y"), ["N", 8, 16])
    assert "extends: transformer-int8" in suggest(models.save(s.model(), tmp_path))


def test_a_segmentation_that_returns_classes_makes_pictures(tmp_path: Path) -> None:
    s = models.Sketch(0)
    x = s.input("x", ["N", 3, 16, 16])
    grown = s.node("ConvTranspose", [s.conv("c", x, (3, 8)), s.weight("w", 8, 4, 2, 2)], "g", strides=[2, 2])
    s.output(s.node("ArgMax", [grown], "y", axis=1, keepdims=0), ["N", 32, 32], TensorProto.INT64)
    assert "extends: unet-int8" in suggest(models.save(s.model(), tmp_path))


@pytest.mark.parametrize(("rank", "name"), [(2, "conv-int8"), (4, "detector-int8")])
def test_scores_of_several_tasks_are_no_boxes(rank: int, name: str, tmp_path: Path) -> None:
    s = models.Sketch(0)
    x = s.input("x", ["N", 3, 16, 16])
    for number in range(6):
        x = s.relu(f"r{number}", s.conv(f"c{number}", x, (8 if number else 3, 8)))
    if rank == 2:
        x = s.node("Flatten", [s.node("GlobalAveragePool", [x], "p")], "f")
    for task, count in (("a", 4), ("b", 8)):
        end = (
            s.node("MatMul", [x, s.weight(f"w{task}", 8, count)], task)
            if rank == 2
            else s.conv(task, x, (8, count))
        )
        s.output(end, ["N", count] if rank == 2 else ["N", count, 16, 16])
    assert f"extends: {name}" in suggest(models.save(s.model(), tmp_path))


@pytest.mark.parametrize(("cached", "name"), [(True, "llm-int4-weights"), (False, "transformer-int8")])
def test_a_decoder_that_keeps_keys_and_values_gets_weights_in_few_bits(
    cached: bool, name: str, tmp_path: Path
) -> None:
    s = models.Sketch(0)
    x = s.input("x", ["N", 4, 16])
    keys, values = (s.node("MatMul", [x, s.weight(f"w{part}", 16, 16)], part) for part in "kv")
    if cached:
        for part in "kv":
            grown = s.node(
                "Concat", [s.input(f"past_{part}", ["N", "past", 16]), part], f"present_{part}", axis=1
            )
            s.output(grown, ["N", "total", 16])
        keys, values = "present_k", "present_v"
    turned = s.node("Transpose", [keys], "turned", perm=[0, 2, 1])
    scores = s.node("Softmax", [s.node("MatMul", [x, turned], "products")], "scores", axis=-1)
    s.output(s.node("MatMul", [scores, values], "y"), ["N", 4, 16])
    assert f"extends: {name}" in suggest(models.save(s.model(), tmp_path))


@pytest.mark.parametrize(("at_the_end", "name"), [(False, "conv-int8"), (True, "detector-int8")])
def test_neighbours_that_are_chosen_inside_are_no_boxes(at_the_end: bool, name: str, tmp_path: Path) -> None:
    """A point cloud network chooses the nearest points before its convolutions, a detector the best boxes after them."""
    s = models.Sketch(0)
    x = s.input("x", ["N", 3, 64, 1])
    most = s.constant("most", np.array([8], np.int64))

    def chosen(tensor: str) -> str:
        s.node("TopK", [tensor, most], "values", axis=2, largest=0)
        s.nodes[-1].output.append("indices")
        return "values"

    y = s.conv("c", x if at_the_end else chosen(x), (3, 4), kernel=1)
    y = s.node("GlobalAveragePool", [y], "pooled") if not at_the_end else chosen(y)
    s.output(s.node("Flatten", [y], "flat"), ["N", None])
    assert f"extends: {name}" in suggest(models.save(s.model(), tmp_path))


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


def over_a_trunk(
    path: Path, head: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], channels: int = 3
) -> Path:
    """Six convolutions (4 channels over 16 x 16), then `head`, which makes a `y` of rank 3 of `c6`."""
    nodes = [
        helper.make_node("Conv", ["x" if number == 1 else f"c{number - 1}", f"k{number}"], [f"c{number}"])
        for number in range(1, 7)
    ]
    kernels = {f"k{number}": (4, channels if number == 1 else 4, 1, 1) for number in range(1, 7)}
    network(path, [*nodes, *head], kernels | weights, (4, 3))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = channels
    onnx.save(model, path)
    return path


def ints(name: str, *values: int) -> onnx.NodeProto:
    tensor = numpy_helper.from_array(np.array(values, np.int64), name)
    return helper.make_node("Constant", [], [name], value=tensor)


def steps(joined: str, *, product: bool) -> list[onnx.NodeProto]:
    """A recurrence of two steps along the width, written out, whose steps are joined to `joined`."""
    nodes = [
        ints("last", -1),
        ints("first", 0),
        helper.make_node("Shape", ["c6"], ["size"]),
        helper.make_node("Gather", ["size", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "last"], ["flat"], axis=0),  # arithmetic of sizes only
    ]
    state = ""
    for step in range(2):
        nodes += [
            ints(f"at{step}", step),
            helper.make_node("Gather", ["c6", f"at{step}"], [f"column{step}"], axis=3),
            helper.make_node("Reshape", [f"column{step}", "flat"], [f"row{step}"]),
            helper.make_node("Gemm", [f"row{step}", "wx"], [f"given{step}"]),
            *([helper.make_node("Gemm", [state, "wh"], [f"kept{step}"])] if state else []),
            helper.make_node(
                "Add", [f"given{step}", f"kept{step}" if state else f"given{step}"], [f"sum{step}"]
            ),
            helper.make_node("Tanh", [f"sum{step}"], [f"state{step}"]),
            helper.make_node("Unsqueeze", [f"state{step}", "first"], [f"told{step}"]),
        ]
        state = f"state{step}"
    nodes.append(helper.make_node("Concat", ["told0", "told1"], ["all" if product else joined], axis=0))
    return [*nodes, *([helper.make_node("MatMul", ["all", "wy"], [joined])] if product else [])]


_CELL = {"wx": (64, 8), "wh": (8, 8), "wy": (8, 37)}


@pytest.mark.parametrize("product", [True, False], ids=["class scores", "states"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])
def test_steps_of_time_are_no_rows_of_boxes(batch_first: bool, product: bool, tmp_path: Path) -> None:
    head = steps("told" if batch_first else "y", product=product)
    turn = [helper.make_node("Transpose", ["told"], ["y"], perm=[1, 0, 2])] if batch_first else []
    path = over_a_trunk(tmp_path / "m.onnx", [*head, *turn], _CELL)
    assert "# Extends conv-int8, because the network is convolutional." in suggest(path)


@pytest.mark.parametrize(
    ("channels", "name"), [(3, "conv-int8"), (1, "audio-int8")], ids=["picture", "spectrum"]
)
def test_a_recurrence_over_pictures_is_no_network_of_sound(channels: int, name: str, tmp_path: Path) -> None:
    head = [
        ints("form", 16, -1, 64),
        helper.make_node("Reshape", ["c6", "form"], ["sequence"]),
        helper.make_node("LSTM", ["sequence", "w", "r"], ["", "y"], hidden_size=8),
    ]
    path = over_a_trunk(tmp_path / "m.onnx", head, {"w": (1, 32, 64), "r": (1, 32, 8)}, channels)
    assert f"extends: {name}" in suggest(path)


def levels() -> list[onnx.NodeProto]:
    """Rows of two levels, one behind the other."""
    nodes = [ints("rows", 0, 4, -1)]
    for level in "ab":
        nodes += [
            helper.make_node("Conv", ["c6", "h"], [level]),
            helper.make_node("Reshape", [level, "rows"], [f"{level}_rows"]),
        ]
    return [*nodes, helper.make_node("Concat", ["a_rows", "b_rows"], ["y"], axis=2)]


def decoded() -> list[onnx.NodeProto]:
    """Rows of one level, places and scores decoded apart."""
    return [
        ints("rows", 0, 4, -1),
        helper.make_node("Conv", ["c6", "h"], ["a"]),
        helper.make_node("Reshape", ["a", "rows"], ["all"]),
        helper.make_node("Split", ["all"], ["place", "score"], axis=1),
        helper.make_node("Sigmoid", ["score"], ["sure"]),
        helper.make_node("Concat", ["place", "sure"], ["joined"], axis=1),
        helper.make_node("Transpose", ["joined"], ["y"], perm=[0, 2, 1]),
    ]


@pytest.mark.parametrize("head", [levels, decoded], ids=lambda head: head.__name__)
def test_rows_that_convolutions_give_are_those_of_a_detector(
    head: Callable[[], list[onnx.NodeProto]], tmp_path: Path
) -> None:
    path = over_a_trunk(tmp_path / "m.onnx", head(), {"h": (4, 4, 1, 1)})
    assert "# Extends detector-int8, because the output is a list of rows, such as boxes." in suggest(path)


@pytest.mark.parametrize(
    "dims",
    [("batch", 3, "height", "width"), (1, "tokens"), ("n", "frames", 80), (None, 1, None, None)],
    ids=["picture", "tokens", "spectrum", "without names"],
)
def test_free_dimensions_get_the_sizes_that_the_builder_would_take(
    dims: tuple[int | str | None, ...], tmp_path: Path
) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "network", value[:1], value[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    (tmp_path / "recipe.yaml").write_text(_uncommented(suggest(path)), "utf-8")
    build = recipes.load(str(tmp_path / "recipe.yaml")).build
    usual = usual_shapes(load(path).view.inputs)
    assert [parse_shapes(text) for text in (build.min_shapes, build.opt_shapes, build.max_shapes)] == [
        usual
    ] * 3


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


def test_a_preparation_that_the_model_states_is_written_as_values(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    metadata = {
        "task": "detect",
        "imgsz": "[64, 96]",
        "stride": "32",
        "names": "{0: 'a'}",
        "author": "Ultralytics",
    }
    helper.set_model_props(proto, metadata)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    stated, where = read_stated(load(path), path)
    assert stated
    text = suggest(path, read_stated)
    assert where in text
    (tmp_path / "r.yaml").write_text(text, "utf-8")
    written = recipes.load(str(tmp_path / "r.yaml")).samples.preprocess
    assert {name: getattr(written, name) for name in stated} == stated


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
    assert "the model has nothing to quantize" in suggest(path)


def test_the_command_writes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    assert command(["recipe", "new", str(DIGITS), "--out", str(out)]) == 0
    assert out.read_text("utf-8") == suggest(DIGITS)
    assert command(["recipe", "new", str(DIGITS), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


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


def test_einsum_of_two_run_time_tensors_counts_as_the_product_that_it_becomes(tmp_path: Path) -> None:
    def made(op: str) -> Path:
        product = {"equation": "bnd,bmd->bnm"} if op == "Einsum" else {}
        turned = [] if op == "Einsum" else [helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1])]
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["q"]),
            *turned,
            helper.make_node(op, ["q", "q" if op == "Einsum" else "k"], ["s"], **product),
            helper.make_node("Softmax", ["s"], ["p"]),
            helper.make_node("MatMul", ["p", "q"], ["y"]),
        ]
        return network(tmp_path / f"{op}.onnx", nodes, {"w": (16, 16)}, (3, 3))

    for op in ("MatMul", "Einsum"):
        assert "the network multiplies run-time tensors 2 times, as attention does" in suggest(made(op))


def test_a_convolution_that_mixes_tokens_makes_no_sound_of_a_state_space_model(tmp_path: Path) -> None:
    nodes, weights, x = [], {}, "x"
    for block in range(2):
        weights |= {f"in{block}": (16, 16), f"mix{block}": (3, 1, 4), f"out{block}": (16, 16)}
        nodes += [
            helper.make_node("MatMul", [x, f"in{block}"], [f"a{block}"]),
            helper.make_node("Conv", [f"a{block}", f"mix{block}"], [f"b{block}"], group=3, pads=[3, 0]),
            helper.make_node("MatMul", [f"b{block}", f"out{block}"], [f"c{block}"]),
        ]
        x = f"c{block}"
    nodes.append(helper.make_node("Identity", [x], ["y"]))
    path = tmp_path / "m.onnx"
    network(path, nodes, weights, (3, 3))
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 16
    onnx.save(proto, path)
    assert "extends: transformer-int8" in suggest(path)


@pytest.mark.parametrize("gates", [0, 3])
def test_gates_of_channels_do_not_count_against_depthwise_convolutions(gates: int, tmp_path: Path) -> None:
    weights = {"deep": (3, 1, 3, 3), "mix": (3, 3, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "deep"], ["d"], group=3),
        helper.make_node("Conv", ["d", "mix"], ["e0"]),
    ]
    for gate in range(gates):
        nodes += [
            helper.make_node("GlobalAveragePool", [f"e{gate}"], [f"p{gate}"]),
            helper.make_node("Conv", [f"p{gate}", "mix"], [f"q{gate}"]),
            helper.make_node("Conv", [f"q{gate}", "mix"], [f"r{gate}"]),
            helper.make_node("Mul", [f"e{gate}", f"r{gate}"], [f"e{gate + 1}"]),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", [f"e{gates}"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    text = suggest(network(tmp_path / "m.onnx", nodes, weights, (4, 2)))
    assert "extends: conv-depthwise-int8" in text
    assert ("6 gates not counted" in text) == bool(gates)


@pytest.mark.parametrize(("tokens", "name"), [(True, "transformer-int8"), (False, "audio-int8")])
def test_a_spectrum_of_tokens_mixes_a_text_and_is_no_sound(tokens: bool, name: str, tmp_path: Path) -> None:
    s = models.Sketch(0)
    x = s.input("x", [1, 8], TensorProto.INT64) if tokens else s.input("x", [1, 8, 16])
    values = s.node("Gather", [s.weight("table", 32, 16), x], "g") if tokens else x
    pairs = s.node("Unsqueeze", [values, s.constant("last", np.array([3]))], "u")
    spectrum = s.node("DFT", [pairs], "d", axis=1)
    real = s.node("ReduceSum", [spectrum, s.constant("parts", np.array([3]))], "r", keepdims=0)
    for number in range(5):
        real = s.node("MatMul", [real, s.weight(f"w{number}", 16, 16)], f"m{number}")
    s.output(real, [1, 8, 16])
    assert f"extends: {name}\n" in suggest(models.save(s.model(), tmp_path))
