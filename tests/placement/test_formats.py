"""A recipe asks for a number format per node: what the target cannot run is refused, the rest is built as asked."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Format, InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.target import Target
from qdqtool.core.tensors import SCHEMES
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from tests import models
from tests.placement.building import build, table
from tests.placement.building import quantized as with_pairs

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx: pip install 'qdqtool[rtx]'"
)


def linear(rows: int = 64, depth: int = 256, columns: int = 256) -> onnx.ModelProto:
    s = models.Sketch()
    s.input("x", (rows, depth))
    s.weight("w", depth, columns)
    s.weight("b", columns)
    s.node("MatMul", ["x", "w"], "mm")
    s.node("Add", ["mm", "b"], "y")
    s.output("y", (rows, columns))
    return s.model()


def convolution(size: int = 3) -> onnx.ModelProto:
    s = models.Sketch()
    s.input("x", (1, 64, 32, 32))
    s.weight("w", 64, 64, size, size)
    s.node("Conv", ["x", "w"], "y", name="conv", pads=[size // 2] * 4)
    s.output("y", None)
    return s.model()


def of_two_types() -> onnx.ModelProto:
    """A product of FP64 values among others, and a table of FP64 values."""
    s = models.Sketch()
    s.input("x", (64, 256))
    s.weight("w1", 256, 256)
    s.constant("w2", np.random.default_rng(0).standard_normal((256, 256)))
    s.node("MatMul", ["x", "w1"], "a", name="single")
    s.node("Cast", ["a"], "wide", to=onnx.TensorProto.DOUBLE)
    s.node("MatMul", ["wide", "w2"], "b", name="double")
    s.node("Cast", ["b"], "y", to=onnx.TensorProto.FLOAT)
    s.output("y", (64, 256))
    return s.model()


@pytest.mark.parametrize("format_", sorted({*SCHEMES, "int8"} - {"float"}))
def test_no_format_is_asked_of_values_that_are_not_quantized(format_: str, tmp_path):
    """conv-fp8 ended on a DOUBLE MatMul that conv-int8 leaves float."""
    model = load(models.save(of_two_types(), tmp_path))
    options = PlacementOptions(format=format_, sm=("120",))
    placement = decide(model.view, options)
    said = [decision for decision in placement.decisions if decision.slot.node == "double"]
    assert said
    assert not any(decision.quantize for decision in said)
    reasons = [opinion.reason for decision in said for opinion in decision.opinions]
    assert any("only FP32 and FP16 values are quantized" in reason for reason in reasons)


def two_layers() -> onnx.ModelProto:
    s = models.Sketch()
    s.input("x", (64, 256))
    s.weight("w1", 256, 256)
    s.weight("w2", 256, 256)
    s.node("MatMul", ["x", "w1"], "a", name="attn/q")
    s.node("Relu", ["a"], "r")
    s.node("MatMul", ["r", "w2"], "y", name="mlp/up")
    s.output("y", (64, 256))
    return s.model()


def opened(proto: onnx.ModelProto, folder: Path) -> Model:
    return prepare(load(models.save(proto, folder)), PrepareOptions())


def placed(proto: onnx.ModelProto, folder: Path, **options: object) -> Placement:
    return decide(opened(proto, folder).view, PlacementOptions(**options))


def specs(placement: Placement) -> dict[str, tuple[str, int | None, int | None]]:
    return {
        str(entry.slot): (entry.spec.format.name, entry.spec.axis, entry.spec.block)
        for entry in placement.quantized
        if entry.spec
    }


def reasons(placement: Placement, node: str) -> str:
    return "; ".join(
        opinion.reason
        for entry in placement.decisions
        if entry.slot.node == node and not entry.quantize
        for opinion in entry.opinions
    )


def test_a_recipe_can_name_every_scheme_and_nothing_else():
    assert set(get_args(Format)) == set(SCHEMES)


def test_int8_is_placed_as_without_formats(tmp_path):
    model = opened(models.residual_cnn(), tmp_path)
    assert decide(model.view, PlacementOptions(format="int8")) == decide(model.view, PlacementOptions())


@pytest.mark.parametrize(
    ("format_", "wanted"),
    [
        ("fp8", {"mm[0]": ("fp8", None, None), "mm[1]": ("fp8", 1, None)}),
        ("int8-weights", {"mm[1]": ("int8", 1, None)}),
        ("int4-weights", {"mm[1]": ("int4", 0, 128)}),
        ("nvfp4", {"mm[0]": ("nvfp4", 1, 16), "mm[1]": ("nvfp4", 0, 16)}),
        ("mxfp8", {"mm[0]": ("mxfp8", 1, 32), "mm[1]": ("mxfp8", 0, 32)}),
        ("float", {}),
    ],
)
def test_each_format_has_its_own_granularity(format_, wanted, tmp_path):
    assert specs(placed(linear(), tmp_path, format=format_)) == wanted


def test_formats_are_mixed_by_name(tmp_path):
    found = placed(two_layers(), tmp_path, format="fp8", formats={"*mlp/*": "nvfp4", "*nobody*": "int8"})
    assert {slot: name for slot, (name, _, _) in specs(found).items()} == {
        "attn/q[0]": "fp8",
        "attn/q[1]": "fp8",
        "mlp/up[0]": "nvfp4",
        "mlp/up[1]": "nvfp4",
    }
    assert "no node matches the pattern '*nobody*' of place.formats" in found.notes


@pytest.mark.parametrize(
    ("format_", "options", "way"),
    [
        ("fp8", {"sm": ("86",)}, "--sm 89"),
        ("fp8", {"sm": ("75",)}, "--sm 89"),
        ("nvfp4", {"sm": ("86", "120")}, "--sm 120"),
        ("int4-weights", {"sm": ("75",)}, "--sm 80"),
        ("fp8", {"target": "8"}, "TensorRT 9.0"),
        ("mxfp8", {"target": "10", "sm": ("89",)}, "--sm 100"),
    ],
)
def test_a_format_that_the_target_cannot_run_is_refused_with_one_that_can(format_, options, way, tmp_path):
    with pytest.raises(UsageError) as error:
        placed(linear(), tmp_path, format=format_, **options)
    assert way in error.value.fix
    assert error.value.where == "mm"
    assert "the rule 'format'" in error.value.what


def test_a_block_that_does_not_divide_is_refused_with_one_that_does(tmp_path):
    with pytest.raises(UsageError, match="blocks of 128, which do not divide the 96 summed values") as error:
        placed(linear(depth=96), tmp_path, format="int4-weights", block=128)
    assert error.value.fix == "--set place.block=32"


def test_the_block_is_the_largest_that_leaves_two(tmp_path):
    assert specs(placed(linear(depth=96), tmp_path, format="int4-weights"))["mm[1]"] == ("int4", 0, 32)


@pytest.mark.parametrize(
    ("proto", "node", "format_", "reason"),
    [
        (convolution(7), "conv", "fp8", "more than 32 taps run in float, this one has 49"),
        (convolution(3), "conv", "int4-weights", "dequantizes them in a separate kernel"),
        (convolution(3), "conv", "nvfp4", "no kernel computes a Conv in nvfp4"),
        (linear(columns=255), "mm", "int4-weights", "255 columns, an odd number"),
        (linear(depth=16), "mm", "int4-weights", "no block of 16 to 128 divides the 16 summed values"),
        (linear(depth=250), "mm", "nvfp4", "blocks of 16 do not divide the 250 summed values"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_silently_run_in_float_stays_float_and_says_why(proto, node, format_, reason, tmp_path):
    found = placed(proto, tmp_path, format=format_)
    assert not found.quantized
    assert reason in reasons(found, node)


def test_mxfp8_says_that_no_kernel_here_computes_in_it(tmp_path):
    assert any(
        "computes all of it in float" in note for note in placed(linear(), tmp_path, format="mxfp8").notes
    )


@pytest.mark.parametrize("format_", ["fp8", "int8-weights", "int4-weights", "nvfp4", "mxfp8"])
@pytest.mark.parametrize("name", ["attention", "gemms", "matmuls", "residual_cnn"])
@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_what_is_inserted_is_what_was_placed(name, format_, types, tmp_path):
    model = opened(models.ALL[name](), tmp_path)
    placement = decide(model.view, PlacementOptions(format=format_))
    written = insert(model, placement, table(model, placement), InsertOptions(types=types, weights="stored"))
    lifted, left = lift(written)
    assert not left
    assert {str(slot): entry.format.name for slot, entry in lifted.assignment.items()} == {
        str(entry.slot): entry.spec.format.name for entry in placement.quantized if entry.spec
    }


@needs_rtx
@pytest.mark.parametrize(
    ("format_", "sm", "options", "kernel"),
    [
        ("fp8", "89", {}, ("fp8", "fp8")),
        ("fp8", "120", {"weights": "stored"}, ("fp8", "fp8")),
        ("int8-weights", "86", {"weights": "stored"}, ("fp16", "int8")),
        ("int4-weights", "86", {}, ("fp16", "int4")),
        ("nvfp4", "120", {}, ("fp4", "fp4")),
        ("nvfp4", "120", {"blocks": "constant"}, ("fp4", "fp4")),
    ],
)
def test_the_engine_multiplies_what_was_asked_for(format_, sm, options, kernel, tmp_path):
    model = opened(linear(), tmp_path)
    placement = decide(model.view, PlacementOptions(format=format_, sm=(sm,)))
    written = insert(model, placement, table(model, placement), InsertOptions(types="fp16", **options))
    built = build(written.proto, f"sm{sm}")
    assert built.error == ""
    operands = {
        (str(layer.inputs[0].dtype), str(constant.dtype))
        for layer in built.kernels
        for constant in layer.constants
        if constant.shape == (256, 256)
    }
    assert operands == {kernel}


def one_weight_for_two() -> onnx.ModelProto:
    s = models.Sketch()
    s.input("x", (64, 256))
    s.weight("w", 256, 256)
    s.node("MatMul", ["x", "w"], "a", name="first")
    s.node("Relu", ["a"], "r")
    s.node("MatMul", ["r", "w"], "y", name="second")
    s.output("y", (64, 256))
    return s.model()


@needs_rtx
@pytest.mark.parametrize(("format_", "held"), [("int8-weights", "int8"), ("int4-weights", "int4")])
def test_a_weight_of_two_products_is_written_once_for_each_so_that_both_kernels_read_few_bits(
    format_, held, tmp_path
):
    model = opened(one_weight_for_two(), tmp_path)
    placement = decide(model.view, PlacementOptions(format=format_, sm=("86",)))
    written = insert(model, placement, table(model, placement), InsertOptions(types="fp16", weights="stored"))
    foreseen = {node.node: node.realised for node in predict(written).nodes if node.compute}
    assert foreseen == {"first": format_, "second": format_}
    built = build(written.proto, "sm86")
    assert built.error == ""
    read = [str(constant.dtype) for layer in built.kernels if layer.inputs for constant in layer.constants]
    assert read.count(held) == 2
    assert not [layer for layer in built.kernels if layer.constants and not layer.inputs]


def test_a_weight_of_two_products_in_fp8_stays_one(tmp_path):
    model = opened(one_weight_for_two(), tmp_path)
    placement = decide(model.view, PlacementOptions(format="fp8", sm=("89",)))
    written = insert(model, placement, table(model, placement), InsertOptions(weights="stored"))
    assert sum(tensor.dims[:] == [256, 256] for tensor in written.proto.graph.initializer) == 1


@needs_rtx
def test_mxfp8_is_computed_in_float_as_the_placement_says(tmp_path):
    model = opened(linear(), tmp_path)
    placement = decide(model.view, PlacementOptions(format="mxfp8", sm=("120",)))
    written = insert(model, placement, table(model, placement), InsertOptions(types="fp16"))
    built = build(written.proto, "sm120")
    assert built.error == ""
    assert built.precision == (("mm", "float"),)


def test_predict_counts_the_nodes_of_every_format(tmp_path, capfd):
    model = opened(linear(), tmp_path)
    placement = decide(model.view, PlacementOptions(format="fp8", sm=("89",)))
    path = models.save(insert(model, placement, table(model, placement), InsertOptions()).proto, tmp_path)
    assert run(["predict", str(path), "--sm", "89"]) == 0
    said = capfd.readouterr().out
    assert "compute nodes: 1 of 1 in FP8" in said
    assert "float node" not in said


@pytest.mark.parametrize(("heads", "quantized"), [(3, 4), (4, 0)])
def test_an_attention_with_one_query_stays_float_in_fp8_where_its_kernel_is(heads, quantized, tmp_path):
    s = models.Sketch()
    q, k, v = (s.input(name, (1, heads, length, 16)) for name, length in (("q", 1), ("k", 8), ("v", 8)))
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "s", name="scores")
    s.output(s.node("MatMul", [s.node("Softmax", [scores], "p", axis=-1), v], "y", name="values"))
    placement = decide(opened(s.model(), tmp_path).view, PlacementOptions(format="fp8", sm=("89",)))
    assert len(placement.quantized) == quantized
    assert all(
        ("single query" in each.opinions[-1].reason) == (quantized == 0) for each in placement.decisions
    )


_WORDS = {"int8": "INT8", "fp8": "FP8", "nvfp4": "FP4", "int4": "INT4"}


@pytest.mark.parametrize(
    "make", [models.matmuls, models.attention, models.residual_cnn, models.unet, models.gemms]
)
@pytest.mark.parametrize("format_", sorted(set(SCHEMES) - {"int8"}))
def test_no_sentence_names_a_format_that_nothing_has(
    format_: str, make: Callable[[], onnx.ModelProto]
) -> None:
    model, placement = with_pairs(make(), format=format_, sm=("120",))
    asked = {str(decision.spec.format) for decision in placement.decisions if decision.spec}
    report = lint(model, Target.parse("rtx", ("120",)))
    said = {
        *placement.notes,
        *(opinion.reason for decision in placement.decisions for opinion in decision.opinions),
        *(text for finding in report.findings for text in (finding.reason, finding.effect)),
    }
    foreign = [word for name, word in _WORDS.items() if name not in format_ and name not in asked]
    assert not [text for text in said for word in foreign if re.search(rf"\b{word}\b", text)]
