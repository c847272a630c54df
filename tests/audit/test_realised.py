"""What was asked of a node in which format, and what the engine does: held to the dumps of real builds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.cli.verdict import list_unrealised
from qdqtool.core.findings import Audit, NodeVerdict
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.predict import predict
from tests import models
from tests.shared import benchmark

FORMATS = benchmark("formats")
CASES, truth = FORMATS.CASES, FORMATS.truth

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx: pip install 'qdqtool[rtx]'"
)
BEFORE = "dequantized before the kernel"


def audited(case: str, folder: Path) -> tuple[Audit, NodeVerdict, str]:
    make, _, targets = CASES[case]
    path = models.save(make(), folder)
    sm = f"sm{targets[-1]}"
    result, _ = RTX.build(BuildRequest(model=path, folder=folder, targets=(sm,), timeout_s=300))
    assert result.layers is not None
    dump = folder / result.layers
    found = audit(load(path), read(dump), targets=(sm,))
    verdict = next(told for told in found.verdicts if told.node == "core")
    wanted = truth(dump.read_text("utf-8"), "core", CASES[case][1])
    foreseen = next(node for node in predict(load(path), Target.parse("rtx")).nodes if node.node == "core")
    # Arithmetic that falls back leaves weights in few bits in front of a float kernel; foreseen is the fall alone.
    fallen = "-weights" not in CASES[case][1] and wanted != CASES[case][1]
    assert foreseen.realised == ("float" if fallen else wanted)
    return found, verdict, wanted


@pytest.mark.parametrize(
    "case",
    [
        "fp8 matmul",
        "nvfp4, constant scales",
        "nvfp4, fewer weights than scales",
        "int4 blocks of 64",
        "int8 weights",
    ],
)
def test_a_node_that_runs_as_asked_has_no_finding(case, tmp_path):
    found, verdict, wanted = audited(case, tmp_path)
    assert (verdict.asked, verdict.realised) == (wanted, wanted)
    assert verdict.is_as_asked
    assert (verdict.reason, verdict.fix) == ("", "")
    assert not [finding for finding in found.findings if finding.subject == "core"]
    assert list_unrealised(found.verdicts) == []


@pytest.mark.parametrize("case", ["int4, one weight for two, one row", "int8 weights for two, one row"])
def test_a_kernel_for_one_row_that_reads_stored_weights_multiplies_floats(case, tmp_path):
    _, verdict, wanted = audited(case, tmp_path)
    assert (verdict.realised, verdict.precision) == (wanted, DType.FLOAT16)


@pytest.mark.parametrize(
    ("case", "word", "fix"),
    [
        ("int4 in one block", "at least two blocks", "blocks of 16 to 128"),
        ("int4, odd columns", "255 columns are an odd number", "pad the columns"),
        ("int4, one weight for two", "several nodes read this weight", "a separate initializer"),
        ("int4, equal scales of 504 bytes", "another weight has the same scales", "by the smallest step"),
        ("int4 conv", "no Conv dequantizes", "quantize the input of the Conv too"),
        ("int8 weights in blocks", "INT8 in blocks", "one scale per output channel"),
        ("int8 weights, one row, large", "if the input has one row", "use one scale for the whole weight"),
        ("nvfp4 weights", "FP4 weights", "quantize the input of the node to nvfp4 too"),
    ],
)
def test_weights_dequantized_before_the_kernel_are_told_with_their_bytes(case, word, fix, tmp_path):
    found, verdict, wanted = audited(case, tmp_path)
    assert wanted == f"{CASES[case][1]} {BEFORE}"
    assert verdict.realised == wanted
    assert word in verdict.reason
    assert fix in verdict.fix
    (told,) = [
        finding for finding in found.findings if finding.code == "QDQ218" and finding.subject == "core"
    ]
    assert told.bytes == verdict.bytes_lost
    assert told.bytes is not None
    assert told.bytes > 0
    assert "run as asked, first core" in list_unrealised(found.verdicts)[0]


@pytest.mark.parametrize(
    ("case", "realised", "word"),
    [
        ("fp8 conv of 49 taps", f"fp8-weights {BEFORE}", "more than 32 taps run in float, this one has 49"),
        ("fp4 with scales of one level", f"nvfp4-weights {BEFORE}", "without a global scale"),
        ("mxfp8", "mxfp8-weights", "computes MXFP8 in float"),
    ],
)
def test_arithmetic_that_is_silently_float_is_a_fallback_with_its_reason(case, realised, word, tmp_path):
    found, verdict, wanted = audited(case, tmp_path)
    assert (verdict.asked, verdict.realised) == (CASES[case][1], wanted)
    assert wanted == realised
    assert word in verdict.reason
    (told,) = [finding for finding in found.findings if finding.code == "QDQ201"]
    assert f"should run {verdict.asked.upper()}" in told.reason
