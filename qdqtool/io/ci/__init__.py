"""Reports for continuous integration: one `CiReport`, and one file per format with a function `write`.

Audit and lint make a `CiReport` of what they found; the forms know neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from qdqtool.errors import UsageError

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CiRule:
    """A rule that was checked, with or without findings.

    Attributes:
        code: stable identifier ("QDQ122").
        name: the rule's name in snake_case.
        level: of its findings, as a rule.
        page: its documentation; the first paragraph says what it is about.
    """

    code: str
    name: str
    level: Level
    page: str

    @property
    def summary(self) -> str:
        """The first paragraph of the page, on one line."""
        return " ".join(self.page.split("\n\n")[0].split())


@dataclass(frozen=True, kw_only=True, slots=True)
class CiResult:
    """One finding.

    Attributes:
        code: the rule's code.
        level: how much it matters here.
        subject: the node, tensor or layer it is about.
        reason: what is wrong and what it costs.
        fix: what to change.
        waiver: why the user accepts it; "" if the user does not.
        evidence: files and places in them to look at.
        fingerprint: the same for the same finding in another run.
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
        results: what they found, waived findings included.
        notes: remarks on the reading.
        category: what tells runs on one file apart: the target.
    """

    tool: str
    source: str
    headline: str
    rules: tuple[CiRule, ...]
    results: tuple[CiResult, ...]
    notes: tuple[str, ...] = ()
    category: str = ""

    def of(self, rule: CiRule) -> Iterator[CiResult]:
        """Return the results of one rule."""
        return (result for result in self.results if result.code == rule.code)


FORMS = ("sarif", "junit", "markdown", "github")
"""Names of the formats; each is a file of this package with a function `write`."""


def write(report: CiReport, form: str) -> str:
    """Render the report in one of `FORMS`."""
    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", fix=f"choose {', '.join(FORMS)}", where="--format")
    text: str = import_module(f"{__name__}.{form}").write(report)
    return text
