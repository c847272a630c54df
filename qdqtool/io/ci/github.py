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

from qdqtool.io.ci import CiReport
from qdqtool.io.escaping import github_message, github_property

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def write(report: CiReport) -> str:
    """Render one workflow command per finding that is not waived."""
    return "".join(
        f"::{_COMMANDS[result.level]} file={github_property(report.source)},"
        f"title={github_property(f'{result.code} {result.subject}')}"
        f"::{github_message(f'{result.reason} Fix: {result.fix}')}\n"
        for result in report.results
        if not result.waiver
    )
