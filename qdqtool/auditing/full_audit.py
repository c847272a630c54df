"""The whole audit: verdicts, checks and counts together; in continuous integration, only findings that a baseline lacks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

from qdqtool.auditing.context import AuditContext, Check, RawFinding, stage
from qdqtool.core.advice import adjust_severity, format_fix, promises
from qdqtool.core.buildlog import LogRun
from qdqtool.core.calibration import LOST_CHANNELS
from qdqtool.core.claims import of_reason
from qdqtool.core.engine import Certainty, Engine, EngineLayer
from qdqtool.core.events import ComputeNode
from qdqtool.core.findings import Audit, Finding, NodeVerdict, Verdict, waivers
from qdqtool.core.placement import Placement
from qdqtool.core.tensors import FLOAT, INT8, NAMES, DType
from qdqtool.core.wording import Command, count_noun
from qdqtool.engine.costs import about, counts
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView, Model
from qdqtool.io.ci import CiReport, CiResult, CiRule
from qdqtool.plugins import Registry
from qdqtool.trt.names import stem, without_mark

# --- verdicts, checks and counts -------------------------------------------------------------------------------------
# Puts verdicts, checks and counts together.

CHECKS = Registry(package="qdqtool.auditing.checks")


def audit(
    model: Model | None,
    engine: Engine,
    placement: Placement | None = None,
    *,
    float_view: GraphView | None = None,
    ignore: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
) -> Audit:
    """Return verdicts for every compute node, findings of every check, and counts.

    Args:
        model: the Q/DQ model that the engine was built from; None audits the layer information alone.
        engine: its layers.
        placement: the decisions behind the model; None for third-party Q/DQ.
        float_view: the model before Q/DQ; nodes it has and `model` has not are noted.
        ignore: codes or names of checks that are left out, with a reason ("QDQ210=known") or without.
        targets: architectures the engine was built for ("sm86"), as far as known.

    Every node that placement requested is INT8 or has a finding that says why not, unless that check is ignored.
    """
    return examine(stage(engine, model, placement, targets=targets), float_view=float_view, ignore=ignore)


def examine(
    context: AuditContext, *, float_view: GraphView | None = None, ignore: tuple[str, ...] = ()
) -> Audit:
    """Return the audit of a context. The context may also hold costs, times, and a second engine for comparison.

    Without a model the verdicts come from the log of the build, if there is one.

    `ignore` may name checks of other steps, as `audit.ignore` does; `check_ignored` refuses unknown names.
    """
    waived = waivers(ignore)
    findings, left_out = _findings(context, waived)
    log = context.log if context.view is None else None
    return Audit(
        verdicts=verdicts_of_log(log, context.engine) if log else context.verdicts,
        findings=findings,
        counts=counts(context.engine),
        notes=(*_notes(context, float_view), *left_out),
    )


def check_ignored(ignore: Iterable[str]) -> None:
    """Raise an error for names and codes that are not checks of an engine.

    Raises:
        UsageError: there is one.
    """
    if not ignore:
        return
    checks = (*known_checks(), *LOST_CHANNELS)
    for word in waivers(ignore):
        if word not in checks:
            close = get_close_matches(word, checks, n=1)
            raise UsageError(
                f"unknown check {word!r}",
                fix=f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(checks)}",
                where="--ignore",
            )


def known_checks() -> tuple[str, ...]:
    """Return codes and names of all checks."""
    coded = CHECKS.coded()
    return (*coded, *sorted(coded.values()))


def with_findings(audit: Audit, findings: tuple[Finding, ...], ignore: tuple[str, ...] = ()) -> Audit:
    """Return the audit with the findings of further steps that `ignore` does not waive, in sorted order."""
    waived = waivers(ignore)
    kept = (finding for finding in findings if not {finding.check, finding.code} & waived.keys())
    return replace(audit, findings=_sort_findings((*audit.findings, *kept)))


def _findings(
    context: AuditContext, waived: Mapping[str, str]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings, and notes on the ignored findings with their reasons."""
    findings: list[Finding] = []
    notes: list[str] = []
    for name in sorted(CHECKS.coded().values()):
        check: Check = CHECKS.load(name)
        reason = waived.get(name, waived.get(check.code))
        if reason is None:
            findings.extend(_finding(name, check, raw, context) for raw in check.find(context))
        elif reason and (count := len(tuple(check.find(context)))):
            notes.append(f"{count_noun(count, 'finding')} of {check.code} {name} accepted: {reason}")
    return _sort_findings(findings), tuple(notes)


