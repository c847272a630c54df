"""The contract of the calibrator classes, checked with stand-ins for TensorRT and CUDA.

The real TensorRT 10 needs a GPU and is not here: what is checked is the order of calls, the types that go over the
border, and what happens to errors, as documented for IInt8Calibrator.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calibrators.tensorrt
from calibrators.calibrator import CalibrationDataError
from calibrators.tensorrt import CalibrationDataWarning, calibration_type
from tests.shared import ROOT

NAMES = ("EntropyCalibrator2", "MinMaxCalibrator", "EntropyCalibrator", "LegacyCalibrator")


class Base:
    """Like the C++ base classes: it must be initialised, or using it crashes."""

    def __init__(self) -> None:
        self.initialised = True


class Cuda:
    """Device memory made of host memory; counts what is allocated."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1)  # noqa: N815 -- CUDA's name

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.fails = False

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        if self.fails:
            return 2, 0
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return 0, ctypes.addressof(buffer)

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> tuple[int]:
        assert kind == 1
        ctypes.memmove(target, source, size)
        return (0,)

    def cudaFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    def floats(self, address: int, count: int) -> list[float]:
        return np.frombuffer(self.memory[address], np.float32, count).tolist()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    tensorrt = ModuleType("tensorrt")
    for name in (
        "IInt8EntropyCalibrator2",
        "IInt8MinMaxCalibrator",
        "IInt8EntropyCalibrator",
        "IInt8LegacyCalibrator",
    ):
        setattr(tensorrt, name, type(name, (Base,), {}))
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    calibrators.tensorrt._class.cache_clear()
    yield cuda
    calibrators.tensorrt._class.cache_clear()


def build(
    calibrator: Any, cuda: Cuda, names: tuple[str, ...] = ("x",), count: int = 2
) -> list[list[list[float]]]:
    """What TensorRT does: ask for a cache, else for batches until None, then hand over a new cache."""
    assert calibrator.initialised
    seen: list[list[list[float]]] = []
    if calibrator.read_calibration_cache() is not None:
        return seen
    assert isinstance(calibrator.get_batch_size(), int)
    while (pointers := calibrator.get_batch(list(names))) is not None:
        assert all(isinstance(pointer, int) for pointer in pointers)
        seen.append([cuda.floats(pointer, count) for pointer in pointers])
    calibrator.write_calibration_cache(memoryview(b"TRT-8601-EntropyCalibration2\nx: 3c010a14\n"))
    return seen


SAMPLES = [
    {"x": np.array([[1.0, 2.0]]), "y": np.array([[5.0, 6.0]])},
    {"x": np.array([[3.0, 4.0]]), "y": np.zeros((1, 2))},
]


@pytest.mark.parametrize("name", NAMES)
def test_every_class_calls_the_base_and_gives_all_batches(name: str, cuda: Cuda) -> None:
    with getattr(calibrators.tensorrt, name)(SAMPLES) as calibrator:
        assert build(calibrator, cuda) == [[[1, 2]], [[3, 4]]]
    assert not cuda.memory


def test_addresses_come_in_the_order_of_the_names(cuda: Cuda) -> None:
    with calibrators.tensorrt.EntropyCalibrator2(SAMPLES) as calibrator:
        assert build(calibrator, cuda, ("y", "x"))[0] == [[5, 6], [1, 2]]


def test_a_second_build_gets_the_data_again(cuda: Cuda) -> None:
    with calibrators.tensorrt.MinMaxCalibrator(SAMPLES) as calibrator:
        assert build(calibrator, cuda) == build(calibrator, cuda) == [[[1, 2]], [[3, 4]]]


def test_a_build_that_stopped_half_way_does_not_shorten_the_next(cuda: Cuda) -> None:
    with calibrators.tensorrt.EntropyCalibrator2(SAMPLES) as calibrator:
        calibrator.get_batch(["x"])
        assert len(build(calibrator, cuda)) == 2


