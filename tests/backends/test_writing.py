"""Every model is checked before it is written: what we broke is our mistake, what was broken before stays as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.backends.writing import check_written, write
from qdqtool.cli.app import run
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.errors import Bug
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.walk import copy_message
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from tests import models
from tests.placement.building import table
from tests.placement.zoo import FLOAT

FORMATS = (("int8", ()), ("fp8", ("89",)), ("nvfp4", ("120",)), ("int4-weights", ()))


def half_without_bias(plugin: bool = False) -> onnx.ModelProto:
    """conv1 - relu - conv2 in FP16, without a bias; with a plug-in operator in front if asked for."""
    s = models.Sketch()
    x = s.input("x", [1, 8, 16, 16], TensorProto.FLOAT16)
    if plugin:
        s.nodes.append(onnx.helper.make_node("Plug", [x], ["plugged"], name="plug", domain="my.plugins"))
        x = "plugged"
    for name, channels in (("conv1", 8), ("conv2", 16)):
        values = s.random.normal(size=(16, channels, 3, 3)) * 0.2
        weight = s.constant(f"{name}_w", values.astype(np.float16))
        x = s.node("Conv", [x, weight], f"{name}_y", name=name, pads=[1] * 4)
        x = s.relu(f"{name}_relu", x)
    s.output(x, [1, 16, 16, 16], TensorProto.FLOAT16)
    return s.model(domains=["my.plugins"] if plugin else [])


def broken(model: Model) -> Model:
    """The model whose second convolution has a bias of another type."""
    proto = copy_message(model.proto)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(16, np.float32), "alien"))
    next(node for node in proto.graph.node if node.name == "conv2").input.append("alien")
    return Model(proto=proto, path=model.path)


def test_an_fp16_network_without_a_bias_is_quantized_to_a_model_that_opens(tmp_path: Path) -> None:
    path, out = models.save(half_without_bias(), tmp_path), tmp_path / "q.onnx"
    assert run(["quantize", str(path), "--samples", "random:4", "-o", str(out)]) == 0
    image = np.random.default_rng(0).standard_normal((1, 8, 16, 16)).astype(np.float16)
    before, after = (models.run(onnx.load(file), {"x": image}) for file in (path, out))
    (wanted,), (found,) = before.values(), after.values()
    assert np.abs(wanted.astype(np.float32) - found.astype(np.float32)).max() < 0.1 * np.abs(wanted).max()


@pytest.mark.parametrize("plugin", [False, True])
def test_a_model_that_we_broke_is_our_mistake_and_not_written(plugin: bool, tmp_path: Path) -> None:
    model = load(models.save(half_without_bias(plugin), tmp_path))
    check_written(model, step="load")
    out = tmp_path / "out.onnx"
    with pytest.raises(
        Bug, match=r"'insert' wrote is not valid ONNX: .*conv2.*nothing was written"
    ) as caught:
        write(broken(model), out, step="insert")
    assert "a mistake in qdqtool" in caught.value.fix
    assert not out.exists()


def test_a_shape_that_we_broke_is_found(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("MatMul", [s.input("x", [4, 256]), s.weight("w", 256, 64)], "y"))
    model = load(models.save(s.model(), tmp_path))
    proto = copy_message(model.proto)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((64, 256), np.float32), "w"))
    with pytest.raises(Bug, match="Incompatible dimensions"):
        check_written(Model(proto=proto, path=model.path), step="insert")


def test_what_only_onnxruntime_refuses_is_found(tmp_path: Path) -> None:
    """onnx does not judge operators of other domains: a Gelu of onnxruntime's own that we misspelt."""
    model = load(models.save(models.conv_chain(), tmp_path))
    proto = copy_message(model.proto)
    node = next(node for node in proto.graph.node if node.name == "relu1")
    node.op_type, node.domain = "Geluu", "com.microsoft"
    proto.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(Bug, match="does not open in onnxruntime"):
        check_written(Model(proto=proto, path=model.path), step="insert")


def test_a_model_that_was_broken_before_is_still_written(tmp_path: Path) -> None:
    model = load(models.save(half_without_bias(), tmp_path))
    path = tmp_path / "theirs.onnx"
    onnx.save(broken(model).proto, path)
    out = tmp_path / "out.onnx"
    write(load(path), out, step="convert")
    assert out.exists()


def test_weights_are_not_read_for_the_check(tmp_path: Path, monkeypatch) -> None:
    s = models.Sketch()
    s.output(s.node("MatMul", [s.input("x", [1, 256]), s.weight("w", 256, 256)], "y"))
    path = tmp_path / "m.onnx"
    onnx.save(s.model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    model = load(path)
    (tmp_path / "m.data").write_bytes(b"")
    check_written(model, step="load")


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOAT)
def test_what_placement_insertion_and_conversion_make_is_valid(name: str, tmp_path: Path) -> None:
    model = prepare(load(models.save(FLOAT[name](), tmp_path)), PrepareOptions())
    check_written(model, step="prepare")
    for types in ("fp16", "bf16"):
        check_written(convert(model, InsertOptions(types=types))[0], step="convert")
    for format_, sm in FORMATS:
        placement = decide(model.view, PlacementOptions(target="rtx", format=format_, sm=sm))
        ranges = table(model, placement)
        for types in ("fp32", "fp16"):
            check_written(insert(model, placement, ranges, InsertOptions(types=types)), step="insert")
