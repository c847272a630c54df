"""Lint warns just where TensorRT for RTX realises another format than the one that is asked for, and predict says which."""

from __future__ import annotations

import pytest

from tests.shared import benchmark

pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
FORMATS = benchmark("formats")

pytestmark = [pytest.mark.rtx, pytest.mark.slow]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.long] * (place % 2)) for place, case in enumerate(FORMATS.CASES)],
)
def test_lint_predict_and_audit_agree_with_the_layers_of_the_engine(case: str) -> None:
    found = FORMATS.judge(case, FORMATS.CASES[case][2][-1])
    assert FORMATS.linted_right(case, found), found
    assert FORMATS.foreseen_right(case, found), found
    assert FORMATS.audited_right(case, found), found
