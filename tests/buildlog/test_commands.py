"""The commands parse, diff and explain as a person and a script meet them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.cli.app import run
from qdqtool.core.kinds import LOG
from qdqtool.errors import InputFileError, Terminated
from tests.buildlog import carried, small


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "build.log"
    path.write_text(small.trtexec())
    return path


def test_parse_prints_a_digest(log, capsys):
    assert run(["parse", str(log)]) == 0
    out = capsys.readouterr().out
    for words in (
        "run 1: trtexec, TensorRT 8.6.0, passed",
        "ConstQDQInitializersFusion",
        "2 Q, 2 DQ, 0 clones; 4 of 4 accounted for",
        "separate kernels: Q_x",
        "Conv_1 (Conv): float: none of its inputs comes from a DequantizeLinear",
        "100 queries per second",
        "consider --fp16",
    ):
        assert words in out


def test_a_log_with_bf16_is_not_told_to_allow_fp16(log, capsys):
    log.write_text(small.trtexec().replace("FP32+INT8", "FP32+BF16+INT8"))
    assert run(["parse", str(log)]) == 0
    out = capsys.readouterr().out
    assert "precision FP32+BF16+INT8" in out
    assert "run in FP32" not in out


CONTRACT = {
    "argv": list,
    "engine_layers": list,
    "front_end": str,
    "funnel": list,
    "ledger": list,
    "ledger_summary": dict,
    "lines": int,
    "passes": dict,
    "performance": dict,
    "status": str,
    "unread": int,
    "version": list,
}


def test_the_fields_that_scripts_rely_on_are_there(log, capsys):
    assert run(["parse", str(log), "--json"]) == 0
    artefact = json.loads(capsys.readouterr().out)
    assert (artefact["kind"], artefact["schema"]) == ("log", 1)
    (one,) = artefact["data"]["runs"]
    assert {field: type(one[field]) for field in CONTRACT} == CONTRACT
    assert one["version"] == [8, 6, 0]
    assert one["passes"]["QDQToCopy"] == {
        "attempts": 1,
        "effects": 1,
        "first_line": one["passes"]["QDQToCopy"]["first_line"],
    }
    assert one["funnel"][0] == {"stage": "original", "layers": 6, "line": one["funnel"][0]["line"]}
    row = next(row for row in one["ledger"] if row["node"] == "DQ_w")
    assert (row["kind"], row["end"], row["into"]) == ("DQ", "fused-weight", "Conv_0")
    assert row["lines"]
    assert one["ledger_summary"]["accounted"] == 4
    assert one["performance"]["throughput_qps"] == 100.0


def test_json_of_the_command_is_the_artefact_byte_for_byte(log, capsys, tmp_path):
    run(["parse", str(log), "--json"])
    printed = capsys.readouterr().out
    assert printed == LOG.dump(buildlog.read(log))
    run(["parse", str(log), "--json", "--events", str(tmp_path / "events.jsonl")])
    assert capsys.readouterr().out == printed


def test_json_with_notes_and_two_runs_is_the_artefact_too(tmp_path, capsys):
    path = tmp_path / "two.log"
    path.write_bytes((small.trtexec(8201) + small.trtexec(8600)).encode("utf-16"))
    run(["parse", str(path), "--json"])
    printed = capsys.readouterr().out
    assert printed == LOG.dump(buildlog.read(path))
    assert LOG.read(_written(tmp_path, printed)).notes == ("utf-16-le",)


def _written(folder: Path, text: str) -> Path:
    path = folder / "artefact.json"
    path.write_text(text)
    return path


def test_every_export_is_written(log, tmp_path, capsys):
    events, tables, trace = tmp_path / "events.jsonl", tmp_path / "tables", tmp_path / "trace.json"
    assert (
        run(["parse", str(log), "--events", str(events), "--tables", str(tables), "--trace", str(trace)]) == 0
    )
    assert "run 1: trtexec" in capsys.readouterr().out
    first = json.loads(events.read_text().splitlines()[0])
    assert (first["kind"], first["run"]) == ("layers", 1)
    ledger = list(csv.DictReader(io.StringIO((tables / "ledger.csv").read_text())))
    assert {row["node"]: row["end"] for row in ledger}["Q_x"] == "runtime-copy"
    assert {path.stem for path in tables.iterdir()} >= {
        "passes",
        "events",
        "compute",
        "nodes",
        "tactics",
        "layers",
    }
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    tuned = [event for event in slices if event["tid"] == 2]
    assert [(event["name"], event["dur"]) for event in tuned] == [("w + Q_w + Conv_0", 125_000)]


def test_parquet_without_pyarrow_names_the_package(log, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["parse", str(log), "--tables", str(tmp_path / "t"), "--parquet"]) == 3
    assert "pip install 'qdqtool[parquet]'" in capsys.readouterr().err


def test_parquet_tables_hold_the_same_rows(log, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    assert run(["parse", str(log), "--tables", str(tmp_path), "--parquet"]) == 0
    assert parquet.read_table(tmp_path / "ledger.parquet").num_rows == 4


@pytest.mark.parametrize("size", [2**64 - 1, 2**70])
def test_parquet_tables_hold_sizes_of_any_length(log, tmp_path, size: int):
    """TensorRT prints an overflow as nearly 2^64 bytes."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    skipped = "UNSUPPORTED_STATE: Skipping tactic 4 due to insufficient memory on requested size of {} detected for tactic 0x0000000000000004.\n"
    lines = (f"{small.STAMP} [V] [TRT] {skipped.format(number)}" for number in (2**60 + 1, size))
    log.write_text(small.trtexec().replace("&&&& PASSED", f"{''.join(lines)}&&&& PASSED", 1))
    assert run(["parse", str(log), "--tables", str(tmp_path), "--parquet"]) == 0
    column = parquet.read_table(tmp_path / "tactics.parquet")["workspace"].to_pylist()
    assert [number for number in column if number is not None] == [float(2**60), float(size)]


