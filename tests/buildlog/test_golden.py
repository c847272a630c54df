"""Logs of real builds against the figures that are known of them."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter

import pytest

from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import End
from tests.buildlog import logs
from tests.shared import shared

pytestmark = pytest.mark.shared

YOLOV8_ATTEMPTS = {
    "ConstShuffleFusion": 1,
    "ShuffleShuffleFusion": 1,
    "ConstQDQInitializersFusion": 14,
    "ScaleActivationFusion": 4,
    "ConstWeightsQuantizeFusion": 3,
    "ConvReluFusion": 3,
    "SplitQAcrossPrecedingFanIn": 5,
    "VanillaSwapWithFollowingQ": 3,
    "HorizontalMergeQNodes": 2,
    "PointWiseFusion": 1,
    "QConvScaleFusion": 2,
    "QuantizeDoubleInputNodes": 3,
    "ConstWeightsFusion": 2,
    "QDQToCopy": 3,
    "EltwiseAddToPwn": 2,
}


def test_the_yolov8_walk_through_has_every_pass_as_often_as_its_author_shows_it():
    run = logs.shared_run(logs.YOLOV8)
    assert {name: count.attempts for name, count in run.passes.items()} == YOLOV8_ATTEMPTS


def test_passes_of_the_yolov8_walk_through_stand_in_the_order_they_first_speak():
    run = logs.shared_run(logs.YOLOV8)
    assert list(run.passes) == list(YOLOV8_ATTEMPTS)


def test_the_yolov8_walk_through_names_its_version_device_and_types():
    run = logs.shared_run(logs.YOLOV8)
    assert (run.front_end, run.version) == ("trtexec", (8, 4, 12))
    assert run.options["Build"]["Precision"] == "FP32+INT8"
    assert run.options["Build"]["Calibration"] == "Dynamic"
    assert run.options["Device"]["Selected Device"] == "Orin"
    assert run.onnx is not None
    assert (run.onnx.file, run.onnx.opset, run.onnx.producer_version) == (
        "yolov8_test_qdq.onnx",
        "13",
        "2.0.1",
    )


def test_the_yolov8_funnel_goes_from_755_layers_to_153():
    run = logs.shared_run(logs.YOLOV8)
    assert [(step.stage, step.layers) for step in run.funnel] == [
        ("original", 755),
        ("dead-layer removal", 755),
        ("dupe layer removal", 153),
        ("final dead-layer removal", 153),
        ("tensor merging", 153),
    ]


def test_the_yolov8_input_quantizer_stays_as_a_kernel_that_converts_float_to_int8():
    run = logs.shared_run(logs.YOLOV8)
    name = "/model/backbone0/conv/_input_quantizer/QuantizeLinear"
    (row,) = [row for row in run.ledger if row.node == name]
    assert (row.end, row.into) == (End.COPY, name)
    (layer,) = [layer for layer in run.engine_layers if layer.name == name]
    assert (layer.kind, dict(layer.attributes)["Origin"]) == ("Reformat", "QDQ")
    assert f"COPY: {name}" in run.placement["GPU"]


def test_yolov8_clones_are_merged_moved_or_kept_and_name_their_origin():
    run = logs.shared_run(logs.YOLOV8)
    clones = {row.node: row for row in run.ledger if row.clone_of}
    merged = clones["/model/backbone2/cv2/conv/_input_quantizer/QuantizeLinear_clone_1"]
    assert (merged.end, merged.into) == (
        End.MERGED,
        "/model/backbone2/m.0/cv1/conv/_input_quantizer/QuantizeLinear",
    )
    moved = clones["/model/backbone2/cv2/conv/_input_quantizer/QuantizeLinear_clone_0"]
    assert (moved.end, moved.into) == (End.MOVED, "/model/backbone2/Slice")
    kept = clones["/model/head12/cv1/conv/_input_quantizer/QuantizeLinear_clone_0"]
    assert kept.end is End.COPY
    assert kept.clone_of == "/model/head12/cv1/conv/_input_quantizer/QuantizeLinear"


def test_the_bevfusion_ledger_accounts_for_every_q_and_dq():
    run = logs.shared_run(logs.BEVFUSION)
    summary = run.ledger_summary
    assert summary is not None
    assert (summary.q, summary.dq, summary.accounted) == (146, 146, 292)
    assert End.UNKNOWN not in {row.end for row in run.ledger}


def test_bevfusion_ends_are_those_of_its_log():
    run = logs.shared_run(logs.BEVFUSION)
    ends = {row.node: (row.end, row.into) for row in run.ledger}
    assert ends["QuantizeLinear_3"] == (End.COPY, "QuantizeLinear_3")
    assert ends["QuantizeLinear_47"] == (End.MERGED, "QuantizeLinear_15")
    assert ends["QuantizeLinear_15"] == (End.OUTPUT, "Conv_10 + Relu_11")
    assert ends["DequantizeLinear_6"] == (End.INPUT, "Conv_10 + Relu_11")
    assert ends["DequantizeLinear_9"] == (End.WEIGHT, "Conv_10 + Relu_11")
    assert ends["QuantizeLinear_8"] == (End.WEIGHT, "Conv_10 + Relu_11")
    assert ends["DequantizeLinear_60"] == (End.INPUT, "Conv_44")
    assert ends["QuantizeLinear_817"] == (End.SPLIT, "Concat_814")
    assert ends["QuantizeLinear_817_clone_0"] == (End.OUTPUT, "Conv_812 + Relu_813")
    assert ends["DequantizeLinear_747"][0] is End.CANCELLED


def test_every_bevfusion_convolution_is_int8_and_the_last_writes_float():
    run = logs.shared_run(logs.BEVFUSION)
    verdicts = [(node.node, node.precision) for node in run.compute]
    assert len(verdicts) == 63
    assert [node for node, precision in verdicts if precision != "int8"] == ["Conv_846"]
    assert dict(verdicts)["Conv_846"] == "int8-in"
    assert not [node for node in run.compute if node.contradiction]


@pytest.mark.parametrize(
    ("log", "exported", "layers"),
    [
        pytest.param(logs.BEVFUSION, logs.BEVFUSION_JSON, 78, id="bevfusion backbone, 8.6.0"),
        pytest.param(logs.RESNET_YOLO, logs.RESNET_YOLO_JSON, 86, id="resnet yolo, 8.5.2"),
    ],
)
def test_the_last_layer_count_is_that_of_the_engine_and_of_its_exported_json(log, exported, layers):
    run = logs.shared_run(log)
    text = shared(exported).read_text("utf-8")
    assert run.funnel[-1].layers == layers
    assert len(run.engine_layers) == layers
    assert len(json.loads(text, strict=False)["Layers"]) == layers


def test_the_bevfusion_layers_are_those_of_its_exported_json():
    run = logs.shared_run(logs.BEVFUSION)
    exported = json.loads(shared(logs.BEVFUSION_JSON).read_text("utf-8"), strict=False)["Layers"]
    assert [layer.name for layer in run.engine_layers] == [layer["Name"] for layer in exported]
    assert [layer.kind for layer in run.engine_layers] == [layer["LayerType"] for layer in exported]
    for layer, json_layer in zip(run.engine_layers, exported, strict=True):
        assert _sides(layer) == [
            [(tensor["Name"], tensor["Dimensions"], tensor["Format/Datatype"]) for tensor in json_layer[side]]
            for side in ("Inputs", "Outputs")
        ]


def _sides(layer: EngineLayer) -> list[list[tuple[str, list[int], str]]]:
    return [[(t.name, list(t.shape or ()), t.format) for t in side] for side in (layer.inputs, layer.outputs)]


def test_the_resnet_yolo_ledger_accounts_for_every_q_and_dq():
    run = logs.shared_run(logs.RESNET_YOLO)
    summary = run.ledger_summary
    assert summary is not None
    assert (summary.q, summary.dq, summary.accounted) == (86, 86, 172)
    assert summary.ends["runtime-copy"] == 12
    assert run.passes["QDQToCopy"].attempts == 12


@pytest.mark.parametrize(
    "log", [pytest.param(logs.BEVFUSION, id="bevfusion"), pytest.param(logs.RESNET_YOLO, id="resnet yolo")]
)
def test_attempts_are_the_running_lines_that_a_plain_search_finds(log):
    text = lzma.decompress(shared(log).read_bytes()).decode()
    counted = Counter(re.findall(r"\] Running: (\w+) on ", text))
    assert {
        name: seen.attempts for name, seen in logs.shared_run(log).passes.items() if seen.attempts
    } == counted


@pytest.mark.parametrize(
    "log", [pytest.param(logs.BEVFUSION, id="bevfusion"), pytest.param(logs.RESNET_YOLO, id="resnet yolo")]
)
def test_every_timed_kernel_is_counted_for_one_layer(log):
    text = lzma.decompress(shared(log).read_bytes()).decode()
    timed = len(re.findall(r"\] Tactic(?: Name: \S+(?: numSplitK.*)? Tactic)?: \S+ Time: ", text))
    tuning = logs.shared_run(log).tuning
    assert tuning.reformats is not None
    assert sum(row.candidates for row in tuning.layers) + tuning.reformats.candidates == timed


def test_the_fastest_kernel_of_a_bevfusion_layer_is_the_chosen_one():
    rows = {row.layer: row for row in logs.shared_run(logs.BEVFUSION).tuning.layers}
    row = rows["model.encoders.camera.backbone.layer1.0.downsample.0.weight + QuantizeLinear_52 + Conv_54"]
    assert (row.fastest, row.chosen, row.fastest_ms) == (
        "0x764ba04bb839d539",
        "0x764ba04bb839d539",
        0.0230922,
    )
    assert row.chosen_ms == row.fastest_ms
    assert row.runner == "CaskConvolution"


def test_the_mobilenet_profile_adds_up_as_its_author_measured():
    run = logs.shared_run(logs.MOBILENET_FPN)
    rows = run.profile
    assert len(rows) == 113
    assert sum(row.total_ms for row in rows) == pytest.approx(3044.42825)
    assert sum(row.average_ms for row in rows) == pytest.approx(4.871083)
    assert sum(row.percent for row in rows) == pytest.approx(100.00006)
    reformats = [row for row in rows if "Reformatting CopyNode" in row.layer]
    assert len(reformats) == 26
    assert len([row for row in reformats if row.total_ms]) == 4
    assert sum(row.total_ms for row in reformats) == pytest.approx(91.278, abs=5e-4)
    assert sum(row.percent for row in reformats) == pytest.approx(2.998, abs=5e-4)
    copies = [row for row in rows if row.layer.endswith(" copy")]
    assert len(copies) == 8
    assert sum(row.total_ms for row in copies) == pytest.approx(39.631, abs=5e-4)
    top = sorted(rows, key=lambda row: -row.total_ms)
    assert (top[0].layer.count("||"), top[0].total_ms, top[0].percent) == (7, 1009.24, 33.1504)
    assert (top[1].layer, top[1].percent) == ("Conv_169 + Relu_170", 4.54701)
    assert (top[2].layer.split()[0], top[2].percent) == ("Conv_13", 3.314)


def test_the_mobilenet_excerpt_is_of_trtexec():
    assert logs.shared_run(logs.MOBILENET_FPN).front_end == "trtexec"


def test_the_mobilenet_excerpt_names_its_layers_by_kind():
    run = logs.shared_run(logs.MOBILENET_FPN)
    kinds: dict[str, int] = {}
    for layer in run.engine_layers:
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
    assert kinds == {"CaskConvolution": 34, "CudaDepthwiseConvolution": 13, "PointWiseV2": 2, "Reformat": 1}
