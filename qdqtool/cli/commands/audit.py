"""Report how every compute node runs in an engine: INT8 or not, the reason, and the fix.

Pass one of: a run folder; a Q/DQ model with `--layers` (a layer dump, the file of `--exportLayerInfo`, or a whole build
log); a Q/DQ model alone, which is then built with TensorRT for RTX; or layer information alone, which gives fewer
findings. Every Conv, ConvTranspose, Gemm, MatMul and attention node gets a verdict; every check adds findings with
reason, fix and evidence. It needs no GPU and no TensorRT.

`qdqtool fix` continues from the audit: it tries the suggested edits with the real builder.

For continuous integration choose a `--format`, and keep the JSON of an accepted audit as `--baseline`: then only new
findings count for `--fail-on`.

    qdqtool audit runs/digits
    qdqtool audit model.qdq.onnx --layers layers.json --format sarif
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import FORMS, check_form
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun, first_of

if TYPE_CHECKING:
    from qdqtool.core.findings import Audit, Finding, KernelCounts, Severity

_RECORDED = "findings.json"
"""Audit of a run, in its folder."""
_SHOWN = 3
"""Number of names that are printed per group of nodes."""
_NAMES = re.compile(r"\S*[/_]\S*|\b\d[\d.,]*\b")
"""Names of nodes and kernels, and numbers: reasons that differ only in these are printed once."""
_NODE = re.compile(r"node '[^']*'")


def audit(
    subject: Annotated[
        Path, typer.Argument(help="Run folder, Q/DQ model, layer information, or build log to audit.")
    ],
    layers: Annotated[
        Path | None,
        typer.Option(
            help="Layer information or build log of the engine; default: the file in the run folder."
        ),
    ] = None,
    placement: Annotated[
        Path | None, typer.Option(help="placement.json; default: the file in the run folder.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", "-p", help="Layer times of the engine: file of trtexec --exportProfile."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Verbose log of the build: findings then name lines of the log.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Layer information of an engine to compare with.")
    ] = None,
    against_profile: Annotated[
        Path | None, typer.Option(help="Layer times of the engine to compare with.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="JSON of an earlier audit: report only findings that are not in it.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Accept the findings of a check, and say why, as in QDQ210=known and measured."),
    ] = None,
    sm: Annotated[str, typer.Option(help="GPU architecture of the engine, such as 86.")] = "",
    fail_on: Annotated[
        str,
        typer.Option(
            help="Exit with 1 if a finding has this severity or a higher one: error, warning, info, never."
        ),
    ] = "never",
    fail_on_unrealised: Annotated[
        bool,
        typer.Option(
            "--fail-on-unrealised", help="Exit with 1 if a node does not run in the requested format."
        ),
    ] = False,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMS)}.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print findings.json.")] = False,
) -> int:
    """Report how every compute node runs in an engine: INT8 or not, the reason, and the fix."""
    from qdqtool.auditing.full_audit import check_ignored, examine, without_known
    from qdqtool.cli.audit_material import AuditArguments, gather
    from qdqtool.cli.screen import stderr
    from qdqtool.cli.verdict import check_limit, findings_missed, list_unrealised, print_missed
    from qdqtool.core.kinds import AUDIT
    from qdqtool.graph.provenance import origin
    from qdqtool.io.escaping import printable
    from qdqtool.pipeline.costs import with_recorded

    check_limit(fail_on)
    check_form(form)
    arguments = AuditArguments(
        subject=subject,
        layers=layers,
        placement=placement,
        sm=sm,
        profile=profile,
        against=against,
        against_profile=against_profile,
        log=log,
    )
    check_ignored(ignore or ())
    material = gather(arguments)
    result = examine(material, ignore=tuple(ignore or ()))
    if arguments == AuditArguments(subject=subject) and (subject / _RECORDED).is_file():
        result = with_recorded(result, AUDIT.read(subject / _RECORDED), tuple(ignore or ()))
    if baseline is not None:
        result = without_known(result, AUDIT.read(baseline))
    if form == "text" and not as_json:
        _print(result, **arguments.files)
        if material.model is not None and (tool := origin(material.model)):
            stderr().print(printable(f"note: quantized by {tool}"))
    else:
        sys.stdout.write(_format_audit(result, "json" if as_json else form, subject.as_posix()))
    missed = findings_missed(result.findings, fail_on)
    if not (result.verdicts or result.counts.kernels) and (fail_on != "never" or fail_on_unrealised):
        missed.append("no layers found: nothing shows which format each node runs in")
    return print_missed([*missed, *(list_unrealised(result.verdicts) if fail_on_unrealised else [])])


def _print(result: Audit, **files: str) -> None:
    from qdqtool.cli.screen import stdout
    from qdqtool.core.advice import explain_placeholders, with_files
    from qdqtool.io.escaping import printable

    lines = [with_files(line, **files) for line in _lines(result)]
    placeholders = explain_placeholders("\n".join(lines))
    for line in [*lines, *([placeholders] if placeholders else [])]:
        stdout().print(printable(line))


def _format_audit(result: Audit, form: str, source: str) -> str:
    """Return the audit as JSON, SARIF or another machine-readable form."""
    from qdqtool.auditing.full_audit import ci_report
    from qdqtool.core.kinds import AUDIT
    from qdqtool.io import ci

    if form == "json":
        return AUDIT.dump(result)
    return ci.write(ci_report(result, source), form)


def _lines(result: Audit) -> Iterator[str]:
    from qdqtool.pipeline.costs import lacks_costs

    counts = result.counts
    if result.verdicts:
        yield _headline(result)
    if counts.kernels:
        yield from _list_counts(counts)
    yield from _fallbacks(result)
    repeated = _repeated_findings(result)
    # Findings that repeat a verdict were printed with the nodes.
    findings = [finding for finding in result.findings if repeated.get(finding.subject) != finding]
    joined = _join_fixes((finding.code, finding.fix) for finding in findings)
    alike: dict[tuple[Severity, str, str], dict[str, list[Finding]]] = {}
    for finding in findings:
        fix = joined[finding.code, finding.fix]
        reasons = alike.setdefault((finding.severity, finding.code, fix), {})
        reasons.setdefault(_NAMES.sub("", finding.reason), []).append(finding)
    for (severity, code, fix), reasons in alike.items():
        for group in islice(reasons.values(), _SHOWN):
            subjects = _list_first([finding.subject for finding in group])
            yield f"{severity.value} {code} {subjects}: {first_of(finding.reason for finding in group)}"
        if len(reasons) > _SHOWN:
            yield f"{severity.value} {code} and {len(reasons) - _SHOWN} more (--json names all)"
        yield f"    fix: {fix}"
    for note in result.notes:
        yield f"note: {note}"
    if lacks_costs(result):
        yield f"note: costs of settings: {Command('run')} builds and prints them, and {Command('fix')} keeps what gains"


def _list_counts(counts: KernelCounts) -> Iterator[str]:
    yield f"{count_noun(counts.kernels, 'kernel')}: {counts.compute} compute, {counts.qdq} only quantize, dequantize, cast or reformat"
    fused = f"{_bytes(counts.activation_bytes_fused)} with epilogues fused (estimated)"
    yield f"activation bytes: {_bytes(counts.activation_bytes_dumped)} as dumped, {fused}"


def _is_float_model(result: Audit) -> bool:
    """Return True if no node has a request for a low-bit format and none runs in INT8: a float engine."""
    return not any(
        verdict.requested or verdict.asked != "float" or verdict.precision is DType.INT8
        for verdict in result.verdicts
    )


def _headline(result: Audit) -> str:
    total = len(result.verdicts)
    if any(verdict.asked not in {"int8", "float"} for verdict in result.verdicts):
        request, runs = (
            ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())
            for words in (
                [verdict.asked for verdict in result.verdicts],
                [verdict.realised for verdict in result.verdicts],
            )
        )
        return f"{count_noun(total, 'compute node')}; asked: {request}; realised: {runs}"
    if _is_float_model(result):
        kinds = Counter(verdict.verdict.value for verdict in result.verdicts).most_common()
        runs = ", ".join(f"{count} {kind}" for kind, count in kinds)
        return f"{count_noun(total, 'compute node')}: {runs}; the model does not ask for INT8 ({Command('run')} quantizes it)"
    int8 = [verdict for verdict in result.verdicts if verdict.precision is DType.INT8]
    implicit = (
        "" if any(verdict.requested for verdict in result.verdicts) else " without any Q/DQ (implicit INT8)"
    )
    return f"{len(int8)} of {count_noun(total, 'compute node runs', 'compute nodes run')} INT8{implicit}"


def _repeated_findings(result: Audit) -> dict[str, Finding]:
    """Return findings with the same reason and fix as the verdict on their node, by the node's name."""
    verdicts = (
        {}
        if _is_float_model(result)
        else {verdict.node: verdict for verdict in result.verdicts if not verdict.is_quantized}
    )
    return {
        finding.subject: finding
        for finding in reversed(result.findings)
        if (verdict := verdicts.get(finding.subject)) is not None
        and finding.fix == verdict.fix
        and finding.reason.endswith(verdict.reason)
    }


