"""The door for Ultralytics: its loader, its functions, its names. The package itself is asked for only by the last test."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.integrations import ultralytics as door
from tests.docs.networks import write_detector

ENGINE = "ultralytics.utils.export.engine"


class Pictures:
    """A data set that counts how many of its pictures are alive at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < self.count:
            raise IndexError(number)
        pixels = np.random.default_rng(number).integers(0, 255, (3, 64, 64), np.uint8).view(Tracked)
        self.alive.add(pixels)
        self.most = max(self.most, len(self.alive))
        return {"img": pixels, "im_file": f"{number}.jpg"}


class Tracked(np.ndarray[Any, Any]):
    """An array that weak references may follow."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Loader:
    """A loader like that of Ultralytics: it shuffles, and no pass over it is like another."""

    def __init__(self, count: int) -> None:
        self.dataset = Pictures(count)

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a pass over a loader that shuffles gives other pictures each time")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(door, "can_build", lambda _: False)
    write_detector(str(tmp_path / "yolo.onnx"))
    return tmp_path / "yolo.onnx"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with the names of the engine module of Ultralytics 8.4.190, and empty functions."""
    found = ModuleType(ENGINE)
    for name in ("ultralytics", "ultralytics.utils", "ultralytics.utils.export"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, ENGINE, found)

    def onnx2engine(  # noqa: PLR0917 -- the signature of Ultralytics
        onnx_file: str,
        output_file: Any = None,
        workspace: Any = None,
        quantize: Any = None,
        dynamic: bool = False,
        shape: Any = (1, 3, 640, 640),
        dla: Any = None,
        dataset: Any = None,
        metadata: Any = None,
        verbose: bool = False,
        prefix: str = "",
    ) -> str:
        found.built = (onnx_file, output_file)  # type: ignore[attr-defined]
        return str(output_file)

    found.onnx2engine = onnx2engine  # type: ignore[attr-defined]
    found.modelopt_quantize_onnx = lambda *_: "theirs"  # type: ignore[attr-defined]
    yield found
    door.disable()


def test_a_loader_becomes_a_model_with_float_heads_and_a_report_and_is_never_held_in_memory(
    model: Path,
) -> None:
    loader = Loader(24)
    out = Path(door.quantize_onnx(str(model), 8, loader, (1, 3, 64, 64)))
    assert out.name == "yolo.int8.onnx"
    written = onnx.load(out).graph
    computed = {node.output[0] for node in written.node if node.op_type == "DequantizeLinear"}
    floats = {node.name for node in written.node if node.op_type == "Conv" and node.input[1] not in computed}
    assert {name for name in floats if "head" in name} == floats != set()
    assert written.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert any(weights.data_type == onnx.TensorProto.FLOAT16 for weights in written.initializer)
    assert "accurate" in (model.parent / "yolo.int8" / "report.json").read_text("utf-8")
    assert (model.parent / "yolo.int8" / "report.html").is_file()
    assert loader.dataset.most <= 4


def test_calibration_and_evaluation_are_different_pictures_and_always_the_same_ones() -> None:
    first, others = door._pictures(Loader(40))
    chosen = [[float(item.sum()) for item in side.give()] for side in (first, others)]
    assert len(chosen[0]) == 30
    assert len(chosen[1]) == 10
    assert set(chosen[0]).isdisjoint(chosen[1])
    assert chosen == [[float(item.sum()) for item in side.give()] for side in (first, others)]


def test_plain_batches_are_read_picture_by_picture() -> None:
    first, _ = door._pictures([{"img": np.full((2, 3, 4, 4), 255, np.uint8)}] * 3)
    items = list(first.give())
    assert len(items) == 6
    assert items[0].shape == (3, 4, 4)
    assert items[0].max() == 1.0


def test_fp16_needs_no_pictures(model: Path) -> None:
    out = door.quantize_onnx(str(model), 16)
    assert out.endswith("yolo.fp16.onnx")
    assert not quantized_ops(load(Path(out)))
    types = {weights.data_type for weights in onnx.load(out).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


@pytest.mark.parametrize(("quantize", "words"), [(4, "8 for INT8"), (8, "data=")])
def test_a_wrong_call_says_what_to_pass(model: Path, quantize: int, words: str) -> None:
    with pytest.raises(UsageError) as error:
        door.quantize_onnx(str(model), quantize)
    assert words in error.value.fix


def test_a_picture_that_cannot_be_read_is_an_error_and_not_the_end_of_the_data(model: Path) -> None:
    class Broken(Pictures):
        def __getitem__(self, number: int) -> dict[str, Any]:
            if number > 5:
                raise OSError("damaged picture")
            return super().__getitem__(number)

    loader = Loader(24)
    loader.dataset = Broken(24)
    with pytest.raises(InputFileError, match="damaged picture"):
        door.quantize_onnx(str(model), 8, loader, (1, 3, 64, 64))


def test_enable_and_disable_replace_two_functions_and_put_them_back(engine: Any) -> None:
    before = (engine.modelopt_quantize_onnx, engine.onnx2engine)
    door.enable()
    door.enable()
    assert engine.modelopt_quantize_onnx is door.quantize_onnx
    door.disable()
    assert (engine.modelopt_quantize_onnx, engine.onnx2engine) == before
    door.disable()


@pytest.mark.parametrize(
    ("release", "quantize", "is_ours"), [("10.13", 8, True), ("11.0", 8, False), ("10.13", 16, False)]
)
def test_releases_with_calibrators_get_a_qdq_model_instead(
    engine: Any, model: Path, monkeypatch: pytest.MonkeyPatch, release: str, quantize: int, is_ours: bool
) -> None:
    monkeypatch.setattr(door, "_target", lambda: release)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(door, "quantize_onnx", lambda *given: calls.append(given) or "ours.onnx")
    door.enable()
    engine.onnx2engine(str(model), None, None, quantize, False, (1, 3, 64, 64), dataset="loader")
    assert bool(calls) is is_ours
    if is_ours:
        assert calls[0][1:4] == (8, "loader", (1, 3, 64, 64))
        assert engine.built == ("ours.onnx", model.with_suffix(".engine"))


def test_a_release_of_ultralytics_with_other_functions_is_named(engine: Any) -> None:
    del engine.onnx2engine
    with pytest.raises(MissingPackage, match="no onnx2engine"):
        door.enable()


def test_without_ultralytics_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(MissingPackage) as error:
        door.enable()
    assert "pip install" in error.value.fix


def test_the_signature_is_that_of_the_function_it_replaces() -> None:
    import inspect

    theirs = pytest.importorskip(ENGINE, reason="needs ultralytics")
    ours = inspect.signature(door.quantize_onnx).parameters
    assert list(ours) == list(inspect.signature(theirs.modelopt_quantize_onnx).parameters)
