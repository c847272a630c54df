"""Times are measured in turns, summed up honestly and written as trtexec writes them."""

from __future__ import annotations

import ctypes
import json
import lzma
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.backends import gpu
from qdqtool.backends.flags import parse_flags
from qdqtool.backends.plan import read_plan
from qdqtool.backends.timing import engine_times
from qdqtool.backends.timing.engine_times import EngineClock
from qdqtool.backends.timing.measure import TimeRequest, Timing, measure
from qdqtool.backends.timing.series import Effort, Series, judge, spell_file, summarize, take_turns
from qdqtool.backends.timing.trtexec_times import compute_times, layer_times, raw_name, spell_times
from qdqtool.errors import BuildError, InputFileError, MissingPackage, SystemFault, UsageError
from tests.backends import graphs, stand_in_tensorrt, stand_in_trtexec
from tests.models import save
from tests.shared import shared

FEW = Effort(rounds=6, iterations=4, warm_up_ms=0.0)
times = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=20).map(tuple)


def series(name: str, rounds: Sequence[tuple[float, ...]]) -> Series:
    return Series(name=name, clock="a clock", rounds=tuple(rounds))


# --- what times come down to ---


def test_a_summary_says_what_a_person_would_compute() -> None:
    found = summarize(series("a", [(1.0, 2.0), (3.0, 4.0)]))
    assert (found.count, found.rounds, found.median, found.mean) == (4, 2, 2.5, 2.5)
    assert (found.low, found.p90, found.p99, found.high) == (1.0, 4.0, 4.0, 4.0)
    assert found.unstable


def test_equal_times_have_no_spread() -> None:
    found = summarize(series("a", [(2.0,) * 50]))
    assert (found.spread, found.unstable, found.p95) == (0.0, False, 2.0)


@given(st.lists(times, min_size=1, max_size=5))
def test_percentiles_are_times_that_were_measured_and_rise(rounds: list[tuple[float, ...]]) -> None:
    found = summarize(series("a", rounds))
    measured = {time for each in rounds for time in each}
    assert {found.low, found.p90, found.p95, found.p99, found.high} <= measured
    assert found.low <= found.p90 <= found.p95 <= found.p99 <= found.high


def test_a_series_without_times_is_refused() -> None:
    with pytest.raises(InputFileError, match="round of measurements has no times"):
        series("a", [(1.0,), ()])


# --- who is faster ---


def noisy(mean: float, seed: int, rounds: int = 10) -> Series:
    random = np.random.default_rng(seed)
    return series(f"{mean}", [tuple(mean * random.uniform(0.98, 1.02, 50)) for _ in range(rounds)])


def test_twice_as_fast_is_found_with_an_interval_around_two() -> None:
    verdict = judge(noisy(2.0, 0), noisy(1.0, 1))
    assert verdict.answer == "faster"
    assert verdict.low is not None
    assert verdict.high is not None
    assert 1.98 < verdict.low < verdict.speedup < verdict.high < 2.03
    assert "is faster than 2.0: speed-up 2.0" in str(verdict)


def test_slower_is_said_too() -> None:
    assert judge(noisy(1.0, 0), noisy(1.5, 1)).answer == "slower"


def test_equal_speed_is_called_different_about_once_in_twenty_times() -> None:
    claims = [judge(noisy(1.0, seed), noisy(1.0, seed + 1000)).answer for seed in range(400)]
    assert 0.02 < 1 - claims.count("no difference shown") / len(claims) < 0.08


def test_no_difference_is_said_in_words() -> None:
    verdict = judge(noisy(1.0, 2), noisy(1.0, 3))
    assert str(verdict).startswith("no difference shown between")


def test_drift_that_hits_both_does_not_matter() -> None:
    drift = np.linspace(1.0, 3.0, 10)
    reference = series("a", [tuple(factor * np.full(9, 1.10)) for factor in drift])
    candidate = series("b", [tuple(factor * np.full(9, 1.00)) for factor in drift])
    verdict = judge(reference, candidate)
    assert verdict.answer == "faster"
    assert verdict.speedup == pytest.approx(1.1)


