"""SARIF 2.1.0, which code scanning services and editors read (OASIS standard, 2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from qdqtool._version import __version__
from qdqtool.io.ci import CiReport, CiResult, CiRule
from qdqtool.io.json_files import canonical

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
# What is left out first where GitHub takes no more results.
_RANKS = {"error": 2, "warning": 1, "info": 0}
_MOST = 25_000
"""Largest number of results that GitHub code scanning accepts from one run."""
_START = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 2}
"""Dummy region of a result: a model has no lines, but code scanning needs one."""


def write(report: CiReport) -> str:
    """Render one run: a rule per check, and a result per finding. Nodes are logical locations, and waivers are suppressions."""
    driver = {
        "name": "qdqtool",
        "semanticVersion": __version__,
        "informationUri": "https://github.com/qdqtool/qdqtool",
        "rules": [_rule(rule) for rule in report.rules],
    }
    category = "/".join(part for part in (f"qdqtool-{report.tool}", report.category) if part)
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"{category}/{_uri(report.source)}/"},
        "columnKind": "unicodeCodePoints",
        "results": list(_results(report)),
    }
    return canonical(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def _rule(rule: CiRule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.page},
        "help": {"text": rule.page, "markdown": f"```text\n{rule.page}\n```"},
        "defaultConfiguration": {"level": _LEVELS[rule.level]},
        "properties": {"tags": ["onnx", "quantization", "tensorrt"]},
    }


def _results(report: CiReport) -> Iterator[dict[str, Any]]:
    """Yield as many results as code scanning accepts, the most severe ones if there are more; equal fingerprints are numbered."""
    results = report.results
    kept = sorted(range(len(results)), key=lambda at: -_RANKS[results[at].level])[:_MOST]
    order = {rule.code: index for index, rule in enumerate(report.rules)}
    seen: Counter[str] = Counter()
    for result in (results[at] for at in sorted(kept)):
        seen[result.fingerprint] += 1
        fingerprint = f"{result.fingerprint}:{seen[result.fingerprint]}"
        yield _result(result, order, report.source, fingerprint)


def _result(result: CiResult, order: dict[str, int], source: str, fingerprint: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": _uri(source)}, "region": _START}
    node = {"name": result.subject, "fullyQualifiedName": result.subject, "kind": "element"}
    written: dict[str, Any] = {
        "ruleId": result.code,
        "ruleIndex": order.get(result.code, -1),
        "level": _LEVELS[result.level],
        "message": {"text": f"{result.subject}: {result.reason}. Fix: {result.fix}"},
        "locations": [{"physicalLocation": place, "logicalLocations": [node]}],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }
    if result.evidence:
        written["relatedLocations"] = [
            {
                "id": number,
                "physicalLocation": {"artifactLocation": {"uri": _uri(file)}},
                "message": {"text": place},
            }
            for number, (file, place) in enumerate(result.evidence)
        ]
    if result.waiver:
        written["suppressions"] = [{"kind": "external", "status": "accepted", "justification": result.waiver}]
    if result.properties:
        written["properties"] = result.properties
    return written


def _uri(path: str) -> str:
    """Return a path as a URI reference; relative paths stay relative to the repository's root."""
    quoted = quote(path.removeprefix("./"), safe="/", errors="replace")
    return f"file://{quoted}" if quoted.startswith("/") else quoted
