"""Reports for continuous integration: one `CiReport`, and one function per format.

Audit and lint make a `CiReport` of their findings; the formats know neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree as ET

from qdqtool._version import __version__
from qdqtool.errors import UsageError
from qdqtool.io.escaping import github_message, github_property, markdown, xml, xml_line
from qdqtool.io.json_files import canonical

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CiRule:
    """A rule that was checked, with or without findings.

    Attributes:
        code: stable identifier ("QDQ122").
        name: the rule's name in snake_case.
        level: of its findings, as a rule.
        page: its documentation; the first paragraph names the subject.
    """

    code: str
    name: str
    level: Level
    page: str

    @property
    def summary(self) -> str:
        """The first paragraph of the rule's page, on one line."""
        return " ".join(self.page.split("\n\n")[0].split())


@dataclass(frozen=True, kw_only=True, slots=True)
class CiResult:
    """One finding.

    Attributes:
        code: the rule's code.
        level: how much it matters here.
        subject: the node, tensor or layer it is about.
        reason: the problem and its cost.
        fix: what to change.
        waiver: why the user accepts it; "" if the user does not.
        evidence: files and places in them to look at.
        fingerprint: identifier of the finding, equal in all runs.
        properties: further figures.
    """

    code: str
    level: Level
    subject: str
    reason: str
    fix: str
    waiver: str = ""
    evidence: tuple[tuple[str, str], ...] = ()
    fingerprint: str
    properties: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CiReport:
    """The findings of one tool in one file.

    Attributes:
        tool: the command, "audit" or "lint".
        source: the file, as seen from the repository's root, or an absolute path.
        headline: the figures in one sentence.
        rules: all that were asked, in order.
        results: findings of the rules, including waived findings.
        notes: remarks on the reading.
        category: the target, which distinguishes runs on one file.
    """

    tool: str
    source: str
    headline: str
    rules: tuple[CiRule, ...]
    results: tuple[CiResult, ...]
    notes: tuple[str, ...] = ()
    category: str = ""

    def of(self, rule: CiRule) -> Iterator[CiResult]:
        """Return the findings of one rule."""
        return (result for result in self.results if result.code == rule.code)


# --- SARIF ------------------------------------------------------------------------------------------------------------
# SARIF 2.1.0, which code scanning services and editors read (OASIS standard, 2020).


_SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
# Results that are omitted first if GitHub takes no more.
_RANKS = {"error": 2, "warning": 1, "info": 0}
_MOST = 25_000
"""Largest number of results that GitHub code scanning accepts from one run."""
_START = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 2}
"""Dummy region of a result: a model has no lines, but code scanning needs one."""


def write_sarif(report: CiReport) -> str:
    """Render the report as SARIF.

    Each check is a rule, each finding a result, each node a logical location; waivers are suppressions.
    """
    driver = {
        "name": "qdqtool",
        "semanticVersion": __version__,
        "informationUri": "https://github.com/qdqtool/qdqtool",
        "rules": [_sarif_rule(rule) for rule in report.rules],
    }
    category = "/".join(part for part in (f"qdqtool-{report.tool}", report.category) if part)
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"{category}/{_uri(report.source)}/"},
        "columnKind": "unicodeCodePoints",
        "results": list(_sarif_results(report)),
    }
    return canonical(
        {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    )


def _sarif_rule(rule: CiRule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.page},
        "help": {"text": rule.page, "markdown": f"```text\n{rule.page}\n```"},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
        "properties": {"tags": ["onnx", "quantization", "tensorrt"]},
    }


def _sarif_results(report: CiReport) -> Iterator[dict[str, Any]]:
    """Yield the most severe findings, as many as code scanning accepts. Equal fingerprints are numbered."""
    results = report.results
    kept = sorted(range(len(results)), key=lambda at: -_RANKS[results[at].level])[:_MOST]
    order = {rule.code: index for index, rule in enumerate(report.rules)}
    counts: Counter[str] = Counter()
    for result in (results[at] for at in sorted(kept)):
        counts[result.fingerprint] += 1
        fingerprint = f"{result.fingerprint}:{counts[result.fingerprint]}"
        yield _sarif_result(result, order, report.source, fingerprint)


