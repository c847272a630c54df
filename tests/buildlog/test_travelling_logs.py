"""Real logs of TensorRT 8.0 to 10.14 and of TensorRT for RTX, read without any material beside the checkout."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.core.buildlog import LogRun
from tests import golden

LOGS = golden.names("logs")


def figures(run: LogRun) -> dict[str, object]:
    """What a change of the reader must not change unseen."""
    return {
        "front_end": run.front_end,
        "version": list(run.version or ()),
        "status": run.status,
        "lines": run.lines,
        "unread": run.unread,
        "foreign": run.foreign,
        "passes": {name: [count.attempts, count.effects] for name, count in sorted(run.passes.items())},
        "events": dict(sorted(Counter(event.kind.value for event in run.events).items())),
        "ends": dict(sorted(Counter(row.end.value for row in run.ledger).items())),
        "compute": dict(sorted(Counter(node.precision for node in run.compute).items())),
        "tuned": len(run.tuning.layers),
        "layers": [layer.kind for layer in run.engine_layers][:40],
        "funnel": [step.layers for step in run.funnel],
        "warnings": len(run.warnings),
        "errors": len(run.errors),
    }


@pytest.mark.parametrize("name", LOGS)
def test_a_real_log_tells_what_is_known_of_it(name: str):
    log = buildlog.read(golden.path_of("logs", name))
    found = {"runs": [figures(run) for run in log.runs]}
    assert json.loads(json.dumps(found)) == golden.expected("logs", name, found)


@pytest.mark.parametrize("name", LOGS)
def test_every_line_is_read_blank_or_counted(name: str):
    runs = buildlog.read(golden.path_of("logs", name)).runs
    assert sum(run.lines for run in runs) == golden.text_of("logs", name).count("\n")
    assert sum(run.unread for run in runs) <= 0.05 * sum(run.lines for run in runs)


def test_the_quantized_network_of_trt_85_is_followed_to_the_end():
    (run,) = buildlog.read(golden.path_of("logs", "trt-8.5.2-qdq")).runs
    ends = Counter(row.end.value for row in run.ledger)
    assert "unknown" not in ends
    assert all(node.precision.startswith("int8") for node in run.compute)
    # A Q and a DQ of every weight, and a DQ of every input.
    assert (ends["fused-weight"], ends["fused-input"]) == (2 * len(run.compute), len(run.compute))


def test_reading_is_the_same_from_a_packed_file_a_plain_one_and_one_with_windows_line_ends(tmp_path: Path):
    packed = buildlog.read(golden.path_of("logs", "trt-8.4.1-verbosity"))
    plain = lzma.decompress(golden.path_of("logs", "trt-8.4.1-verbosity").read_bytes())
    (tmp_path / "plain.log").write_bytes(plain)
    (tmp_path / "windows.log").write_bytes(plain.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    for path in tmp_path.iterdir():
        assert buildlog.read(path).runs == packed.runs