def test_samples_of_qdqtool_are_taken_as_they_are(cuda: Cuda) -> None:
    samples = [SimpleNamespace(feeds=sample) for sample in SAMPLES]
    with calibrators.tensorrt.EntropyCalibrator2(samples) as calibrator:
        assert len(build(calibrator, cuda)) == 2


def test_a_generator_is_refused_at_once(cuda: Cuda) -> None:
    with pytest.raises(CalibrationDataError, match="only once"):
        calibrators.tensorrt.EntropyCalibrator2(sample for sample in SAMPLES)


def test_the_cache_is_written_and_then_used(cuda: Cuda, tmp_path: Path) -> None:
    cache = tmp_path / "calib.cache"
    with calibrators.tensorrt.EntropyCalibrator2(SAMPLES, cache=cache) as calibrator:
        assert len(build(calibrator, cuda)) == 2
        assert cache.read_bytes().startswith(b"TRT-8601")
        assert build(calibrator, cuda) == []
    assert [path.name for path in tmp_path.iterdir()] == ["calib.cache"]


class Broken:
    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        yield SAMPLES[0]
        raise OSError("disk gone")


class Interrupted:
    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        yield SAMPLES[0]
        raise KeyboardInterrupt("stop")


WRONG = [
    pytest.param(Broken(), OSError, "disk gone", id="the source fails"),
    pytest.param(Interrupted(), KeyboardInterrupt, "stop", id="Ctrl-C"),
    pytest.param(
        [SAMPLES[0], {"z": np.ones(1)}],
        CalibrationDataError,
        "sample 2 has no array for input 'x'; it has z",
        id="an input is missing",
    ),
    pytest.param(
        [SAMPLES[0], {"x": np.array([[np.nan, 1.0]])}],
        CalibrationDataError,
        "sample 2, input 'x': 1 of 2 values NaN",
        id="NaN",
    ),
    pytest.param(
        [SAMPLES[0], {"x": np.ones((1, 3))}],
        CalibrationDataError,
        r"sample 2, input 'x': shape \(1, 3\), but the first sample has \(1, 2\)",
        id="another shape",
    ),
    pytest.param(
        [SAMPLES[0], {"x": np.ones((2, 2))}],
        CalibrationDataError,
        r"shape \(2, 2\)",
        id="more rows than the first",
    ),
    pytest.param([{"x": np.array(["a"])}], CalibrationDataError, "no type of numbers", id="text"),
    pytest.param([{"x": np.zeros((0, 2))}], CalibrationDataError, "no values", id="an empty array"),
    pytest.param([], CalibrationDataError, "no samples", id="no samples"),
    pytest.param([3], CalibrationDataError, "not a dictionary", id="not feeds"),
]


