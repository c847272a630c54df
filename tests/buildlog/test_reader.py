"""From bytes to runs: prefixes, encodings, damaged lines, several runs, and the laws that hold for every log."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
from dataclasses import replace

import pytest

from qdqtool import buildlog
from qdqtool.buildlog import split_reading
from qdqtool.core.buildlog import LogRun
from qdqtool.core.events import End
from qdqtool.errors import InputFileError
from qdqtool.io import text as source
from tests.buildlog import small
from tests.buildlog.logs import read_text, run_of

PREFIXES = {
    "trtexec, library": ("[01/10/2024-21:52:52] [V] [TRT] ", "trtexec"),
    "python logger 8 and newer": ("[01/10/2024-21:52:52] [TRT] [V] ", "python"),
    "python logger 5 to 7": ("[TensorRT] VERBOSE: ", "python"),
    "polygraphy or rtx": ("[V] ", "logger"),
    "own logger": ("[V] [TRT] ", "logger"),
    "own logger, words": ("TensorRT VERBOSE ", "logger"),
    "jetson-inference": ("[TRT]    ", "jetson-inference"),
    "deepstream": ("INFO: [TRT]: ", "deepstream"),
    "docker around trtexec": ("2024-05-01T10:00:00.123456789Z [01/10/2024-21:52:52] [V] [TRT] ", "trtexec"),
    "kubernetes": ("2024-05-01T10:00:00.123456789Z stdout F [01/10/2024-21:52:52] [V] [TRT] ", "trtexec"),
    "docker compose": ("builder-1  | [01/10/2024-21:52:52] [V] [TRT] ", "trtexec"),
    "systemd": ("Jan 02 15:04:05 orin trtexec[123]: [01/10/2024-21:52:52] [V] [TRT] ", "trtexec"),
    "triton": ("I0410 08:00:00.123456 1 logging.cc:49] [V] [TRT] ", "triton"),
    "doubled stamp": ("[01/29/2022-15:09:36] [01/29/2022-15:09:36] [V] [TRT] ", "trtexec"),
    "doubled bracket": ("[[01/10/2024-21:52:50] [V] [TRT] ", "trtexec"),
    "leading spaces": ("   [01/10/2024-21:52:50] [V] [TRT] ", "trtexec"),
    "no prefix": ("", "unknown"),
}


@pytest.mark.parametrize(("prefix", "front_end"), PREFIXES.values(), ids=PREFIXES)
def test_every_prefix_tells_the_same_story(prefix, front_end):
    plain = run_of(small.library(small.GRAPH + small.OPTIMIZER + small.TUNING, ""))
    run = run_of(small.library(small.GRAPH + small.OPTIMIZER + small.TUNING, prefix))
    assert run.front_end == front_end
    assert run.unread == 0
    assert run.ledger == plain.ledger
    assert run.tuning == plain.tuning
    assert run.network == plain.network
    assert run.funnel == plain.funnel


@pytest.mark.parametrize(
    ("end", "chosen"), [("", ""), (", TacticValue: 0x0000000000000007, StreamId: 0", "0x0000000000000007")]
)
def test_a_record_without_a_tactic_has_none(end: str, chosen: str):
    layers = f"[V] Layers:\nName: w + Q_w + Conv_0, LayerType: Convolution, Inputs: [], Outputs: []{end}\n"
    run = run_of(f"{small.library(small.TUNING, '[V] ')}{layers}")
    assert [row.chosen for row in run.tuning.layers] == [chosen]


def test_a_whole_run_of_trtexec():
    run = run_of(small.trtexec())
    assert (run.front_end, run.version, run.status) == ("trtexec", (8, 6, 0), "passed")
    assert run.argv == ("trtexec", "--onnx=a.onnx", "--int8")
    assert run.options == {
        "Build": {"Precision": "FP32+INT8", "Calibration": "Dynamic"},
        "Device": {"Selected Device": "Orin", "SMs": "16"},
    }
    assert run.unread == 0
    assert [(step.stage, step.layers) for step in run.funnel][-1] == ("reformat layers", 3)
    assert {row.node: (row.end, row.into) for row in run.ledger} == {
        "Q_x": (End.COPY, "Q_x"),
        "DQ_x": (End.INPUT, "Conv_0"),
        "Q_w": (End.WEIGHT, "Conv_0"),
        "DQ_w": (End.WEIGHT, "Conv_0"),
    }
    assert {node.node: node.precision for node in run.compute} == {"Conv_0": "int8-in", "Conv_1": "float"}
    (tuned,) = run.tuning.layers
    assert (tuned.candidates, tuned.fastest_ms, tuned.chosen_ms, tuned.runner) == (
        2,
        0.25,
        0.25,
        "CaskConvolution",
    )
    assert run.performance is not None
    assert run.performance.metrics["latency"].percentiles == {"90": 11.0, "99": 12.0}


@pytest.mark.parametrize(
    ("number", "version"),
    [
        (8003, (8, 0, 3)),
        (8201, (8, 2, 1)),
        (8412, (8, 4, 12)),
        (8501, (8, 5, 1)),
        (8600, (8, 6, 0)),
        (100300, (10, 3, 0)),
        (101401, (10, 14, 1)),
        (101600, (10, 16, 0)),
        (110100, (11, 1, 0)),
    ],
)
def test_version_numbers_of_the_banner(number, version):
    assert run_of(small.trtexec(number)).version == version


ENCODINGS = {
    "utf-8 with mark": "utf-8-sig",
    "utf-16 with mark": "utf-16",
    "utf-16 little-endian": "utf-16-le",
    "utf-16 big-endian": "utf-16-be",
    "utf-32": "utf-32",
}


def _same_but_notes(data: bytes) -> tuple[LogRun, tuple[str, ...]]:
    log = buildlog.read(io.BytesIO(data))
    (run,) = log.runs
    return run, log.notes


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_every_encoding_gives_the_same_run(encoding):
    run, _ = _same_but_notes(small.trtexec().encode(encoding))
    assert run == run_of(small.trtexec())


@pytest.mark.parametrize(
    ("change", "note"),
    [
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), "carriage returns", id="CRLF"),
        pytest.param(lambda data: data.replace(b"Running", b"Ru\0nning"), "NUL bytes", id="NUL bytes"),
        pytest.param(
            lambda data: data.replace(b"[V] [TRT] ", b"\x1b[1;32m[V]\x1b[0m [TRT] \x1b]0;title\x07"),
            "terminal escapes",
            id="ANSI colours and titles",
        ),
        pytest.param(gzip.compress, "gzip", id="gzip"),
        pytest.param(lzma.compress, "xz", id="xz"),
    ],
)
def test_clothes_of_a_log_are_taken_off_and_noted(change, note):
    run, notes = _same_but_notes(change(small.trtexec().encode()))
    assert run == run_of(small.trtexec())
    assert notes == (note,)


def test_blank_lines_between_all_lines_change_no_fact():
    spread = run_of(small.trtexec().replace("\n", "\n\n"))
    plain = run_of(small.trtexec())
    assert spread.blank == plain.lines
    assert {row.node: row.end for row in spread.ledger} == {row.node: row.end for row in plain.ledger}
    assert len(spread.engine_layers) == 3


def test_a_progress_bar_of_carriage_returns_is_one_line():
    run = run_of(
        "[1/1] [0%   ] a.nsys-rep\r[1/1] [==50%] a.nsys-rep\r[1/1] [100%] a.nsys-rep\n" + small.trtexec()
    )
    assert run.lines == run_of(small.trtexec()).lines + 1
    assert run.status == "passed"


def test_joined_messages_are_both_read():
    joined = f"{small.STAMP} [V] [TRT] unknown words {small.STAMP} [V] [TRT] Original: 7 layers\n"
    run = run_of(joined)
    assert [step.layers for step in run.funnel] == [7]
    assert run.unread == 1


def test_a_line_that_ends_one_run_and_begins_another_counts_once():
    cut = f"{small.STAMP} [I] Average o"
    first, second = read_text(
        f"{small.STAMP} [I] Throughput: 5 qps\n&&&& RUNNING a # b\n{cut}{small.trtexec()}"
    ).runs
    assert (first.lines, first.unread) == (2, 0)
    assert (second.lines, second.unread) == (run_of(small.trtexec()).lines, 1)


def test_a_heading_joined_with_an_option_is_read():
    run = run_of("=== Device Information ===Device: 0\nSMs: 82\n")
    assert run.options == {"Device": {"Device": "0", "SMs": "82"}}


def test_a_line_cut_in_the_middle_is_unread_and_harms_nothing():
    text = small.trtexec()
    at = text.index("profiling completed")
    run = run_of(text[: at + 12])
    assert run.status == "cut"
    assert run.unread == 1
    assert len(run.ledger) == 4


def test_a_truncated_packed_log_gives_what_it_holds():
    data = lzma.compress(small.trtexec().encode() * 50)
    log = buildlog.read(io.BytesIO(data[: len(data) // 2]))
    assert any(note.startswith("packed data damaged") for note in log.notes)


def test_runs_in_one_file_are_told_apart():
    log = read_text(small.trtexec(8201) + small.trtexec(8600, "FAILED") + small.trtexec(101401))
    assert [(run.number, run.version, run.status) for run in log.runs] == [
        (1, (8, 2, 1), "passed"),
        (2, (8, 6, 0), "failed"),
        (3, (10, 14, 1), "passed"),
    ]
    one = run_of(small.trtexec())
    assert [run.lines for run in log.runs] == [one.lines] * 3
    assert [run.first_line for run in log.runs] == [1, 1 + one.lines, 1 + 2 * one.lines]


def test_a_second_engine_without_a_banner_is_a_second_run():
    once = small.library(small.GRAPH + small.OPTIMIZER + small.TUNING, "[V] ")
    log = read_text(once + small.library(small.OPTIMIZER, "[V] "))
    assert [len(run.funnel) for run in log.runs] == [5, 4]


def test_a_calibration_build_prints_its_graph_twice_and_stays_one_run():
    text = (
        small.OPTIMIZER + "Starting Calibration.\nCalibration completed in 4.5 seconds.\n" + small.OPTIMIZER
    )
    run = run_of(small.library(text + small.TUNING))
    assert [step.layers for step in run.funnel].count(6) == 4


def test_lines_without_a_prefix_are_foreign_only_where_others_have_one():
    strange = "epoch 3 of 7: loss=0.5\n"
    assert (run_of(strange + small.trtexec()).foreign, run_of(strange + small.trtexec()).unread) == (1, 0)
    pasted = run_of(small.library(small.GRAPH + small.OPTIMIZER, "") + strange)
    assert (pasted.foreign, pasted.unread) == (0, 1)


def test_an_empty_log_is_one_empty_run():
    run = run_of("")
    assert (run.lines, run.status, run.front_end, run.version) == (0, "cut", "unknown", None)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputFileError, match="cannot be read"):
        buildlog.read(tmp_path / "none.log")


def test_a_log_can_be_a_text_stream():
    assert buildlog.read(io.StringIO(small.trtexec())).runs[0] == run_of(small.trtexec())


def _log_of_everything() -> bytes:
    text = small.trtexec(8201) + small.trtexec(8600).replace("Conv_0", "Faltung_ß") + small.trtexec(101401)
    python = small.library(small.GRAPH + small.OPTIMIZER + small.TUNING, "[01/10/2024-21:52:59] [TRT] [V] ")
    unknown = f"\n\nanother program speaks\n{small.STAMP} [V] [TRT] no pattern fits this\n"
    return (text + unknown + python + small.library(small.GRAPH, "[V] ")).encode()


@pytest.mark.parametrize("size", [64, 1000, 4096, 20_000])
def test_the_size_of_blocks_does_not_matter(monkeypatch, size):
    data = _log_of_everything()
    expected = buildlog.read(io.BytesIO(data))
    monkeypatch.setattr(source, "BLOCK", size)
    assert buildlog.read(io.BytesIO(data)) == expected


def test_every_line_is_read_or_blank_or_foreign_or_unread():
    data = _log_of_everything()
    runs = buildlog.read(io.BytesIO(data)).runs
    assert sum(run.lines for run in runs) == data.count(b"\n")
    assert sum(run.unread for run in runs) == 1
    assert sum(run.foreign for run in runs) == 1
    assert [one.text for run in runs for one in run.unread_lines] == ["no pattern fits this"]
    assert sum(run.blank for run in runs) == 2


def test_parts_of_a_file_give_the_digests_of_the_whole(tmp_path, monkeypatch):
    path = tmp_path / "many.log"
    path.write_bytes(_log_of_everything() * 3)
    monkeypatch.setattr(split_reading, "PART", 3000)
    monkeypatch.setattr(split_reading, "PIECE", 1000)
    pieces = tuple(split_reading.parts_of(path))
    assert len(pieces) > 3
    assert (pieces[0].begin, pieces[-1].end) == (0, path.stat().st_size)
    whole = list(buildlog.digests(buildlog.TextSource(path)))
    in_parts = [digest for piece in pieces for digest in split_reading.digests_of_part(piece)]
    assert [replace(digest, number=0) for digest in in_parts] == [
        replace(digest, number=0) for digest in whole
    ]


def test_what_stands_before_the_first_banner_stays_with_its_run(tmp_path, monkeypatch):
    path = tmp_path / "late.log"
    path.write_text("epoch 3 of 7\n" * 400 + small.trtexec() * 3)
    monkeypatch.setattr(split_reading, "PART", 3000)
    monkeypatch.setattr(split_reading, "PIECE", 1000)
    in_parts = [
        digest for piece in split_reading.parts_of(path) for digest in split_reading.digests_of_part(piece)
    ]
    assert [digest.lines for digest in in_parts] == [
        digest.lines for digest in buildlog.digests(buildlog.TextSource(path))
    ]


def test_an_endless_line_is_not_held_while_parts_are_looked_for(tmp_path, monkeypatch):
    path = tmp_path / "long.log"
    path.write_text(small.trtexec() + "x" * 2_000_000 + "&&&& RUNNING a # b\n" + small.trtexec() * 2)
    monkeypatch.setattr(split_reading, "PART", 3000)
    monkeypatch.setattr(split_reading, "PIECE", 1000)
    tracemalloc.start()
    try:
        pieces = tuple(split_reading.parts_of(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    assert [piece.first_line for piece in pieces] == [
        1,
        *(small.trtexec().count("\n") * number + 2 for number in (1, 2)),
    ]


def test_a_big_file_is_digested_by_several_processes_in_order(tmp_path, monkeypatch):
    path = tmp_path / "many.log"
    path.write_bytes((small.trtexec(8201) + small.trtexec(8600)).encode() * 4)
    monkeypatch.setattr(split_reading, "PART", 3000)
    monkeypatch.setattr(split_reading, "PIECE", 1000)
    monkeypatch.setattr(split_reading, "BIG", 1000)
    assert list(split_reading.digests_of(path)) == list(buildlog.digests(buildlog.TextSource(path)))


def test_kernels_count_for_the_layer_that_was_announced():
    """Kernels of a runner that prints no result, and rows of a Myelin table, were counted for the next layer."""
    text = """\
