"""Random samples have shapes with which the model runs, wherever it leaves dimensions free."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from qdqtool.backends.shapes import Shapes
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.canonical.shapes import peak_bytes
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import random_shapes
from qdqtool.pipeline.random_shapes import runnable_shapes, shapes_of
from tests import models
from tests.shared import shared


def speech(folder: Path, kernel: int) -> Path:
    """Reads a signal through a kernel of that length, and can read none that is shorter."""
    sketch = models.Sketch()
    signal = sketch.input("x", ["N", "T"])
    x = sketch.node("Unsqueeze", [signal, sketch.constant("one", np.array([1]))], "u")
    x = sketch.node("Conv", [x, sketch.weight("v", 32, 1, kernel)], "c", name="frames", strides=[kernel // 2])
    x = sketch.node("Conv", [sketch.relu("r", x), sketch.weight("w", 32, 32, 1)], "d", name="mix")
    sketch.output(sketch.node("ReduceMean", [x], "y", axes=[2], keepdims=0), ["N", 32])
    return models.save(sketch.model(), folder)


def runs(model: Path, shapes: dict[str, tuple[int, ...]]) -> bool:
    proto = load(model).proto
    models.run(proto, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    return True


@pytest.mark.parametrize("kernel", [3, 128, 200, 400, 900, 3000])
def test_a_signal_is_as_long_as_the_model_needs_it(tmp_path: Path, kernel: int) -> None:
    path = speech(tmp_path, kernel)
    found = shapes_of(load(path))
    assert runs(path, dict(found))
    if kernel <= 128:
        assert found == {"x": (1, 128)}, "the usual length is kept where it does"


def test_a_recording_has_as_many_frames_as_convolutions_without_padding_need(tmp_path: Path) -> None:
    sketch = models.Sketch()
    frames = sketch.input("x", ["T", "F"])
    x = sketch.node("Unsqueeze", [frames, sketch.constant("axes", np.array([0, 1]))], "u")
    x = sketch.node("Conv", [x, sketch.weight("w", 8, 1, 20, 100)], "c", name="bands")
    sketch.output(sketch.node("ReduceMean", [x], "y", axes=[2, 3], keepdims=0), [1, 8])
    path = models.save(sketch.model(), tmp_path)
    assert shapes_of(load(path)) == {"x": (64, 128)}
    assert runs(path, {"x": (64, 128)})


def test_dimensions_without_names_are_not_taken_for_one(tmp_path: Path) -> None:
    sketch = models.Sketch()
    signal, state = sketch.input("x", [None, None]), sketch.input("state", [2, None, 32])
    x = sketch.node("Unsqueeze", [signal, sketch.constant("one", np.array([1]))], "u")
    x = sketch.node("Conv", [x, sketch.weight("v", 32, 1, 200)], "c", name="frames", strides=[100])
    x = sketch.node(
        "Add", [sketch.node("ReduceMean", [x], "m", axes=[2], keepdims=0), state], "y", name="add"
    )
    sketch.output(x, [2, None, 32])
    assert shapes_of(load(models.save(sketch.model(), tmp_path))) == {"x": (1, 256), "state": (2, 1, 32)}


def test_lengths_of_other_inputs_are_those_that_these_have(tmp_path: Path) -> None:
    sketch = models.Sketch()
    tokens, lengths = sketch.input("x", ["N", "T"]), sketch.input("x_lengths", ["N"], TensorProto.INT64)
    sketch.output(sketch.node("Add", [tokens, sketch.node("Cast", [lengths], "c", to=1)], "y"), ["N", "T"])
    model = load(models.save(sketch.model(), tmp_path))
    (sample,) = open_samples("random:1,x:1x48", model.view.inputs)
    assert sample.feeds["x_lengths"].tolist() == [48]


def test_an_encoder_that_ends_at_77_tokens_gets_fewer(tmp_path: Path) -> None:
    sketch = models.Sketch()
    x = sketch.input("x", ["N", "T", 16])
    length = sketch.node("Gather", [sketch.node("Shape", [x], "s"), sketch.constant("i", np.array([1]))], "t")
    begin, axis = sketch.constant("begin", np.array([0])), sketch.constant("axis", np.array([0]))
    places = sketch.node("Slice", [sketch.weight("places", 77, 16), begin, length, axis], "p")
    x = sketch.node(
        "MatMul", [sketch.node("Add", [x, places], "a"), sketch.weight("w", 16, 16)], "y", name="mm"
    )
    sketch.output(x, ["N", "T", 16])
    path = models.save(sketch.model(), tmp_path)
    assert shapes_of(load(path)) == {"x": (1, 64, 16)}


def test_a_model_whose_batch_alone_is_free_is_not_opened() -> None:
    inputs = (TensorInfo(name="x", dtype=DType.FLOAT32, shape=("N", 3)),)

    def refuse() -> None:
        raise AssertionError("opened")

    assert runnable_shapes(inputs, refuse) == {"x": (1, 3)}  # type: ignore[arg-type]


def test_where_nothing_runs_the_usual_shapes_are_kept_and_the_error_shows_how_others_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sketch = models.Sketch()
    x = sketch.node(
        "Reshape", [sketch.input("x", ["N", "K"]), sketch.constant("s", np.array([1, 32, 7, 7]))], "r"
    )
    sketch.output(sketch.conv("c", x, (32, 32)), [1, 32, 7, 7])
    path = models.save(sketch.model(), tmp_path)
    assert shapes_of(load(path)) == {"x": (1, 128)}
    code = run(["calibrate", str(path), "--samples", "random:2", "-o", str(tmp_path / "c.json")])
    said = " ".join(capsys.readouterr().err.split())
    assert code == InputFileError.exit_code
    # the sizes that failed are not advised again
    assert "random:16,x:AxB with numbers for A, B" in said


@pytest.mark.parametrize("command", ["calibrate", "quantize", "convert", "compare"])
def test_every_command_takes_random_samples_of_such_a_model(tmp_path: Path, command: str) -> None:
    path = speech(tmp_path, 400)
    arguments = {
        "calibrate": [str(path), "--samples", "random:2", "-o", str(tmp_path / "c.json")],
        "quantize": [str(path), "--samples", "random:2", "-o", str(tmp_path / "q.onnx")],
        "convert": [str(path), "--types", "fp16", "--samples", "random:2", "-o", str(tmp_path / "h.onnx")],
        "compare": [str(path), str(path), "--samples", "random:2"],
    }[command]
    assert run([command, *arguments]) == 0


def test_the_samples_that_a_run_takes_can_be_asked_for_again(tmp_path: Path) -> None:
    model = load(speech(tmp_path, 400))
    text = ",".join(f"{name}:{'x'.join(map(str, dims))}" for name, dims in shapes_of(model).items())
    (sample,) = open_samples(f"random:1,{text}", model.view.inputs)
    assert sample.feeds["x"].shape == shapes_of(model)["x"]


@pytest.mark.slow
def test_a_model_with_ifs_in_ifs_runs_from_its_file_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    model = shared("models/silero_vad_16k/model.onnx")
    assert run(["run", str(model), "--out", str(tmp_path / "run")]) == 0


def decoder(folder: Path, channels: int = 16) -> Path:
    """Attends over all pixels of a picture of any size, as the decoder of a latent diffusion model does."""
    sketch = models.Sketch()
    x = sketch.node(
        "Conv",
        [sketch.input("x", ["N", 4, "H", "W"]), sketch.weight("wi", channels, 4, 1, 1)],
        "i",
        name="inside",
    )
    pixels = sketch.node("Reshape", [x, sketch.constant("flat", np.array([0, channels, -1]))], "pixels")
    rows = sketch.node("Transpose", [pixels], "rows", perm=[0, 2, 1])
    scores = sketch.node("Softmax", [sketch.node("MatMul", [rows, pixels], "s", name="scores")], "p", axis=-1)
    mixed = sketch.node(
        "Transpose", [sketch.node("MatMul", [scores, rows], "m", name="mix")], "mt", perm=[0, 2, 1]
    )
    mixed = sketch.node("Reshape", [mixed, sketch.node("Shape", [x], "size")], "mr")
    out = sketch.node("Add", [x, mixed], "sum")
    sketch.output(
        sketch.node("Conv", [out, sketch.weight("wo", 3, channels, 1, 1)], "y", name="outside"),
        ["N", 3, "H", "W"],
    )
    return models.save(sketch.model(), folder)


def scores_of(side: int) -> int:
    """Bytes of the scores of such a decoder before and after its Softmax."""
    return 2 * 4 * side**4


@pytest.mark.parametrize("side", [16, 64, 224])
def test_the_scores_of_an_attention_over_pixels_are_in_the_estimate(tmp_path: Path, side: int) -> None:
    peak = peak_bytes(load(decoder(tmp_path)), {"x": (1, 4, side, side)})
    assert scores_of(side) <= peak <= 1.1 * scores_of(side) + (1 << 20)


def test_an_estimate_is_what_onnxruntime_takes(tmp_path: Path) -> None:
    """The law of the estimate: it grows as the values do, and never falls where a dimension grows."""
    model = load(speech(tmp_path, 400))
    peaks = [peak_bytes(model, {"x": (1, length)}) for length in (400, 4000, 40_000, 400_000)]
    assert peaks == sorted(peaks)
    assert 9 * peaks[2] <= peaks[3] <= 11 * peaks[2]


def test_no_sample_of_a_size_that_nobody_chose_takes_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A decoder of half a megabyte was fed 224 x 224 and took 21 GB."""
    tried: list[Shapes] = []
    monkeypatch.setattr(random_shapes, "_runs", lambda _runner, found, _bound: tried.append(found) is None)
    assert shapes_of(load(decoder(tmp_path))) == {"x": (1, 4, 64, 64)}
    assert tried == [{"x": (1, 4, 64, 64)}]
    (said,) = (record.getMessage() for record in caplog.records)
    assert "x:1x4x64x64" in said
    assert "with x:1x4x224x224 one sample would need 18." in said
    assert "--samples random:16,x:1x4x" in said
    assert "--opt-shapes" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
