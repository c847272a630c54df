"""The example program for TensorRT 8 to 10, from the samples to the file of the engine, with stand-ins for both."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calibrators.tensorrt
from tests.shared import ROOT

EXAMPLES = ROOT / "recipes" / "examples"
DIGITS = EXAMPLES / "digits"
SCRIPT = EXAMPLES / "tensorrt_8_to_10" / "calibrate.py"
CACHE = b"TRT-8601-EntropyCalibration2\nimage: 3c010a14\n"


class Cuda:
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1)  # noqa: N815 -- CUDA's name

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}

    def cudaMalloc(self, size: int) -> tuple[int, int]:
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


class Builder:
    """Calibrates as TensorRT does, and builds a few bytes."""

    seen: list[float]
    parses = True

    def __init__(self, _logger: object) -> None:
        self.profile: dict[str, Any] = {}
        Builder.seen = []

    def create_network(self, flags: int) -> int:
        assert flags == 1
        return flags

    def create_builder_config(self) -> SimpleNamespace:
        flags: list[str] = []
        return SimpleNamespace(
            flags=flags,
            set_flag=flags.append,
            add_optimization_profile=lambda _profile: 0,
            set_calibration_profile=lambda _profile: True,
        )

    def create_optimization_profile(self) -> SimpleNamespace:
        def set_shape(name: str, low: Any, best: Any, high: Any) -> None:
            assert low == best == high
            self.profile[name] = best

        return SimpleNamespace(set_shape=set_shape)

    def build_serialized_network(self, _network: object, config: Any) -> bytes:
        assert config.flags == ["INT8", "FP16"]
        assert self.profile == {"image": (1, 1, 8, 8)}
        calibrator = config.int8_calibrator
        if calibrator.read_calibration_cache() is None:
            assert calibrator.get_batch_size() == 1
            while (pointers := calibrator.get_batch(["image"])) is not None:
                values = (ctypes.c_float * 64).from_address(pointers[0])
                self.seen.append(float(np.sum(values)))
            calibrator.write_calibration_cache(memoryview(CACHE))
        return b"a plan"


class Parser:
    num_errors = 1

    def __init__(self, _network: object, _logger: object) -> None: ...

    def parse_from_file(self, path: str) -> bool:
        return Builder.parses and Path(path).is_file()

    def get_error(self, _index: int) -> str:
        return "an operator that it does not know"


class Logger:
    INFO = 3

    def __init__(self, _level: int) -> None: ...


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    tensorrt: Any = ModuleType("tensorrt")
    tensorrt.Logger, tensorrt.Builder, tensorrt.OnnxParser = Logger, Builder, Parser
    tensorrt.BuilderFlag = SimpleNamespace(INT8="INT8", FP16="FP16")
    tensorrt.NetworkDefinitionCreationFlag = SimpleNamespace(EXPLICIT_BATCH=0)
    tensorrt.IInt8EntropyCalibrator2 = type("IInt8EntropyCalibrator2", (), {})
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", Cuda())
    calibrators.tensorrt._class.cache_clear()
    spec = importlib.util.spec_from_file_location("calibrate_for_tensorrt", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    calibrators.tensorrt._class.cache_clear()


def test_the_program_calibrates_on_every_sample_and_keeps_the_cache(
    script: ModuleType, tmp_path: Path
) -> None:
    images = np.load(DIGITS / "calibration.npz")["image"][:6]
    words = [str(DIGITS / "digits.onnx"), f"{DIGITS / 'calibration.npz'}[:6]"]
    words += ["--cache", str(tmp_path / "c.cache"), "--engine", str(tmp_path / "m.plan")]
    script.main(words)
    assert Builder.seen == pytest.approx([float(image.sum()) for image in images], rel=1e-5)
    assert (tmp_path / "c.cache").read_bytes() == CACHE
    assert (tmp_path / "m.plan").read_bytes() == b"a plan"

    script.main(words)
    assert Builder.seen == [], "a second build takes the cache"


def test_what_the_parser_refuses_is_told(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Builder, "parses", False)
    with pytest.raises(RuntimeError, match="an operator that it does not know"):
        script.build(DIGITS / "digits.onnx", [{"image": np.zeros((1, 1, 8, 8))}], tmp_path / "c.cache")