def test_few_rounds_give_no_interval_and_no_claim() -> None:
    verdict = judge(noisy(2.0, 0, rounds=4), noisy(1.0, 1, rounds=4))
    assert (verdict.low, verdict.high, verdict.answer) == (None, None, "no difference shown")
    assert "too few rounds" in str(verdict)


@given(st.integers(5, 12), st.floats(0.2, 5.0))
def test_the_two_ways_round_are_reciprocal(rounds: int, factor: float) -> None:
    a, b = noisy(1.0, 3, rounds), noisy(factor, 4, rounds)
    assert judge(a, b).speedup == pytest.approx(1 / judge(b, a).speedup)


def test_series_of_different_sessions_are_not_compared() -> None:
    with pytest.raises(UsageError, match="different numbers of rounds"):
        judge(noisy(1.0, 0, rounds=5), noisy(1.0, 0, rounds=6))


class Recorder:
    """A clock that keeps who had a turn."""

    measures = "turns"

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name = name
        self._turns = turns

    def warm_up(self, milliseconds: float) -> None:
        self._turns.append(f"warm {self.name}")

    def measure(self, iterations: int) -> tuple[float, ...]:
        self._turns.append(self.name)
        return (1.0,) * iterations


def test_candidates_take_turns_there_and_back() -> None:
    turns: list[str] = []
    seen: list[tuple[int, int]] = []
    found = take_turns(
        [Recorder("a", turns), Recorder("b", turns)],
        Effort(rounds=3, iterations=2),
        lambda done, total: seen.append((done, total)),
    )
    assert turns == ["warm a", "warm b", "a", "b", "b", "a", "a", "b"]
    assert seen[-1] == (6, 6)
    assert [each.name for each in found] == ["a", "b"]
    assert found[0].rounds == ((1.0, 1.0),) * 3


# --- trtexec's files ---


@given(times)
def test_times_survive_trtexecs_format(values: tuple[float, ...]) -> None:
    rows = json.loads(spell_times(values))
    assert tuple(row["computeMs"] for row in rows) == values
    assert all(row["endComputeMs"] >= row["startComputeMs"] for row in rows)


def test_a_profile_of_trtexec_is_read_with_and_without_medians(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    rows = [
        {"count": 3},
        {"name": "conv", "timeMs": 9.0, "averageMs": 3.0, "medianMs": 2.0, "percentage": 75.0},
        {"name": "relu", "timeMs": 3.0, "averageMs": 1.0, "percentage": 25.0},
    ]
    path.write_text(json.dumps(rows))
    found = layer_times(path)
    assert [(layer.name, layer.average, layer.median) for layer in found] == [
        ("conv", 3.0, 2.0),
        ("relu", 1.0, 1.0),
    ]


@pytest.mark.shared
def test_real_times_and_profiles_are_read(tmp_path: Path) -> None:
    folder = shared("corpus/profile")
    stem = "NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__examples__pytorch__resnet__A100__qat__resnet-qat"
    packed = folder / f"{stem}.onnx.engine.timing.json.xz"
    (tmp_path / "times.json").write_bytes(lzma.decompress(packed.read_bytes()))
    found = compute_times(tmp_path / "times.json")
    assert len(found) > 100
    assert 0.1 < summarize(series("resnet", [found])).median < 10
    assert len(layer_times(folder / f"{stem}.onnx.engine.profile.json")) > 10


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"name": 1}]', '[{"computeMs": "fast"}]', "[" * 10_000])
def test_files_of_others_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    for read in (compute_times, layer_times):
        with pytest.raises(InputFileError):
            read(path)


# --- models on onnxruntime ---


@given(st.text(min_size=1))
def test_a_name_of_a_candidate_is_one_part_of_a_path_on_every_system(name: str) -> None:
    assert not set(spell_file(name)) & set('/\\:*?"<>|')


