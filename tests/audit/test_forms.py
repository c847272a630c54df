"""Audits for continuous integration, and baselines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.auditing.baseline import fingerprint, fresh
from qdqtool.auditing.forms import github, junit, markdown, sarif
from qdqtool.auditing.run import CHECKS
from qdqtool.core.audit import Audit, KernelCounts
from qdqtool.core.findings import Evidence, Finding, Severity

COUNTS = KernelCounts(kernels=3, compute=2, qdq=1, activation_bytes_dumped=None, activation_bytes_fused=None)
ONE = Finding(
    code="QDQ207",
    check="float_round_trip",
    severity=Severity.WARNING,
    subject="Q_myl0_7",
    reason="goes back",
    fix="quantize the shortcut",
    bytes=64,
    evidence=(Evidence(file="layers.json", place="/data/layers/3"),),
)


def audit(*findings: Finding) -> Audit:
    return Audit(verdicts=(), findings=findings, counts=COUNTS)


def test_sarif_has_a_rule_for_every_check_and_a_result_for_every_finding():
    run = json.loads(sarif.write(audit(ONE), "a.json"))["runs"][0]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert len(rules) == len(CHECKS.names())
    (result,) = run["results"]
    assert result["ruleId"] in rules
    assert (result["level"], result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]) == (
        "warning",
        "a.json",
    )
    assert result["partialFingerprints"] == {"qdqtool/v1": fingerprint(ONE)}


def test_junit_fails_what_is_loud_and_passes_what_is_quiet():
    quiet = replace(ONE, severity=Severity.INFO, subject="quiet")
    root = ET.fromstring(junit.write(audit(ONE, quiet), "a.json").encode())
    suite = next(suite for suite in root if suite.get("name") == "float_round_trip")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [True, False]
    assert all(suite.get("tests") == "1" for suite in root if suite.get("name") != "float_round_trip")


def test_markdown_shows_warnings_and_folds_notes():
    text = markdown.write(audit(ONE, replace(ONE, severity=Severity.INFO)), "a.json")
    assert "| warning | QDQ207 |" in text
    assert "<details><summary>1 notes</summary>" in text
    assert "No warnings." in markdown.write(audit(), "a.json")


def test_github_writes_one_command_per_finding():
    text = github.write(audit(ONE, replace(ONE, severity=Severity.ERROR)), "a.json")
    assert [line.split(" ")[0] for line in text.splitlines()] == ["::warning", "::error"]
    assert "title=QDQ207 Q_myl0_7::goes back Fix: quantize the shortcut" in text


@settings(deadline=None)
@given(st.text(max_size=60))
def test_names_of_any_kind_stay_names(name: str):
    odd = audit(replace(ONE, subject=name, reason=f"{name} & <b>|"))
    assert json.loads(sarif.write(odd, name))["version"] == "2.1.0"
    assert ET.fromstring(junit.write(odd, name).encode("utf-8")).tag == "testsuites"
    assert len(github.write(odd, name).splitlines()) >= 1
    assert github.write(odd, name).count("\n") == 1
    rows = [line for line in markdown.write(odd, name).splitlines() if line.startswith("| warning")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 6


def test_known_findings_are_left_out_and_counted():
    left = fresh(audit(ONE, replace(ONE, code="QDQ210")), audit(ONE))
    assert [finding.code for finding in left.findings] == ["QDQ210"]
    assert "1 findings are in the baseline and not shown; 0 of the baseline are gone" in left.notes


def test_the_number_of_a_kernel_does_not_make_a_finding_new():
    assert fresh(audit(replace(ONE, subject="Q_myl0_31")), audit(ONE)).findings == ()


def test_what_comes_twice_must_be_known_twice():
    assert len(fresh(audit(ONE, ONE), audit(ONE)).findings) == 1


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_new_and_known_findings_add_up(now: list[str], before: list[str]):
    def of(names: list[str]) -> Audit:
        return audit(*(replace(ONE, subject=name) for name in names))

    left = [finding.subject for finding in fresh(of(now), of(before)).findings]
    for name in "abc":
        assert left.count(name) == max(0, now.count(name) - before.count(name))


@pytest.mark.parametrize("form", [sarif, junit, markdown, github])
def test_an_audit_without_findings_can_be_written(form):
    assert isinstance(form.write(audit(), "a.json"), str)
