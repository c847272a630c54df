"""The seed documents, figure by figure: what two pasted logs, a walk-through and an excerpt tell."""

from __future__ import annotations

from collections import Counter

import pytest

from qdqtool.core.buildlog import LayerTuning, Memory, Times
from qdqtool.core.events import EventKind
from tests.buildlog import logs

pytestmark = pytest.mark.shared

ON_TEGRA = {
    "latency": Times(min=89.312, max=91.492, mean=90.3919, median=90.3035, percentiles={"99": 91.492}),
    "end_to_end": Times(min=89.3254, max=91.5049, mean=90.4048, median=90.3167, percentiles={"99": 91.5049}),
    "enqueue": Times(min=1.54553, max=9.62085, mean=6.19246, median=6.2948, percentiles={"99": 9.62085}),
    "h2d": Times(min=0.274475, max=0.288208, mean=0.277587, median=0.276855, percentiles={"99": 0.288208}),
    "gpu_compute": Times(min=89.0273, max=91.2045, mean=90.1061, median=90.0183, percentiles={"99": 91.2045}),
    "d2h": Times(
        min=0.00683594, max=0.00881958, mean=0.008238, median=0.00830078, percentiles={"99": 0.00881958}
    ),
}


def test_the_culane_log_names_its_run():
    run = logs.shared_run(logs.CULANE)
    assert (run.front_end, run.version, run.status, run.unread) == ("trtexec", (8, 2, 1), "passed", 0)
    assert run.argv == (
        "trtexec",
        "--workspace=2048",
        "--onnx=weights/culane_18-INT32.onnx",
        "--saveEngine=weights/culane_18-INT32.engine",
    )
    assert run.onnx is not None
    assert (run.onnx.ir_version, run.onnx.opset, run.onnx.producer, run.onnx.producer_version) == (
        "0.0.7",
        "14",
        "pytorch",
        "2.0.1",
    )
    assert [(record.severity, record.topic) for record in run.warnings] == [("W", "int64-weights")]


def test_the_culane_log_echoes_every_option_of_8_2():
    options = logs.shared_run(logs.CULANE).options
    assert {title: len(section) for title, section in options.items()} == {
        "Model": 3,
        "Build": 21,
        "System": 3,
        "Inference": 17,
        "Reporting": 9,
        "Device": 8,
    }
    assert options["Build"]["Workspace"] == "2048 MiB"
    assert options["Build"]["Save engine"] == "weights/culane_18-INT32.engine"
    assert options["Inference"]["Streams"] == "1"
    assert options["Reporting"]["Percentile"] == "99"
    assert options["Reporting"]["Dump refittable layers"] == "Disabled"
    assert options["Device"] == {
        "Selected Device": "NVIDIA Tegra X1",
        "Compute Capability": "5.3",
        "SMs": "1",
        "Compute Clock Rate": "0.9216 GHz",
        "Device Global Memory": "3955 MiB",
        "Shared Memory per SM": "64 KiB",
        "Memory Bus Width": "64 bits (ECC disabled)",
        "Memory Clock Rate": "0.01275 GHz",
    }


def test_the_culane_summary_is_that_of_its_log():
    seen = logs.shared_run(logs.CULANE).performance
    assert seen is not None
    assert (seen.throughput_qps, seen.walltime_s, seen.gpu_total_s, seen.queries) == (
        11.0613,
        3.16419,
        3.15371,
        35,
    )
    assert seen.metrics == ON_TEGRA
    assert seen.diagnosis == ("bound by GPU compute: 11.0613 qps is 100% of one query per 90.11 ms",)


def test_the_culane_engine_takes_the_memory_and_time_of_its_log():
    run = logs.shared_run(logs.CULANE)
    assert run.memory == Memory(
        host_persistent=30784,
        device_persistent=61892096,
        scratch=0,
        activation=22118400,
        peak_cpu_mib=113,
        peak_gpu_mib=1112,
        engine_mib=186,
    )
    assert [(phase.name, phase.seconds) for phase in run.phases if phase.stated] == [
        ("engine build", 184.708)
    ]
    assert {device: len(layers) for device, layers in run.placement.items()} == {"GPU": 26}


def test_the_resnet18_log_without_prefixes_names_its_run():
    run = logs.shared_run(logs.RESNET18)
    assert (run.front_end, run.version, run.status) == ("trtexec", (8, 6, 1), "built")
    assert run.onnx is not None
    assert (run.onnx.file, run.onnx.opset) == ("resnet18.onnx", "12")
    assert [(tensor.name, tensor.shape) for tensor in run.network.inputs] == [("x", (-1, 3, 224, 224))]
    assert [(node.name, node.op) for node in run.network.nodes] == [
        ("/conv1/Conv", "Conv"),
        ("/relu/Relu", "Relu"),
    ]


