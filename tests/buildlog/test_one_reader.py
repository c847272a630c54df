"""One reader: skipping lines, and finding their prefixes in bulk, never changes what a log says."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.buildlog.reader import LogReader
from qdqtool.core.buildlog import RunDigest
from qdqtool.io import text as text_files
from tests.buildlog import small
from tests.buildlog.plain_prefilter import PlainPrefilter
from tests.shared import SHARED, shared

KINDS = ("corpus/verbose_log", "corpus/trtexec_log", "corpus/rtx", "seeds")


def log_files() -> list[str]:
    """Every real log of the shared material."""
    return [
        f"{kind}/{path.name}"
        for kind in KINDS
        for path in sorted((SHARED / kind).glob("*"))
        if path.suffix != ".json" and path.is_file()
    ]


def _digests(log: bytes | Path, *, skipping: bool) -> list[RunDigest]:
    source = buildlog.TextSource(io.BytesIO(log) if isinstance(log, bytes) else log)
    prefilter = None if skipping else PlainPrefilter
    return [run.digest() for run in LogReader(source, prefilter=prefilter).runs()]


def _block() -> bytes:
    return (small.trtexec(8201) + small.library(small.GRAPH + small.TUNING, "[V] ")).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(_block(), id="two runs"),
        pytest.param(_block().replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(_block().replace(b"[V] [TRT]", b" [V] [TRT]"), id="blanks in the prefix"),
        pytest.param(b"10 %\r50 %\r" + _block(), id="a progress bar before"),
        pytest.param(_block() + b"10 %\r50 %\n", id="a progress bar behind"),
    ],
)
def test_without_the_prefilter_a_log_says_the_same(data):
    assert _digests(data, skipping=True) == _digests(data, skipping=False)


@pytest.mark.parametrize("size", [64, 200, 1000])
def test_the_size_of_the_blocks_changes_nothing(size, monkeypatch):
    """Kernels are counted over block ends: each block holds a few of a tensor's tuning."""
    timed = [line for line in small.TUNING.splitlines(keepends=True) if line.startswith("Tactic Name")]
    tuning = small.TUNING.replace(timed[0], timed[0] * 40 + timed[1] * 30, 1)
    data = (small.trtexec(8201) + small.library(small.GRAPH + tuning, "[V] ")).encode()
    whole = _digests(data, skipping=True)
    monkeypatch.setattr(text_files, "BLOCK", size)
    assert _digests(data, skipping=True) == whole


@pytest.mark.shared
@pytest.mark.parametrize("file", log_files() or ["corpus/verbose_log"])
def test_without_the_prefilter_a_real_log_says_the_same(file):
    log = shared(file)
    assert _digests(log, skipping=True) == _digests(log, skipping=False)


def test_a_lone_carriage_return_takes_nothing_from_the_log():
    """A block that held one used to be read by other code, which lost the last time stamp."""
    text = small.trtexec()
    later = f"{small.STAMP[:-3]}59] [I] Starting inference\n"
    last = text.replace("&&&& PASSED", f"{later}&&&& PASSED")
    (plain,) = _digests(last.encode(), skipping=True)
    (marked,) = _digests(last.replace("x with dtype", "x\r with dtype", 1).encode(), skipping=True)
    assert plain.phases
    assert marked.phases == plain.phases
    assert marked.lines == plain.lines


def test_a_line_whose_pieces_are_overwritten_counts_once():
    (run,) = _digests((small.trtexec() + "10 %\r20 %\r30 %\n").encode(), skipping=True)
    assert run.lines == small.trtexec().count("\n") + 1
    assert (run.foreign, run.unread) == (1, 0)
