"""Every call on TensorRT fits the bindings of the release, played by stand-ins made of the real bindings' contents."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.backends.native.settings import BuildFailure, strong_of
from qdqtool.backends.native.worker import build, parse
from qdqtool.core.protocols import BuildRequest, InputProfile
from qdqtool.errors import BuildError, MissingPackage, UsageError
from tests.backends import graphs, stand_in_tensorrt
from tests.models import save

WEAK = ("8.6.1", "10.9.0.34", "10.16.1.11")
EXISTING = {
    "8.6.1": "--memPoolSize=workspace:1GiB,dlaSRAM:1 --builderOptimizationLevel=5 --maxAuxStreams=4 --noTF32 "
    "--avgTiming=4 --minTiming=2 --sparsity=enable --heuristic --fp16 --int8 --refit --directIO --versionCompatible "
    "--excludeLeanRuntime --restricted --noBuilderCache --tacticSources=-CUDNN,+CUBLAS --workspace=512 "
    "--hardwareCompatibilityLevel=ampere+ --precisionConstraints=obey --layerPrecisions=conv*:fp16 "
    "--layerOutputTypes=conv0:fp32+fp16 --best --verbose --profilingVerbosity=detailed --useDLACore=0 --allowGPUFallback",
    "11.4.0.106": "--memPoolSize=workspace:1GiB,tacticSharedMem:48KiB --builderOptimizationLevel=5 --maxTactics=10 "
    "--stronglyTyped --stripWeights --monitorMemory --allowWeightStreaming --errorOnTimingCacheMiss "
    "--noCompilationCache --l2LimitForTiling=1024 --hardwareCompatibilityLevel=sameComputeCapability",
}
"""Build flags that a release knows."""


def order(
    folder: Path, flags: str = "", *, facts: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    (folder / "model.onnx").write_bytes(b"a model")
    return {
        "model": str(folder / "model.onnx"),
        "plan": str(folder / "engine.plan"),
        "layers": str(folder / "layers.txt"),
        "targets": ["sm86"],
        "profiles": [],
        "flags": flags.split(),
        "facts": facts or {"quantized": False, "half": False, "dynamic": ()},
    } | more


def said(trt: Any, name: str) -> list[Any]:
    return [words[1:] for words in trt.said if words[0] == name]


def event_of(trt: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(BuildFailure) as caught:
        build(trt, request, lambda event: None)
    return caught.value.event


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_every_release_builds_with_a_profile_and_tells_its_layers(release: str, tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    profile = {"name": "x", "low": [1, 3], "opt": [4, 3], "high": [8, 3], "number": 0, "is_value": False}
    news: list[dict[str, Any]] = []
    built = build(trt, order(tmp_path, profiles=[profile]), news.append)
    assert (tmp_path / "engine.plan").read_bytes() == stand_in_tensorrt.PLAN
    assert (tmp_path / "layers.txt").read_text("utf-8") == stand_in_tensorrt.LAYERS
    assert said(trt, "IOptimizationProfile.set_shape") == [("x", [1, 3], [4, 3], [8, 3])]
    assert said(trt, "IBuilderConfig.profiling_verbosity") == [(trt.ProfilingVerbosity.DETAILED,)]
    assert "a warning of the builder" in built["warnings"]
    assert news[0]["phase"] == "parsing"
    assert (news[-1]["phase"] == "Building engine") == hasattr(trt, "IProgressMonitor")


def test_a_log_that_cannot_be_written_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a logger raises never reaches the caller of the native library: it has to be remembered."""

    def full(handle: int, content: bytes) -> int:
        if handle == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(handle, content)

    monkeypatch.setattr("qdqtool.backends.native.logger.os", SimpleNamespace(write=full))
    told = event_of(stand_in_tensorrt.make("10.9.0.34"), order(tmp_path))
    assert told == {"event": "unwritable", "why": "the log of the build: No space left on device"}
    assert not (tmp_path / "engine.plan").exists()


def test_a_log_is_written_whole_where_the_system_takes_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = bytearray()

    def piecewise(_handle: int, content: bytes) -> int:
        taken.extend(content[:3])
        return len(content[:3])

    monkeypatch.setattr("qdqtool.backends.native.logger.os", SimpleNamespace(write=piecewise))
    build(stand_in_tensorrt.make("10.9.0.34"), order(tmp_path), lambda event: None)
    assert b"[W] a warning of the builder\n" in bytes(taken)