def _fallbacks(result: Audit) -> Iterator[str]:
    """Yield lines about nodes that are float or not as requested, grouped by reason and fix, with finding codes."""
    repeated = _repeated_findings(result)
    groups: dict[tuple[str, str], tuple[list[str], dict[str, list[str]]]] = {}
    joined = _join_fixes(
        (verdict.reason, verdict.fix) for verdict in result.verdicts if not verdict.is_quantized
    )
    for verdict in result.verdicts if not _is_float_model(result) else ():
        if not verdict.is_quantized:
            word = "not quantized" if verdict.asked == "float" else f"not {verdict.asked.upper()}"
            doubt = "" if verdict.requested else " (not asked for)"
            finding = repeated.get(verdict.node)
            code = "" if finding is None else f"{finding.severity.value} {finding.code} "
            kind = f"{code}{word}{doubt}: {verdict.op} is {verdict.verdict.value}: "
            key = _NAMES.sub("", verdict.reason), joined[verdict.reason, verdict.fix]
            reasons, kinds = groups.setdefault(key, ([], {}))
            reasons.append(verdict.reason)
            kinds.setdefault(kind, []).append(verdict.node)
    for (_, fix), (reasons, kinds) in groups.items():
        for kind, nodes in kinds.items():
            yield f"{kind}{_list_first(nodes)}"
        yield f"    why: {first_of(reasons)}"
        yield f"    fix: {fix}"


def _join_fixes(fixes: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Map each (reason or code, fix) to the fix to print.

    Fixes with the same reason or code that differ only in their nodes become one fix.
    """
    from qdqtool.core.advice import of_all, without_nodes

    alike: dict[tuple[str, str], dict[str, None]] = {}
    for key, fix in fixes:
        alike.setdefault((key, _NODE.sub("", without_nodes(fix))), {})[fix] = None
    return {
        (key, fix): first_of(of_all(group)) if len(group) > 1 else fix
        for (key, _), group in alike.items()
        for fix in group
    }


def _list_first(subjects: Sequence[str]) -> str:
    """Return the first names of a list, and how many others there are."""
    more = f" and {len(subjects) - _SHOWN} more (--json names all)" if len(subjects) > _SHOWN else ""
    return ", ".join(subjects[:_SHOWN]) + more


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,}"


PLUGIN = audit
