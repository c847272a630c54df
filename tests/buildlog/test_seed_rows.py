"""Messages that the seed documents list, one by one: which pattern each is, and what it is taken apart into."""

from __future__ import annotations

import pytest

from qdqtool.buildlog.grammar import grammar
from qdqtool.core.buildlog import MyelinTuning, Times
from qdqtool.core.events import EventKind
from tests.buildlog import small
from tests.buildlog.logs import run_of

ID = "0x764ba04bb839d539"
ROWS = {
    # placement, autotuning, tactics
    "---------- Layers Running on DLA ----------": ("dla-heading", ()),
    "---------- Layers Running on GPU ----------": ("gpu-heading", ()),
    "[GpuLayer] conv1 + relu1": ("on-gpu", ("conv1 + relu1",)),
    "[GpuLayer] COPY: q": ("on-gpu", ("COPY: q",)),
    "[DlaLayer] {ForeignNode[a...b]}": ("on-dla", ("{ForeignNode[a...b]}",)),
    "=============== Computing costs for conv1": ("costs", (" conv1",)),
    "=============== Computing reformatting costs": ("reformat-costs", ("",)),
    "=============== Computing reformatting costs: ": ("reformat-costs", (":",)),
    "*************** Autotuning format combination: Int8(64,1:4,8) -> Float(36,6,1) ***************": (
        "formats-tried",
        ("Int8(64,1:4,8) -> Float(36,6,1) ***************",),
    ),
    "*************** Autotuning Reformat: Float(9,1) -> Int8(9,1:32) ***************": (
        "reformat-tried",
        (" Float(9,1) -> Int8(9,1:32) ***************",),
    ),
    "--------------- Timing Runner: a (b) + c (CaskConvolution[0x80000009])": (
        "timing",
        ("a (b) + c", "CaskConvolution[0x80000009]"),
    ),
    "--------------- Timing Runner: Optimizer Reformat(x -> <out>) (Reformat)": (
        "timing",
        ("Optimizer Reformat(x -> <out>)", "Reformat"),
    ),
    f"Tactic Name: ampere_nn_v1 Tactic: {ID} Time: 0.25": ("tactic-named", ("ampere_nn_v1", ID, 0.25)),
    "Tactic: 0x00000000000003e8 Time: 0.0141162": ("tactic", ("0x00000000000003e8", 0.0141162)),
    "Tactic: -3730012925709297561 Time: inf": ("tactic", ("0xcc3c5501ab7b5867", None)),
    f"a (CaskConvolution[0x80000009]) profiling completed in 0.5 seconds. Fastest Tactic: {ID} Time: 0.25": (
        "timed",
        ("a (CaskConvolution[0x80000009])", "0.5", ID, "0.25"),
    ),
    f"Fastest Tactic: {ID} Time: 0.25": ("fastest", (ID, 0.25)),
    "CudnnConvolution has no valid tactics for this config, skipping": ("no-tactics", ("CudnnConvolution",)),
    f">>>>>>>>>>>>>>> Chose Runner Type: CaskConvolution Tactic: {ID}": ("chosen", ("CaskConvolution", ID)),
    "Adding reformat layer: Reformatted Input Tensor 0 to a (x) from Float(9,1) to Int8(9,1:32)": (
        "reformat-added",
        ("Reformatted Input Tensor 0 to a (x)", "Float(9,1)", "Int8(9,1:32)"),
    ),
    "Formats and tactics selection completed in 6.81485 seconds.": ("selection-took", (6.81485,)),
    "After reformat layers: 26 layers": ("layers-after", ("reformat layers", 26)),
    "Local timing cache in use. Profiling results in this builder pass will not be stored.": (
        "timing-cache-local",
        ("Profiling results in this builder pass will not be stored.",),
    ),
    # memory and the end of a build
    "Total number of blocks in pre-optimized block assignment: 26": ("blocks-before", (26,)),
    "Detected 1 inputs and 1 output network tensors.": ("io-detected", (1, 1)),
    "Layer: conv1 + relu1 Host Persistent: 4016 Device Persistent: 75776 Scratch Memory: 0": (
        "memory-layer",
        ("conv1 + relu1", 4016, 75776, 0),
    ),
    "Skipped printing memory information for 3 layers with 0 memory size i.e. Host Persistent == 0.": (
        "memory-layers-skipped",
        (3, "Host Persistent == 0."),
    ),
    "Total Host Persistent Memory: 30784": ("memory-host", ("30784",)),
    "Total Device Persistent Memory: 61892096": ("memory-device", ("61892096",)),
    "Total Scratch Memory: 4608": ("memory-scratch", ("4608",)),
    "[BlockAssignment] Started assigning block shifts. This will take 27 steps to complete.": (
        "blocks-begin",
        (27,),
    ),
    "STILL ALIVE: Started step 26 of 27": ("blocks-alive", (26, 27)),
    "[BlockAssignment] Algorithm ShiftNTopDown took 0.4ms to assign 4 blocks to 27 nodes requiring 512 bytes.": (
        "blocks-assigned",
        ("ShiftNTopDown", 0.4, 4, 27, 512),
    ),
    "Total number of blocks in optimized block assignment: 4": ("blocks-after", (4,)),
    "Total Activation Memory: 77074944": ("memory-activation", ("77074944",)),
    "Finalize: conv1 + relu1 Set kernel index: 10": ("finalized", ("conv1 + relu1", 10)),
    "Total number of generated kernels selected for the engine: 11": ("kernels-total", (11,)),
    "Kernel: 0 CASK_STATIC": ("kernel", (0, "CASK_STATIC")),
    "Disabling unused tactic source: JIT_CONVOLUTIONS": ("tactic-source-unused", ("JIT_CONVOLUTIONS",)),
    "Engine generation completed in 6.96604 seconds.": ("engine-generated", (6.96604,)),
    "Deleting timing cache: 144 entries, served 172 hits since creation.": ("timing-cache-gone", (144, 172)),
    "Adding 1 engine(s) to plan file.": ("engine-added", (1,)),
    "Engine built in 184.708 sec.": ("engine-built", (184.708,)),
    "Loaded engine size: 186 MiB": ("engine-loaded", (186,)),
    "Deserialization required 20415 microseconds.": ("engine-deserialization", (20415,)),
    "Engine deserialized in 0.0260023 sec.": ("engine-deserialized", (0.0260023,)),
    "Total per-runner device persistent memory is 75776": ("memory-runner-device", ("75776",)),
    "Total per-runner host persistent memory is 86272": ("memory-runner-host", ("86272",)),
    "Allocated activation device memory of size 77074944": ("memory-allocated", (77074944,)),
    # layers of the engine
    "Layer(Myelin): {ForeignNode[a...b]}, Tactic: 0x0000000000000000,  -> c[Float(1,8)]": (
        "layer",
        ("Myelin", "{ForeignNode[a...b]}", "0x0000000000000000,  -> c[Float(1,8)]"),
    ),
    "Name: a, LayerType: Reformat, Inputs: [ ], Outputs: [ ], Origin: QDQ": (
        "layer-record",
        ("a", "Reformat, Inputs: [ ], Outputs: [ ], Origin: QDQ"),
    ),
    # inference and its summary
    "Using random values for input x": ("values-random", ("input", "x")),
    "Created input binding for x with dimensions 1x3x288x800": (
        "binding-created",
        ("input", "x", "1x3x288x800"),
    ),
    "Output binding for y with dimensions 4x1000 is created.": ("binding-created", ("Output", "y", "4x1000")),
    "Starting inference": ("inference-begins", ()),
    "Timing trace has 2523 queries over 3.00267 s": ("traced", (2523, 3.00267)),
    "Throughput: 840.251 qps": ("throughput", (840.251,)),
    "Total Host Walltime: 3.16419 s": ("walltime", (3.16419,)),
    "Total GPU Compute Time: 3.15371 s": ("gpu-total", (3.15371,)),
    "* GPU compute time is unstable, with coefficient of variance = 18.1606%.": ("unstable", (18.1606,)),
}


