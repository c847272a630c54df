"""A baseline takes the known findings away, and counts what it took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.auditing.full_audit import without_known
from qdqtool.core.findings import Audit, Finding, KernelCounts, NodeVerdict, Severity, Verdict
from qdqtool.core.tensors import DType

COUNTS = KernelCounts(kernels=3, compute=2, qdq=1, activation_bytes_dumped=None, activation_bytes_fused=None)
ONE = Finding(
    code="QDQ207",
    check="float_round_trip",
    severity=Severity.WARNING,
    subject="Q_myl0_7",
    reason="goes back",
    fix="quantize the shortcut",
)


def audit(*findings: Finding) -> Audit:
    return Audit(verdicts=(), findings=findings, counts=COUNTS)


def test_known_findings_are_left_out_and_counted():
    left = without_known(audit(ONE, replace(ONE, code="QDQ210")), audit(ONE))
    assert [finding.code for finding in left.findings] == ["QDQ210"]
    assert "1 finding is in the baseline and not shown; 0 of the baseline do not occur now" in left.notes


@pytest.mark.parametrize(
    ("missing", "said"), [("verdicts", "model with Q/DQ"), ("counts", "layers of an engine")]
)
def test_what_one_audit_could_not_look_at_is_neither_new_nor_gone(missing: str, said: str):
    verdict = NodeVerdict(node="n", op="Conv", verdict=Verdict.INT8, precision=DType.INT8, requested=True)
    whole = replace(audit(ONE), verdicts=(verdict,))
    part = replace(whole, **{missing: () if missing == "verdicts" else replace(COUNTS, kernels=0)})
    assert [note for note in without_known(whole, part).notes if f"without the {said}" in note]
    assert [note for note in without_known(part, whole).notes if f"with the {said}" in note]
    assert len(without_known(whole, whole).notes) == 1


def test_the_number_of_a_kernel_does_not_make_a_finding_new():
    assert without_known(audit(replace(ONE, subject="Q_myl0_31")), audit(ONE)).findings == ()


def test_what_comes_twice_must_be_known_twice():
    assert len(without_known(audit(ONE, ONE), audit(ONE)).findings) == 1


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_new_and_known_findings_add_up(now: list[str], before: list[str]):
    def of(names: list[str]) -> Audit:
        return audit(*(replace(ONE, subject=name) for name in names))

    left = [finding.subject for finding in without_known(of(now), of(before)).findings]
    for name in "abc":
        assert left.count(name) == max(0, now.count(name) - before.count(name))