def test_headings_that_lost_their_line_open_their_section():
    options = logs.shared_run(logs.RESNET18).options
    assert {title: len(section) for title, section in options.items()} == {
        "Model": 3,
        "Build": 35,
        "System": 6,
        "Inference": 18,
        "Reporting": 9,
        "Device": 8,
    }
    assert options["Build"]["Input calibration shapes"] == "model"
    assert options["Build"]["BuilderOptimizationLevel"] == "-1"
    assert options["System"]["ignoreParsedPluginLibs"] == "0"
    assert options["Inference"]["Inference Streams"] == "1"
    assert options["Reporting"]["Percentiles"] == "90,95,99"
    assert options["Device"]["Application Memory Clock Rate"] == "9.751 GHz"


def test_the_resnet18_funnel_repeats_its_stages_in_order():
    funnel = logs.shared_run(logs.RESNET18).funnel
    assert [(step.stage, step.layers) for step in funnel] == [
        ("original", 53),
        ("dead-layer removal", 53),
        ("Myelin optimization", 52),
        ("scale fusion", 49),
        *(
            (stage, 24)
            for stage in (
                "dupe layer removal",
                "final dead-layer removal",
                "tensor merging",
                "vertical fusions",
                "dupe layer removal",
                "final dead-layer removal",
                "tensor merging",
                "slice removal",
                "concat removal",
            )
        ),
        ("reformat layers", 26),
    ]


def test_the_resnet18_kernels_are_timed_per_layer_and_reformats_apart():
    tuning = logs.shared_run(logs.RESNET18).tuning
    assert tuning.layers == (
        LayerTuning(
            layer="/conv1/Conv + /relu/Relu",
            formats=4,
            candidates=8,
            seconds=0.244431,
            fastest_ms=0.059392,
            fastest="0x9cb304e2edbc1221",
            runner="CaskConvolution",
            chosen="0xf64396b97c889179",
            chosen_ms=0.0694857,
            line=241,
        ),
    )
    assert tuning.reformats is not None
    assert (tuning.reformats.formats, tuning.reformats.candidates, tuning.reformats.fastest_ms) == (
        2,
        6,
        0.00663667,
    )
    assert (tuning.cache_entries, tuning.cache_hits) == (144, 172)


def test_the_resnet18_times_are_those_of_its_log():
    run = logs.shared_run(logs.RESNET18)
    assert {phase.name: phase.seconds for phase in run.phases} == {
        "parsing": 0.144613,
        "graph construction": 0.00150762,
        "graph optimization": 0.0239815,
        "formats and tactics selection": 6.81485,
        "engine generation": 6.96604,
        "engine build": 18.0591,
        "engine deserialization": 0.0260023,
    }
    assert run.memory == Memory(
        host_persistent=86272,
        device_persistent=75776,
        scratch=4608,
        activation=77074944,
        peak_cpu_mib=25,
        peak_gpu_mib=98,
        workspace_limit=1 << 30,
        engine_mib=73,
    )


def test_the_resnet18_summary_is_that_of_its_log():
    seen = logs.shared_run(logs.RESNET18).performance
    assert seen is not None
    assert (seen.throughput_qps, seen.walltime_s, seen.gpu_total_s) == (840.251, 3.00267, 2.99037)
    assert (seen.queries, seen.variance_percent) == (2523, 18.1606)
    assert sorted(seen.metrics) == ["d2h", "enqueue", "gpu_compute", "h2d", "latency"]
    assert seen.metrics["gpu_compute"] == Times(
        min=1.05573,
        max=4.69727,
        mean=1.18524,
        median=1.11011,
        percentiles={"90": 1.48682, "95": 1.6311, "99": 2.10425},
    )
    assert [words.partition(":")[0] for words in seen.diagnosis] == [
        "bound by GPU compute",
        "GPU compute time varies by 18.2 %",
    ]


def test_the_resnet18_layers_are_those_that_it_shows():
    layers = logs.shared_run(logs.RESNET18).engine_layers
    assert [(layer.kind, layer.name) for layer in layers] == [
        ("CaskConvolution", "/conv1/Conv + /relu/Relu"),
        ("NoOp", "reshape_after_/fc/Gemm"),
    ]
    assert layers[0].outputs[0].shape == (-1, 64, 112, 112)