def _sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: (-finding.severity.rank, finding.code)))


def _finding(name: str, check: Check, raw: RawFinding, context: AuditContext) -> Finding:
    """Complete a raw finding with the code and name of its check, the measured time of its layer, and the log lines about it."""
    ms = context.ms(raw.subject)
    stated = () if check.says is None else (of_reason(check.says),)
    measured = "" if ms is None else f" (this layer takes {ms:.4f} ms)"
    fix = format_fix(raw.fix, command=context.way_out(raw.layers or (raw.subject,)), at=raw.subject)
    return Finding(
        code=check.code,
        check=name,
        severity=adjust_severity(raw.severity or check.severity, fix),
        subject=raw.subject,
        reason=f"{raw.reason}{measured}",
        fix=fix,
        bytes=raw.bytes,
        evidence=(*raw.evidence, *context.in_log(raw.subject)),
        hazard=CHECKS.manual(name).partition("\n")[0],
        claims=(*stated, *raw.claims, *promises(fix, of_finding=True)),
    )


def _notes(context: AuditContext, float_view: GraphView | None) -> tuple[str, ...]:
    engine, verdicts = context.engine, context.verdicts
    lost = sum(verdict.verdict is Verdict.NOT_FOUND for verdict in verdicts)
    unknown = sum(number for _, number in engine.unknown_formats)
    notes = (
        (
            engine.unread,
            f"{count_noun(engine.unread, 'record of the layer information was', 'records of the layer information were')} not understood",
        ),
        (unknown, f"{count_noun(unknown, 'tensor has', 'tensors have')} an unknown type"),
        (
            verdicts and lost == len(verdicts),
            "no layer names a node of this model: the layer information belongs to another model",
        ),
    )
    return (
        *engine.notes,
        *about(engine),
        *context.rule_notes,
        *(text for is_true, text in notes if is_true),
        *_note_missing_nodes(context.view, float_view),
    )


def _note_missing_nodes(view: GraphView | None, float_view: GraphView | None) -> tuple[str, ...]:
    """Return a note on nodes of the float model that the Q/DQ model does not have."""
    if view is None or float_view is None:
        return ()
    gone = sorted({node.name for node in float_view.nodes} - {node.name for node in view.nodes})
    return (
        (
            f"{count_noun(len(gone), 'node of the float model is', 'nodes of the float model are')} not in the Q/DQ model, first {gone[0]!r}",
        )
        if gone
        else ()
    )


# --- verdicts of a log -----------------------------------------------------------------------------------------------
# Verdicts on compute nodes if only the log of the build is available.
#
# The log shows which Q/DQ pairs were fused into which node, and what the node's kernel reads and writes. It does not
# show the model, so facts about the model stay unknown; the fix names the command that also reads the model.

_WEIGHTS = "-weights"
_VERDICTS = {
    DType.INT8: Verdict.INT8,
    DType.FLOAT8: Verdict.FP8,
    DType.FLOAT4: Verdict.FP4,
    DType.FLOAT16: Verdict.FP16,
    DType.BFLOAT16: Verdict.BF16,
    DType.FLOAT32: Verdict.FP32,
}


def verdicts_of_log(run: LogRun, engine: Engine) -> tuple[NodeVerdict, ...]:
    """Return a verdict on every compute node in the log, in the order of the log.

    If `engine` has the layer of a node, the precision of the layer counts; otherwise the Q/DQ lines of the log.
    """
    layers = {layer.name: layer for layer in engine.layers}
    return tuple(_verdict(node, layers, has_qdq=bool(run.ledger)) for node in run.compute)


def _verdict(node: ComputeNode, layers: Mapping[str, EngineLayer], *, has_qdq: bool) -> NodeVerdict:
    layer = layers.get(node.layer)
    is_typed = layer is not None and layer.precision is not DType.UNKNOWN
    precision = layer.precision if layer is not None and is_typed else node.reads
    verdict = _VERDICTS.get(precision, Verdict.UNKNOWN)
    request = (node.asked or INT8.name) if has_qdq else FLOAT
    realised = "unknown" if verdict is Verdict.UNKNOWN else _format(precision)
    held = {NAMES.get(tensor.dtype) for tensor in layer.constants} if layer is not None else set()
    if realised == FLOAT and request.removesuffix(_WEIGHTS) in held:
        realised = request
    is_done = realised not in {FLOAT, "unknown"}
    return NodeVerdict(
        node=node.node,
        op=node.op,
        verdict=verdict,
        precision=precision,
        requested=request != FLOAT,
        layers=(node.layer,) if layer is not None else (),
        reason="" if is_done else node.reason,
        fix="" if is_done else _fix(request),
        certainty=Certainty.STATED if is_typed else Certainty.INFERRED,
        asked=request,
        realised=realised,
    )


