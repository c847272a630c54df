"""Bad input at the door: a message that names place and fix, the documented exit code, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run as cli

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
GOOD = MODEL.read_bytes()


def flipped(content: bytes) -> bytes:
    damaged = bytearray(content)
    for place in range(100, len(damaged), 997):
        damaged[place] ^= 0x55
    return bytes(damaged)


def with_weight(value: float) -> bytes:
    model = onnx.load_from_string(GOOD)
    tensor = next(entry for entry in model.graph.initializer if len(entry.dims) == 4)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model.SerializeToString()


def with_external(location: str) -> bytes:
    model = onnx.load_from_string(GOOD)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model.SerializeToString()


MODELS: list[tuple[str, Callable[[], bytes], str, int]] = [
    ("text", lambda: b"this is not a model\n" * 50, "ONNX", 5),
    ("empty", lambda: b"", "empty", 5),
    ("truncated", lambda: GOOD[: len(GOOD) // 2], "", 5),
    ("bit-flipped", lambda: flipped(GOOD), "", 5),
    ("NaN weight", lambda: with_weight(np.nan), "NaN", 5),
    ("Inf weight", lambda: with_weight(np.inf), "infinite", 5),
    ("external data missing", lambda: with_external("absent.bin"), "absent.bin", 5),
    ("external data outside", lambda: with_external("../../etc/passwd"), "outside", 5),
    ("external data absolute", lambda: with_external("/etc/passwd"), "/etc/passwd", 5),
]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli(arguments)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "fix:" in said
    return code, said


@pytest.mark.parametrize(
    ("make", "says", "code"), [entry[1:] for entry in MODELS], ids=[entry[0] for entry in MODELS]
)
def test_a_bad_model_is_refused_with_place_and_fix(
    make: Callable[[], bytes], says: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(make())
    out = tmp_path / "out"
    got, said = refused(
        ["run", str(model), "--samples", str(DIGITS / "calibration.npz"), "--out", str(out)], capsys
    )
    assert got == code
    assert "model.onnx" in said
    assert says in said
    assert model.read_bytes() == make()
    assert not list(out.glob("*.onnx"))
    assert not list(out.glob(".*.onnx*"))


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(
        ["run", "absent.onnx", "--samples", "random:1", "--out", str(tmp_path / "x")], capsys
    )
    assert code == 5
    assert "absent.onnx" in said


def test_labels_that_do_not_fit_are_told_before_anything_is_calibrated_or_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "short.npy", np.zeros(3, np.int64))
    out = tmp_path / "out"
    order = ["run", str(MODEL), "--samples", str(DIGITS / "calibration.npz"), "--out", str(out)]
    code, said = refused([*order, "--labels", str(tmp_path / "short.npy")], capsys)
    assert code == 2
    assert "3 labels for" in said
    assert not (out / "placement.json").exists()


def test_a_chart_that_cannot_be_written_is_told_before_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = [
        "sweep",
        str(MODEL),
        "--samples",
        str(DIGITS / "calibration.npz"),
        "--out",
        str(tmp_path / "out"),
    ]
    code, said = refused([*order, "--chart", str(tmp_path / "chart.jpg")], capsys)
    assert code == 2
    assert "'.jpg'" in said
    assert not (tmp_path / "out").exists()


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


SAMPLES: list[tuple[str, Callable[[Path], str], str, int]] = [
    (
        "wrong name",
        lambda folder: save(folder / "s.npz", a=np.zeros((4, 1, 8, 8), "f4"), b=np.zeros(3)),
        "image",
        5,
    ),
    ("wrong shape", lambda folder: save(folder / "s.npz", image=np.zeros((4, 3, 8, 8), "f4")), "image", 5),
    ("wrong dtype", lambda folder: save(folder / "s.npz", image=np.full((4, 1, 8, 8), "words")), "image", 5),
    ("NaN", lambda folder: save(folder / "s.npz", image=np.full((4, 1, 8, 8), np.nan, "f4")), "NaN", 5),
    ("no samples", lambda folder: save(folder / "s.npz", image=np.zeros((0, 1, 8, 8), "f4")), "", 2),
    ("no files", str, "neither images nor arrays", 5),
    ("no such thing", lambda folder: str(folder / "absent"), "absent", 2),
]


@pytest.mark.parametrize(
    ("make", "says", "code"), [entry[1:] for entry in SAMPLES], ids=[entry[0] for entry in SAMPLES]
)
def test_bad_samples_are_refused_with_place_and_fix(
    make: Callable[[Path], str], says: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    got, said = refused(
        ["run", str(MODEL), "--samples", make(folder), "--out", str(tmp_path / "out")], capsys
    )
    assert got == code
    assert says in said
    assert not (tmp_path / "out" / "histograms.npz").exists()


def test_labels_of_another_length_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.npy"
    np.save(labels, np.zeros(3, np.int64))
    arguments = ["run", str(MODEL), "--samples", str(DIGITS / "calibration.npz"), "--labels", str(labels)]
    code, said = refused([*arguments, "--out", str(tmp_path / "out")], capsys)
    assert code == 2
    assert "3" in said


def test_an_unknown_builder_is_answered_with_the_nearest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(MODEL), "--samples", "random:2", "--set", "build.builder=rtxx"]
    code, said = refused([*arguments, "--out", str(tmp_path / "out")], capsys)
    assert code == 2
    assert "'rtx'" in said


def test_an_operator_that_the_builder_does_not_know_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("NonZero", ["m"], ["y"], name="where"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])],
        [weight],
    )
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    code, said = refused(["run", str(model), "--samples", "random:2", "--out", str(tmp_path / "out")], capsys)
    assert code == 4
    assert "NonZero" in said or "where" in said
    assert not (tmp_path / "out" / "engine.plan").exists()
