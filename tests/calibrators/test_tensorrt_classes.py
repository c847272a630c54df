"""The contract of the calibrator classes, checked with stand-ins for TensorRT and CUDA.

The real TensorRT 10 needs a GPU and is not here: what is checked is the order of calls, the types that go over the
border, and what happens to errors, as documented for IInt8Calibrator.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calibrators.tensorrt
from calibrators.error import CalibrationDataError

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


@pytest.mark.parametrize(
    ("samples", "error", "words"),
    [
        (Broken(), OSError, "disk gone"),
        ([SAMPLES[0], {"z": np.ones(1)}], CalibrationDataError, "sample 2 has no array for input 'x'"),
        (
            [SAMPLES[0], {"x": np.array([[np.nan, 1.0]])}],
            CalibrationDataError,
            "sample 2, input 'x': 1 values are NaN",
        ),
        ([], CalibrationDataError, "no samples"),
        ([3], CalibrationDataError, "not a dictionary"),
    ],
    ids=["the source fails", "an input is missing", "NaN", "no samples", "not feeds"],
)
def test_a_data_error_ends_the_data_and_is_raised_after_the_build(
    samples: Any, error: type[Exception], words: str, cuda: Cuda, tmp_path: Path
) -> None:
    cache = tmp_path / "calib.cache"
    calibrator = calibrators.tensorrt.EntropyCalibrator2(samples, cache=cache, batch_size=1)
    assert len(build(calibrator, cuda)) < 2
    assert not cache.exists()
    with pytest.raises(error, match=words):
        calibrator.finish()
    assert not cuda.memory
    calibrator.finish()


def failing_build() -> None:
    with calibrators.tensorrt.EntropyCalibrator2([]) as calibrator:
        calibrator.get_batch(["x"])
        raise RuntimeError("builder failed")


def test_an_error_of_the_build_is_not_hidden_behind_a_data_error(cuda: Cuda) -> None:
    with pytest.raises(RuntimeError, match="builder"):
        failing_build()


def test_cuda_errors_are_raised_after_the_build(cuda: Cuda) -> None:
    cuda.fails = True
    calibrator = calibrators.tensorrt.EntropyCalibrator2(SAMPLES)
    assert build(calibrator, cuda) == []
    with pytest.raises(CalibrationDataError, match="CUDA refused"):
        calibrator.finish()


def test_larger_batches_get_larger_memory_and_nothing_leaks(cuda: Cuda) -> None:
    samples = [{"x": np.ones((1, 2))}, {"x": np.ones((1, 9))}, {"x": np.ones((1, 3))}]
    with calibrators.tensorrt.EntropyCalibrator2(samples) as calibrator:
        assert len(build(calibrator, cuda)) == 3
        assert len(cuda.memory) == 1
    assert not cuda.memory


def test_floats_become_fp32_and_integers_stay(cuda: Cuda) -> None:
    convert = calibrators.tensorrt._calibration_type
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