def test_unread_lists_wordings_by_frequency(log, capsys):
    odd = f"{small.STAMP} [V] [TRT] nobody knows this\n"
    log.write_text(small.trtexec() + odd * 2 + odd.replace("nobody", "everybody forgot"))
    assert run(["parse", str(log), "--unread"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=2)[::2] for line in lines] == [
        ["2", "nobody knows this"],
        ["1", "everybody forgot knows this"],
    ]


def test_of_many_runs_the_later_ones_get_a_line_each(tmp_path, capsys):
    path = tmp_path / "many.log"
    path.write_text(small.trtexec() * 11)
    assert run(["parse", str(path)]) == 0
    out = capsys.readouterr().out
    assert sum(line.startswith("run ") for line in out.splitlines()) == 11
    assert out.count("passes ") == 8


WHOLE = small.trtexec()
ENDS = {
    "passed": (WHOLE, 0),
    "failed": (small.trtexec(end="FAILED"), 4),
    "crashed while running": (WHOLE[: WHOLE.index("&&&& PASSED")], 4),
    "crashed while building": (WHOLE[: WHOLE.index("=============== Computing")], 4),
    "a builder without a verdict": (small.library(small.OPTIMIZER + small.TUNING, "[V] "), 0),
}


@pytest.mark.parametrize(("log", "code"), ENDS.values(), ids=ENDS)
def test_a_pipe_hands_on_whether_the_build_failed(log, code, tmp_path):
    kept = tmp_path / "kept.log"
    text = log.encode()
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", "parse", "-", "--tee", str(kept)],
        input=text,
        capture_output=True,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    assert b"run 1: " in done.stdout
    assert kept.read_bytes() == text


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (None, InputFileError.exit_code),
        pytest.param(
            signal.SIGTERM,
            Terminated.exit_code,
            marks=pytest.mark.skipif(os.name == "nt", reason="needs the signals of POSIX"),
        ),
    ],
    ids=["not a log", "stopped"],
)
def test_the_copy_of_a_pipe_stays_when_the_command_ends_with_an_error(
    number: int | None, code: int, tmp_path: Path
) -> None:
    kept = tmp_path / "logs" / "kept.log"
    with subprocess.Popen(
        [sys.executable, "-m", "qdqtool", "parse", "-", "--tee", str(kept)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        child.stdin.write(b"no line of a builder\n")
        child.stdin.flush()
        end = time.monotonic() + 60
        while number is not None and time.monotonic() < end and not (kept.is_file() and kept.stat().st_size):
            time.sleep(0.05)
        if number is not None:
            child.send_signal(number)
            child.wait(60)
        child.communicate(timeout=60)
    assert child.returncode == code
    assert kept.read_bytes() == b"no line of a builder\n"


def test_a_log_may_be_copied_onto_itself(log: Path) -> None:
    before = log.read_bytes()
    assert run(["parse", str(log), "--tee", str(log)]) == 0
    with log.open("rb") as stream:
        command = [sys.executable, "-m", "qdqtool", "parse", "-", "--tee", str(log)]
        subprocess.run(command, stdin=stream, capture_output=True, check=True)
    assert log.read_bytes() == before


def test_the_answer_of_a_pipe_goes_to_standard_output_while_a_terminal_shows_progress():
    pty = pytest.importorskip("pty", reason="needs a terminal")
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "qdqtool", "parse", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    ) as child:
        os.close(terminal)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(small.trtexec().encode())
        child.stdin.close()
        shown = _all_of(master)
        answer = child.stdout.read().decode()
    os.close(master)
    assert answer.startswith("run 1: trtexec")
    assert "lines" in shown
    assert "run 1:" not in shown


def _all_of(terminal: int) -> str:
    """What is written to a terminal until its other end is closed."""
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "replace")