def _sarif_result(result: CiResult, order: dict[str, int], source: str, fingerprint: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": _uri(source)}, "region": _START}
    node = {"name": result.subject, "fullyQualifiedName": result.subject, "kind": "element"}
    written: dict[str, Any] = {
        "ruleId": result.code,
        "ruleIndex": order.get(result.code, -1),
        "level": _SARIF_LEVELS[result.level],
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
    """Return a path as a URI reference. Relative paths stay relative to the root of the repository."""
    drive = path[:2] if path[1:3] == ":/" else ""  # of an absolute path on Windows
    quoted = quote(path[len(drive) :].removeprefix("./"), safe="/", errors="replace")
    return f"file://{'/' if drive else ''}{drive}{quoted}" if quoted.startswith("/") else quoted


# --- JUnit ------------------------------------------------------------------------------------------------------------
# JUnit XML, which most continuous integration servers display: one test suite per rule, one test case per finding.


def write_junit(report: CiReport) -> str:
    """Render the report as JUnit: errors and warnings fail, waived findings are skipped, notes pass.

    A rule without findings is one passed case.
    """
    suites = ET.Element("testsuites", name=f"qdqtool {report.tool}")
    for rule in report.rules:
        results = list(report.of(rule))
        suite = ET.SubElement(
            suites,
            "testsuite",
            name=rule.name,
            tests=str(max(len(results), 1)),
            failures=str(sum(map(_fails, results))),
            errors="0",
            skipped=str(sum(bool(result.waiver) for result in results)),
        )
        for result in results:
            _junit_case(suite, result, report.source)
        if not results:
            _add_case(suite, f"{rule.code} {rule.name}", report.source)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _fails(result: CiResult) -> bool:
    return not result.waiver and result.level != "info"


def _junit_case(suite: ET.Element, result: CiResult, source: str) -> None:
    case = _add_case(suite, f"{result.code} {result.subject}", source)
    if result.waiver:
        ET.SubElement(case, "skipped", message=xml_line(result.waiver))
        return
    text = xml(f"{result.reason}\nfix: {result.fix}")
    if _fails(result):
        ET.SubElement(case, "failure", message=xml_line(result.reason), type=result.level).text = text
    else:
        ET.SubElement(case, "system-out").text = text


def _add_case(suite: ET.Element, name: str, source: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=xml_line(name), classname=xml_line(source))


# --- Markdown ---------------------------------------------------------------------------------------------------------
# Markdown for pull-request comments and job summaries.


def write_markdown(report: CiReport) -> str:
    """Render the report as Markdown: a line of figures, then a table of findings."""
    lines = [f"### qdqtool {report.tool} of {markdown(report.source)}", "", markdown(report.headline), ""]
    open_results = [result for result in report.results if not result.waiver]
    grave = [result for result in open_results if result.level != "info"]
    lines += _markdown_table(grave) if grave else ["No warnings."]
    folds = {
        "notes": [result for result in open_results if result.level == "info"],
        "waived findings": [result for result in report.results if result.waiver],
    }
    for title, results in folds.items():
        if results:
            lines += ["", f"<details><summary>{len(results)} {title}</summary>", ""]
            lines += [*_markdown_table(results), "", "</details>"]
    lines += ["", *(f"> {markdown(note)}" for note in report.notes)] if report.notes else []
    return "\n".join(lines) + "\n"


def _markdown_table(results: list[CiResult]) -> list[str]:
    rows = [
        f"| {result.level} | {markdown(result.code)} | {markdown(result.subject)} | {markdown(result.reason)} "
        f"| {markdown(result.waiver or result.fix)} |"
        for result in results
    ]
    return ["| severity | code | subject | reason | fix |", "|---|---|---|---|---|", *rows]


# --- GitHub -----------------------------------------------------------------------------------------------------------
# Workflow commands of GitHub Actions: every finding becomes an annotation of the run.
#
#     jobs:
#       audit:
#         runs-on: ubuntu-latest
#         steps:
#           - uses: actions/checkout@v4
#           - run: pip install qdqtool
#           - run: qdqtool audit model.qdq.onnx --layers layers.json --baseline baseline.json --format github --fail-on warning
#
# For code scanning, write `--format sarif > audit.sarif` instead and pass the file to
# github/codeql-action/upload-sarif.


_GITHUB_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def write_github(report: CiReport) -> str:
    """Render the report as GitHub workflow commands, one per finding that is not waived."""
    return "".join(
        f"::{_GITHUB_COMMANDS[result.level]} file={github_property(report.source)},"
        f"title={github_property(f'{result.code} {result.subject}')}"
        f"::{github_message(f'{result.reason}. Fix: {result.fix}')}\n"
        for result in report.results
        if not result.waiver
    )


# --- all formats -----------------------------------------------------------------------------------------------------

_WRITERS: dict[str, Callable[[CiReport], str]] = {
    "sarif": write_sarif,
    "junit": write_junit,
    "markdown": write_markdown,
    "github": write_github,
}
FORMS = tuple(_WRITERS)
"""Names of the formats."""


def write(report: CiReport, form: str) -> str:
    """Render the report in one of `FORMS`."""
    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", fix=f"choose {', '.join(FORMS)}", where="--format")
    return _WRITERS[form](report)