def test_typing_is_a_matter_of_what_the_release_has() -> None:
    found = {release: strong_of(stand_in_tensorrt.make(release)) for release in stand_in_tensorrt.RELEASES}
    assert found == {
        "8.6.1": "never",
        "10.9.0.34": "on request",
        "10.16.1.11": "on request",
        "11.0.0.114": "always",
        "11.4.0.106": "always",
    }


@pytest.mark.parametrize(
    ("release", "half", "flags"),
    [
        pytest.param("8.6.1", False, ["--int8"], id="8.6 with FP32"),
        pytest.param("8.6.1", True, ["--int8", "--fp16"], id="8.6 with FP16"),
        pytest.param("10.9.0.34", True, ["--stronglyTyped"], id="10"),
        pytest.param("11.4.0.106", True, [], id="11"),
    ],
)
def test_a_quantized_model_gets_a_typing_that_keeps_its_qdq(
    release: str, half: bool, flags: list[str], tmp_path: Path
) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    built = build(
        trt, order(tmp_path, facts={"quantized": True, "half": half, "dynamic": ()}), lambda event: None
    )
    assert built["flags"] == flags
    assert any("no flag sets the typing" in text for text in built["warnings"]) == bool(flags)
    (bits,) = said(trt, "Builder.create_network")[0]
    members = trt.NetworkDefinitionCreationFlag.__members__
    assert bool(bits & (1 << members.get("STRONGLY_TYPED", 40))) == ("--stronglyTyped" in flags)
    assert bool(bits & (1 << members.get("EXPLICIT_BATCH", 40))) == ("EXPLICIT_BATCH" in members)
    set_flags = {flag.name for (flag,) in said(trt, "IBuilderConfig.set_flag")}
    assert set_flags == {flag.removeprefix("--").upper() for flag in flags} - {"STRONGLYTYPED"}


