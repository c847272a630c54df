"""Carriers: a log says the same whatever wrote it down, and says what that was."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from qdqtool import buildlog
from qdqtool.core.buildlog import RunDigest
from tests.buildlog import carried, small
from tests.buildlog.test_one_reader import log_files
from tests.io.test_text import Dribble
from tests.shared import shared

_OWN = frozenset({"carrier", "front_end", "process"})
"""What a carrier may change: its own name, and what its words tell of the program."""
_AMBIGUOUS: dict[str, frozenset[str]] = {
    # A server writes its own lines with glog between those of the builder: rewritten as glog, both look alike, and the
    # server's count as unread instead of foreign.
    "GIGABYTE__bert_server": frozenset({"glog"}),
    "ZhejiangLab__output": frozenset({"glog"}),
    # A program prefixes its own lines with a time in brackets: behind Jenkins' time, four of them join its carrier.
    # Behind a rank above 0 they look like errors with their code.
    "trt_bench_image": frozenset({"Jenkins", "srun of the twelfth"}),
    # Help texts with sixteen builder lines among hundreds: too few messages to learn these two carriers from.
    "jetson_env_raw": frozenset(
        {"torch_tensorrt in C++", "JSON lines of a logger", "CSV with few quotes", "CSV with semicolons"}
    ),
    # The same, and the output of make, whose lines have semicolons; progress bars in one line of a table.
    "HaX-CoNN__output_orin": frozenset({"CSV with semicolons"}),
    "NsightSystems__result-02.log.v2": frozenset({"CSV with semicolons"}),
    # Progress bars are redrawn with carriage returns in one line (581); behind another logger's prefix, the counts of
    # foreign lines and of warnings differ, in all twelve of them.
    "NsightSystems__result-01.log.v3": frozenset(
        {*carried.LOGGERS, *carried.TIMELESS, *carried.MORE_LOGGERS, *carried.MORE_TIMELESS}
    ),
    "UseINT8-PTQ__log-main.py.log.v3": frozenset(
        {"srun of the twelfth"}
    ),  # four builder lines among 950 of a plug-in
    # A page about TensorRT without one line of a builder.
    "004_34a42bb07d25caad": frozenset({*carried.NAMES, *carried.MORE, *carried.EXPORTS}),
}
"""Logs that cannot say the same in some carriers, and in which."""


def is_ambiguous(file: str, name: str) -> bool:
    """Whether this log cannot say the same in this carrier."""
    return any(part in file and name in carriers for part, carriers in _AMBIGUOUS.items())


def _said(text: str, *, stated: bool) -> list[dict[str, Any]]:
    """The digests without what carriers may change; with `stated`, without phases measured by time stamps."""
    return [_fields(digest, stated=stated) for digest in _runs(text)]


def _fields(digest: RunDigest, *, stated: bool) -> dict[str, Any]:
    fields = {name: getattr(digest, name) for name in digest.__dataclass_fields__ if name not in _OWN}
    if stated:
        fields["phases"] = tuple(phase for phase in digest.phases if phase.stated)
    return fields


def said_alike(text: str, name: str, file: str) -> bool:
    """Whether a log says the same in a carrier; true for ambiguous logs."""
    if is_ambiguous(file, name):
        return True
    stated = name not in carried.LOGGERS | carried.MORE_LOGGERS
    return _said(carried.rewritten(text, name), stated=stated) == _said(text, stated=stated)


def exported_alike(text: str, name: str, file: str) -> bool:
    """Whether a log says the same out of a collector; true for ambiguous logs."""
    if is_ambiguous(file, name):
        return True
    exported, plain = carried.EXPORTS[name](text)
    return _said(exported, stated=True) == _said(plain, stated=True)


def test_the_field_of_json_lines_is_found_by_what_it_holds():
    wrapped = carried.contained(
        small.trtexec(), lambda line: json.dumps({"host": "a", "event.original": line})
    )
    assert _said(wrapped, stated=True) == _said(small.trtexec(), stated=True)
    assert _run(wrapped).carrier == '{"event.original": "<message>", ...}'


def _run(text: str) -> RunDigest:
    (run,) = _runs(text)
    return run


def _texts() -> list[str]:
    verbose = small.library(small.GRAPH + small.OPTIMIZER + small.TUNING)
    return [small.trtexec(), small.trtexec(101401, end="FAILED") + small.trtexec(), verbose]


@pytest.mark.parametrize("name", [*carried.NAMES, *carried.MORE])
def test_a_log_says_the_same_in_every_carrier(name):
    for text in _texts():
        stated = name not in carried.LOGGERS | carried.MORE_LOGGERS
        assert _said(carried.rewritten(text, name), stated=stated) == _said(text, stated=stated)


@pytest.mark.parametrize("name", carried.EXPORTS)
def test_a_log_that_a_collector_exported_says_the_same(name):
    for text in _texts():
        exported, plain = carried.EXPORTS[name](text)
        assert _said(exported, stated=True) == _said(plain, stated=True)


@pytest.mark.parametrize("lead", range(3))
def test_a_too_long_text_of_an_export_is_dropped_alone(lead):
    lines = small.trtexec().splitlines()
    records: list[dict[str, str]] = [{"message": line} for line in lines]
    records.insert(len(lines) // 2, {"message": "x" * lead + '\\", ' * (2 << 20), "image": "y"})
    assert _said(json.dumps(records), stated=True) == _said(small.trtexec(), stated=True)


def test_a_cell_of_several_lines_is_read_line_by_line():
    lines = small.trtexec().split("\n")[:-1]
    pairs = ["\n".join(lines[at : at + 2]) for at in range(0, len(lines), 2)]
    table = "".join(f'"a","{pair.replace(chr(34), 2 * chr(34))}","b"\n' for pair in pairs)
    assert _said(table, stated=True) == _said(small.trtexec(), stated=True)


def test_a_pipe_that_hands_out_a_little_at_once_is_understood_alike():
    for write in carried.EXPORTS.values():
        exported, plain = write(small.trtexec())
        source = buildlog.TextSource(Dribble(exported.encode(), 700))
        assert [_fields(run, stated=True) for run in buildlog.digests(source)] == _said(plain, stated=True)


def test_what_an_export_adds_is_stated():
    shown = {name: _run(write(small.trtexec())[0]).carrier for name, write in carried.EXPORTS.items()}
    assert shown["an answer of Loki"] == '[..., "<message>"]'
    assert shown["CSV with names of columns"] == '...,"<message>"'
    assert shown["the newest first"].endswith(", the newest line first (lines are numbered from the oldest)")


@pytest.mark.parametrize(
    "form", ["Tactic: {} Time: 0.25", "Skipping tactic {} due to exception", "Tactic: -{} Time: 0.25"]
)
def test_ids_of_tactics_are_no_times(form):
    """Ids have as many digits as nanoseconds: falling ones turned a log around."""
    ids = (1825138533642645384, 1698681053543049347, 1546787387293556842, 1062367460111450758)
    text = "".join(f"[V] [TRT] {form.format(number)}\n" for number in ids)
    assert _run(text).carrier == ""


def test_a_list_of_commits_before_a_log_does_not_turn_it():
    commits = "".join(f"2024-01-0{9 - day} 10:00:00 +0100 commit\n" for day in range(6))
    lines = [
        f"[01/10/2024-21:52:{second}] [V] [TRT] Running: ConvReluFusion on a\n" for second in range(10, 14)
    ]
    assert _run(commits + "".join(lines)).carrier == ""
    assert "newest" in _run("".join(reversed(lines))).carrier


@pytest.mark.parametrize("name", [*carried.NAMES, *carried.MORE])
def test_codes_of_errors_are_no_ranks_of_a_launcher(name):
    """`srun --label` prints `4: `, and so does the builder in front of an error: one log became two processes."""
    prefix = f"{small.STAMP} [TRT] [E] "
    lines = [
        "3: (Unnamed Layer* 0) [Convolution]: bias weights are not permitted since they are of type Int32",
        "4: (Unnamed Layer* 0) [Convolution]: count of 32 weights in bias, but number of output maps is 32",
        "4: [network.cpp::validate::2917] Error Code 4: Internal Error (Layer (Unnamed Layer* 0) failed validation)",
        "2: [builder.cpp::build::636] Error Code 2: Internal Error (Assertion engine != nullptr failed. )",
    ]
    text = "".join(f"{prefix}{line}\n" for line in lines * 3)
    (run,) = _runs(carried.rewritten(text, name))
    assert (run.lines, run.unread, len(run.errors)) == (12, 0, 4)


@pytest.mark.parametrize("name", carried.COPIED)
def test_a_log_that_was_copied_says_the_same(name):
    for text in _texts():
        copied = carried.contained(text, carried.COPIED[name])
        assert _said(copied, stated=True) == _said(text, stated=True)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("file", log_files() or ["corpus/verbose_log"])
def test_a_real_log_says_the_same_in_every_carrier(file):
    text = _text_of(shared(file))
    # Each log in two of the carriers, so that every carrier meets several logs.
    start = sum(map(ord, file))
    names = [*carried.NAMES, *carried.MORE]
    name = names[start % len(names)]
    assert said_alike(text, name, file), name
    name = sorted(carried.EXPORTS)[start % len(carried.EXPORTS)]
    assert exported_alike(text, name, file), name


def test_nodes_of_one_launch_are_read_apart():
    first, second = small.trtexec(8600).splitlines(), small.trtexec(101401).splitlines()
    pairs = zip(first, second, strict=True)
    lines = [line for one, two in pairs for line in (f"[lidar_node-1] {one}", f"[camera_node-2] {two}")]
    runs = {run.process: run for run in _runs("\n".join(lines) + "\n")}
    assert {name: run.version for name, run in runs.items()} == {
        "lidar_node-1": (8, 6, 0),
        "camera_node-2": (10, 14, 1),
    }


def test_own_lines_of_tensorrt_llm_are_its_and_name_it():
    lines = [
        "[05/03/2025-10:30:02] [TRT-LLM] [I] Set dtype to float16.",
        "[05/03/2025-10:30:02] [TRT-LLM] [W] Overriding paged_state to False",
        "[05/03/2025-10:30:05] [TRT] [I] Detected 17 inputs and 1 output network tensors.",
    ]
    run = _run("\n".join(lines) + "\n")
    assert (run.front_end, run.unread, run.carrier) == ("tensorrt-llm", 0, "")


@lru_cache(maxsize=8)
def _runs(text: str) -> tuple[RunDigest, ...]:
    """The digests of a log, which is read once though it is compared with several carriers."""
    return tuple(buildlog.digests(buildlog.TextSource(io.BytesIO(text.encode("utf-8", "surrogateescape")))))


def _text_of(path: Path) -> str:
    data = b"".join(buildlog.TextSource(path).blocks())
    return data.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("stamp", ["[V] ", f"{small.STAMP} [V] [TRT] "])
@pytest.mark.parametrize("length", [20, 390, 4000])
def test_names_longer_than_any_prefix_are_no_carrier(stamp, length):
    """Networks of TensorFlow list all nodes that were folded into one; the log of such a network ended in a crash."""
    words = ("Parsing node: {name} [Conv]", "Registering layer: {name} for ONNX node: {name}")
    name = ("Path/Conv2d;" * (length // 12 + 1))[:length]
    lines = [f"{stamp}{form.format(name=f'{name}{number}')}\n" for number in range(50) for form in words]
    run = _run("".join(lines))
    assert (run.carrier, run.lines, run.unread) == ("", len(lines), 0)


def test_the_digest_states_the_carrier():
    run = _run(carried.rewritten(small.trtexec(), "torch_tensorrt in C++"))
    assert run.carrier == "<severity>: [Torch-TensorRT TensorRT Conversion Context] - <message>"
    assert _run(small.trtexec()).carrier == ""


def test_a_logger_whose_words_name_its_program_names_the_front_end():
    verbose = small.library(small.GRAPH + small.OPTIMIZER + small.TUNING)
    assert _run(carried.rewritten(verbose, "onnxruntime")).front_end == "onnxruntime"
    assert _run(carried.rewritten(verbose, "TensorRT-LLM in C++")).front_end == "tensorrt-llm"


def test_processes_that_speak_at_once_are_read_apart():
    first = small.trtexec(8600).splitlines()
    second = small.trtexec(101401).splitlines()
    lines = [
        line
        for pair in zip(first, second, strict=True)
        for line in (f"[rank0]: {pair[0]}", f"[rank1]: {pair[1]}")
    ]
    runs = {
        run.process: run
        for run in buildlog.digests(buildlog.TextSource(io.BytesIO("\n".join(lines).encode())))
    }
    assert {name: (run.version, run.status, run.unread) for name, run in runs.items()} == {
        "rank0": ((8, 6, 0), "passed", 0),
        "rank1": ((10, 14, 1), "passed", 0),
    }
    alone = _run(small.trtexec(8600))
    assert runs["rank0"].ledger_summary == alone.ledger_summary
    assert runs["rank0"].lines == alone.lines
    # Line numbers are those of the file.
    assert runs["rank1"].not_quantized[0].lines[0] == 2 * alone.not_quantized[0].lines[0]


def test_lines_that_nobody_knows_have_a_share():
    strange = "".join(f"{small.STAMP} [V] [TRT] unheard of thing {at * 'x'}\n" for at in range(10))
    run = _run(small.trtexec() + strange)
    known = run.lines - run.blank - run.foreign - run.unread
    assert run.unread == 10
    assert run.unread_share == pytest.approx(10 / (10 + known), abs=1e-4)
