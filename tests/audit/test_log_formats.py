"""What the log of a build says of each node is what the audit of the engine says, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

import qdqtool
from tests.sweep.digits import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "sm", "reads"),
    [
        ("conv-int8", 86, "int8"),
        ("conv-fp8", 89, "fp8"),
        ("llm-nvfp4", 120, "fp4"),
        ("weights-only-int8", 86, ""),
    ],
)
def test_the_log_and_the_audit_agree(recipe: str, sm: int, reads: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="builds an engine")
    qdqtool.run(DIGITS, samples="random:4", recipe=recipe, settings={"build.sm": [sm]}, out=tmp_path / "run")

    told = qdqtool.audit(tmp_path / "run" / "build.log").verdicts
    known = {verdict.node: verdict for verdict in qdqtool.audit(tmp_path / "run").verdicts}

    assert {verdict.node: (verdict.asked, verdict.realised) for verdict in told} == {
        node: (verdict.asked, verdict.realised) for node, verdict in known.items()
    }
    assert all(
        verdict.precision is known[verdict.node].precision
        for verdict in told
        if verdict.precision.is_quantized
    )
    nodes = qdqtool.parse_log(tmp_path / "run" / "build.log").runs[-1].compute
    assert {node.reads.value for node in nodes} - {"unknown"} == ({reads} if reads else set())