@pytest.mark.parametrize("release", EXISTING)
def test_every_build_flag_of_the_release_becomes_a_call_it_has(release: str, tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    build(trt, order(tmp_path, EXISTING[release]), lambda event: None)
    pools = {pool.name: size for pool, size in said(trt, "IBuilderConfig.set_memory_pool_limit")}
    assert pools["WORKSPACE"] in {1 << 30, 512 << 20}
    assert said(trt, "IBuilderConfig.builder_optimization_level") == [(5,)]


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_layers_get_the_devices_that_are_named(release: str, tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    build(trt, order(tmp_path, "--layerDeviceTypes=*:DLA,conv1:GPU"), lambda event: None)
    found = [(layer.name, device.name) for layer, device in said(trt, "IBuilderConfig.set_device_type")]
    assert found == [("conv0", "DLA"), ("conv1", "GPU")]


def test_several_profiles_are_added_in_their_order(tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make("10.9.0.34")
    entries = [
        {"name": name, "low": [1], "opt": [number + 1], "high": [8], "number": number, "is_value": False}
        for number in (1, 0)
        for name in ("x", "y")
    ]
    build(trt, order(tmp_path, profiles=entries), lambda event: None)
    shapes = said(trt, "IOptimizationProfile.set_shape")
    assert [(name, opt) for name, _, opt, _ in shapes] == [("x", [1]), ("y", [1]), ("x", [2]), ("y", [2])]
    assert len(said(trt, "IBuilderConfig.add_optimization_profile")) == 2


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_values_are_given_for_inputs_that_shapes_are_computed_from(release: str, tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    entries = [
        {"name": name, "low": [1], "opt": [2], "high": [8], "number": 0, "is_value": True}
        for name in ("input0", "other")
    ]
    reply = build(trt, order(tmp_path, profiles=entries), lambda event: None)
    assert said(trt, "IOptimizationProfile.set_shape_input") == [("input0", [1], [2], [8])]
    assert reply["values"] == ["input0"]


def test_layer_precisions_reach_the_layers_they_name(tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make("8.6.1")
    flags = (
        "--fp16 --precisionConstraints=obey --layerPrecisions=*:fp16,conv1:fp32 --layerOutputTypes=conv0:fp16"
    )
    build(trt, order(tmp_path, flags), lambda event: None)
    assert said(trt, "ILayer.precision") == [(trt.DataType.HALF,), (trt.DataType.FLOAT,)]
    assert said(trt, "ILayer.set_output_type") == [(0, trt.DataType.HALF)]


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_a_timing_cache_is_read_and_written(release: str, tmp_path: Path) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    path = tmp_path / "timing.cache"
    path.write_bytes(b"old")
    build(trt, order(tmp_path, f"--timingCacheFile={path}"), lambda event: None)
    assert said(trt, "IBuilderConfig.create_timing_cache") == [(b"old",)]
    assert path.read_bytes() == b"a timing cache"


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_a_file_that_is_no_timing_cache_is_refused_and_kept(release: str, tmp_path: Path) -> None:
    path = tmp_path / "timing.cache"
    path.write_bytes(b"junk")
    event = event_of(stand_in_tensorrt.make(release), order(tmp_path, f"--timingCacheFile={path}"))
    assert event["why"] == "the file is not a timing cache of this release"
    assert path.read_bytes() == b"junk"


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_plugins_are_registered_before_a_model_is_parsed(release: str, tmp_path: Path) -> None:
    for work in (
        lambda trt: build(trt, order(tmp_path), lambda event: None),
        lambda trt: parse(trt, order(tmp_path)),
    ):
        trt: Any = stand_in_tensorrt.make(release)
        work(trt)
        words = [words[0] for words in trt.said]
        assert words.index("init_libnvinfer_plugins") < words.index("OnnxParser.parse_from_file")


@pytest.mark.parametrize("release", WEAK)
@pytest.mark.parametrize("kind", ["EntropyCalibration2", "MinMaxCalibration"])
def test_a_calibration_cache_is_handed_to_the_calibrator_it_was_made_by(
    release: str, kind: str, tmp_path: Path
) -> None:
    trt: Any = stand_in_tensorrt.make(release)
    path = tmp_path / "calibration.cache"
    path.write_bytes(f"TRT-8600-{kind}\nx: 3c008912\n".encode())
    build(trt, order(tmp_path, f"--int8 --calib={path}"), lambda event: None)
    assert said(trt, "cache") == [(path.read_bytes(), None)]


@pytest.mark.parametrize(
    ("release", "flags", "words"),
    [
        pytest.param("11.0.0.114", "--int8", "strongly typed", id="--int8 in 11"),
        pytest.param("11.4.0.106", "--layerPrecisions=a:fp16", "strongly typed", id="layer precisions in 11"),
        pytest.param("11.4.0.106", "--calib=x", "to-qdq", id="calibration cache in 11"),
        pytest.param("8.6.1", "--stronglyTyped", "weakly typed networks only", id="strong typing in 8.6"),
        pytest.param("8.6.1", "--bf16", "no such builder flag", id="BF16 in 8.6"),
        pytest.param("8.6.1", "--maxTactics=4", "no such setting", id="maxTactics in 8.6"),
        pytest.param("10.9.0.34", "--heuristic", "no such builder flag", id="heuristic in 10"),
        pytest.param("10.9.0.34", "--workspace=lots", "pool:size", id="a size that is none"),
        pytest.param(
            "10.9.0.34", "--builderOptimizationLevel=high", "whole number", id="a level that is none"
        ),
        pytest.param("10.9.0.34", "--sparsity=full", "disable, enable or force", id="unknown sparsity"),
        pytest.param(
            "10.9.0.34", "--layerDeviceTypes=conv0:TPU", "is not a device: choose", id="unknown device"
        ),
        pytest.param("10.9.0.34", "--layerDeviceTypes=conv0", "name:type", id="layer without a device"),
        pytest.param("10.9.0.34", "--tacticSources=CUDNN", "+NAME", id="tactic source without a sign"),
        pytest.param("10.9.0.34", "--int8 --calib=nowhere.cache", "does not exist", id="missing cache"),
        pytest.param("10.9.0.34", "--streams=2", "trtexec backend", id="an inference flag"),
    ],
)
def test_what_a_release_cannot_do_is_refused_with_words(
    release: str, flags: str, words: str, tmp_path: Path
) -> None:
    event = event_of(stand_in_tensorrt.make(release), order(tmp_path, flags))
    assert event["event"] in {"refused flag", "guard"}
    assert words in " ".join(map(str, event.values()))


def test_a_release_without_node_names_gives_the_number(tmp_path: Path) -> None:
    request = order(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    (old,) = event_of(stand_in_tensorrt.make("8.6.1"), request)["mistakes"]
    (new,) = event_of(stand_in_tensorrt.make("11.4.0.106"), request)["mistakes"]
    assert (old["node"], new["node"]) == ("number 7", "conv1")


def install(
    folder: Path, release: str, monkeypatch: pytest.MonkeyPatch, name: str = "tensorrt", **character: Any
) -> None:
    """Put a package `tensorrt` on the path, for us and for child processes."""
    package = folder / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import sys\nfrom tests.backends import stand_in_tensorrt\n"
        f"sys.modules[__name__] = stand_in_tensorrt.make({release!r}, **{character!r})\n"
    )
    info = folder / f"{name}-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    (info / "top_level.txt").write_text("tensorrt\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def request_for(model: onnx.ModelProto, folder: Path, **options: Any) -> BuildRequest:
    return BuildRequest(model=save(model, folder), folder=folder / "out", **options)


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1.11", "11.4.0.106"])
def test_a_build_in_a_child_process_gives_the_same_artefacts_as_any_backend(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", release, monkeypatch)
    backend = BUILDERS.load("trt")
    assert backend.version() == release
    profile = InputProfile(name="x", low=(1, 3, 8, 8), opt=(1, 3, 8, 8), high=(2, 3, 8, 8))
    result, _ = backend.build(request_for(graphs.conv_relu("N"), tmp_path, profiles=(profile,)))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "build.log",
        "engine.plan",
        "layers.txt",
    ]
    assert (result.builder, result.version) == ("trt", release)
    assert "[W] a warning of the builder" in (tmp_path / "out/build.log").read_text("utf-8")
    assert any("GPU of this machine" in note for note in result.notes)


def test_a_machine_without_a_gpu_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "10.9.0.34", monkeypatch, gpu=False)
    with pytest.raises(MissingPackage) as caught:
        BUILDERS.load("trt").build(request_for(graphs.conv_relu(), tmp_path))
    assert "GPU" in caught.value.what
    assert "doctor" in caught.value.fix


def test_a_node_without_a_kernel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "10: [optimizer.cpp::computeCosts::3728] Error Code 10: Internal Error (Could not find any implementation for node conv.)"
    install(tmp_path / "site", "8.6.1", monkeypatch, fails=message)
    with pytest.raises(BuildError) as caught:
        BUILDERS.load("trt").build(request_for(graphs.quantized_conv(), tmp_path))
    assert caught.value.what.startswith("node 'conv': no kernel")


def test_a_fatal_guard_stops_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "10.9.0.34", monkeypatch)
    with pytest.raises(UsageError, match="INT8 is not enabled"):
        BUILDERS.load("trt").build(request_for(graphs.quantized_conv(), tmp_path, flags=("--fp16",)))


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        pytest.param("--fp16", UsageError, id="guard"),
        pytest.param("--maxTactics=many", UsageError, id="flag"),
        pytest.param("", MissingPackage, id="library"),
    ],
)
def test_a_request_that_is_refused_before_the_build_keeps_the_earlier_engine(
    flags: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "10.9.0.34", monkeypatch)
    request = request_for(graphs.quantized_conv(), tmp_path)
    BUILDERS.load("trt").build(request)
    if error is MissingPackage:
        (tmp_path / "site/tensorrt/__init__.py").write_text("raise ImportError('libnvinfer.so.10')")
    before = {path.name: path.read_bytes() for path in request.folder.iterdir()}
    with pytest.raises(error):
        BUILDERS.load("trt").build(replace(request, flags=tuple(flags.split())))
    assert {path.name: path.read_bytes() for path in request.folder.iterdir()} == before


@pytest.mark.parametrize("name", ["tensorrt_cu12", "tensorrt_cu13"])
def test_a_package_named_by_its_cuda_release_is_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "10.9.0.34", monkeypatch, name)
    assert BUILDERS.load("trt").version() == "10.9.0.34"
    (tmp_path / f"site/{name}-10.9.0.34.dist-info").rename(tmp_path / f"site/{name}-8.5.0.dist-info")
    metadata = tmp_path / f"site/{name}-8.5.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("10.9.0.34", "8.5.0"))
    with pytest.raises(MissingPackage) as caught:
        BUILDERS.load("trt").version()
    assert name.replace("_", "-") in caught.value.fix


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingPackage) as caught:
        BUILDERS.load("trt").version()
    assert caught.value.fix == "pip install 'qdqtool[trt]'"
