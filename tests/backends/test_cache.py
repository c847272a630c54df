"""A finished build is found again for the same work, and for nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.backends.building import procedure
from qdqtool.backends.gpu import Gpu
from qdqtool.core.protocols import BuildRequest, BuildResult, InputProfile
from qdqtool.errors import InputFileError
from qdqtool.pipeline.sweep.elsewhere import refuse_own
from tests.backends import graphs
from tests.models import save

RESULT = BuildResult(
    builder="rtx",
    version="1.7.1",
    targets=("sm86",),
    engine="engine.plan",
    log="build.log",
    layers="layers.txt",
    engine_bytes=4,
)


def request_for(folder: Path, **options: Any) -> BuildRequest:
    return BuildRequest(model=save(graphs.conv_relu(), folder), folder=folder / "out", **options)


def built(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("engine.plan", "build.log", "layers.txt"):
        (folder / name).write_text(name)
    return folder


def with_external_data(folder: Path, location: str, fill: float) -> Path:
    model = graphs.conv_relu()
    for tensor in model.graph.initializer:
        if tensor.name == "conv_w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full((4, 3, 3, 3), fill, np.float32), "conv_w"))
    onnx.save_model(
        model, folder / "model.onnx", save_as_external_data=True, location=location, size_threshold=0
    )
    return folder / "model.onnx"


def test_the_name_and_place_of_a_model_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = request_for(tmp_path)
    second = BuildRequest(
        model=save(graphs.conv_relu(), tmp_path / "elsewhere", "other.onnx"), folder=tmp_path
    )
    assert procedure.digest(first, "rtx", "1") == procedure.digest(second, "rtx", "1")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"targets": ("sm89",)}, id="targets"),
        pytest.param({"flags": ("--noTF32",)}, id="flags"),
        pytest.param({"profiles": (InputProfile(name="x", low=(1,), opt=(1,), high=(2,)),)}, id="profiles"),
    ],
)
def test_whatever_the_engine_depends_on_changes_the_digest(change: dict[str, Any], tmp_path: Path) -> None:
    request = request_for(tmp_path)
    assert procedure.digest(request, "rtx", "1") != procedure.digest(replace(request, **change), "rtx", "1")
    assert procedure.digest(request, "rtx", "1") != procedure.digest(request, "rtx", "2")
    assert procedure.digest(request, "rtx", "1") != procedure.digest(request, "trt", "1")


@pytest.mark.parametrize("location", ["weights.bin", "w" * 200 + ".bin"], ids=["short name", "long name"])
def test_external_weights_count(location: str, tmp_path: Path) -> None:
    model = with_external_data(tmp_path, location, 1.0)
    assert procedure.external_files(model) == (tmp_path / location,)
    request = BuildRequest(model=model, folder=tmp_path)
    before = procedure.digest(request, "rtx", "1")
    content = bytearray((tmp_path / location).read_bytes())
    content[0] ^= 1
    (tmp_path / location).write_bytes(content)
    assert procedure.digest(request, "rtx", "1") != before


def test_a_model_without_external_weights_names_none(tmp_path: Path) -> None:
    assert procedure.external_files(save(graphs.conv_relu(), tmp_path)) == ()
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert procedure.external_files(tmp_path / "empty.onnx") == ()


def test_what_is_kept_comes_back_whole(tmp_path: Path) -> None:
    procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)
    assert procedure.fetch(tmp_path / "cache", "key", tmp_path / "b") == RESULT
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"engine.plan", "build.log", "layers.txt"}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("engine.plan", "another"),
        ("digests.json", "{}"),
        ("digests.json", "[1]"),
        ("digests.json", "not JSON"),
        pytest.param("digests.json", "[" * 100_000, id="digests.json-very deep JSON"),
        ("result.json", "{}"),
    ],
)
def test_an_entry_that_was_touched_counts_as_absent(name: str, content: str, tmp_path: Path) -> None:
    procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)
    (tmp_path / "cache/key" / name).write_text(content)
    assert procedure.fetch(tmp_path / "cache", "key", tmp_path / "b") is None
    procedure.keep(tmp_path / "cache", "key", tmp_path / "a", RESULT)
    assert procedure.fetch(tmp_path / "cache", "key", tmp_path / "b") == RESULT


def test_an_entry_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)
    path = tmp_path / "cache/key/result.json"
    path.write_text(path.read_text().replace('"engine.plan"', '"../../secret"'))
    assert procedure.fetch(tmp_path / "cache", "key", tmp_path / "b") is None


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputFileError, match="build cache"):
        procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)


def test_drafts_of_a_killed_process_are_swept_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "cache/.qdqtool-draft-killed"
    left.mkdir(parents=True)
    (left / ".lock").touch()
    (left / "engine.plan").write_text("half of it")
    procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


def test_of_two_that_finish_the_same_build_the_first_one_stays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = built(tmp_path / name)
        (folder / "build.log").write_text(name)
        procedure.keep(tmp_path / "cache", "key", folder, RESULT)
    assert (tmp_path / "cache/key/build.log").read_text() == "a"


def test_an_entry_that_appears_at_the_last_moment_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        if target == tmp_path / "cache/key" and not target.exists():
            shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    procedure.keep(tmp_path / "cache", "key", built(tmp_path / "a"), RESULT)
    assert procedure.fetch(tmp_path / "cache", "key", tmp_path / "b") == RESULT
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]


@pytest.mark.parametrize("portable", [True, False])
def test_an_engine_for_the_gpu_at_hand_is_not_found_again_on_another(
    portable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine for named targets is; without a cache of its own it comes from that of the environment."""
    made: list[str] = []

    def make(drafts: Path) -> procedure.FinishedBuild:
        made.append(str(drafts))
        built(drafts)
        return procedure.FinishedBuild(result=RESULT)

    cached = []
    for name in ("A10", "A10", "T4"):
        gpu = Gpu(name=name, sm=86, memory_mib=1, cuda=(13, 0))
        monkeypatch.setattr(procedure, "gpus", lambda gpu=gpu: (gpu,))
        request = request_for(tmp_path, cache=tmp_path / "cache")
        _, cost = procedure.go_through(request, builder="b", release="1", portable=portable, make=make)
        cached.append(cost.cached)
    assert cached == [False, True, portable]

    monkeypatch.setenv(procedure.CACHE_VARIABLE, str(tmp_path / "cache"))
    _, cost = procedure.go_through(
        replace(request, cache=None), builder="b", release="1", portable=portable, make=make
    )
    assert cost.cached == portable


def test_a_library_that_changed_is_another_build(tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"1")
    request = request_for(tmp_path, flags=(f"--staticPlugins={library}",))
    before = procedure.digest(request, "rtx", "1")
    library.write_bytes(b"2")
    assert procedure.digest(request, "rtx", "1") != before


def test_a_build_from_the_cache_takes_the_layers_of_an_earlier_build_with_it(tmp_path: Path) -> None:
    def make(drafts: Path) -> procedure.FinishedBuild:
        built(drafts)
        return procedure.FinishedBuild(result=replace(RESULT, layers=None))

    request = request_for(tmp_path, cache=tmp_path / "cache")
    for _ in ("built", "cached"):
        built(request.folder)
        procedure.go_through(request, builder="b", release="1", portable=True, make=make)
        assert not (request.folder / "layers.txt").exists()


def test_a_long_flag_is_no_file_name(tmp_path: Path) -> None:
    layers = ",".join(f"layer{number}:fp16" for number in range(100))
    flags = (f"--layerPrecisions={layers}",)
    procedure.digest(request_for(tmp_path, flags=flags), "trtexec", "8.6.1")
    refuse_own(flags)