--------------- Timing Runner: A (CaskConvolution[0x80000009])
Tactic Name: one Tactic: 0x0000000000000001 Time: 0.5
Tactic Name: two Tactic: 0x0000000000000002 Time: 0.5
--------------- Timing Runner: B (CaskConvolution[0x80000009])
Tactic Name: three Tactic: 0x0000000000000003 Time: 0.25
B (CaskConvolution[0x80000009]) profiling completed in 0.1 seconds. Fastest Tactic: 0x0000000000000003 Time: 0.25
--------------- Timing Runner: {ForeignNode[a...b]} (Myelin[0x80000023])
(foreignNode) Autotuning op gemm: [ONNX Layer: gemm]
(foreignNode) Sorted table of all evaluated tactics:
(foreignNode)    0, 0.0188384, 1.00000, 0.92564, kernel_a, 0x4841c72cefae1,
(foreignNode)    1, 0.0288384, 1.50000, 0.92564, kernel_b, 0x4841c72cefae2,
(foreignNode)    2, 0.0388384, 2.00000, 0.92564, kernel_c, 0x4841c72cefae3,
{ForeignNode[a...b]} (Myelin[0x80000023]) profiling completed in 1.8 seconds. Fastest Tactic: 0x0000000000000000 Time: 0.02
"""
    tuning = run_of(small.library(text)).tuning
    assert {row.layer: row.candidates for row in tuning.layers} == {"A": 2, "B": 1, "{ForeignNode[a...b]}": 0}
    assert [(op.op, op.candidates) for op in tuning.myelin] == [("gemm", 3)]


def _stamped(text: str) -> str:
    lines = (line.split(" ", 1) for line in text.splitlines())
    return "".join(f"[01/10/2024-21:52:{second}] [V] [TRT] {words}\n" for second, words in lines)


def test_the_time_of_a_region_is_not_that_of_the_last_operation_in_it():
    text = """\
