"""`qdqtool compare`: every kind of side against every other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.accuracy.parts import shared_tensors, watch_inside
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run
from qdqtool.core.recipe import CompareOptions, InsertOptions, Preprocess
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.pipeline import comparing
from qdqtool.runtime.runner import OrtRunner, open_piece
from tests import models
from tests.graph.placing import opened, placement_for, table_for

COUNT = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, its Q/DQ model, samples with labels, and the Q/DQ model's outputs as a file."""
    place = tmp_path_factory.mktemp("sides")
    proto = models.residual_cnn()
    model = opened(proto, place)
    samples = models.feeds(proto, 1, COUNT)
    placement = placement_for(model)
    qdq = insert(model, placement, table_for(model, placement, samples), InsertOptions())
    save(qdq, place / "qdq.onnx")
    np.savez(place / "samples.npz", **samples)
    outputs = [
        models.run(qdq.proto, {name: value[row : row + 1] for name, value in samples.items()})
        for row in range(COUNT)
    ]
    stored = {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]}
    np.savez(place / "stored.npz", **stored)
    scores = next(iter(stored.values())).reshape(COUNT, -1)
    np.save(place / "labels.npy", scores.argmax(axis=1))
    return place


def compared(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["compare", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)["data"]
    return found


def test_a_comparison_is_written_as_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "compared.html"
    sides = [str(folder / name) for name in ("model.onnx", "qdq.onnx")]
    assert run(["compare", *sides, "--samples", str(folder / "samples.npz"), "--page", str(page)]) == 0
    assert "<h1>qdq.onnx on onnxruntime compared with model.onnx on onnxruntime</h1>" in page.read_text(
        "utf-8"
    )


def test_the_name_of_a_model_may_have_capital_letters(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = [tmp_path / "MODEL.ONNX", tmp_path / "QDQ.ONNX"]
    for side in sides:
        shutil.copy(folder / side.name.lower(), side)
    samples = ["--samples", str(folder / "samples.npz")]
    found = compared(capfd, *map(str, sides), *samples, "--inside")
    assert found["tensors"]


def test_a_folder_of_hugging_face_is_a_model_and_no_outputs(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "onnx").mkdir()
    shutil.copyfile(folder / "qdq.onnx", tmp_path / "onnx" / "model.onnx")
    sides = str(tmp_path), str(folder / "stored.npz")
    assert compared(capfd, *sides, "--samples", str(folder / "samples.npz"))["samples"] == COUNT


SIDES = ["model.onnx", "qdq.onnx", "int:qdq.onnx", "stored.npz"]


@pytest.mark.parametrize("candidate", SIDES)
@pytest.mark.parametrize("reference", SIDES)
def test_every_side_compares_with_every_other(
    reference: str,
    candidate: str,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    found = compared(capfd, reference, candidate, "--samples", "samples.npz")
    assert found["samples"] == COUNT
    assert found["outputs"][0]["measures"][0]["value"] > 0.9


def test_two_stored_sides_need_no_samples(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stored = str(folder / "stored.npz")
    found = compared(capfd, stored, stored, "--labels", str(folder / "labels.npy"))
    assert found["task"][0]["candidate"] == 100.0


def test_the_tensors_inside_are_measured_in_graph_order(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = [str(folder / "model.onnx"), str(folder / "qdq.onnx")]
    found = compared(capfd, *sides, "--samples", str(folder / "samples.npz"), "--inside")
    levels = [measure["value"] for entry in found["tensors"] for measure in entry["measures"] if measure["metric"] == "sqnr_db"]  # fmt: skip
    assert len(levels) > 2
    assert all(10 < level < 80 for level in levels)
    assert len(found["outputs"]) == 1
    float_model, qdq = (
        models_run(folder / name, [entry["output"] for entry in found["tensors"]])
        for name in ("model.onnx", "qdq.onnx")
    )
    for entry, level in zip(found["tensors"], levels, strict=True):
        before, after = float_model[entry["output"]], qdq[entry["output"]]
        noise = np.square(after - before).sum() / np.square(before).sum()
        assert level == pytest.approx(-10 * np.log10(noise), abs=0.5)  # a rounding may flip


def test_models_that_are_looked_into_are_read_when_the_outputs_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    inner, read = comparing.compare, comparing.load

    def compared_sides(*words: Any, **how: Any) -> Any:
        done.append("compared")
        return inner(*words, **how)

    def noted(path: Path) -> Any:
        done.append(f"read {path.name}")
        return read(path)

    monkeypatch.setattr(comparing, "compare", compared_sides)
    monkeypatch.setattr(comparing, "load", noted)
    sides = [str(folder / "model.onnx"), str(folder / "qdq.onnx")]
    compared(capfd, *sides, "--samples", str(folder / "samples.npz"), "--inside")
    # the first read tells how large the model is, and keeps nothing
    assert done[:4] == ["read model.onnx", "compared", "read model.onnx", "read qdq.onnx"]


def test_the_tensors_inside_are_the_same_however_few_fit_into_memory_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(folder / "model.onnx"), load(folder / "qdq.onnx")
    samples = open_samples(str(folder / "samples.npz"), loaded[0].view.inputs, Preprocess())
    opened_sides: list[str] = []
    inner = open_piece

    def counted(*place: Any, **how: Any) -> OrtRunner:
        opened_sides.append(how["description"])
        return inner(*place, **how, optimized=False)

    monkeypatch.setattr(comparing, "open_piece", counted)
    together = comparing.noise_inside(loaded, samples, CompareOptions())
    assert len(opened_sides) == 2
    monkeypatch.setattr(comparing, "_ROOM", 1)
    monkeypatch.setattr(comparing, "_RUNS", 8 * len(together))
    assert comparing.noise_inside(loaded, samples, CompareOptions()) == together
    assert len(opened_sides) == 2 + 2 * len(together)


@pytest.mark.parametrize("runs", [1, 6, 12, 1000])
def test_looking_inside_takes_fewer_samples_where_each_takes_many_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    loaded = load(folder / "model.onnx"), load(folder / "qdq.onnx")
    samples = open_samples(str(folder / "samples.npz"), loaded[0].view.inputs, Preprocess())
    done = []
    whole = OrtRunner.run

    def counted(runner: OrtRunner, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        done.append(runner)
        return whole(runner, feeds)

    monkeypatch.setattr(OrtRunner, "run", counted)
    monkeypatch.setattr(comparing, "_ROOM", 1)
    monkeypatch.setattr(comparing, "_RUNS", runs)
    tensors = len(comparing.noise_inside(loaded, samples, CompareOptions()))
    assert tensors
    assert len(done) <= 2 * max(runs, tensors), (
        "one sample at least, and no more runs of each side than are allowed"
    )


def models_run(path: Path, tensors: list[str]) -> dict[str, np.ndarray]:
    """These inner tensors of all samples, by nothing but onnxruntime."""
    proto = onnx.load(path)
    for name in tensors:
        proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    with np.load(path.with_name("samples.npz")) as samples:
        rows = [
            models.run(proto, {name: samples[name][row : row + 1] for name in samples.files})
            for row in range(COUNT)
        ]
    return {name: np.concatenate([row[name] for row in rows]) for name in tensors}


def test_the_integer_emulation_is_explained(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    qdq = str(folder / "qdq.onnx")
    found = compared(capfd, qdq, f"int:{qdq}", "--samples", str(folder / "samples.npz"), "--explain")
    assert found["explanations"][0]["cause"] in {"same", "explained by rounding"}
    words = (qdq, qdq, "--samples", str(folder / "samples.npz"), "--explain", "--emulate")
    assert compared(capfd, *words) == found


def test_the_summary_tells_the_cause_and_the_noisiest_tensors(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = [str(folder / "qdq.onnx"), str(folder / "qdq.onnx")]
    assert run(["compare", *sides, "--samples", str(folder / "samples.npz"), "--explain", "--inside"]) == 0
    assert "equal to the result of the Q/DQ graph" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["model.onnx", "qdq.onnx"], 2, "samples are missing"),
        (["model.onnx", "qdq.onnx", "--samples", "samples.npz", "--explain"], 2, "no Q/DQ nodes"),
        (["model.onnx", "stored.npz", "--samples", "samples.npz[0:3]"], 2, "4 stored outputs for 3 samples"),
        (["stored.npz", "qdq.onnx", "--samples", "samples.npz", "--inside"], 2, "not an ONNX model"),
        (["stored.npz", "stored.npz", "--labels", "short.npy"], 2, "2 labels for 4 stored outputs"),
        (["model.onnx", "missing.npz", "--samples", "samples.npz"], 5, "does not exist"),
        (["model.onnx", "qdq.onnx", "--samples", "samples.npz", "--set", "compare.metrics=cosinus"], 2, "cosine"),
    ],
    ids=[
        "no samples", "nothing to emulate", "fewer samples than outputs", "inside stored outputs",
        "labels that do not match", "a missing file", "an unknown metric",
    ],
)  # fmt: skip
def test_what_cannot_be_compared_says_why(
    arguments: list[str], code: int, words: str, folder: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    np.save(folder / "short.npy", np.array([0, 1]))
    monkeypatch.chdir(folder)
    assert run(["compare", *arguments]) == code
    captured = capfd.readouterr()
    assert words in " ".join(captured.err.split())
    assert captured.out == ""


def test_a_drop_beyond_the_limit_exits_with_1(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(folder / "wrong.npz", **{name: -value for name, value in np.load(folder / "stored.npz").items()})
    stored = str(folder / "stored.npz")
    command = ["compare", stored, str(folder / "wrong.npz"), "--labels", str(folder / "labels.npy")]
    assert run([*command, "--set", "compare.max_drop=1"]) == 1
    assert "top1 fell by" in capfd.readouterr().err


def test_models_that_return_tensors_inside_compute_nothing_behind_them(folder: Path, tmp_path: Path) -> None:
    """What is behind them costs time, and onnxruntime hands a quantization behind a tensor back to where it is made."""
    sides = load(folder / "model.onnx"), load(folder / "qdq.onnx")
    for *probes, names in watch_inside(sides, tmp_path, room=1):
        for one in probes:
            assert isinstance(one.source, Path)
            view = load(one.source).view
            assert {info.name for info in view.outputs} == names
            assert all(
                view.uses(tensor) or view.is_output(tensor) for node in view.nodes for tensor in node.outputs
            )


@pytest.mark.parametrize("types", ["fp16", "bf16"])
def test_tensors_inside_a_model_of_a_narrow_type_are_compared(types: str, folder: Path) -> None:
    plain = load(folder / "model.onnx")
    narrow, _ = convert(plain, InsertOptions.model_validate({"types": types}))
    inner = [node.outputs[0] for node in plain.view.nodes if not plain.view.is_output(node.outputs[0])]
    assert inner
    assert list(shared_tensors(plain, narrow)) == inner