def test_a_saved_log_of_a_failed_build_is_still_a_good_log(log, capsys):
    error = f"{small.STAMP} [E] [TRT] ModelImporter.cpp:773: ERROR: ModelImporter.cpp:180 In function parseGraph: [8] "
    log.write_text(
        "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=a.onnx\n"
        + error
        + 'Assertion failed: shiftIsAllZeros(zeroPoint) && "TRT only supports symmetric quantization"\n'
        + f"{small.STAMP} [E] Engine set up failed\n"
        + "&&&& FAILED TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=a.onnx\n"
    )
    assert run(["parse", str(log)]) == 0
    out = capsys.readouterr().out
    assert "answer      not built: the zero point is not 0" in out
    assert "fix: `qdqtool repair MODEL --out repaired.onnx` quantizes with zero point 0" in out


def test_terminal_escapes_in_names_are_shown_not_sent(log, capsys):
    log.write_text(small.trtexec().replace("Conv_1", "Conv\x9b31m\u202e_1").replace("Q_x", "Q\x07_x"))
    for arguments in (["parse", str(log)], ["parse", str(log), "--unread"], ["diff", str(log), str(log)]):
        assert run(arguments) == 0
        out = capsys.readouterr().out
        assert not {char for char in out if not char.isprintable() and char != "\n"}


def test_a_missing_log_is_exit_code_5(tmp_path, capsys):
    assert run(["parse", str(tmp_path / "none.log")]) == 5
    assert "cannot be read" in capsys.readouterr().err


def test_diff_finds_the_fusion_that_was_lost(tmp_path, capsys):
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text(small.trtexec(8501))
    lost = small.trtexec(8600).replace(
        f"{small.STAMP} [V] [TRT] QuantizeDoubleInputNodes: fusing (DQ_x and DQ_w) into Conv_0\n", ""
    )
    second.write_text(lost.replace("Throughput: 100 qps", "Throughput: 80 qps"))
    assert run(["diff", str(first), str(second)]) == 0
    out = capsys.readouterr().out
    assert "first: TensorRT 8.5.1, 3 layers; second: TensorRT 8.6.0, 3 layers" in out
    assert "quantized QuantizeDoubleInputNodes DQ_x + DQ_w" in out
    assert "run: throughput (qps): 100 -> 80 (-20%)" in out
    assert run(["diff", str(first), str(second), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert [event["pass_name"] for event in data["only_first"]] == ["QuantizeDoubleInputNodes"]
    assert data["parting"][0]["kind"] == "quantized"
    assert data["only_second"] == []


def test_diff_adds_up_layers_of_one_name(tmp_path, capsys):
    heading = "[01/10/2024-21:52:52] [I]    Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %\n"
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for log, average in zip(logs, ("0.5", "0.75"), strict=True):
        rows = "".join(
            f"[01/10/2024-21:52:52] [I]    {layer}      10.0      {time}      {time}      33.3\n"
            for layer, time in (("copy", average), ("Conv_0", "1.0"), ("copy", "0.25"))
        )
        log.write_text(small.trtexec() + heading + rows)
    assert run(["diff", *map(str, logs), "--json"]) == 0
    times = json.loads(capsys.readouterr().out)["data"]["times"]
    assert times == [{"what": "layer: copy (ms)", "first": 0.75, "second": 1.0}]


def test_diff_of_a_log_with_itself_is_no_difference(log, capsys):
    assert run(["diff", str(log), str(log)]) == 0
    assert "no difference" in capsys.readouterr().out


def test_diff_of_something_else_is_exit_code_5(log, tmp_path, capsys):
    other = tmp_path / "notes.txt"
    other.write_text("buy milk\n")
    assert run(["diff", str(log), str(other)]) == 5
    assert "engine diff" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["QDQToCopy"], "For INT8:"),
        (["pass", "QDQToCopy"], "For INT8:"),
        (["tactic", "ampere_first_layer_filter3x3_imma_fwd"], "INT8 tensor cores"),
        (["ampere_first_layer_filter3x3_imma_fwd"], "INT8 tensor cores"),
        (["__myl_MulMinMaxRounCast_myl0_0"], "generated by Myelin"),
        (["format", "Int8(1,3:4,H,W)"], "packed in vectors of 4"),
        (["Int8(1,3:4,H,W)"], "packed in vectors of 4"),
        (["qdq120"], "inputs of a Conv"),
        (["QDQ217"], "convert its input"),
        (["parse"], "Read any log"),
        ([], "SplitQAcrossPrecedingFanIn"),
    ],
)
def test_explain_answers(words, answer, capsys):
    assert run(["explain", *words]) == 0
    assert answer in capsys.readouterr().out


