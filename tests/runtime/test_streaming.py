"""Models whose weights exceed the memory run layer by layer, and give the same results."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.graph.instrumented.cut import stages_within, wide_bytes
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq import lower
from qdqtool.platform import free_memory
from qdqtool.runtime import session
from qdqtool.runtime.operators import CutSession
from qdqtool.runtime.runner import open_model, open_runner
from tests import models

NAMES = ("conv_chain", "residual_cnn", "attention", "gemms", "silu_cnn")


def stored(name: str, folder: Path) -> Path:
    """A model with its weights in a file beside it."""
    proto = models.ALL[name]()
    path = folder / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=128)
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outside", [True, False])
def test_layer_by_layer_gives_the_same(
    name: str, outside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(name, tmp_path) if outside else models.save(models.ALL[name](), tmp_path)
    model = load(path)
    feeds = models.feeds(models.ALL[name](), batch=1)
    whole = open_runner(path, description="m").run(feeds)
    monkeypatch.setattr(session, "room_for_weights", lambda: 2000)
    streamed = session.open_streamed(model.proto, session.RuntimeOptions())
    assert isinstance(streamed, CutSession)
    names = [entry.name for entry in streamed.get_outputs()]
    for name_, found in zip(names, streamed.run(names, feeds), strict=True):
        np.testing.assert_allclose(found, whole[name_], rtol=1e-4, atol=1e-5)
    for runner in (open_runner(path, description="m"), open_model(model, description="m")):
        assert [info.name for info in runner.inputs] == [info.name for info in model.view.inputs]
        for name_, found in runner.run(feeds).items():
            np.testing.assert_allclose(found, whole[name_], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("room", [1, 2000, 1 << 30])
def test_each_piece_has_room_for_its_weights(name: str, room: int) -> None:
    proto = models.ALL[name]()
    sizes = {tensor.name: wide_bytes(tensor) for tensor in proto.graph.initializer}
    found = stages_within(proto, room)
    assert [node.name for stage in found for node in stage.nodes] == [node.name for node in proto.graph.node]
    for stage in found:
        read = {name for node in stage.nodes for name in node.input}
        assert len(stage.nodes) == 1 or sum(sizes.get(name, 0) for name in read) <= room
    assert len(found) == 1 or room < 1 << 30


@pytest.mark.parametrize("format_", ["int4-weights", "int8-weights"])
def test_a_streamed_quantization_writes_the_same_file(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = models.Sketch()
    value = made.input("x", [1, 4, 512])
    for number in range(3):
        product = made.node("MatMul", [value, made.weight(f"w{number}", 512, 512)], f"y{number}")
        value = made.node("Tanh", [product], f"z{number}")
    made.output(value, [1, 4, 512])
    onnx.save(made.model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    np.savez(tmp_path / "s.npz", x=np.ones((1, 4, 512), np.float32))
    command = ["quantize", str(tmp_path / "m.onnx"), "--samples", str(tmp_path / "s.npz"), "-o"]
    told = (f"place.format={format_}", "place.ops=[MatMul]", "insert.types=fp16", "calibrate.method=max")
    settings = [word for setting in told for word in ("--set", setting)]
    assert run([*command, str(tmp_path / "whole.onnx"), *settings]) == 0
    monkeypatch.setattr(session, "room_for_weights", lambda: 1 << 20)
    monkeypatch.setattr(lower, "_SPILLED", 0)
    assert run([*command, str(tmp_path / "streamed.onnx"), *settings]) == 0
    assert (tmp_path / "whole.onnx").read_bytes() == (tmp_path / "streamed.onnx").read_bytes()


@pytest.mark.parametrize("outside", [True, False])
def test_a_large_file_is_read_where_it_is(
    outside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = models.Sketch()
    value = sketch.input("x", [1, 1024])
    for number in range(2):
        value = sketch.node("MatMul", [value, sketch.weight(f"w{number}", 1024, 1024)], f"y{number}")
    sketch.output(value, [1, 1024])
    path = tmp_path / "m.onnx"
    onnx.save(sketch.model(), path)
    if outside:
        (tmp_path / "link").mkdir()
        path = tmp_path / "link" / "m.onnx"
        path.symlink_to(tmp_path / "m.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1024), np.float32)}
    whole = open_runner(path.read_bytes(), description="m").run(feeds)
    opened: list[int] = []
    serialized = session._without_weights

    def watched(model: Path) -> bytes | None:
        light = serialized(model)
        opened.append(path.stat().st_size if light is None else len(light))
        return light

    monkeypatch.setattr(session, "_without_weights", watched)
    monkeypatch.setattr(session, "LARGE", 1 << 20)
    mapped = open_runner(path, description="m").run(feeds)
    assert mapped["y1"].tobytes() == whole["y1"].tobytes()
    (size,) = opened
    assert (size > 8 << 20) if outside else (size < 1 << 16)


def test_the_limits_of_the_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = free_memory()
    real = resource.getrlimit
    monkeypatch.setattr(
        resource,
        "getrlimit",
        lambda which: (1 << 40, 1 << 40) if which == resource.RLIMIT_AS else real(which),
    )
    assert free_memory() <= max(before * 2, 1 << 40)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert free_memory() == 0
