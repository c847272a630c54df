"""Exports with dimensions of -1 and old opsets run, and an opset that was raised wrongly is told as our mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.cli.app import run
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import PrepareOptions
from qdqtool.errors import Bug
from qdqtool.graph.canonical import opset
from qdqtool.graph.instrumented.probe import as_written, force_branches
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.pipeline import writing
from qdqtool.pipeline.writing import check_conversion
from tests import models


def paddle_like() -> onnx.ModelProto:
    """What PaddlePaddle's exporter writes: opset 11, dims of -1, wrong shapes noted, shape arithmetic, Softmax."""
    s = models.Sketch()
    x = s.input("image", [-1, 3, 8, 8])
    x = s.relu("relu", s.conv("conv", x, (3, 8)))
    x = s.batchnorm("norm", x, 8)
    x = s.node("GlobalAveragePool", [x], "pool")
    shape = s.node("Shape", [x], "shape")
    ends = [s.constant(name, np.array([value])) for name, value in (("zero", 0), ("one", 1))]
    batch = s.node("Slice", [shape, *ends], "batch")
    to = s.node("Concat", [batch, s.constant("rest", np.array([8]))], "to", axis=0)
    x = s.node("Reshape", [x, to], "flat")
    x = s.node("Gemm", [x, s.weight("fc_w", 8, 4), s.weight("fc_b", 4)], "scores")
    s.output(s.node("Softmax", [x], "probabilities", axis=1), [-1, 4])
    proto = s.model(opset=11)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("conv_y", 1, [-1, 99, 8, 8]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("gone", 1, [-1]))
    return proto


def test_negative_dimensions_are_symbols_and_wrong_shapes_are_forgotten(tmp_path: Path) -> None:
    model = load(models.save(paddle_like(), tmp_path))
    assert model.view.inputs[0].shape == ("image_0", 3, 8, 8)
    assert model.view.info("conv_y").shape == ("image_0", 8, 8, 8)
    assert model.view.info("flat").shape == ("image_0", 8)
    assert "negative dimensions are symbols" in " ".join(model.notes)


def test_dimensions_called_by_a_question_mark_have_names_of_their_own(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.relu("relu", s.input("x", [-1, 3, "?", "?"])), ["N", 3, "?", "?"])
    assert load(models.save(s.model(), tmp_path)).view.inputs[0].shape == ("x_0", 3, "x_2", "x_3")


def test_a_model_with_negative_dimensions_is_calibrated_and_computes_the_same(tmp_path: Path) -> None:
    path = models.save(paddle_like(), tmp_path)
    model = load(path)
    feeds = {"image": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    (before,) = models.run(onnx.load(path), feeds).values()
    (after,) = models.run(model.proto, feeds).values()
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    table = tmp_path / "table.json"
    assert run(["calibrate", str(path), "--samples", "random:4,image:1x3x8x8", "-o", str(table)]) == 0
    assert table.exists()


@pytest.fixture
def raised(tmp_path: Path) -> tuple[Model, list[Sample]]:
    model = load(models.save(paddle_like(), tmp_path))
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    return model, [Sample(name="one", feeds={"image": image})]


def test_a_right_conversion_is_passed_over_in_silence(raised) -> None:
    check_conversion(*raised)


def test_a_batch_that_a_squeeze_took_away_and_now_keeps_is_no_other_result(tmp_path: Path) -> None:
    """One value per sample, of a network whose Squeeze names no axes: `prepare` names them, so that the rank is fixed."""
    s = models.Sketch()
    x = s.node("Gemm", [s.input("x", ["N", 8]), s.weight("w", 8, 1), s.weight("b", 1)], "score")
    s.output(s.node("Squeeze", [x], "flat"), ["N"])
    prepared = prepare(load(models.save(s.model(opset=11), tmp_path)), PrepareOptions())
    assert any("Squeeze" in note for note in prepared.notes)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)}
    check_conversion(prepared, [Sample(name="one", feeds=feeds)])


