"""Find what is wrong with a Q/DQ model before any build: what, where, what TensorRT will do, and the fix.

Works on every Q/DQ model, whoever made it. Each rule has a code; `--rules` lists them, `--select` looks for some
only, and `--ignore CODE=reason` accepts a rule's findings for a reason that is kept in every report.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.core.lint import LintFinding, LintReport


def lint(
    model: Annotated[Path | None, typer.Argument(help="ONNX model with Q/DQ nodes.")] = None,
    target: Annotated[str, typer.Option("--for", help="Builder: 8.6, 10, 11 or rtx.")] = "rtx",
    sm: Annotated[list[str] | None, typer.Option(help="GPU architecture, as 86; may be repeated.")] = None,
    select: Annotated[list[str] | None, typer.Option(help="Look for these codes only.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Accept a code's findings: QDQ141=known and measured.")
    ] = None,
    fail_on: Annotated[str, typer.Option(help="Exit with 1 at error, warning, info or never.")] = "error",
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 here.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the artefact instead of the table.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules and exit.")] = False,
) -> int:
    """Find what is wrong with a Q/DQ model before any build: what, where, what TensorRT will do, and the fix."""
    from qdqtool.core.files import write_text
    from qdqtool.core.kinds import LINT
    from qdqtool.errors import UsageError
    from qdqtool.graph.load import load
    from qdqtool.placement import lint_forms
    from qdqtool.placement.lint import lint as ask
    from qdqtool.placement.lintrule import Asked

    if rules:
        return _list_rules()
    if model is None:
        raise UsageError("no model is given", fix="pass an ONNX file, or --rules")
    _check_limit(fail_on)
    asked = Asked(target="8.6" if target == "8" else target, sm=tuple(sm or ()))
    report = ask(load(model), asked, select=tuple(select or ()), waivers=_waivers(ignore or []))
    if sarif is not None:
        write_text(sarif, lint_forms.sarif(report, model.as_posix()))
    if junit is not None:
        write_text(junit, lint_forms.junit(report, model.as_posix()))
    if json:
        sys.stdout.write(LINT.dump(report))
    else:
        _show(report)
    return _exit_code(report, fail_on)


def _waivers(given: list[str]) -> dict[str, str]:
    """Codes and reasons out of CODE=reason."""
    from qdqtool.errors import UsageError

    waivers = {}
    for entry in given:
        code, _, reason = entry.partition("=")
        if not reason.strip():
            raise UsageError(
                f"{entry!r} gives no reason",
                fix=f"write --ignore '{code}=why this is fine'",
                where="--ignore",
            )
        waivers[code.strip()] = reason.strip()
    return waivers


def _check_limit(limit: str) -> None:
    from qdqtool.errors import UsageError

    if limit not in {"error", "warning", "info", "never"}:
        raise UsageError(
            f"{limit!r} is no severity", fix="choose error, warning, info or never", where="--fail-on"
        )


def _exit_code(report: LintReport, limit: str) -> int:
    from qdqtool.core.findings import Severity

    if limit == "never":
        return 0
    return int(any(finding.severity.rank >= Severity(limit).rank for finding in report.findings))


def _show(report: LintReport) -> None:
    from qdqtool.cli.screen import stdout

    if report.findings:
        _print_findings(report)
    counts = [
        f"{number} {word}"
        for word in ("error", "warning", "info")
        if (number := sum(finding.severity.value == word for finding in report.findings))
    ]
    said = ", ".join(counts) if counts else "nothing wrong"
    waived = f", {len(report.waived)} waived" if report.waived else ""
    stdout().print(
        f"{report.pairs} Q/DQ pairs looked at for {report.target}: {said}{waived}",
        markup=False,
        highlight=False,
    )


def _print_findings(report: LintReport) -> None:
    """One block per kind of finding; the same finding on many nodes is told once."""
    from qdqtool.cli.screen import stdout

    styles = {"error": "bold red", "warning": "yellow", "info": "cyan"}
    groups: dict[tuple[int, str, str, str, str], list[LintFinding]] = {}
    for finding in report.findings:
        kind = (-finding.severity.rank, finding.severity.value, finding.code, finding.effect, finding.fix)
        groups.setdefault(kind, []).append(finding)
    for (_, severity, code, effect, fix), found in sorted(groups.items(), key=lambda group: group[0][:3]):
        reasons = list(dict.fromkeys(finding.reason for finding in found))
        others = f", and {len(reasons) - 1} more of this kind" if len(reasons) > 1 else ""
        more = f" and {len(found) - 3} more; --json lists them all" if len(found) > 4 else ""
        nodes = ", ".join(finding.node for finding in (found[:3] if more else found))
        times = f", {len(found)} times" if len(found) > 1 else ""
        stdout().print(
            f"{code} {severity}{times}: {reasons[0]}{others}",
            style=styles[severity],
            markup=False,
            highlight=False,
        )
        for word, text in (("so TensorRT", effect), ("fix", fix), ("at", nodes + more)):
            stdout().print(f"  {word:<12}{text}", markup=False, highlight=False)


def _list_rules() -> int:
    from rich.markup import escape
    from rich.table import Table

    from qdqtool.cli.screen import stdout
    from qdqtool.placement.lint import LINTS, codes

    table = Table("code", "rule", "severity", "for", "what is wrong", box=None)
    for code, name in codes().items():
        rule = LINTS.load(name)
        manual = " ".join(LINTS.manual(name).split("\n\n")[0].split())
        table.add_row(code, name, rule.severity.value, " ".join(sorted(rule.targets)), escape(manual))
    stdout().print(table)
    return 0


PLUGIN = lint