def test_explain_of_a_typing_error_names_the_nearest(capsys):
    assert run(["explain", "QDQToCopi"]) == 2
    assert "did you mean 'QDQToCopy'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data"),
    [("x.yaml", b"a: 1\nb:\n  - c: 2\nmodel: x.onnx\n"), ("model.onnx", bytes(range(256)) * 40)],
)
def test_a_file_that_no_builder_wrote_is_refused(tmp_path, capsys, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    for options in ([], ["--json"], ["--unread"]):
        assert run(["parse", str(path), *options]) == 5
        assert "not a TensorRT build log" in capsys.readouterr().err


def test_more_than_five_percent_of_unread_lines_are_warned_of_and_can_fail(tmp_path, capsys):
    path = tmp_path / "strange.log"
    strange = "".join(f"{small.STAMP} [V] [TRT] unheard of {at * 'x'}\n" for at in range(30))
    path.write_text(small.trtexec() + strange)
    assert run(["parse", str(path)]) == 0
    assert "were not understood" in capsys.readouterr().err
    assert run(["parse", str(path), "--fail-on", "unread"]) == 1
    path.write_text(small.trtexec())
    assert run(["parse", str(path), "--fail-on", "unread"]) == 0


def _zipped(data: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/build.log", data)
    return held.getvalue()


def _zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress, _zipped, _zstd])
def test_packed_logs_say_the_same(pack):
    data = small.trtexec().encode()
    plain, packed = buildlog.read(io.BytesIO(data)), buildlog.read(io.BytesIO(pack(data)))
    assert packed.runs == plain.runs
    damaged = buildlog.read(io.BytesIO(pack(data)[:-40]))
    assert (
        any("damaged" in note for note in damaged.notes)
        or damaged.runs != plain.runs
        or not damaged.runs[0].lines
    )


def test_a_log_without_q_and_dq_says_what_is_int8_and_why_the_rest_is_not(tmp_path, capsys):
    missing = "".join(
        f"{small.STAMP} [W] [TRT] Missing scale and zero-point for tensor {number}, expect fall back to non-int8 "
        "implementation for any layer consuming or producing given tensor\n"
        for number in range(18)
    )
    refused = "Rejecting some int8 implementation of layer Conv_1 due to missing int8 scales for tensor 93 at input index 0\n"
    text = small.library(refused) + missing + small.library("Engine Layer Information:") + small.LAYERS
    path = tmp_path / "implicit.log"
    path.write_text(text)
    assert run(["parse", str(path)]) == 0
    out = capsys.readouterr().out
    for words in (
        "engine layers without Q/DQ in the model: 1 fp32, 1 int8",
        "not int8    Conv_1",
        "Conv_1: INT8 kernels need a scale of tensor 93",
        "18 tensors have no scale",
        "and 13 more: --all",
    ):
        assert words in out
    (told,) = buildlog.read(path).runs
    by_name = {node.node: node for node in told.compute}
    assert by_name["Conv_1"].precision == "float"
    assert by_name["Conv_1"].reason == "its INT8 kernels were refused: tensor 93 has no scale"
    lines = path.read_text().splitlines()
    assert any("Rejecting" in lines[number - 1] for number in by_name["Conv_1"].lines)
    assert Counter(node.precision.partition("-")[0] for node in told.compute) == {"float": 1, "int8": 1}
    page = tmp_path / "page.html"
    assert run(["report", str(path), "--out", str(page)]) == 0
    assert "its INT8 kernels were refused: tensor 93 has no scale" in page.read_text("utf-8")


def test_the_carrier_is_printed(tmp_path, capsys):
    path = tmp_path / "llm.log"
    path.write_text(carried.rewritten(small.trtexec(), "TensorRT-LLM in C++"))
    assert run(["parse", str(path)]) == 0
    assert "carrier     [TensorRT-LLM][<severity>] <message>" in capsys.readouterr().out
