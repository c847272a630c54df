"""Reports for continuous integration: what each form says, and that names of any kind stay names in all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from qdqtool.auditing.full_audit import CHECKS, ci_report, fingerprint
from qdqtool.core.findings import Audit, Evidence, Finding, KernelCounts, Severity
from qdqtool.io import ci

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
QUIET = replace(ONE, severity=Severity.INFO, subject="quiet")


def written(form: str, *findings: Finding) -> str:
    return ci.write(ci_report(Audit(verdicts=(), findings=findings, counts=COUNTS), "a.json"), form)


def waived(form: str) -> str:
    report = ci_report(Audit(verdicts=(), findings=(ONE,), counts=COUNTS), "a.json")
    return ci.write(replace(report, results=(replace(report.results[0], waiver="measured"),)), form)


def test_sarif_has_a_rule_for_every_check_and_a_result_for_every_finding():
    run = json.loads(written("sarif", ONE, ONE))["runs"][0]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert len(rules) == len(CHECKS.names())
    first, second = run["results"]
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"] == "QDQ207"
    assert first["level"] == "warning"
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a.json"
    assert first["partialFingerprints"] == {"primaryLocationLineHash": f"{fingerprint(ONE)}:1"}
    assert second["partialFingerprints"] != first["partialFingerprints"]
    assert first["relatedLocations"][0]["message"]["text"] == "/data/layers/3"


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("models/a b.json", "models/a%20b.json"),
        ("/models/a.json", "file:///models/a.json"),
        ("C:/models/a b.json", "file:///C:/models/a%20b.json"),
    ],
)
def test_sarif_names_the_file_as_a_uri(path: str, uri: str):
    text = ci.write(ci_report(Audit(verdicts=(), findings=(ONE,), counts=COUNTS), path), "sarif")
    (found,) = json.loads(text)["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_junit_fails_what_is_grave_and_passes_notes():
    root = ET.fromstring(written("junit", ONE, QUIET).encode())
    suite = next(suite for suite in root if suite.get("name") == "float_round_trip")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [True, False]
    assert all(suite.get("tests") == "1" for suite in root if suite.get("name") != "float_round_trip")


def test_markdown_shows_warnings_and_folds_notes():
    text = written("markdown", ONE, QUIET)
    assert "| warning | QDQ207 |" in text
    assert "<details><summary>1 notes</summary>" in text
    assert "No warnings." in written("markdown")


def test_github_writes_one_command_per_finding():
    text = written("github", ONE, replace(ONE, severity=Severity.ERROR))
    assert [line.split(" ")[0] for line in text.splitlines()] == ["::warning", "::error"]
    assert "title=QDQ207 Q_myl0_7::goes back. Fix: quantize the shortcut" in text


def test_a_waived_finding_fails_in_no_form():
    assert (
        json.loads(waived("sarif"))["runs"][0]["results"][0]["suppressions"][0]["justification"] == "measured"
    )
    assert ET.fromstring(waived("junit").encode()).find(".//skipped").get("message") == "measured"
    assert waived("github") == ""
    assert "No warnings." in waived("markdown")
    assert "1 waived findings" in waived("markdown")


@pytest.mark.parametrize("form", ci.FORMS)
def test_an_audit_without_findings_can_be_written(form):
    assert isinstance(written(form), str)
