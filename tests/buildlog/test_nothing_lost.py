"""Recognised is kept: every field of every pattern is in the run, and in a table."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from qdqtool import buildlog
from qdqtool.buildlog.grammar import PATTERNS, grammar, messages
from qdqtool.buildlog.outputs import TABLES, table_of
from qdqtool.buildlog.pattern import MessagePattern, RegexPattern, tactic_id
from qdqtool.buildlog.prefix import peel
from qdqtool.core.buildlog import LogRun
from tests.buildlog import small
from tests.shared import shared

_RUN = TypeAdapter(LogRun)
_PREFIX = f"{small.STAMP} [V] [TRT] "
_CASES = [
    pytest.param(pattern, example, id=f"{pattern.name}: {example[:50]}")
    for pattern in (
        *(one for name in PATTERNS.names() for one in PATTERNS.load(name).patterns),
        *messages(),
    )
    for example in pattern.examples
    if pattern.fields
]
_NEEDS = {
    "fastest": "--------------- Timing Runner: Conv_1 (CaskConvolution)\n",
    "chosen": "--------------- Timing Runner: Conv_1 (CaskConvolution)\n",
    "node-inputs": "Parsing node: {} [{}]\n",
    "node-outputs": "Parsing node: {} [{}]\n",
}
"""Messages that have a meaning only behind others."""
_LABELS = frozenset(
    {"with", "and", "-", "averageMs", "percentage", "Inputs", "Outputs", "Name", "Location", "Dimensions"}
    | {"Format/Datatype"}
)
"""Words of a field that stand between its values."""


def _value(text: str) -> dict[str, Any]:
    log = buildlog.read(io.BytesIO(small.library(text, _PREFIX).encode()))
    return {"runs": [_RUN.dump_python(run, mode="json") for run in log.runs]}


def _figures(value: Any) -> set[str]:
    """Every number and word of a value, and the pieces of its texts."""
    if isinstance(value, dict):
        return set().union(*(_figures(part) | {str(key)} for key, part in value.items())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_figures, value)) if value else set()
    return {str(value), *_pieces(str(value))}


def _pieces(text: str) -> list[str]:
    return [piece for piece in re.split(r"[^\w./+-]+", text) if piece]


@pytest.mark.parametrize(("pattern", "example"), _CASES)
def test_every_field_of_a_message_is_in_the_run(pattern: MessagePattern | RegexPattern, example: str):
    found = grammar().read(example.strip())
    assert found is not None
    needed = _NEEDS.get(pattern.name, "")
    if "{}" in needed:
        node, _, op = str(found[1][0]).rpartition(" [")
        needed = needed.format(node, op)
    figures = _figures(_value(needed + example))
    for field, value in zip(pattern.fields, found[1], strict=True):
        if value is not None:
            lost = [
                piece for piece in _pieces(str(value)) if piece not in figures and str(value) not in figures
            ]
            assert not [piece for piece in lost if not _is_told(piece, figures)], (field, value)


def _is_told(piece: str, figures: set[str]) -> bool:
    """Whether a number or a word is there in another spelling: 4.0 as 4, FLOAT as fp32."""
    if piece in _LABELS or tactic_id(piece) in figures:
        return True
    spelt = {
        "FLOAT": "fp32",
        "float32": "fp32",
        "INT8": "int8",
        "HALF": "fp16",
        "Float": "fp32",
        "Half": "fp16",
    }
    if spelt.get(piece) in figures:
        return True
    try:
        number = float(piece)
    except ValueError:
        return any(piece in figure for figure in figures)
    return any(_same(figure, number) for figure in figures)


def _same(figure: str, number: float) -> bool:
    try:
        return float(figure) == number
    except ValueError:
        return False


def test_every_table_is_made_and_every_statement_is_in_one():
    log = buildlog.read(io.BytesIO(small.trtexec().encode()))
    tables = {name: table_of(log, name) for name in TABLES}
    (run,) = log.runs
    lines = {
        (row[1], row[2])
        for table in tables.values()
        if table.columns[2:3] == ("statement",)
        for row in table.rows
    }
    for name, statements in run.statements.items():
        for row in statements.rows:
            assert (row[0], name) in lines


def test_tactics_have_one_row_per_candidate():
    log = buildlog.read(io.BytesIO(small.library(small.TUNING).encode()))
    table = table_of(log, "tactics")
    assert table.columns == (
        *("run", "line", "layer", "runner", "formats", "tactic", "kernel", "ms", "workspace", "verdict"),
    )
    assert [(row[2], row[3], row[4], row[6], row[7], row[9]) for row in table.rows] == [
        (
            "w + Q_w + Conv_0",
            "CaskConvolution",
            "Int8(64,1:4,8) -> Float(36,36,6,1)",
            "ampere_int8",
            0.5,
            "timed",
        ),
        (
            *("w + Q_w + Conv_0", "CaskConvolution", "Int8(64,1:4,8) -> Float(36,36,6,1)"),
            *("sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32", 0.25, "chosen"),
        ),
    ]


def test_kernels_that_are_named_before_they_are_timed_keep_their_names():
    text = """\
