"""Models that qdqtool makes for itself may fail: that costs the step, with a note, and never the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.cli.app import run
from qdqtool.core.kinds import CALIBRATION, INSERTION
from qdqtool.errors import Bug, InputFileError, SystemFault
from qdqtool.graph.onnx_io.walk import copy_message
from qdqtool.graph.view import Model
from qdqtool.pipeline import calibration, conversion
from qdqtool.pipeline.ranges import channels, equalization, executor, layer_walk
from qdqtool.pipeline.search.switched import StagedRunner
from qdqtool.pipeline.writing import or_without
from tests import models


def with_half_part() -> onnx.ModelProto:
    """x -> Cast to FP16 -> MatMul -> Cast to FP32 -> Conv with a bias."""
    s = models.Sketch()
    half = s.node("Cast", [s.input("x", [1, 16, 8, 32])], "half", to=TensorProto.FLOAT16)
    weight = s.constant("w", (s.random.standard_normal((32, 32)) / 6).astype(np.float16))
    product = s.node("MatMul", [half, weight], "product")
    s.output(s.conv("conv", s.node("Cast", [product], "back", to=TensorProto.FLOAT), (16, 32)))
    return s.model()


def with_computed_branch() -> onnx.ModelProto:
    """A network of a fixed batch whose If takes another branch for samples of a positive mean."""
    s = models.Sketch()
    x = s.conv("conv1", s.input("x", [1, 8, 8, 8]), (8, 8))
    mean = s.node("ReduceMean", [x], "mean", keepdims=0)
    positive = s.node("Greater", [mean, s.constant("zero", np.float32(0))], "positive")
    value = onnx.helper.make_tensor_value_info
    flat = onnx.helper.make_tensor("flat", TensorProto.INT64, [2], [1, 512])
    bodies = {
        f"{name}_branch": onnx.helper.make_graph(
            [
                onnx.helper.make_node("Reshape", [x, f"{name}_flat"], [f"{name}_rows"]),
                onnx.helper.make_node(op, [f"{name}_rows"], [f"{name}_y"]),
            ],
            name,
            [],
            [value(f"{name}_y", TensorProto.FLOAT, [1, 512])],
            [onnx.helper.make_tensor(f"{name}_flat", flat.data_type, flat.dims, list(flat.int64_data))],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    x = s.node("If", [positive], "either", name="if", **bodies)
    s.output(s.node("Gemm", [x, s.weight("w", 512, 10), s.weight("b", 10)], "y", name="fc"), [1, 10])
    return s.model()


def quantized(proto: onnx.ModelProto, folder: Path, *words: str) -> tuple[Path, str]:
    """Where the quantized model is, and what the command says."""
    path, out = models.save(proto, folder), folder / "q.onnx"
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim][1:]
    draw = np.random.default_rng(0)
    np.savez(folder / "x.npz", x=draw.standard_normal((24, *shape)).astype(np.float32))
    assert run(["quantize", str(path), "--samples", str(folder / "x.npz"), "-o", str(out), *words]) == 0
    return out, str(path)


@pytest.mark.parametrize("proto", [with_half_part, with_computed_branch])
def test_no_step_is_left_out_for_parts_in_fp16_and_for_branches(
    proto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized(proto(), tmp_path)
    assert "was skipped" not in capsys.readouterr().err


def broken(model: Model) -> Model:
    """The model with an operator that nobody knows."""
    proto = copy_message(model.proto)
    next(node for node in proto.graph.node if node.op_type == "Relu").op_type = "Nonsense"
    return replace(model, proto=proto)


HELPERS = {
    "bias correction in one batch": (executor, "correct_nodes", "bias correction"),
    "candidate tables": (executor, "tunable", "bias correction"),
    "means of the float network": (calibration, "float_pass", "measuring outputs and means"),
}


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_model_that_fails_costs_its_step(
    helper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, name, step = HELPERS[helper]
    maker = getattr(place, name)

    def breaking(*given, **named):
        made = maker(*given, **named)
        if place is calibration:
            return broken(made[0]), made[1]
        return replace(made, model=broken(made.model))

    monkeypatch.setattr(place, name, breaking)
    out, _ = quantized(models.conv_chain(), tmp_path)
    said = capsys.readouterr().err
    assert f"note: {step}" in said.replace("\n", " ")
    assert "not in the network" in " ".join(said.split())
    assert "check the model" not in said
    feeds = {"x": np.zeros((1, 8, 8, 8), np.float32)}
    models.run(onnx.load(out), feeds)


@pytest.mark.parametrize(("place", "name"), [(layer_walk, "segment"), (channels, "watching")])
def test_so_does_one_of_a_network_with_a_fixed_batch(
    place, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given, **named):
        raise InputFileError("onnxruntime cannot open the model: for a test", fix="check the model")

    monkeypatch.setattr(place, name, fails)
    proto = with_computed_branch() if place is layer_walk else models.depthwise_cnn()
    quantized(proto, tmp_path)
    assert "for a test" in " ".join(capsys.readouterr().err.split())


def fails(*given, **named):
    raise InputFileError("for a test", fix="check the model")


@pytest.mark.slow
def test_fp16_without_its_search_for_overflows_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversion, "watching", fails)
    said = "note: the search for tensors that overflow FP16 was skipped"
    _, path = quantized(models.conv_chain(), tmp_path, "--set=insert.types=fp16")
    assert said in " ".join(capsys.readouterr().err.split())
    words = ["convert", path, "--types", "fp16", "--samples", str(tmp_path / "x.npz")]
    assert run([*words, "-o", str(tmp_path / "half.onnx")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    folder = tmp_path / "run"
    words = [
        "run",
        path,
        "--samples",
        str(tmp_path / "x.npz"),
        "--out",
        str(folder),
        "--set=insert.types=fp16",
    ]
    assert run(words) == 0
    assert any("overflow FP16" in note for note in INSERTION.read(folder / "insertion.json").notes)


def test_a_sample_that_the_network_itself_refuses_is_still_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody ran the samples of `convert` before the probe does."""
    s = models.Sketch()
    x = s.relu("relu", s.conv("conv", s.input("x", ["N", 8, "H", "W"]), (8, 8)))
    s.output(s.node("Reshape", [x, s.constant("shape", np.array([-1, 8, 64]))], "y"))
    path, samples = models.save(s.model(), tmp_path), tmp_path / "x.npz"
    np.savez(samples, x=np.zeros((2, 8, 7, 7), np.float32))
    words = ["convert", str(path), "--types", "fp16", "--samples", str(samples)]
    assert run([*words, "-o", str(tmp_path / "half.onnx")]) == InputFileError.exit_code
    assert "was skipped" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_way_of_equalizing_that_the_recipe_names_costs_no_more_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equalization, "uneven", fails)
    said = "weights.equalize=depthwise was skipped"
    _, path = quantized(models.depthwise_cnn(), tmp_path, "--set=weights.equalize=depthwise")
    assert said in " ".join(capsys.readouterr().err.split())
    folder = tmp_path / "run"
    words = ["run", path, "--samples", str(tmp_path / "x.npz"), "--set=weights.equalize=depthwise"]
    assert run([*words, "--out", str(folder)]) == 0
    assert any(note.startswith(said) for note in CALIBRATION.read(folder / "calibration.json").notes)