def test_models_with_one_file_name_keep_their_own_times(tmp_path: Path) -> None:
    left, right = (save(graphs.conv_relu("N"), folder(tmp_path / name), "model.onnx") for name in "ab")
    found = measure(TimeRequest(candidates=(left, right, right), effort=FEW, save=tmp_path / "s"))
    names = [f"{name} on cpu" for name in ("a/model.onnx", "b/model.onnx (1)", "b/model.onnx (2)")]
    assert [each.name for each in found.summaries] == names
    assert len([*(tmp_path / "s").iterdir()]) == 3


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_two_models_are_timed_on_the_cpu(tmp_path: Path) -> None:
    left, right = (save(graphs.conv_relu("N"), tmp_path, f"{name}.onnx") for name in "ab")
    found = measure(
        TimeRequest(candidates=(left, right), effort=FEW, shapes={"x": (2, 3, 8, 8)}, save=tmp_path / "s")
    )
    assert [each.name for each in found.summaries] == ["a.onnx on cpu", "b.onnx on cpu"]
    assert [each.count for each in found.summaries] == [24, 24]
    assert len(found.verdicts) == 1
    assert len(compute_times(tmp_path / "s/a.onnx on cpu.times.json")) == 24


@pytest.mark.parametrize("candidate", ["model", "engine"])
@pytest.mark.parametrize("content", [b"", b"junk", b"PK\3\4junk", b"an array", None])
def test_inputs_that_are_no_npz_file_are_refused(
    candidate: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.npz"
    if content is not None:
        path.write_bytes(content)
    if content == b"an array":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    install(tmp_path, monkeypatch)
    subject = save(graphs.conv_relu(), tmp_path) if candidate == "model" else plan(tmp_path, "a.plan")
    with pytest.raises(InputFileError, match=r"cannot be read as \.npz"):
        measure(TimeRequest(candidates=(subject,), effort=FEW, inputs=path, trust=True))


def test_arrays_for_an_input_that_no_model_has_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", imput=np.zeros((1, 3, 8, 8), np.float32))
    model = save(graphs.conv_relu(), tmp_path)
    with pytest.raises(UsageError, match="no input 'imput'"):
        measure(TimeRequest(candidates=(model,), effort=FEW, inputs=tmp_path / "in.npz"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        pytest.param({"device": "cuda"}, MissingPackage, "CUDAExecutionProvider", id="a provider not here"),
        pytest.param({"device": "cpuu"}, UsageError, "unknown device", id="a provider nobody has"),
        pytest.param({"device": "cuda:1,fast"}, UsageError, "cannot read", id="an option without a value"),
        pytest.param({"via": "trtexec"}, UsageError, "times only engines", id="trtexec for a model"),
        pytest.param({"profile": True}, UsageError, "apply to engines", id="a profile of a model"),
        pytest.param(
            {"shapes": {"y": (1, 3, 8, 8)}}, UsageError, r"no input 'y' \(it has 'x'", id="no input"
        ),
        pytest.param({"shapes": {"x": ()}}, InputFileError, "needs 1x3x8x8", id="a scalar"),
    ],
)
def test_wishes_that_do_not_go_with_a_model(
    options: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        measure(TimeRequest(candidates=(save(graphs.conv_relu(), tmp_path),), effort=FEW, **options))


# --- engines ---


def plan(folder: Path, name: str, release: tuple[int, ...] = (8, 6, 1, 6), tag: bytes = b"ftrt") -> Path:
    path = folder / name
    path.write_bytes(tag + bytes(20) + bytes(release) + b"the rest")
    return path


def test_an_engine_says_who_built_it(tmp_path: Path) -> None:
    found = read_plan(plan(tmp_path, "a.plan", (10, 9, 0, 34)))
    assert (found.maker, found.release) == ("TensorRT", (10, 9, 0, 34))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "not a TensorRT engine", id="empty"),
        pytest.param(b"hello", "not a TensorRT engine", id="text"),
        pytest.param(b"ftrt" + bytes(10), "not a TensorRT engine", id="cut in the header"),
        pytest.param(
            b"vtrt" + bytes(12) + (999).to_bytes(8, "little") + bytes(40), "damaged", id="cut later"
        ),
    ],
)
def test_a_file_that_is_no_engine_is_called_that(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "engine.plan"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=words):
        read_plan(path)