def _format(precision: DType) -> str:
    return NAMES[precision] if precision.is_quantized else FLOAT


def _fix(request: str) -> str:
    if request == FLOAT:
        return f"quantize it: {Command('run', ('MODEL',))} puts Q/DQ where they fuse"
    return f"{Command('audit', ('MODEL', '--layers', 'LOG'))} also reads the model, and reports the cause"


# --- report ----------------------------------------------------------------------------------------------------------


def ci_report(audit: Audit, source: str) -> CiReport:
    """Return every check with its findings as a report; `source` is the audited file."""
    formats = Counter(verdict.realised for verdict in audit.verdicts)
    by_format = ", ".join(f"{count} in {name}" for name, count in sorted(formats.items()))
    nodes = f"{count_noun(len(audit.verdicts), 'compute node')}: {by_format}. " if audit.verdicts else ""
    counts = audit.counts
    return CiReport(
        tool="audit",
        source=source,
        headline=f"{nodes}{count_noun(counts.kernels, 'kernel')}: {counts.compute} compute, {counts.qdq} only convert.",
        rules=tuple(_rule(name) for name in sorted(CHECKS.coded().values())),
        results=tuple(_result(finding) for finding in audit.findings),
        notes=audit.notes,
    )


def _rule(name: str) -> CiRule:
    check = CHECKS.load(name)
    return CiRule(code=check.code, name=name, level=check.severity.value, page=CHECKS.manual(name))


def _result(finding: Finding) -> CiResult:
    return CiResult(
        code=finding.code,
        level=finding.severity.value,
        subject=finding.subject,
        reason=finding.reason.rstrip("."),
        fix=finding.fix,
        evidence=tuple((place.file, place.place) for place in finding.evidence),
        fingerprint=fingerprint(finding),
        properties={} if finding.bytes is None else {"bytes": finding.bytes},
    )


# --- baseline --------------------------------------------------------------------------------------------------------
# Known findings of an earlier audit: only new ones should fail a build.
#
# A baseline is the JSON of an earlier audit (`qdqtool audit ... --json > baseline.json`). Two findings are equal if
# code and subject are equal. Kernel numbers in layer names are ignored, because they change with every build.


def fingerprint(finding: Finding) -> str:
    """Return sixteen hexadecimal digits that identify a finding. A finding has the same digits in every build."""
    text = f"{finding.code} {stem(without_mark(finding.subject))}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def without_known(audit: Audit, baseline: Audit) -> Audit:
    """Return `audit` without the findings of `baseline`.

    Notes give the numbers of hidden findings and of findings that no longer occur, and the checks that cannot be compared.

    If a baseline has a finding twice, two are hidden.
    """
    in_baseline = Counter(map(fingerprint, baseline.findings))
    left: list[Finding] = []
    for finding in audit.findings:
        key = fingerprint(finding)
        if in_baseline[key]:
            in_baseline[key] -= 1
        else:
            left.append(finding)
    old = len(audit.findings) - len(left)
    gone = sum(in_baseline.values())
    note = f"{count_noun(old, 'finding is', 'findings are')} in the baseline and not shown; {gone} of the baseline do not occur now"
    return replace(audit, findings=tuple(left), notes=(*audit.notes, note, *_not_compared(audit, baseline)))


def _not_compared(audit: Audit, baseline: Audit) -> Iterator[str]:
    """Yield a note for each check that only one of two audits could make. Its findings only seem new or gone."""
    for name, now, before in (
        ("model with Q/DQ", audit.verdicts, baseline.verdicts),
        ("layers of an engine", audit.counts.kernels, baseline.counts.kernels),
    ):
        if now and not before:
            yield f"the baseline was written without the {name}: findings that need it count as new; write the baseline again with it"
        elif before and not now:
            yield f"the baseline was written with the {name}: its findings that need it do not occur because this audit cannot look for them"
