"""JUnit XML, which most continuous integration servers display: one test suite per rule, one test case per finding."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from qdqtool.io.ci import CiReport, CiResult
from qdqtool.io.escaping import xml, xml_line


def write(report: CiReport) -> str:
    """Render test suites: errors and warnings fail, waived findings are skipped, notes pass.

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
            _case(suite, result, report.source)
        if not results:
            _named(suite, f"{rule.code} {rule.name}", report.source)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _fails(result: CiResult) -> bool:
    return not result.waiver and result.level != "info"


def _case(suite: ET.Element, result: CiResult, source: str) -> None:
    case = _named(suite, f"{result.code} {result.subject}", source)
    if result.waiver:
        ET.SubElement(case, "skipped", message=xml_line(result.waiver))
        return
    text = xml(f"{result.reason}\nfix: {result.fix}")
    if _fails(result):
        ET.SubElement(case, "failure", message=xml_line(result.reason), type=result.level).text = text
    else:
        ET.SubElement(case, "system-out").text = text


def _named(suite: ET.Element, name: str, source: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=xml_line(name), classname=xml_line(source))