@pytest.mark.parametrize("message", ROWS)
def test_a_listed_message_is_taken_apart(message):
    assert grammar().read(message.strip()) == ROWS[message]


TENSORRT_7 = """\
Host Latency
min: 3.05505 ms (end to end 3.06653 ms)
max: 5.60945 ms (end to end 5.61841 ms)
mean: 3.1141 ms (end to end 3.12513 ms)
median: 3.09796 ms (end to end 3.10852 ms)
percentile: 3.4563 ms at 99% (end to end 3.47168 ms at 99%)
throughput: 318.785 qps
walltime: 3.00516 s
Enqueue Time
min: 3.02222 ms
max: 5.35538 ms
median: 3.05493 ms
GPU Compute
min: 3.00146 ms
max: 5.56586 ms
mean: 3.05402 ms
median: 3.03919 ms
percentile: 3.41711 ms at 99%
total compute time: 2.92575 s
"""


def test_a_summary_of_tensorrt_7_stands_on_many_lines():
    run = run_of("&&&& RUNNING TensorRT.trtexec # trtexec --int8\n" + small.library(TENSORRT_7))
    assert run.performance is not None
    assert run.performance.metrics == {
        "latency": Times(min=3.05505, max=5.60945, mean=3.1141, median=3.09796, percentiles={"99": 3.4563}),
        "end_to_end": Times(
            min=3.06653, max=5.61841, mean=3.12513, median=3.10852, percentiles={"99": 3.47168}
        ),
        "enqueue": Times(min=3.02222, max=5.35538, median=3.05493),
        "gpu_compute": Times(
            min=3.00146, max=5.56586, mean=3.05402, median=3.03919, percentiles={"99": 3.41711}
        ),
    }
    assert (run.performance.throughput_qps, run.performance.walltime_s, run.performance.gpu_total_s) == (
        318.785,
        3.00516,
        2.92575,
    )