def test_an_engine_is_not_loaded_without_trust(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains code") as caught:
        measure(TimeRequest(candidates=(plan(tmp_path, "a.plan"),), effort=FEW))
    assert "--trust" in caught.value.fix


def test_models_and_engines_are_not_mixed(tmp_path: Path) -> None:
    candidates = (plan(tmp_path, "a.plan"), save(graphs.conv_relu(), tmp_path))
    with pytest.raises(UsageError, match="cannot be timed together"):
        measure(TimeRequest(candidates=candidates, effort=FEW, trust=True))


posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")


def with_trtexec(release: int, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Timing:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(folder, release)))
    monkeypatch.setenv("STAND_IN_SAID", str(folder / "said"))
    candidates = (plan(folder, "slow.plan"), plan(folder, "quick.plan"))
    return measure(TimeRequest(candidates=candidates, effort=FEW, trust=True, **options))


@posix
def test_trtexec_times_two_engines_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_trtexec(8601, tmp_path, monkeypatch, profile=True, save=tmp_path / "s")
    (verdict,) = found.verdicts
    assert verdict.answer == "faster"
    assert verdict.speedup == pytest.approx(2.015 / 1.015)
    assert "trtexec 8.6.1" in found.summaries[0].clock
    assert "&&&& RUNNING TensorRT.trtexec" in (tmp_path / "s/slow.plan.log").read_text()
    assert [layer.name for layer in found.profiles[1].layers] == ["conv", "relu"]


@posix
def test_trtexec_is_asked_for_what_later_releases_do_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_trtexec(8601, tmp_path, monkeypatch, flags=parse_flags(["--streams=2"]), shapes={"x": (2, 3)})
    words = (tmp_path / "said").read_text().splitlines()
    assert {"--useCudaGraph", "--noDataTransfers", "--useSpinWait", "--streams=2", "--shapes=x:2x3"} <= set(
        words
    )
    assert {"--iterations=4", "--duration=0", "--warmUp=0"} <= set(words)


@posix
def test_an_engine_of_another_release_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputFileError, match=r"built by TensorRT 8\.6\.1\.6; this trtexec is 10\.16\.0"):
        with_trtexec(101600, tmp_path, monkeypatch)
    assert with_trtexec(101600, tmp_path, monkeypatch, any_release=True).verdicts
    # Without it, trtexec refuses the code for the host that a version compatible engine holds.
    assert "--versionCompatible" in (tmp_path / "said").read_text().splitlines()


@posix
@pytest.mark.parametrize("flag", ["--iterations=500", "--duration=3", "--warmUp=0", "--loadEngine=e"])
def test_a_flag_that_the_measurement_sets_is_refused(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"{flag} is set by the measurement"):
        with_trtexec(8601, tmp_path, monkeypatch, flags=parse_flags([flag]))


@posix
def test_what_trtexec_complains_of_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "no-inference")
    with pytest.raises(BuildError, match=r"code 1.*Engine deserialization failed"):
        with_trtexec(8601, tmp_path, monkeypatch)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> stand_in_tensorrt.Driver:
    standing_in = stand_in_tensorrt.Driver()
    monkeypatch.setattr(engine_times, "driver", lambda: standing_in)
    return standing_in


def clock(trt: Any, shapes: dict[str, Any] | None = None, feeds: dict[str, Any] | None = None) -> EngineClock:
    return EngineClock(trt, trt.ILogger(), stand_in_tensorrt.PLAN, shapes or {}, feeds or {})


@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_every_release_runs_an_engine_between_two_events(
    release: str, driver: stand_in_tensorrt.Driver
) -> None:
    trt = stand_in_tensorrt.make(release)
    made = clock(trt)
    made.warm_up(0.0)
    assert made.measure(3) == (1.5, 1.5, 1.5)
    assert driver.said.count("cuEventRecord") == 6
    assert ("IExecutionContext.set_input_shape", "x", (4, 3)) in trt.said
    assert made.profile(2) == [("conv", [0.75, 0.75]), ("relu", [0.25, 0.25])]