*************** Autotuning format combination: Float(9,1) -> Float(9,1) ***************
--------------- Timing Runner: {ForeignNode[a...b]} (Myelin[0x80000023])
 (foreignNode) Autotuning op a: [ONNX Layer: a]
 (foreignNode)   34, 0.0084864, 1.00000, 2.07191, sm80_xmma_gemm, 0x4754af3ee6112,
Subgraph compilation completed in 1.799 seconds.
Tactic: 0x0000000000000000 Time: 0.0177673
{ForeignNode[a...b]} (Myelin[0x80000023]) profiling completed in 1.8 seconds. Fastest Tactic: 0x0000000000000000 Time: 0.0177673
"""
    run = run_of(small.library(text))
    assert [(layer.layer, layer.candidates) for layer in run.tuning.layers] == [("{ForeignNode[a...b]}", 1)]
    assert [(op.op, op.candidates) for op in run.tuning.myelin] == [("a", 1)]
    assert [(row.layer, row.ms) for row in run.tactics] == [
        ("a", 0.0084864),
        ("{ForeignNode[a...b]}", 0.0177673),
    ]


def test_loading_libraries_is_no_optimization_and_tuning_begins_behind_it():
    loaded = _stamped("""\
10 Original: 6 layers
11 Graph construction and optimization completed in 0.97 seconds.
19 [MemUsageChange] Init cuBLAS/cuBLASLt: CPU +248, GPU +102, now: CPU 437, GPU 725 (MiB)
20 Local timing cache in use. Profiling results in this builder pass will not be stored.
50 Engine generation completed in 2.5 seconds.""")
    phases = [(phase.name, phase.seconds) for phase in run_of(loaded).phases if not phase.stated]
    assert phases[:3] == [("graph optimization", 1), ("library initialization", 9), ("autotuning", 30)]
    cut = "".join(line + "\n" for line in loaded.splitlines() if "Init" not in line and "cache" not in line)
    phases = [(phase.name, phase.seconds) for phase in run_of(cut).phases if not phase.stated]
    assert phases[:2] == [("graph optimization", 1), ("autotuning", 39)]


def test_a_swap_whose_attempt_was_cut_away_is_credited_to_no_other_pass():
    text = "Running: SplitQAcrossPrecedingFanIn on Concat_1\nSwapping Slice_2 with Q_clone_0\n"
    run = run_of(small.library(text))
    assert run.passes["SplitQAcrossPrecedingFanIn"].effects == 0


def test_the_scratch_memory_of_newer_releases_is_read():
    assert run_of(small.library("Max Scratch Memory: 541696 bytes")).memory.scratch == 541696


def test_the_version_is_that_of_the_library_where_no_banner_states_it():
    text = "Trying to load shared library libnvinfer_builder_resource_sm90.so.10.16.2"
    assert run_of(small.library(text, "[V] ")).version == (10, 16, 2)


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (r"C:\Program Files\TRT\bin\trtexec.exe --onnx=D:\m\a.onnx", (r"C:\Program Files\TRT\bin\trtexec.exe", r"--onnx=D:\m\a.onnx")),
        (r'"C:\TRT\trtexec.exe" --onnx="D:\my models\a.onnx"', (r"C:\TRT\trtexec.exe", r"--onnx=D:\my models\a.onnx")),
        ("trtexec --onnx=a\\ b.onnx", ("trtexec", "--onnx=a b.onnx")),
    ],
)  # fmt: skip
def test_backslashes_of_windows_stay(command, argv):
    assert run_of(f"&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # {command}\n").argv == argv


def test_the_harness_of_mlperf_is_not_trtexec():
    banner = "&&&& RUNNING Default_Harness # ./build/bin/harness_bert --gpu_engines=a.plan\n"
    assert run_of(banner).front_end == "mlperf"


def test_warnings_about_tensors_whose_names_are_numbers_are_kept_apart():
    missing = (
        f"{small.STAMP} [W] [TRT] Missing scale and zero-point for tensor {{}}, expect fall back to non-int8 "
        "implementation for any layer consuming or producing given tensor\n"
    )
    run = run_of("".join(missing.format(number) for number in (423, 424, 423)))
    assert [record.count for record in run.warnings] == [2, 1]


def test_layers_of_a_log_have_the_precision_that_the_engine_command_finds():
    run = run_of(small.trtexec())
    assert [(layer.name, str(layer.precision)) for layer in run.engine_layers] == [
        ("Q_x", "int8"),
        ("w + Q_w + Conv_0", "int8"),
        ("Conv_1", "fp32"),
    ]


def test_polygraphy_states_the_version_of_the_module_it_loaded():
    text = "[V] Loaded Module: tensorrt | Version: 10.14.1.48 | Path: ['/usr/lib/python3/dist-packages/tensorrt']\n"
    run = run_of(text)
    assert (run.front_end, run.version) == ("polygraphy", (10, 14, 1))


def test_the_engines_of_one_process_are_built_by_the_library_that_it_loaded():
    loading = f"{small.STAMP} [TRT] [V] Loaded shared library libnvinfer_builder_resource_sm89.so.10.16.0\n"
    prefix = f"{small.STAMP} [TRT] [V] "
    build = small.library(small.OPTIMIZER + "Engine generation completed in 3.5 seconds.\n", prefix)
    first, second = read_text(loading + build + build).runs
    assert (first.version, second.version) == ((10, 16, 0), (10, 16, 0))
    starting = small.library(
        "[MemUsageChange] Init CUDA: CPU +22, GPU +0, now: CPU 162, GPU 1626 (MiB)\n", prefix
    )
    first, second = read_text(loading + build + starting + build).runs
    assert (first.version, second.version) == ((10, 16, 0), None)
