"""Find mistakes in a Q/DQ model before any build: the problem, the node, the effect in TensorRT, and the fix.

Works on every Q/DQ model, from any tool. Each rule has a code: `--rules` lists them, `qdqtool explain CODE` explains
one, `--select QDQ120,QDQ125` checks only some, and `--ignore CODE=reason` accepts the findings of a rule; the reason is
kept in every report. `--target` is rtx, a family (8, 10, 11) or a release (8.2, 10.13).

    qdqtool lint model.qdq.onnx --target 10.13
    qdqtool lint model.qdq.onnx --format github --fail-on warning
    qdqtool lint --rules
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import FORMS, TARGET_HELP, asked_target, check_form, comma_words
from qdqtool.core.wording import count_noun, first_of

if TYPE_CHECKING:
    from qdqtool.core.findings import LintFinding, LintReport

_OF_SEVERAL = ("text", "github")
"""Output formats in which several reports can follow each other."""
RTX = "rtx"
"""Target of `repair` without --target."""


def lint(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="model", help="ONNX models with Q/DQ nodes.")
    ] = None,
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "rtx",
    old_target: Annotated[str | None, typer.Option("--for", hidden=True)] = None,
    sm: Annotated[
        list[str] | None, typer.Option(help="GPU architectures that will run the model: 86 or 86,120.")
    ] = None,
    select: Annotated[list[str] | None, typer.Option(help="Report only these codes: QDQ120,QDQ125.")] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Accept the findings of a code, and say why, as in QDQ141=known and measured."),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 if a finding has this severity or a higher one: error, warning, info, never."
        ),
    ] = "error",
    sarif: Annotated[
        Path | None, typer.Option(help="Write the findings as SARIF 2.1.0 to this file.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the findings as JUnit XML to this file.")] = None,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMS)}.")] = "text",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules and exit.")] = False,
) -> int:
    """Find mistakes in a Q/DQ model before any build: the problem, the node, the effect in TensorRT, and the fix."""
    from qdqtool.errors import UsageError
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.io import ci
    from qdqtool.io.files import write_text
    from qdqtool.placement.lint import ci_report
    from qdqtool.placement.lint import lint as ask

    if rules:
        return _list_rules()
    if not models:
        raise UsageError("lint needs a model", fix="pass an ONNX file, or --rules")
    _check_limit(fail_on)
    form = "json" if json else form
    check_form(form)
    if len(models) > 1 and (sarif or junit or form not in _OF_SEVERAL):
        wrong = "--sarif" if sarif else "--junit" if junit else f"--format {form}"
        raise UsageError(
            f"{wrong} can hold one model, but {len(models)} were passed",
            fix=f"lint the models one by one, or with --format {' or '.join(_OF_SEVERAL)}",
        )
    aim = asked_target(target, old_target, "--for", comma_words(sm))
    chosen = tuple(word.upper() for word in comma_words(select))
    waivers = _waivers(ignore or [])
    code = 0
    for model in models:
        report = _with_files(ask(load(model), aim, select=chosen, waivers=waivers), model)
        if sarif is not None:
            write_text(sarif, ci.write(ci_report(report, model.as_posix()), "sarif"))
        if junit is not None:
            write_text(junit, ci.write(ci_report(report, model.as_posix()), "junit"))
        if len(models) > 1 and form == "text":
            _print(f"{model}:", "bold")
        _print_report(report, model, form)
        code = max(code, _exit_code(report, fail_on))
    return code


def _with_files(report: LintReport, model: Path) -> LintReport:
    """Return the report with the path of the model in the commands of its fixes, so that they run as printed."""
    from dataclasses import replace

    from qdqtool.cli.audit_material import float_model
    from qdqtool.core.advice import with_files

    target = "" if report.target == RTX else report.target
    source = float_model(model)
    named = tuple(
        replace(finding, fix=with_files(finding.fix, str(model), target, float_model=source))
        for finding in report.findings
    )
    return replace(report, findings=named)


def _print_report(report: LintReport, model: Path, form: str) -> None:
    """Print one report in the requested form."""
    from qdqtool.core.kinds import LINT
    from qdqtool.io import ci
    from qdqtool.placement.lint import ci_report

    if form == "json":
        sys.stdout.write(LINT.dump(report))
    elif form != "text":
        sys.stdout.write(ci.write(ci_report(report, model.as_posix()), form))
    else:
        _show(report, model)
        _talk((*report.notes, *([f"quantized by {report.origin}"] if report.origin else [])))


def _waivers(texts: list[str]) -> dict[str, str]:
    """Parse CODE=reason into code and reason. The reason is required, because the report keeps accepted findings."""
    from qdqtool.core.findings import waivers
    from qdqtool.errors import UsageError

    reasons = waivers(texts)
    for code, reason in reasons.items():
        if not code or not reason:
            raise UsageError(
                f"{code or '=' + reason!r} has no {'reason' if code else 'code'}",
                fix=f"write --ignore '{code or 'QDQ141'}=why this is fine'",
                where="--ignore",
            )
    return reasons


def _check_limit(limit: str) -> None:
    from qdqtool.errors import UsageError

    if limit not in {"error", "warning", "info", "never"}:
        raise UsageError(
            f"{limit!r} is not a severity", fix="choose error, warning, info or never", where="--fail-on"
        )


def _exit_code(report: LintReport, limit: str) -> int:
    from qdqtool.core.findings import Severity

    if limit == "never":
        return 0
    return int(any(finding.severity.rank >= Severity(limit).rank for finding in report.findings))


def _show(report: LintReport, model: Path) -> None:
    import shlex

    from qdqtool.core.advice import FLOATS, by_code, explain_placeholders, node_options, repair_commands
    from qdqtool.core.wording import Command

    if report.findings:
        _print_findings(report)
    counts = [
        count_noun(number, word, word if word == "info" else "")
        for word in ("error", "warning", "info")
        if (number := sum(finding.severity.value == word for finding in report.findings))
    ]
    if report.pairs or report.findings:
        result = ", ".join(counts) if counts else "nothing wrong"
    else:
        result = f"a float model; {Command('run')} quantizes it"
    waived = f", {len(report.waived)} waived" if report.waived else ""
    _print(f"{count_noun(report.pairs, 'Q/DQ pair')} checked for {report.target}: {result}{waived}")
    placeholders = explain_placeholders("\n".join(finding.fix for finding in report.findings))
    if placeholders:
        _print(placeholders)
    repairable = [finding for finding in report.findings if repair_commands(finding.fix)]
    if repairable:
        # One code at a time, because a code names all nodes of its findings.
        codes = dict.fromkeys(finding.code for finding in repairable)
        words = shlex.split(
            "".join(
                by_code("".join(node_options(f.fix for f in repairable if f.code == code)), code)
                for code in codes
            )
        )
        pairs = dict.fromkeys(zip(words[::2], words[1::2], strict=True))
        words = [
            word
            for option, name in pairs
            if option == FLOATS or (FLOATS, name) not in pairs
            for word in (option, name)
        ]
        words += ["--samples", "DATA"] * any("--samples" in finding.fix for finding in repairable)
        aimed = () if report.target == RTX else ("--target", report.target)
        command = Command("repair", (str(model), "--out", "repaired.onnx", *aimed, *words))
        _print(f"`repair` can fix {len(repairable)} of them: {command.line}")


def _talk(notes: tuple[str, ...]) -> None:
    """Print the notes that reading the model gave, on standard error."""
    from qdqtool.cli.screen import readable, stderr

    for note in notes:
        stderr().print(readable(f"note: {note}"))


def _print_findings(report: LintReport) -> None:
    """Print one block per kind of finding. A finding on many nodes is printed once."""
    from qdqtool.core.advice import by_code, of_all
    from qdqtool.trt.causes import CAUSES

    meanings = {cause.name: cause.meaning for cause in CAUSES}
    styles = {"error": "bold red", "warning": "yellow", "info": "cyan"}
    for (_, severity, code, effect), group in _group_findings(report.findings):
        times = f", {count_noun(len(group), 'time')}" if len(group) > 1 else ""
        _print(f"{code} {severity}{times}: {first_of(f.reason for f in group)}", styles[severity])
        more = f" and {len(group) - 3} more; --json lists them all" if len(group) > 4 else ""
        nodes = ", ".join(finding.node for finding in (group[:3] if more else group))
        fix = first_of(by_code(fix, code) for fix in of_all(f.fix for f in group))
        builder = "; ".join(dict.fromkeys(meanings.get(name, name) for name in group[0].causes))
        rows = (("effect", effect), ("builder", builder), ("fix", fix), ("at", nodes + more))
        for word, text in rows if builder else (rows[0], *rows[2:]):
            _print(f"  {word:<8}{text}")


def _group_findings(
    findings: tuple[LintFinding, ...],
) -> list[tuple[tuple[int, str, str, str], list[LintFinding]]]:
    """Group findings by code and effect, the most severe first."""
    groups: dict[tuple[int, str, str, str], list[LintFinding]] = {}
    for finding in findings:
        kind = (-finding.severity.rank, finding.severity.value, finding.code, finding.effect)
        groups.setdefault(kind, []).append(finding)
    return sorted(groups.items(), key=lambda group: group[0][:3])


def _print(text: str, style: str = "") -> None:
    """Print one line; control characters in names are shown as escapes, not sent to the terminal."""
    from qdqtool.cli.screen import readable, stdout

    stdout().print(readable(text.replace("\n", "\\n")), style=style or None)


def _list_rules() -> int:
    from rich.markup import escape
    from rich.table import Table

    from qdqtool.cli.screen import show_table
    from qdqtool.matching.rule import RULES, rulebook
    from qdqtool.placement.lint import codes

    table = Table("code", "rule", "severity", "for", "what is wrong", box=None)
    for code, name in codes().items():
        rule = rulebook().rules[name]
        manual = " ".join(RULES.manual(name).split("\n\n")[0].split())
        table.add_row(code, name, rule.severity.value, " ".join(sorted(rule.targets)), escape(manual))
    show_table(table)
    return 0


PLUGIN = lint