def test_inputs_reach_the_gpu_and_outputs_come_back(driver: stand_in_tensorrt.Driver) -> None:
    feed = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = clock(stand_in_tensorrt.make("10.9.0.34"), feeds={"x": feed})
    assert bytes(driver.memory[4096]) == feed.tobytes()
    driver.memory[8192][:] = np.full((4, 5), 2, np.float16).tobytes()
    assert np.array_equal(made.outputs()["y"], np.full((4, 5), 2, np.float16))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"shapes": {"z": (1,)}}, "no input z", id="an input nobody has"),
        pytest.param({"shapes": {"x": (9, 3)}}, "does not accept 9x3", id="a shape outside the profile"),
        pytest.param({"feeds": {"x": np.zeros((4, 3))}}, "float64", id="another type"),
    ],
)
@pytest.mark.usefixtures("driver")
def test_inputs_that_do_not_fit_an_engine_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        clock(stand_in_tensorrt.make("11.4.0.106"), **arguments)


@pytest.mark.parametrize(
    "arguments", [{"shapes": {"x": (2, 3)}}, {"feeds": {"x": np.ones((2, 3), np.float32)}}]
)
@pytest.mark.usefixtures("driver")
def test_a_static_engine_takes_its_own_shape_only(arguments: dict[str, Any]) -> None:
    trt = stand_in_tensorrt.make("10.9.0.34")
    trt.ICudaEngine.plays["get_tensor_shape"] = lambda self, name: (1, 3) if name == "x" else (1, 5)
    with pytest.raises(UsageError, match="does not accept 2x3 for 'x'"):
        clock(trt, **arguments)
    clock(trt, {"x": (1, 3)})


@pytest.mark.parametrize("feeds", [{}, {"x": np.array([8, 3], np.int32)}])
@pytest.mark.parametrize("release", stand_in_tensorrt.RELEASES)
def test_inputs_and_outputs_on_the_host_stay_there(
    release: str, feeds: dict[str, Any], driver: stand_in_tensorrt.Driver
) -> None:
    """Inputs from which shapes are computed need an address of the host, and values of the profile."""
    trt = stand_in_tensorrt.make(release)
    engine = trt.ICudaEngine.plays
    engine["get_tensor_location"] = lambda self, name: trt.TensorLocation.HOST
    engine["get_tensor_dtype"] = lambda self, name: trt.DataType.INT32
    engine["get_tensor_shape"] = lambda self, name: (2,)
    values = "get_profile_shape_input" if release == "8.6.1" else "get_tensor_profile_values"
    engine[values] = lambda self, index, name: [[1, 3], [4, 3], [8, 3]]
    trt.IExecutionContext.plays["get_tensor_shape"] = lambda self, name: (2,)
    made = clock(trt, feeds=feeds)
    bound = [words[1:] for words in trt.said if words[0] == "IExecutionContext.set_tensor_address"]
    memory = {name: (ctypes.c_int32 * 2).from_address(address) for name, address in bound}
    assert list(memory["x"]) == ([8, 3] if feeds else [4, 3])
    memory["y"][:] = [5, 6]
    assert made.outputs()["y"].tolist() == [5, 6]
    assert "cuMemAlloc_v2" not in driver.said


def test_tensors_in_vectors_of_channels_get_whole_vectors(driver: stand_in_tensorrt.Driver) -> None:
    """An engine built with --inputIOFormats=fp16:chw32 reads more than the shape says, in another order."""
    trt = stand_in_tensorrt.make("10.9.0.34")
    trt.ICudaEngine.plays |= {
        "get_tensor_format": lambda self, name: SimpleNamespace(name="CHW32" if name == "x" else "LINEAR"),
        "get_tensor_vectorized_dim": lambda self, name: 1 if name == "x" else -1,
        "get_tensor_components_per_element": lambda self, name: 32,
    }
    trt.IExecutionContext.plays["get_tensor_shape"] = lambda self, name: (4, 3) if name == "x" else (4, 5)
    made = clock(trt)
    assert [len(memory) for memory in driver.memory.values()] == [4 * 32 * 4, 4 * 5 * 2]
    with pytest.raises(UsageError, match="'x' is stored as CHW32"):
        made.infer({"x": np.zeros((4, 3), np.float32)})