@pytest.mark.parametrize("command", ["sensitivity", "run"])
def test_what_cannot_be_measured_is_our_fault_and_never_passed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stages of the network are models of our own; neither a limit nor a sensitivity can do without them."""
    monkeypatch.setattr(StagedRunner, "_behind", fails)
    path = models.save(models.conv_chain(), tmp_path)
    x = np.random.default_rng(0).standard_normal((24, 8, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    words = [command, str(path), "--samples", str(tmp_path / "x.npz")]
    words += ["--out", str(tmp_path / "run"), *(["--min-sqnr", "60"] if command == "run" else [])]
    assert run(words) == Bug.exit_code
    said = " ".join(capsys.readouterr().err.split())
    assert "not in the network: for a test" in said
    assert not (tmp_path / "run" / "model.qdq.onnx").exists()


def test_the_note_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "tunable", fails)
    path, table = models.save(models.conv_chain(), tmp_path), tmp_path / "table.json"
    x = np.random.default_rng(0).standard_normal((24, 8, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    assert run(["calibrate", str(path), "--samples", str(tmp_path / "x.npz"), "-o", str(table)]) == 0
    notes = CALIBRATION.read(table).notes
    assert [note.partition(" was skipped")[0] for note in notes] == [
        "bias correction",
        "the choice of ranges by the outputs",
        "zero points",
    ]


def test_what_the_machine_refuses_and_what_the_users_files_lack_are_still_errors() -> None:
    def full() -> None:
        raise SystemFault("no space is left on the disk", fix="free some space")

    def unreadable() -> None:
        raise InputFileError("cannot be read", fix="export it again", where="x.npz")

    with pytest.raises(SystemFault):
        or_without("a step", full, lambda: None)
    with pytest.raises(InputFileError, match="cannot be read"):
        or_without("a step", unreadable, unreadable)
