"""A rule's findings stay within the formats that it names, for every builder; its page says which these are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.core.target import FAMILIES, Target
from qdqtool.core.tensors import FORMATS, INT8, NAMES, DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import code_names, rulebook
from qdqtool.pages import explanation
from qdqtool.placement.lint import lint
from tests.shared import benchmark

CASES = benchmark("format_cases").CASES


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_findings_are_about_formats_that_their_rule_names(family: str, tmp_path: Path) -> None:
    rules, names = rulebook().rules, code_names()
    narrow = set()
    for case, (make, *_) in CASES.items():
        path = tmp_path / "model.onnx"
        onnx.save(make(), path)
        model = load(path)
        types = {pair.dtype for pair in Flow(model).pairs}
        asked = {NAMES[kind] for kind in types if kind in NAMES} | {INT8.name for _ in types & {DType.UINT8}}
        for finding in lint(model, Target.parse(family)).findings if asked else ():
            formats = rules[names[finding.code]].formats
            assert asked & formats, f"{case}: {finding}"
            narrow |= {finding.code} if len(formats) < len(FORMATS) else set()
    assert len(narrow) > 5, "the cases reach rules of single formats"


def test_a_page_names_commands_builders_and_formats() -> None:
    taps, zero_point = (explanation(code) or "" for code in ("QDQ183", "QDQ101"))
    assert "Asked by lint; for TensorRT for RTX; for fp8." in taps
    assert (
        "Asked by lint, repair; for TensorRT 8, TensorRT 10, TensorRT 11, TensorRT for RTX; for every format."
        in " ".join(zero_point.split())
    )