def test_a_run_of_what_no_estimate_knows_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_shapes, "peak_bytes", lambda _model, _shapes: 0)
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert shapes_of(load(decoder(tmp_path))) == {"x": (1, 4, 64, 64)}
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_budget_of_memory_holds_for_samples_that_nobody_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(decoder(tmp_path))
    monkeypatch.setenv("QDQTOOL_MAX_MEMORY", "64MiB")
    assert shapes_of(model) == {"x": (1, 4, 32, 32)}
    monkeypatch.setattr(random_shapes, "_MOST_MEMORY", 10)
    with pytest.raises(UsageError) as refused:
        shapes_of(model)
    assert "random:16,x:1x4x" in refused.value.fix


@pytest.mark.slow
def test_commands_on_random_pictures_of_free_size_take_little_memory(tmp_path: Path) -> None:
    """Each in a process of its own, whose address space would not hold the scores of 112 x 112."""
    path = decoder(tmp_path)
    code = (
        "import resource, sys; from qdqtool.cli.app import run; code = run(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10); raise SystemExit(code)"
    )
    for words in (
        ["quantize", str(path), "--samples", "random:2", "-o", str(tmp_path / "q.onnx")],
        ["compare", str(path), str(path), "--samples", "random:2"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert int(done.stdout.split()[-1]) < 3000