def test_the_yolov8_walk_through_has_every_kind_of_effect_as_often_as_it_shows_it():
    events = logs.shared_run(logs.YOLOV8).events
    assert Counter(event.kind for event in events) == {
        EventKind.ATTEMPT: sum(count.attempts for count in logs.shared_run(logs.YOLOV8).passes.values()),
        EventKind.FUSED: 14,
        EventKind.QUANTIZED: 6,
        EventKind.SWAPPED: 4,
        EventKind.DUPLICATE: 2,
        EventKind.REMOVED: 15,
        EventKind.RETYPED: 5,
        EventKind.MERGED: 5,
        EventKind.SLICE: 3,
        EventKind.CONCAT: 2,
        EventKind.COPIED: 1,
        EventKind.RETARGETED: 4,
        EventKind.BANNER: 4,
        EventKind.LAYERS: 5,
    }


_Q, _DQ = "_input_quantizer/QuantizeLinear", "_input_quantizer/DequantizeLinear"
_SHOWN = {
    "a constant and a reshape": (
        EventKind.FUSED,
        "ConstShuffleFusion",
        ("/model/taskhead22/Squeeze_output_0", "(Unnamed Layer* 635) [Shuffle]"),
    ),
    "two reshapes": (
        EventKind.FUSED,
        "ShuffleShuffleFusion",
        ("/model/taskhead22/dfl/Reshape", "/model/taskhead22/dfl/Transpose"),
    ),
    "an addition and a division": (
        EventKind.FUSED,
        "PointWiseFusion",
        ("/model/taskhead22/Add_5", "/model/taskhead22/Div_1"),
    ),
    "the Q of the next layer into a convolution": (
        EventKind.QUANTIZED,
        "QuantizeDoubleInputNodes",
        (f"/model/backbone1/conv/{_Q}",),
    ),
    "both DQ into a convolution": (
        EventKind.QUANTIZED,
        "QuantizeDoubleInputNodes",
        (f"/model/backbone0/conv/{_DQ}", "/model/backbone0/conv/_weight_quantizer/DequantizeLinear"),
    ),
    "a slice and a clone": (
        EventKind.SWAPPED,
        "",
        ("/model/backbone2/Slice", f"/model/backbone2/cv2/conv/{_Q}_clone_0"),
    ),
    "a duplicate": (EventKind.DUPLICATE, "", (f"/model/backbone4/cv2/conv/{_Q}_clone_1",)),
    "a fused layer that is taken in": (
        EventKind.REMOVED,
        "",
        ("/model/backbone0/bn/BatchNormalization + /model/backbone0/act/Relu",),
    ),
    "a Q that stays": (EventKind.RETYPED, "", (f"/model/backbone0/conv/{_Q}",)),
    "a slice": (EventKind.SLICE, "", ("/model/taskhead22/Split_1",)),
    "a concatenation": (EventKind.CONCAT, "", ("/model/taskhead22/Concat_10",)),
    "a copy": (EventKind.COPIED, "", ("/model/taskhead22/Div_1_output_0",)),
    "a new target": (EventKind.RETARGETED, "", ("/model/taskhead22/Sub_1_output_0",)),
}


@pytest.mark.parametrize(("kind", "name", "nodes"), _SHOWN.values(), ids=_SHOWN)
def test_effects_of_the_yolov8_walk_through_name_their_nodes(kind, name, nodes):
    told = [(event.kind, event.pass_name, event.nodes) for event in logs.shared_run(logs.YOLOV8).events]
    assert (kind, name, nodes) in told


def test_the_yolov8_banners_stand_in_their_order():
    events = logs.shared_run(logs.YOLOV8).events
    assert [event.detail for event in events if event.kind is EventKind.BANNER] == [
        "constant folding of Q/DQ initializers",
        "quantization epilogue pass",
        "optimization pass",
        "constant fold dangling QDQ pass",
    ]


def test_the_yolov8_detailed_record_keeps_its_kernel_and_weights():
    layers = logs.shared_run(logs.YOLOV8).engine_layers
    assert [layer.kind for layer in layers] == ["Myelin", "Reformat", "CaskConvolution"]
    first = layers[2]
    attributes = dict(first.attributes)
    assert first.tactic == "ampere_first_layer_filter3x3_imma_fwd"
    assert attributes["Weights"] == '{"Type": "Int8", "Count": 864}'
    assert (attributes["Kernel"], attributes["Activation"], attributes["HasReLU"]) == ("[3,3]", "RELU", "1")
