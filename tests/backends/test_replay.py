"""A recorded build plays back as if it had been done here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.backends import BUILDERS
from qdqtool.backends.building.procedure import build_with_retries
from qdqtool.core.kinds import BUILD
from qdqtool.core.protocols import BuildRequest, BuildResult
from qdqtool.errors import InputFileError, UsageError
from tests.backends import graphs
from tests.models import save

BANNER = "&&&& RUNNING TensorRT.trtexec [TensorRT v8502] # trtexec --onnx=m.onnx\n"


def replay(recording: Path, folder: Path) -> BuildResult:
    request = BuildRequest(
        model=save(graphs.conv_relu(), folder), folder=folder / "out", flags=(f"--from={recording}",)
    )
    result, cost = BUILDERS.load("replay").build(request)
    assert cost.cached
    return result


def record(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_a_recording_of_ours_keeps_its_builder_and_its_files(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", engine__plan="plan", build__log="log", layers__txt="Layers:\n")
    recorded = BuildResult(
        builder="rtx",
        version="1.7.1.116",
        targets=("sm86",),
        engine="engine.plan",
        log="build.log",
        layers="layers.txt",
        engine_bytes=4,
    )
    BUILD.write(recording / "build.json", recorded)
    result = replay(recording, tmp_path)
    assert (result.builder, result.version, result.targets) == ("rtx", "1.7.1.116", ("sm86",))
    assert result.notes == ("played back from a recorded build by rtx 1.7.1.116",)
    assert (tmp_path / "out/layers.txt").read_text() == "Layers:\n"


def test_the_model_that_was_built_without_some_qdq_is_played_back_too(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", engine__plan="plan", build__log="log", model__retried__onnx="model")
    recorded = BuildResult(
        builder="trt",
        version="8.6.1",
        targets=("sm86",),
        engine="engine.plan",
        log="build.log",
        layers=None,
        engine_bytes=4,
        model="model.retried.onnx",
    )
    BUILD.write(recording / "build.json", recorded)
    request = BuildRequest(
        model=save(graphs.conv_relu(), tmp_path), folder=tmp_path / "out", flags=(f"--from={recording}",)
    )
    result, _ = build_with_retries(BUILDERS.load("replay"), request)
    assert (tmp_path / "out" / result.model).read_text() == "model"


def test_a_foreign_log_and_its_layer_dump_are_found(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", resnet__log=BANNER, resnet__graph__json="{}", resnet__engine="plan")
    result = replay(recording, tmp_path)
    assert (result.builder, result.version, result.engine_bytes) == ("replay", "8.5.2", 4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "build.log",
        "engine.plan",
        "layers.txt",
    ]


def test_a_replay_takes_the_files_of_an_earlier_build_with_it(tmp_path: Path) -> None:
    record(tmp_path / "out", engine__plan="old", layers__txt="Layers:\n", build__log="old")
    replay(record(tmp_path / "r", resnet__log=BANNER), tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["build.log"]


def test_a_log_alone_is_enough(tmp_path: Path) -> None:
    result = replay(record(tmp_path / "r", old__log="a log without a banner\n"), tmp_path)
    assert (result.version, result.engine, result.layers, result.engine_bytes) == ("unknown", "", None, 0)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param({}, "holds no log", id="nothing"),
        pytest.param({"a__log": "", "b__log": ""}, "more than one log: a.log, b.log", id="two logs"),
        pytest.param(
            {"a__log": "", "build__json": "{}"}, "not a qdqtool artefact", id="a build.json of others"
        ),
    ],
)
def test_a_folder_that_is_no_recording_is_refused(files: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as caught:
        replay(record(tmp_path / "r", **files), tmp_path)
    assert words in caught.value.what
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "missing.plan"])
def test_a_recording_cannot_name_files_outside_its_folder(name: str, tmp_path: Path) -> None:
    recording = record(tmp_path / "r", build__log="log")
    (tmp_path / "secret").write_text("secret")
    data = {
        "builder": "rtx",
        "version": "1",
        "targets": [],
        "engine": name,
        "log": "build.log",
        "layers": None,
        "engine_bytes": 1,
    }
    (recording / "build.json").write_text(json.dumps({"kind": "build", "schema": 1, "data": data}))
    with pytest.raises(InputFileError, match="not in the folder"):
        replay(recording, tmp_path)


@pytest.mark.parametrize("flags", [(), ("--from=",), ("--fp16",), ("--from=a", "--from=b")])
def test_a_replay_without_a_recording_is_a_mistake(flags: tuple[str, ...], tmp_path: Path) -> None:
    request = BuildRequest(model=save(graphs.conv_relu(), tmp_path), folder=tmp_path / "out", flags=flags)
    with pytest.raises(UsageError, match="needs the folder"):
        BUILDERS.load("replay").build(request)
