"""Workflow commands of GitHub Actions: every finding becomes an annotation of the run.

    jobs:
      audit:
        runs-on: ubuntu-latest
        steps:
          - uses: actions/checkout@v4
          - run: pip install qdqtool
          - run: qdqtool audit model.qdq.onnx --layers layers.json --baseline baseline.json --format github --fail-on warning

For code scanning write `--format sarif > audit.sarif` instead and hand the file to github/codeql-action/upload-sarif.
"""

from __future__ import annotations

from qdqtool.core.audit import Audit
from qdqtool.core.findings import Severity

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def write(audit: Audit, source: str) -> str:
    """One command per finding."""
    return "".join(
        f"::{_COMMANDS[finding.severity]} file={_property(source)},title={_property(f'{finding.code} {finding.subject}')}"
        f"::{_data(f'{finding.reason} Fix: {finding.fix}')}\n"
        for finding in audit.findings
    )


def _data(text: str) -> str:
    """Text behind the colons: percent signs and line breaks are coded."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Text of a property, where colons and commas are coded as well."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