@pytest.mark.parametrize(
    "options", ["Batch: 8", "Batch: Explicit\nStreams: 8", "Inference Streams: 8", "Batch: 4\nStreams: 2"]
)
def test_a_gpu_that_computes_several_queries_at_once_is_not_called_busier_than_it_is(options: str):
    batched = TENSORRT_7.replace("318.785", "2550.28")
    run = run_of(small.library(f"=== Inference Options ===\n{options}\n{batched}"))
    assert run.performance is not None
    assert run.performance.diagnosis[0].startswith("the GPU is busy (2550.28 qps is 97%")


MYELIN = """\
 (foreignNode) Autotuning op node_linear: [ONNX Layer: node_linear][ONNX Layer: node_relu_2]
 (foreignNode) Sorted table of all evaluated tactics:
 (foreignNode) tactic_id, cost(in ms), cost/fastest_cost, prediction_correlation, kernel_name, tactic_hash, tunable_parameter
 (foreignNode)   34, 0.0084, 1.00000, 2.07191, sm80_xmma_gemm_tn_n, 0x4754af3ee6112,
 (foreignNode)   55, 0.0086, 1.01357, 2.04803, sm86_xmma_gemm_tn_n, 0x49440904257ce,
 (foreignNode)  121, 0.0087, 1.02564, 2.02011, sm80_xmma_gemm_nn_n, 0x601ffa534e573, 3
 (foreignNode) The selected tactic is (tactic hash, cost(in ms)):0x49440904257ce, 0.0086
 (foreignNode) Autotuning op conv(key: 0x12): [ONNX Layer: conv]
 (foreignNode)    2, 0.0069, 1.00000, 0.51446, sm80_xmma_fprop, 0x52a68fac6,
"""


@pytest.mark.parametrize("prefix", [f"{small.STAMP} [TRT] [V] ", "[V] "])
def test_myelin_tables_of_10_give_candidates_fastest_and_selected(prefix):
    run = run_of(small.library(MYELIN, prefix))
    assert run.unread == 0
    assert run.tuning.myelin == (
        MyelinTuning(
            op="node_linear",
            candidates=3,
            fastest_ms=0.0084,
            fastest="0x0004754af3ee6112",
            kernel="sm80_xmma_gemm_tn_n",
            selected="0x00049440904257ce",
            selected_ms=0.0086,
            line=1,
        ),
        MyelinTuning(
            op="conv",
            candidates=1,
            fastest_ms=0.0069,
            fastest="0x000000052a68fac6",
            kernel="sm80_xmma_fprop",
            selected="",
            selected_ms=None,
            line=8,
        ),
    )


