"""Bad logs: any bytes at all are read without an exception, in linear time and bounded memory."""

from __future__ import annotations

import io
import itertools
import json
import os
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdqtool import buildlog
from qdqtool.buildlog import log_run as run_module
from qdqtool.buildlog.exports import Document, Order
from qdqtool.io.text import LINE_LIMIT
from tests.buildlog import small
from tests.fuzz import logs

_PREFIX = b"[01/10/2024-21:52:52] [V] [TRT] "
_LINES = small.trtexec().splitlines()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=4000))
def test_any_bytes_are_read(data):
    logs.survive(data, dump=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.sampled_from(_LINES),
            st.tuples(st.sampled_from(_LINES), st.text(max_size=30)).map("".join),
            st.tuples(st.sampled_from(_LINES), st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
            st.text(max_size=80),
        ),
        max_size=40,
    )
)
def test_lines_in_any_order_cut_and_extended_are_read(lines):
    logs.survive("\n".join(lines).encode("utf-8", "replace"))


def test_mutants_of_real_logs_are_read():
    for data in itertools.islice(
        logs.mutants(logs.seeds(6), seed=7), int(os.environ.get("FUZZ_INPUTS", "400"))
    ):
        logs.survive(data)


EVIL = {
    "nested brackets": b"(" * 100_000,
    "open brackets of tensors": b"Layer(X): a, Tactic: 0x1, " + b"t[a(" * 25_000,
    "many separators": b"XFusion: Fusing " + b"a with " * 20_000 + b"b",
    "many plus signs": b"Removing " + b"a + " * 30_000,
    "deep PWN": b"Removing " + b"PWN(" * 30_000 + b")" * 30_000,
    "columns of numbers": b"1.5   " * 20_000,
    "one long word": b"x" * 100_000,
    "pairs": b"a=b " * 30_000,
    "bars": b"a|" * 50_000,
    "dashes": b"- =" * 30_000,
    "spaces": b" " * 100_000 + b"x",
    "colons": b"a: " * 40_000,
    "objects": b"Name: a, LayerType: b, Inputs: [ " + b"{ Name: x, Dimensions: [1], " * 5_000,
    "metadata": b"Name: a, LayerType: b, Outputs: [], Metadata: " + b"[ONNX Layer: a]" * 8_000,
    "tensors of a node": b"N [Conv] inputs: " + b"[a -> (1)[FLOAT]], " * 6_000,
    "stamps": b"[01/10/2024-21:52:52] " * 5_000,
    "escapes": b"\x1b[" * 50_000,
    "option": b"=== Build Options ===\n" + _PREFIX + b": " * 40_000,
    "profile row": b"Layer   Time (ms)   Avg. Time (ms)   Time %\n" + _PREFIX + b"1 " * 50_000,
    "gap of a profile row": b"Layer   Time (ms)   Avg. Time (ms)   Time %\n"
    + _PREFIX
    + b"x"
    + b" " * 100_000
    + b"y",
    "words of a profile row": b"Layer   Time (ms)   Avg. Time (ms)   Time %\n"
    + _PREFIX
    + b"x y  " * 20_000
    + b"z",
    "format": b"Adding reformat layer: " + b" from " * 18_000,
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("prefix", [_PREFIX, b"", b"[V] "], ids=["prefixed", "bare", "short prefix"])
def test_evil_lines_take_linear_time(evil, prefix):
    begin = time.process_time()
    logs.survive(prefix + evil + b"\n" + small.trtexec().encode())
    assert time.process_time() - begin < 3.0


def test_a_line_of_a_hundred_megabytes_takes_little_memory():
    class Endless(io.RawIOBase):
        """A stream of one line."""

        left = 100 << 20

        def readable(self) -> bool:
            return True

        def readinto(self, target) -> int:
            count = min(len(target), self.left)
            target[:count] = b"x" * count
            self.left -= count
            return count

    tracemalloc.start()
    try:
        log = buildlog.read(io.BufferedReader(Endless()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.runs[0].lines == 1
    assert any("cut" in note for note in log.notes)
    assert peak < 12 * LINE_LIMIT


def test_a_log_of_empty_lines_that_begins_with_the_newest_takes_little_memory():
    times = b"".join(b"2024-05-01T10:00:%02dZ [V] [TRT] x\n" % (59 - second) for second in range(8))
    count, order = 12, Order()
    taken, peak = _peak_of(order.oldest_first(iter((times, *([b"\n" * (1 << 18)] * count)))))
    assert order.newest_first
    assert taken == len(times) + (count << 18)
    assert peak < 5 * taken


def test_a_record_of_much_text_is_kept_as_far_as_its_message_needs():
    message = "[V] [TRT] Running: ConstShuffleFusion on x"
    large = "x" * (1 << 20)
    text = json.dumps([{"line": message}, {**{f"a{at}": large for at in range(64)}, "line": message}])
    document = Document(lambda text: "Running" in text)
    pieces = (text[at : at + (1 << 20)].encode() for at in range(0, len(text), 1 << 20))
    lines = list(document.lines(pieces))
    assert [json.loads(line)["line"] for line in b"".join(lines).splitlines()] == [message] * 2
    assert sum(map(len, lines)) < 10 << 20


def _peak_of(pieces: Iterator[bytes]) -> tuple[int, int]:
    """The bytes of all pieces, and the memory at its peak while they are made."""
    tracemalloc.start()
    try:
        return sum(map(len, pieces)), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_records_beyond_the_memory_of_a_run_are_counted_not_kept(monkeypatch):
    monkeypatch.setattr(run_module, "KEEP", 1 << 20)
    lines = (f"[V] Running: NewPass on node_{number}\n" for number in range(120_000))
    (run,) = buildlog.read(io.BytesIO("".join(lines).encode() + b"[V] Throughput: 5 qps\n")).runs
    assert run.lines == 120_001
    assert 0 < len(run.events) < 120_000
    assert run.clipped > 0
    assert run.unread == 0
    assert run.performance is not None


def test_a_million_wordings_nobody_knows_are_counted():
    words = "".join(
        f"[V] zq{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}\n" for n in range(17_000)
    )
    (run,) = buildlog.read(io.BytesIO(words.encode())).runs
    assert run.unread == 17_000
    assert len(run.unread_lines) <= 2000


def test_a_graph_that_runs_in_circles_ends():
    text = small.library(
        "Parsing node: DQ [DequantizeLinear]\nDQ [DequantizeLinear] inputs: [a -> (1)[FLOAT]],\n"
        "DQ [DequantizeLinear] outputs: [b -> (1)[FLOAT]],\nParsing node: R [Reshape]\n"
        "R [Reshape] inputs: [b -> (1)[FLOAT]],\nR [Reshape] outputs: [a -> (1)[FLOAT]],\n"
        "X: fusing (DQ and DQ) into R\nRunning: SplitQAcrossPrecedingFanIn on R\n"
    )
    logs.survive(text.encode(), dump=True)