def test_a_conversion_that_computes_something_else_is_our_mistake(raised) -> None:
    model, samples = raised
    next(node for node in model.proto.graph.node if node.name == "relu").op_type = "Neg"
    with pytest.raises(Bug, match=r"changed what the model computes: output 'probabilities'"):
        check_conversion(model, samples)


def test_a_conversion_that_does_not_run_is_our_mistake(raised) -> None:
    model, samples = raised
    next(node for node in model.proto.graph.node if node.name == "flat").input[1] = "rest"
    with pytest.raises(Bug, match="the file runs, but the model with the raised opset does not"):
        check_conversion(model, samples)


def test_a_file_that_does_not_run_is_not_compared(raised) -> None:
    model, samples = raised
    model.path.write_bytes(b"")
    check_conversion(model, samples)


def hardmax(quantized: bool = False) -> onnx.ModelProto:
    """A convolution and a Hardmax of opset 11, which flattens its input; with Q/DQ if asked for."""
    s = models.Sketch()
    x = s.input("x", [1, 16, 8, 8])
    if quantized:
        scale, zero = s.constant("scale", np.float32(0.05)), s.constant("zero", np.int8(0))
        x = s.node("QuantizeLinear", [x, scale, zero], "codes")
        x = s.node("DequantizeLinear", [x, scale, zero], "values")
    x = s.conv("conv", x, (16, 16))
    s.output(s.node("Hardmax", [x], "y", axis=2), [1, 16, 8, 8])
    proto = s.model(opset=11)
    proto.ir_version = 6
    return proto


def branches(op: str, axis: int) -> onnx.ModelProto:
    """An If of opset 11 whose else-branch alone holds the operator; its condition is computed, and true."""
    s = models.Sketch()
    x = s.conv("conv", s.input("x", [1, 16, 8, 8]), (16, 16))
    value = onnx.helper.make_tensor_value_info
    bodies = {
        f"{name}_branch": onnx.helper.make_graph([node], name, [], [value(f"{name}_y", 1, None)])
        for name, node in (
            ("then", onnx.helper.make_node("Neg", [x], ["then_y"])),
            ("else", onnx.helper.make_node(op, [x], ["else_y"], axis=axis)),
        )
    }
    same = s.node(
        "Equal", [s.constant("one", np.int64(1)), s.node("Size", [s.node("Size", [x], "n")], "m")], "is"
    )
    s.output(s.node("If", [same], "y", name="if", **bodies))
    proto = s.model(opset=11)
    proto.ir_version = 6
    return proto