def test_skipped_kernels_are_not_candidates():
    timing = small.TUNING.replace(
        "Tactic Name: ampere_int8",
        "Tactic: 4 skipped. Scratch requested: 75272, available: 1024\nTactic Name: ampere_int8",
    )
    (row,) = run_of(small.library(timing)).tuning.layers
    assert row.candidates == 2


def test_bindings_are_named_by_every_generation():
    classic = run_of(
        "[V] Layers:\nName: a, LayerType: NoOp, Inputs: [], Outputs: []\nBindings:\nimages\noutput0\n"
    )
    rtx = run_of(
        "[V] I/O Tensors:\n"
        "Name: input, IOMode: Input, DataType: Float, Dimensions: [1,3], Location: Device, ProfileInfo: [ ]\n"
        "Name: output, IOMode: Output, DataType: Half, Dimensions: [1,9], Location: Device, ProfileInfo: [ ]\n"
    )
    assert classic.bindings == ("images", "output0")
    assert rtx.bindings == ("input", "output")


AMBIGUOUS = {
    "with, on the left": ("ConvReluFusion: Fusing Conv with bias with Relu", ("Conv with bias", "Relu")),
    "with, on the right": ("ConvReluFusion: Fusing Conv with Relu with slope", ("Conv", "Relu with slope")),
    "plus": ("ConvReluFusion: Fusing a + b with Relu", ("a + b", "Relu")),
    "and": ("QuantizeDoubleInputNodes: fusing (DQ and x and DQ_w) into Conv", ("DQ and x", "DQ_w")),
    "brackets and spaces": (
        "ConstShuffleFusion: Fusing fc (a) with (Unnamed Layer* 56) [Shuffle]",
        ("fc (a)", "(Unnamed Layer* 56) [Shuffle]"),
    ),
    "to": ("Retargeting a to b to c to d", ("a to b",)),
    "bars": ("Merging layers: a|b || c", ("a|b", "c")),
}
NAMES = ("Conv with bias", "Relu", "Conv", "Relu with slope", "DQ and x", "DQ_w", "a to b", "c to d")


@pytest.mark.parametrize(("message", "nodes"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_separators_inside_names_are_told_from_those_between(message, nodes):
    named = "".join(f"Parsing node: {name} [Op]\n" for name in NAMES)
    # Each message sees only the names that it is about: "Conv" alone would make two readings equally good.
    wanted = [name for name in NAMES if name in nodes or name in ("DQ_w", "c to d")]
    run = run_of(
        small.library("".join(line + "\n" for line in named.splitlines() if line[14:-5] in wanted) + message)
    )
    told = [event for event in run.events if event.kind is not EventKind.BANNER]
    assert [event.nodes for event in told] == [nodes]


def test_a_squeeze_that_moves_behind_its_reader_is_an_effect_of_its_pass():
    run = run_of(
        small.library(
            "Running: SqueezePushDownFork on r\n"
            "-----------SqueezePushDown kSQUEEZE_FORK case: MatMul-9 --> r --> ReLU-11\n"
            "-----------SqueezePushDown kSQUEEZE_JOIN case: MatMul --> (Unnamed Layer* 19) [Shuffle] --> add_2\n"
        )
    )
    assert {name: (seen.attempts, seen.effects) for name, seen in run.passes.items()} == {
        "SqueezePushDownFork": (1, 1),
        "SqueezePushDownJoin": (0, 1),
    }
    assert [event.nodes for event in run.events][1:] == [
        ("r", "ReLU-11"),
        ("(Unnamed Layer* 19) [Shuffle]", "add_2"),
    ]


def test_the_peak_of_the_whole_build_is_kept():
    line = "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 4322 MiB\n"
    assert run_of(small.library(line)).memory.peak_building_cpu_mib == 4322