*************** Autotuning format combination: Float(9,1) -> Float(9,1) ***************
--------------- Timing Runner: Conv_32 (CaskConvolution)
Conv_32 Set Tactic Name: ampere_scudnn_128x64 Tactic: 0x5b8bf1b8028629d9
Tactic: 0x5b8bf1b8028629d9 Time: 0.5
Fastest Tactic: 0x5b8bf1b8028629d9 Time: 0.5
CudnnConvolution has no valid tactics for this config, skipping
UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested size of 2688 detected for tactic 0x1.
"""
    (run,) = buildlog.read(io.BytesIO(small.library(text).encode())).runs
    assert [(row.kernel, row.ms, row.workspace, row.verdict) for row in run.tactics] == [
        ("ampere_scudnn_128x64", 0.5, None, "fastest"),
        ("", None, None, "CudnnConvolution has no kernel for these formats"),
        ("", None, 2688, "refused: the kernel needs more workspace than allowed"),
    ]


def test_what_a_run_keeps_of_its_statements_is_bounded(monkeypatch):
    monkeypatch.setattr("qdqtool.buildlog.log_run.KEEP", 4000)
    monkeypatch.setattr("qdqtool.io.text.BLOCK", 2000)
    text = small.library("Block size 1073741824\n" * 1000)
    (run,) = buildlog.read(io.BytesIO(text.encode())).runs
    assert sum(len(table.rows) for table in run.statements.values()) < 200
    assert run.clipped > 500


def test_the_json_of_a_run_is_plain():
    log = buildlog.read(io.BytesIO(small.trtexec().encode()))
    text = json.dumps(_RUN.dump_python(log.runs[0], mode="json"), allow_nan=False)
    assert "statements" in text


_ARTICLE = re.compile(
    r"#|!\[|= \d|(?:tests|trex|env_trex)/\S+\.py:\d|\[[A-Z] [\d:.]+ NotebookApp\]|(?:or )?(?:http|file):|\w+&#"
)
"""Lines of the articles around the logs: headings, pictures, sums, Python's errors, and a server of notebooks.

What is not read back of a seed stands on them, and nothing else: in 002, 25 of 174 figures (22 in the names of pictures, 3 in
headings); in 003, 54 of 1129 (28 of the notebook server, 9 pictures, 8 lines of Python's errors, 7 terms of a sum that the
author did by hand, 2 headings); 000 and 001 come back to the last figure but one, a number in a link.
"""
_FIGURE = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


@pytest.mark.shared
@pytest.mark.parametrize("seed", ["000_8d9d03533c4b8c7a", "001_1208c14e4c3d6c5f", "002_678dd3e1edd457f1", "003_f31fb2f90cf874bd"])  # fmt: skip
def test_every_figure_of_a_seed_comes_back(seed):
    path = shared(f"seeds/{seed}.txt")
    log = buildlog.read(path)
    figures = _figures([_RUN.dump_python(run, mode="json") for run in log.runs])
    known = figures | {f"{float(one):.12g}" for one in figures if _FIGURE.fullmatch(one)}
    lost = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        body = peel(line)[1].strip()
        missing = [
            one for one in _FIGURE.findall(body) if one not in known and f"{float(one):.12g}" not in known
        ]
        if not _ARTICLE.match(line.strip()):
            lost += [(number, one, body[:80]) for one in missing]
    assert not lost
