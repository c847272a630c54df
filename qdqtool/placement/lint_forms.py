"""Lint reports in the forms that continuous integration reads: SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import qdqtool
from qdqtool.core.findings import Severity
from qdqtool.core.lint import LintFinding, LintReport
from qdqtool.io.json_files import canonical
from qdqtool.placement.lint import LINTS, codes

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_MOST = 25_000
"""Results that GitHub code scanning takes of one run."""
_START = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 2}
"""A model has no lines; code scanning wants one."""
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\x7f")
"""What XML 1.0 cannot hold, and a control character that it can."""


def sarif(report: LintReport, model: str) -> str:
    """SARIF 2.1.0: one result per finding at the model file, the node as logical location, waivers as suppressions.

    Args:
        report: of one model.
        model: its path as seen from the repository's root, or an absolute one.
    """
    rules = codes()
    driver = {
        "name": "qdqtool",
        "semanticVersion": qdqtool.__version__,
        "rules": [_rule(code, name) for code, name in rules.items()],
    }
    return canonical(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {"driver": driver},
                    "automationDetails": {"id": f"qdqtool-lint/{report.target}/{_uri(model)}/"},
                    "columnKind": "unicodeCodePoints",
                    "results": list(_results(report, model, list(rules))),
                }
            ],
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
        name=_printable(f"qdqtool lint {model}"),
        tests=str(len(rules)),
        failures=str(len(failed)),
        errors="0",
        skipped=str(len(waived.keys() - failed)),
    )
    for code, name in rules.items():
        case = ET.SubElement(
            suite, "testcase", classname=f"qdqtool.lint.{report.target}", name=f"{code} {name}"
        )
        said = [finding for finding in failing if finding.code == code]
        if said:
            message = (
                said[0].reason if len(said) == 1 else f"{len(said)} findings, the first: {said[0].reason}"
            )
            failure = ET.SubElement(case, "failure", message=_printable(message), type=code)
            failure.text = "\n".join(
                _printable(f"{f.node}: {f.reason}; {f.effect}; fix: {f.fix}") for f in said
            )
        elif code in waived:
            ET.SubElement(case, "skipped", message=_printable(waived[code]))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rule(code: str, name: str) -> dict[str, Any]:
    manual = LINTS.manual(name)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in name.split("_")),
        "shortDescription": {"text": " ".join(manual.split("\n\n")[0].split())},
        "fullDescription": {"text": manual},
        "help": {"text": manual, "markdown": f"```text\n{manual}\n```"},
        "defaultConfiguration": {"level": _LEVELS[LINTS.load(name).severity]},
        "properties": {"tags": ["onnx", "quantization", "tensorrt"]},
    }


def _results(report: LintReport, model: str, order: list[str]) -> Iterator[dict[str, Any]]:
    """What code scanning takes, the gravest kept, with fingerprints that survive a change elsewhere in the model."""
    findings = [*report.findings, *report.waived]
    kept = sorted(range(len(findings)), key=lambda i: -findings[i].severity.rank)[:_MOST]
    seen: Counter[str] = Counter()
    for finding in (findings[index] for index in sorted(kept)):
        digest = hashlib.sha256(f"{finding.code}\0{finding.node}\0{model}".encode()).hexdigest()[:16]
        seen[digest] += 1
        yield _result(finding, order, model, f"{digest}:{seen[digest]}")


def _result(finding: LintFinding, order: list[str], model: str, fingerprint: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": order.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.node}: {finding.reason}: {finding.effect}. Fix: {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(model)}, "region": _START},
                "logicalLocations": [{"name": finding.node, "kind": "node"}],
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }
    if finding.waiver:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": finding.waiver}]
    return result


def _uri(path: str) -> str:
    """A path as a URI reference: relative ones stay relative to the repository's root."""
    quoted = quote(path.removeprefix("./"), safe="/")
    return f"file://{quoted}" if quoted.startswith("/") else quoted


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)
