"""Lint reports in the forms that continuous integration reads: SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import qdqtool
from qdqtool.core.artefacts import canonical
from qdqtool.core.findings import Severity
from qdqtool.core.lint import LintFinding, LintReport
from qdqtool.placement.lint import LINTS, codes

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(report: LintReport, model: str) -> str:
    """SARIF 2.1.0: one result per finding at the model file, the node as logical location, waivers as suppressions."""
    rules = codes()
    order = list(rules)
    driver = {
        "name": "qdqtool",
        "version": qdqtool.__version__,
        "rules": [_rule(code, name) for code, name in rules.items()],
    }
    results = [_result(finding, order, model) for finding in (*report.findings, *report.waived)]
    return canonical(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        }
    )


def junit(report: LintReport, model: str) -> str:
    """JUnit XML: one test case per rule, failed by its errors and warnings, skipped where all findings are waived."""
    failing = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    failed = {finding.code for finding in failing}
    waived = {finding.code: finding.waiver for finding in report.waived}
    rules = codes()
    suite = ET.Element(
        "testsuite",
        name=f"qdqtool lint {model}",
        tests=str(len(rules)),
        failures=str(len(failed)),
        skipped=str(len(waived.keys() - failed)),
    )
    for code, name in rules.items():
        case = ET.SubElement(
            suite, "testcase", classname=f"qdqtool.lint.{report.target}", name=f"{code} {name}"
        )
        said = [finding for finding in failing if finding.code == code]
        if said:
            failure = ET.SubElement(case, "failure", message=f"{len(said)} findings", type=code)
            failure.text = "\n".join(f"{f.node}: {f.reason}; {f.effect}; fix: {f.fix}" for f in said)
        elif code in waived:
            ET.SubElement(case, "skipped", message=waived[code])
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rule(code: str, name: str) -> dict[str, Any]:
    manual = LINTS.manual(name)
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": manual.split("\n\n")[0]},
        "fullDescription": {"text": manual},
        "defaultConfiguration": {"level": _LEVELS[LINTS.load(name).severity]},
    }


def _result(finding: LintFinding, order: list[str], model: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": order.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.reason}: {finding.effect}. Fix: {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": model}},
                "logicalLocations": [{"name": finding.node, "kind": "node"}],
            }
        ],
    }
    if finding.waiver:
        result["suppressions"] = [{"kind": "external", "justification": finding.waiver}]
    return result