@pytest.mark.usefixtures("driver")
def test_plugins_are_registered_before_an_engine_is_loaded() -> None:
    trt: Any = stand_in_tensorrt.make("10.9.0.34")
    clock(trt)
    words = [words[0] for words in trt.said]
    assert words.index("init_libnvinfer_plugins") < words.index("Runtime.deserialize_cuda_engine")


@pytest.mark.usefixtures("driver")
def test_a_gpu_without_memory_for_an_engine_is_named() -> None:
    trt: Any = stand_in_tensorrt.make("10.9.0.34")
    trt.ICudaEngine.plays["create_execution_context"] = lambda self: None
    with pytest.raises(BuildError, match="memory"):
        clock(trt)


@pytest.mark.usefixtures("driver")
def test_an_engine_that_does_not_load_is_an_error() -> None:
    trt = stand_in_tensorrt.make("10.9.0.34")
    with pytest.raises(BuildError, match="cannot be loaded"):
        EngineClock(trt, trt.ILogger(), b"garbage", {}, {})


def test_a_failing_cuda_call_is_named(driver: stand_in_tensorrt.Driver) -> None:
    driver.fails = "cuMemAlloc_v2"
    with pytest.raises(BuildError, match="cuMemAlloc_v2 failed with code 700"):
        clock(stand_in_tensorrt.make("10.9.0.34"))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, life: str = "") -> None:
    """Put a `tensorrt` with a GPU on the path of child processes."""
    package = folder / "site/tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import sys\nfrom qdqtool.backends.timing import engine_times\nfrom tests.backends import stand_in_tensorrt\n"
        f"engine_times.driver = stand_in_tensorrt.Driver\n{life}\n"
        "sys.modules[__name__] = stand_in_tensorrt.make('8.6.1')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder / "site"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("QDQTOOL_TRTEXEC", raising=False)


def test_engines_are_timed_by_a_child_that_loads_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    candidates = (plan(tmp_path, "a.plan"), plan(tmp_path, "b.plan"))
    found = measure(
        TimeRequest(
            candidates=candidates, effort=FEW, trust=True, profile=True, save=tmp_path / "s", via="trt"
        )
    )
    assert [each.median for each in found.summaries] == [1.5, 1.5]
    assert found.verdicts[0].answer == "no difference shown"
    assert [(layer.name, layer.median) for layer in found.profiles[0].layers] == [
        ("conv", 0.75),
        ("relu", 0.25),
    ]
    assert "b.plan.y.output.4.5.Half.raw" in {path.name for path in (tmp_path / "s").iterdir()}


@pytest.mark.skipif(sys.platform != "linux", reason="has another limit for names of files")
def test_a_fault_of_the_system_in_the_child_is_no_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    request = TimeRequest(candidates=(plan(tmp_path, "a" * 240),), effort=FEW, trust=True, via="trt")
    with pytest.raises(SystemFault):
        measure(replace(request, save=tmp_path / "s"))


@pytest.mark.parametrize(
    ("life", "words"),
    [
        pytest.param("import os; os.kill(os.getpid(), 11)", "code -11", id="a hostile engine that crashes"),
        pytest.param(
            "raise ImportError('no libnvinfer')", "no libnvinfer", id="a library that does not load"
        ),
    ],
)
def test_whatever_an_engine_does_only_the_child_suffers(
    life: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, life=life)
    with pytest.raises((BuildError, MissingPackage), match=words):
        measure(TimeRequest(candidates=(plan(tmp_path, "a.plan"),), effort=FEW, trust=True))


def test_raw_files_are_named_as_trtexec_names_them() -> None:
    array = np.zeros((1, 3, 2), np.float32)
    assert raw_name("x", "input", array) == "x.input.1.3.2.Float.raw"
    assert raw_name("/a/b:0", "output", array) == "_a_b_0.output.1.3.2.Float.raw"


def test_gpus_are_read_from_the_driver() -> None:
    (found,) = gpu.gpus(stand_in_tensorrt.Driver())
    assert (found.name, found.sm, found.memory_mib, found.cuda) == ("Stand-in GPU", 86, 8192, (12, 4))