@pytest.mark.parametrize("check", [True, False], ids=["checked first", "unchecked"])
@pytest.mark.parametrize(("samples", "error", "words"), WRONG)
def test_a_data_error_ends_the_data_and_is_raised_after_the_build(
    samples: Any,
    error: type[BaseException],
    words: str,
    check: bool,
    cuda: Cuda,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "calib.cache"
    calibrator = calibrators.tensorrt.EntropyCalibrator2(samples, cache=cache, check=check)
    assert len(build(calibrator, cuda)) < (1 if check else 2)
    assert not cache.exists()
    with pytest.raises(error, match=words):
        calibrator.finish()
    assert not cuda.memory
    calibrator.finish()


def test_wrong_data_leave_tensorrt_without_any_batch(
    cuda: Cuda, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [*SAMPLES, {"x": np.ones((1, 3))}]
    calibrator = calibrators.tensorrt.EntropyCalibrator2(samples, cache=tmp_path / "c")
    assert build(calibrator, cuda) == []
    assert "end of the data: do not use the engine" in caplog.text
    assert f"{tmp_path / 'c'} is not written, because" in caplog.text
    with pytest.raises(CalibrationDataError, match="sample 3"):
        calibrator.finish()


def test_after_an_error_a_second_build_gets_neither_cache_nor_data(
    cuda: Cuda, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "calib.cache"
    calibrator = calibrators.tensorrt.EntropyCalibrator2(Broken(), cache=cache)
    build(calibrator, cuda)
    cache.write_bytes(b"of somebody else")
    assert build(calibrator, cuda) == []
    assert "a second build gets neither cache nor data" in caplog.text
    with pytest.raises(OSError, match="disk gone"):
        calibrator.finish()


def test_an_error_that_nobody_asked_for_is_a_warning_when_the_calibrator_goes(cuda: Cuda) -> None:
    calibrator = calibrators.tensorrt.EntropyCalibrator2(Broken(), check=False)
    assert len(build(calibrator, cuda)) == 1
    assert cuda.memory
    with pytest.warns(CalibrationDataWarning, match="disk gone"):  # noqa: PT031 -- a collection may come before the second
        del calibrator  # the error's frames hold it until a collection
        gc.collect()
    assert not cuda.memory


@pytest.mark.parametrize("is_finished", [True, False], ids=["finish() was called", "finish() was not called"])
def test_a_calibrator_without_errors_goes_in_silence(is_finished: bool, cuda: Cuda) -> None:
    calibrator = calibrators.tensorrt.EntropyCalibrator2(SAMPLES)
    assert len(build(calibrator, cuda)) == 2
    if is_finished:
        calibrator.finish()
    del calibrator
    gc.collect()
    assert not cuda.memory


FORGETFUL = """
    import sys
    from types import ModuleType

    tensorrt = sys.modules["tensorrt"] = ModuleType("tensorrt")
    tensorrt.IInt8EntropyCalibrator2 = type("IInt8EntropyCalibrator2", (), {})
    from calibrators.tensorrt import EntropyCalibrator2

    calibrator = EntropyCalibrator2([{"x": float("nan")}])
    assert calibrator.get_batch(["x"]) is None
    print("the engine is built")
"""


def test_an_error_that_nobody_asked_for_is_told_at_the_end_of_python() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORGETFUL)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "the engine is built\n"
    assert "TensorRT takes this for the end of the data" in done.stderr
    assert (
        "CalibrationDataWarning: calibration failed: CalibrationDataError: sample 1, input 'x'" in done.stderr
    )


@pytest.mark.parametrize("name", ["directory", "missing/calib.cache"])
def test_a_cache_that_cannot_be_read_or_written_is_an_error(name: str, cuda: Cuda, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    calibrator = calibrators.tensorrt.EntropyCalibrator2(SAMPLES, cache=tmp_path / name)
    build(calibrator, cuda)
    with pytest.raises(OSError, match="directory"):
        calibrator.finish()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")
def test_a_cache_can_be_read_by_whoever_can_read_other_new_files(cuda: Cuda, tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with calibrators.tensorrt.EntropyCalibrator2(SAMPLES, cache=tmp_path / "c") as calibrator:
        build(calibrator, cuda)
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"c", "usual"}


def test_an_empty_cache_is_none(cuda: Cuda, tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    with calibrators.tensorrt.EntropyCalibrator2(SAMPLES, cache=tmp_path / "c") as calibrator:
        assert calibrator.read_calibration_cache() is None
        assert len(build(calibrator, cuda)) == 2


def test_a_last_batch_with_fewer_rows_is_filled_up_with_its_own(
    cuda: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [{"x": np.arange(8.0).reshape(4, 2)}, {"x": np.array([[8.0, 9.0]])}]
    with calibrators.tensorrt.EntropyCalibrator2(samples) as calibrator:
        assert calibrator.get_batch_size() == 4
        assert build(calibrator, cuda, count=8)[1] == [[8, 9, 8, 9, 8, 9, 8, 9]]
    assert "sample 2, input 'x': batch of 1 instead of 4" in caplog.text


def test_arrays_that_are_no_inputs_may_have_any_shape(cuda: Cuda) -> None:
    samples = [sample | {"boxes": np.zeros((number, 4))} for number, sample in enumerate(SAMPLES)]
    with calibrators.tensorrt.EntropyCalibrator2(samples) as calibrator:
        assert len(build(calibrator, cuda)) == 2


def failing_build() -> None:
    with calibrators.tensorrt.EntropyCalibrator2([]) as calibrator:
        calibrator.get_batch(["x"])
        raise RuntimeError("builder failed")


def test_an_error_of_the_build_is_not_hidden_behind_a_data_error(
    cuda: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError, match="builder"):
        failing_build()
    assert (
        "before the build failed: calibration failed: CalibrationDataError: there are no samples"
        in caplog.text
    )


def test_cuda_errors_are_raised_after_the_build(cuda: Cuda) -> None:
    cuda.fails = True
    calibrator = calibrators.tensorrt.EntropyCalibrator2(SAMPLES)
    assert build(calibrator, cuda) == []
    with pytest.raises(CalibrationDataError, match="CUDA refused"):
        calibrator.finish()


def test_another_network_may_ask_for_larger_arrays_and_nothing_leaks(cuda: Cuda) -> None:
    samples = [{"x": np.ones((1, 9)), "y": np.ones((1, 3))}]
    with calibrators.tensorrt.EntropyCalibrator2(samples) as calibrator:
        calibrator._buffers.upload("x", np.ones(2, np.float32))
        assert build(calibrator, cuda, ("x",), 9) == [[[1] * 9]]
        assert len(cuda.memory) == 1
        assert build(calibrator, cuda, ("y", "x"), 3) == [[[1] * 3, [1] * 3]]
        assert len(cuda.memory) == 2
    assert not cuda.memory


def test_floats_become_fp32_and_integers_stay(cuda: Cuda) -> None:
    convert = calibration_type
    assert convert(np.ones(2, np.float16)).dtype == convert(np.ones(2)).dtype == np.float32
    assert convert(np.ones(2, np.int64)).dtype == np.int64
    assert convert(np.ones((3, 2)).T).flags.c_contiguous


def test_the_batch_size_is_the_leading_dimension_unless_said(cuda: Cuda) -> None:
    samples = [{"x": np.ones((4, 2))}]
    assert calibrators.tensorrt.EntropyCalibrator2(samples).get_batch_size() == 4
    assert calibrators.tensorrt.EntropyCalibrator2(samples, batch_size=1).get_batch_size() == 1


def test_the_legacy_class_answers_its_questions(cuda: Cuda) -> None:
    calibrator = calibrators.tensorrt.LegacyCalibrator(SAMPLES)
    calibrator.quantile = 0.999
    assert (calibrator.get_quantile(), calibrator.get_regression_cutoff()) == (0.999, 1.0)
    assert calibrator.read_histogram_cache(7) is None


def test_the_classes_stand_on_a_native_class_of_pybind11(monkeypatch: pytest.MonkeyPatch) -> None:
    native = pytest.importorskip("tensorrt_rtx", reason="no native class to derive from: qdqtool[rtx]")
    tensorrt = ModuleType("tensorrt")
    tensorrt.IInt8MinMaxCalibrator = native.IProgressMonitor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    calibrators.tensorrt._class.cache_clear()
    calibrator = calibrators.tensorrt.MinMaxCalibrator([{"x": np.array([np.nan])}])
    calibrators.tensorrt._class.cache_clear()
    assert isinstance(calibrator, native.IProgressMonitor)
    assert calibrator.get_batch(["x"]) is None
    with pytest.raises(CalibrationDataError, match="NaN"):
        calibrator.finish()


def test_tensorrt_11_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorrt = ModuleType("tensorrt")
    tensorrt.__version__ = "11.1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    calibrators.tensorrt._class.cache_clear()
    with pytest.raises(ImportError, match=r"TensorRT 11\.1\.0 has no IInt8EntropyCalibrator2"):
        calibrators.tensorrt.EntropyCalibrator2  # noqa: B018


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError):
        calibrators.tensorrt.Nonsense  # noqa: B018


def test_tensorrt_is_imported_on_use_only() -> None:
    assert "tensorrt" not in sys.modules or not hasattr(sys.modules["tensorrt"], "IInt8EntropyCalibrator2")
