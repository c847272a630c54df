"""Lint warns just where TensorRT for RTX realises another format than the one that is asked for, and predict says which."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from format_cases import CASES
from formats import audited_right, foreseen_right, judge, linted_right

pytestmark = [pytest.mark.rtx, pytest.mark.slow]


@pytest.mark.parametrize("case", CASES)
def test_lint_predict_and_audit_agree_with_the_layers_of_the_engine(case: str) -> None:
    found = judge(case, CASES[case][2][-1])
    assert linted_right(case, found), found
    assert foreseen_right(case, found), found
    assert audited_right(case, found), found