def test_a_hardmax_of_an_old_opset_keeps_what_it_computes(tmp_path: Path) -> None:
    path = models.save(hardmax(), tmp_path)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)}
    (before,) = models.run(onnx.load(path), feeds).values()
    (after,) = models.run(load(path).proto, feeds).values()
    np.testing.assert_array_equal(after, before)
    assert before.sum() == 16  # one row for each channel, not one for each line of a picture


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
@pytest.mark.parametrize("op", ["Hardmax", "LogSoftmax", "Softmax"])
def test_so_does_one_in_a_body(op: str, axis: int, tmp_path: Path) -> None:
    model = load(models.save(branches(op, axis), tmp_path))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)}
    theirs, ours = force_branches(as_written(model), condition=False), force_branches(model, condition=False)
    (before,) = models.run(theirs.proto, feeds).values()
    (after,) = models.run(ours.proto, feeds).values()
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.fixture
def forgets_hardmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion as it is without our own hand: onnx leaves a Hardmax as it is."""
    monkeypatch.setattr(opset, "write_out_hardmax", lambda graph: None)
    monkeypatch.setattr(writing, "_compared", set())


def test_a_wrong_body_is_found_in_the_branch_that_the_sample_does_not_take(
    forgets_hardmax: None, tmp_path: Path
) -> None:
    with pytest.raises(Bug, match="changed what the model computes"):
        check_conversion(load(models.save(branches("Hardmax", 2), tmp_path)))


def test_a_branch_that_preparing_removes_is_no_difference(tmp_path: Path) -> None:
    """The condition of the If is computed from shapes, so that `prepare` takes one branch."""
    prepared = prepare(load(models.save(branches("Softmax", 2), tmp_path)), PrepareOptions())
    assert not any(node.op == "If" for node in prepared.view.nodes)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)}
    check_conversion(prepared, [Sample(name="one", feeds=feeds)])


def test_a_model_that_reads_words_is_converted_all_the_same(tmp_path: Path) -> None:
    s = models.Sketch()
    words = s.node(
        "StringNormalizer", [s.input("words", ["N"], TensorProto.STRING)], "lower", case_change_action="LOWER"
    )
    s.output(words, None, TensorProto.STRING)
    s.output(s.relu("relu", s.conv("conv", s.input("x", [1, 8, 8, 8]), (8, 8))), [1, 8, 8, 8])
    path = models.save(s.model(opset=11), tmp_path)
    assert run(["convert", str(path), "-o", str(tmp_path / "out.onnx")]) == 0


FLOAT_DOORS = {
    "convert": ["convert", "{float}", "-o", "{out}"],
    "convert to bf16": ["convert", "{float}", "--types", "bf16", "-o", "{out}"],
    "quantize": ["quantize", "{float}", "--samples", "random:2", "-o", "{out}"],
    "calibrate": ["calibrate", "{float}", "--samples", "random:2", "-o", "{out}"],
    "insert": ["insert", "{float}", "--placement", "{placement}", "--calibration", "{table}", "-o", "{out}"],
    "cache to-qdq": ["cache", "to-qdq", "{float}", "{cache}", "-o", "{out}"],
    "run": ["run", "{float}", "--samples", "random:2", "-o", "{out}"],
    "run with a cache": ["run", "{float}", "--calibration-cache", "{cache}", "-o", "{out}"],
}
QUANTIZED_DOORS = {
    "repair": ["repair", "{quantized}", "-o", "{out}"],
    "run of a Q/DQ model": ["run", "{quantized}", "--samples", "random:2", "-o", "{out}"],
    "cache from-qdq": [
        "cache",
        "from-qdq",
        "{quantized}",
        "--trt",
        "8.6.1",
        "--model",
        "{out}",
        "-o",
        "{other}",
    ],
    "scales": ["scales", "{quantized}", "--model", "{out}"],
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A float and a Q/DQ model of opset 11, and what `place` and `calibrate` make of the first."""
    folder = tmp_path_factory.mktemp("given")
    paths = {"float": folder / "float.onnx", "quantized": folder / "quantized.onnx"}
    for name, path in paths.items():
        onnx.save(hardmax(name == "quantized"), path)
    paths |= {name: folder / f"{name}.json" for name in ("placement", "table")}
    paths["cache"] = folder / "old.cache"
    given, placement, table = (str(paths[name]) for name in ("float", "placement", "table"))
    assert run(["place", given, "-o", placement]) == 0
    assert run(["calibrate", given, "--samples", "random:2", "--placement", placement, "-o", table]) == 0
    inserted = str(folder / "inserted.onnx")
    words = ["insert", given, "--placement", placement, "--calibration", table, "-o", inserted]
    assert run(words) == 0
    assert run(["cache", "from-qdq", inserted, "--trt", "8.6.1", "-o", str(paths["cache"])]) == 0
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize("door", [*FLOAT_DOORS, *QUANTIZED_DOORS])
def test_no_door_writes_what_a_wrong_conversion_made(
    door: str,
    given: dict[str, str],
    forgets_hardmax: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {**given, "out": str(tmp_path / "out.onnx"), "other": str(tmp_path / "other")}
    words = [word.format(**places) for word in (FLOAT_DOORS | QUANTIZED_DOORS)[door]]
    assert run(words) == Bug.exit_code
    assert "raising the opset changed what the model computes" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").is_file()
