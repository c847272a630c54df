"""SARIF 2.1.0, which code scanning services and editors read (OASIS standard, 2020)."""

from __future__ import annotations

from typing import Any

import qdqtool
from qdqtool.auditing.baseline import fingerprint
from qdqtool.auditing.run import CHECKS
from qdqtool.core.audit import Audit
from qdqtool.core.findings import Finding, Severity
from qdqtool.io.json_files import canonical

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def write(audit: Audit, source: str) -> str:
    """One run with a rule per check and a result per finding; `source` is the audited file."""
    driver = {
        "name": "qdqtool",
        "version": qdqtool.__version__,
        "informationUri": "https://github.com/qdqtool/qdqtool",
        "rules": [_rule(name) for name in CHECKS.names()],
    }
    run = {
        "tool": {"driver": driver},
        "results": [_result(finding, source) for finding in audit.findings],
        "columnKind": "unicodeCodePoints",
    }
    return canonical(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def _rule(name: str) -> dict[str, Any]:
    check, manual = CHECKS.load(name), CHECKS.manual(name)
    return {
        "id": check.code,
        "name": "".join(word.capitalize() for word in name.split("_")),
        "shortDescription": {"text": manual.splitlines()[0]},
        "fullDescription": {"text": manual},
        "help": {"text": manual},
        "defaultConfiguration": {"level": _LEVELS[check.severity]},
    }


def _result(finding: Finding, source: str) -> dict[str, Any]:
    places = finding.evidence or ()
    return {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.reason}\nFix: {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": source}},
                "logicalLocations": [{"fullyQualifiedName": finding.subject, "kind": "element"}],
            }
        ],
        "relatedLocations": [
            {
                "id": number,
                "physicalLocation": {"artifactLocation": {"uri": place.file}},
                "message": {"text": place.place},
            }
            for number, place in enumerate(places)
        ],
        "partialFingerprints": {"qdqtool/v1": fingerprint(finding)},
        "properties": {"check": finding.check, **({} if finding.bytes is None else {"bytes": finding.bytes})},
    }
