"""What each exporter writes is recognised, repaired without loss of meaning, and built with every product in INT8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.kinds import CALIBRATION
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.provenance import Modules, module_of, origin
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import remaining, write_out
from tests import models
from tests.graph.exports import DYNAMIC, EXPORTS, ORIGINS
from tests.graph.repairing import Sketch, apart, legal, repaired


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_becomes_legal_and_computes_nearly_the_same(name: str, tmp_path: Path) -> None:
    proto = EXPORTS[name]()
    fixed, _ = repaired(proto, tmp_path)
    assert legal(fixed)
    assert remaining(fixed) == ()
    assert [finding for finding in lint(fixed).findings if finding.severity.value == "error"] == []
    assert apart(proto, fixed) < 0.06


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_export_keeps_its_weights_exactly_and_asks_for_ranges(name: str, tmp_path: Path) -> None:
    proto = DYNAMIC[name]()
    fixed, _ = repaired(proto, tmp_path)
    assert legal(fixed)
    assert len(remaining(fixed)) == 1
    assert apart(proto, fixed) < 0.03


@pytest.mark.rtx
@pytest.mark.parametrize("name", [*EXPORTS, *DYNAMIC])
def test_a_repaired_export_builds_with_every_product_in_int8(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    from tests.placement.building import build

    proto = {**EXPORTS, **DYNAMIC}[name]()
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value or 16
    np.savez(tmp_path / "samples.npz", **models.feeds(proto))
    out = tmp_path / "out.onnx"
    line = ["repair", str(models.save(proto, tmp_path)), "-o", str(out)]
    assert run([*line, "--samples", str(tmp_path / "samples.npz")]) == 0
    built = build(onnx.load(out))
    assert built.error == ""
    assert {precision for _, precision in built.precision} == {"int8"}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_tool_that_quantized_a_model_is_recognised(name: str, tmp_path: Path) -> None:
    assert origin(load(models.save(EXPORTS[name](), tmp_path))) == ORIGINS[name]


def test_a_model_of_an_unknown_tool_has_no_origin(tmp_path: Path) -> None:
    assert origin(load(models.save(models.conv_chain(), tmp_path))) == ""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/layer1/0/conv/_input_quantizer/QuantizeLinear", "layer1.0.conv"),
        ("/layer1/layer1.0/conv2/_weight_quantizer/DequantizeLinear", "layer1.0.conv2"),
        ("/blocks/blocks.1/attn/qkv/MatMul", "blocks.1.attn.qkv"),
        ("/attn/q_bmm_quantizer/QuantizeLinear", "attn"),
        ("/conv1/weight_fake_quant/QuantizeLinear", "conv1"),
        ("/Add", ""),
        ("model/quant_stem/Conv2D", "stem"),
        ("StatefulPartitionedCall/model/quant_block_1_pw/BiasAdd", "block_1_pw"),
        ("Conv_12", ""),
        ("", ""),
        ("/", ""),
        ("//", ""),
    ],
    ids=repr,
)
def test_a_node_name_tells_its_module(name: str, module: str) -> None:
    assert module_of(name) == module


@pytest.mark.parametrize(
    "name",
    ["pytorch_quantization", "modelopt_torch", "pt2e", "fake_quantization", "onnxruntime_int8"],
)
def test_compute_nodes_of_every_exporter_lead_to_their_modules(name: str, tmp_path: Path) -> None:
    model = load(models.save(EXPORTS[name](), tmp_path))
    modules = Modules(model)
    found = [modules.of(node.name) for node in model.view.nodes if node.op == "Conv"]
    assert found == ["conv1", "layer1.0.conv1"]


@pytest.mark.parametrize(
    "text",
    ["", "[", "['']", "42", "['', 3, 4]", "[" * 5000, "__import__('os')", "x" * 20_000],
    ids=["empty", "open", "short", "number", "numbers", "deep", "code", "long"],
)
def test_damaged_metadata_names_no_module(text: str, tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    model = load(models.save(proto, tmp_path))
    assert Modules(model).of("conv1") == ""


def _read(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    capsys.readouterr()
    assert run(["scales", *map(str, arguments), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "readback"
    return answer["data"]


@pytest.mark.parametrize("name", EXPORTS)
def test_scales_are_read_back_for_every_quantized_input(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.save(EXPORTS[name](), tmp_path)
    table, plain = tmp_path / "calibration.json", tmp_path / "float.onnx"
    found = _read(capsys, path, "--out", table, "--model", plain)
    assert found["origin"] == ORIGINS[name]
    view = load(plain).view
    assert quantized_ops(load(plain)) == ()
    ranges = CALIBRATION.read(table).by_tensor()
    for entry in found["scales"]:
        node = view.by_name[entry["slot"]["node"]]
        assert node.inputs[entry["slot"]["index"]] == entry["tensor"]
        assert all(value > 0 for value in ranges[entry["tensor"]].amax)


def test_trained_scales_come_back_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _read(capsys, models.save(EXPORTS["transposed_linear"](), tmp_path))
    activation, weight = found["scales"]
    assert (activation["module"], activation["scale"]) == ("fc1", [pytest.approx(0.03)])
    assert (weight["slot"], weight["axis"], len(weight["scale"])) == (
        {"node": "/fc1/MatMul", "index": 1},
        1,
        16,
    )
    ranges = {entry["tensor"]: entry for entry in found["table"]["ranges"]}
    assert ranges["input"]["amax"] == [pytest.approx(0.03 * 127)]


def test_a_scale_that_is_0_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = EXPORTS["pytorch_quantization"]()
    for tensor in proto.graph.initializer:
        if tensor.name == "/conv1/_input_quantizer/Constant_1_output_0":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(0, np.float32), tensor.name))
    found = _read(capsys, models.save(proto, tmp_path))
    assert "input: skipped, its scale is 0 or not a number" in found["notes"]
    assert "input" not in {entry["tensor"] for entry in found["table"]["ranges"]}


@pytest.mark.parametrize("name", ["float", "dynamic"])
def test_a_model_without_scales_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = models.conv_chain() if name == "float" else _without_ranges()
    assert run(["scales", str(models.save(s, tmp_path))]) == 2
    assert "holds no scale that can be read" in capsys.readouterr().err


def _without_ranges() -> onnx.ModelProto:
    from tests.graph.repairing import dynamic_layer

    return dynamic_layer()


def test_the_table_of_scales_shows_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models.save(EXPORTS["pytorch_quantization"](), tmp_path)
    assert run(["scales", str(path), "--match", "layer1.0.*"]) == 0
    shown = capsys.readouterr().out
    assert "layer1.0.conv1" in shown
    assert " /conv1/Conv" not in shown
    assert "quantized by pytorch-quantization" in shown


@pytest.mark.parametrize(
    ("zero", "low", "high", "scale"),
    [
        (0, 0, 127, 0.04),
        (0, 0, 63, 0.04 * 63 / 127),
        (0, 0, 255, 0.04 * 255 / 127),
        (64, 0, 127, 0.04 * 64 / 127),
    ],
    ids=["7 bits", "6 bits", "all", "asymmetric"],
)
def test_a_clip_of_integers_becomes_the_range_that_it_leaves(
    zero: int, low: int, high: int, scale: float, tmp_path: Path
) -> None:
    s = Sketch()
    numbers = s.constant("s", np.float32(0.04)), s.constant("z", np.uint8(zero))
    q = s.node("QuantizeLinear", [s.image(), *numbers], "q", name="q")
    bounds = s.constant("low", np.uint8(low)), s.constant("high", np.uint8(high))
    q = s.node("Clip", [q, *bounds], "c", name="clip")
    s.output(s.convolved(s.node("DequantizeLinear", [q, *numbers], "d", name="d"), s.filters()))
    fixed, changes = repaired(s.model(), tmp_path)
    assert [change.rule for change in changes] == ["clipped"]
    found = {pair.tensor: pair.scale for pair in find(fixed)}
    assert found["x_relu" if zero == 0 else "x"] == (pytest.approx(scale),)
    assert apart(s.model(), fixed) < 0.03


def test_writing_out_leaves_ranges_as_they_are(tmp_path: Path) -> None:
    model = load(models.save(EXPORTS["onnxruntime_uint8"](), tmp_path))
    assert not legal(write_out(model))
