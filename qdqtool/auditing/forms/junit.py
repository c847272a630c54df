"""JUnit XML, which nearly every continuous integration server shows: one test suite per check."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from qdqtool.auditing.run import CHECKS
from qdqtool.core.audit import Audit
from qdqtool.core.findings import Finding, Severity


def write(audit: Audit, source: str) -> str:
    """Findings are failures, informative ones are passed cases; a check without findings is one passed case."""
    suites = ET.Element("testsuites", name="qdqtool audit")
    for name in CHECKS.names():
        found = [finding for finding in audit.findings if finding.check == name]
        failed = sum(finding.severity is not Severity.INFO for finding in found)
        suite = ET.SubElement(
            suites, "testsuite", name=name, tests=str(max(len(found), 1)), failures=str(failed), errors="0"
        )
        for finding in found:
            _case(suite, finding, source)
        if not found:
            ET.SubElement(suite, "testcase", name=name, classname=_clean(source))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ET.Element, finding: Finding, source: str) -> None:
    case = ET.SubElement(
        suite, "testcase", name=_clean(f"{finding.code} {finding.subject}"), classname=_clean(source)
    )
    text = _clean(f"{finding.reason}\nfix: {finding.fix}")
    if finding.severity is Severity.INFO:
        ET.SubElement(case, "system-out").text = text
    else:
        attributes = {"message": _clean(finding.reason), "type": finding.severity.value}
        ET.SubElement(case, "failure", attributes).text = text


def _clean(text: str) -> str:
    """Text that XML can hold: control characters and lone surrogates become visible ones."""
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x20 and char not in "\t\n\r":
        return chr(0x2400 + code)
    return "\ufffd" if 0xD800 <= code < 0xE000 or (code >= 0xFFFE and code <= 0xFFFF) else char
