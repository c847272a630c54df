"""Combines the results of all steps that ran into one report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calibrators.histogram import Histogram
from qdqtool.core.buildlog import BuildLog
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.causes import OURS
from qdqtool.core.comparison import Assumption, Comparison, SqnrEstimate, TaskAccuracy
from qdqtool.core.engine import Engine, Role
from qdqtool.core.explore import EngineView
from qdqtool.core.findings import Audit, DataReport, Finding, KernelCounts, NodeVerdict, Severity, Verdict
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import BuildResult
from qdqtool.core.report import UNDECIDED, AccuracySummary, Fallback, Report, Summary, Worth
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import Command, count_noun
from qdqtool.report.judgement import NO_LIMITS, Case, Limits, judge
from qdqtool.report.rows import journal_rows, layer_rows, range_rows
from qdqtool.trt.causes import UNNAMED, diagnosis

_INT8 = frozenset({Verdict.INT8, Verdict.ATTENTION, Verdict.ABSORBED})
"""Verdicts of nodes whose arithmetic can be INT8."""
_BUILDERS = {"rtx": "TensorRT for RTX", "trt": "TensorRT", "trtexec": "trtexec"}
_PROXY = (
    "The engine was built by TensorRT for RTX, a substitute for classic TensorRT: its data types are real, but its "
    "kernels are completed on the GPU, and it has no timings."
)
_ON_ORT = "Accuracy was computed by onnxruntime on {} from the Q/DQ model{}, not by the engine, whose kernels fuse and round differently; on a machine with a GPU, {} runs the engine."
_IN_FP16 = "Each node's result was rounded to FP16, and onnxruntime did not fuse Q/DQ (session.disable_quant_qdq=1), because its INT32 biases may overflow in FP16."
_RANDOM = "The samples were random: ranges and accuracy mean nothing."


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """The results of the steps of a run; None for a step that did not run.

    Attributes:
        model_name: file name of the float model.
        histograms: magnitudes seen in calibration, by tensor.
        log: the builder's log; its last run counts.
        view: costs of the layers of `engine`, and their times if they were profiled.
        sensitivity: cost in accuracy of each node.
        sections: data that sections of other distributions collected in the run folder.
        data: findings about samples, labels and recipe.
        notes: notes of the steps for the reader.
        worth: times of the engine and of the network in FP16.
        assumptions: assumptions about inputs and shapes.
        limits: how much accuracy the user allows to be lost.
        typed: the command that made the run, so that options can follow; None if unknown.
    """

    model_name: str
    placement: Placement | None = None
    table: CalibrationTable | None = None
    build: BuildResult | None = None
    engine: Engine | None = None
    audit: Audit | None = None
    comparison: Comparison | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    log: BuildLog | None = None
    view: EngineView | None = None
    sensitivity: Sensitivity | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    data: DataReport | None = None
    notes: tuple[str, ...] = ()
    worth: Worth | None = None
    assumptions: tuple[Assumption, ...] = ()
    limits: Limits = NO_LIMITS
    typed: Command | None = None


def report_of(study: Comparison | Sensitivity) -> Report:
    """Return a report that has only a comparison, or only a sensitivity study with its trials."""
    if isinstance(study, Comparison):
        return assemble(Material(model_name=study.candidate, comparison=study, assumptions=study.assumptions))
    tried = journal_rows([study.journal])
    random = () if study.meaningful else ("The samples were random: these figures mean nothing.",)
    return assemble(
        Material(
            model_name=study.model,
            sensitivity=study,
            notes=(*random, *study.notes),
            sections={"tried": tried} if tried else {},
        )
    )


def report_of_ranges(
    model_name: str, table: CalibrationTable, placement: Placement, histograms: Mapping[str, Histogram]
) -> Report:
    """Return a report that has only the ranges of a calibration and its trials."""
    tried = journal_rows([table.journal])
    return assemble(
        Material(
            model_name=model_name,
            placement=placement,
            table=table,
            histograms=histograms,
            notes=table.notes,
            sections={"tried": tried} if tried else {},
        )
    )


def assemble(material: Material) -> Report:
    """Return the report on all available results; parts of steps that did not run are empty."""
    audit = material.audit
    verdicts = audit.verdicts if audit else ()
    log = material.log.runs[-1] if material.log and material.log.runs else None
    findings = _findings(material)
    fallbacks = tuple(_fallback(verdict) for verdict in verdicts if not runs_as_asked(verdict))
    summary = _summary(material, findings)
    case = Case(
        summary=summary,
        fallbacks=fallbacks,
        findings=findings,
        comparison=material.comparison,
        worth=material.worth,
        assumptions=material.assumptions,
        limits=material.limits,
        typed=material.typed,
    )
    return Report(
        summary=replace(summary, verdict=judge(case)),
        fallbacks=fallbacks,
        verdicts=verdicts,
        findings=findings,
        comparison=material.comparison,
        ranges=range_rows(material.table, material.placement, material.histograms) if material.table else (),
        layers=layer_rows(material.engine, material.view, log) if material.engine else (),
        notes=_notes(material),
        ledger=log.ledger if log else (),
        funnel=log.funnel if log else (),
        sensitivity=material.sensitivity,
        sections=dict(material.sections),
    )


def _findings(material: Material) -> tuple[Finding, ...]:
    """Return the findings of the audit and of the data checks, the most urgent first."""
    findings = (
        *(material.audit.findings if material.audit else ()),
        *(material.data.findings if material.data else ()),
    )
    return tuple(sorted(findings, key=_urgency))


def runs_as_asked(verdict: NodeVerdict) -> bool:
    """Return True if the node computes in INT8, or in another format that its Q/DQ nodes request."""
    return runs_int8(verdict) or (verdict.is_as_asked and verdict.asked != "float")


def runs_int8(verdict: NodeVerdict) -> bool:
    """Return True if the node computes in INT8 in the engine."""
    return verdict.precision is DType.INT8 and verdict.verdict in _INT8


def _summary(material: Material, findings: tuple[Finding, ...]) -> Summary:
    """Return the figures of a report's summary, without the verdict."""
    audit, build = material.audit, material.build
    counts = audit.counts if audit else _count_kernels(material.engine) if material.engine else None
    verdicts = audit.verdicts if audit and (audit.verdicts or material.placement) else None
    if material.engine is not None and not material.engine.layers:
        counts = None  # a log that prints no layers
    has_tensors = material.engine is None or any(la.inputs or la.outputs for la in material.engine.layers)
    types = _kernel_types(material.engine) if material.engine else {}
    severities = Counter(finding.severity for finding in findings)
    return Summary(
        model=material.model_name,
        builder=_builder(build) if build else "",
        nodes_total=None if verdicts is None else len(verdicts),
        nodes_int8=None if verdicts is None else sum(map(runs_int8, verdicts)),
        nodes_requested=None if verdicts is None else sum(verdict.requested for verdict in verdicts),
        requested=_count_words(verdict.asked for verdict in verdicts or ()),
        realised=_count_words(verdict.realised for verdict in verdicts or ()),
        requested_nodes=_group_by_word((verdict.asked, verdict.node) for verdict in verdicts or ()),
        realised_nodes=_group_by_word((verdict.realised, verdict.node) for verdict in verdicts or ()),
        kernels=counts.kernels if counts else None,
        compute_kernels=counts.compute if counts else None,
        int8_kernels=types.get(DType.INT8.value, 0) if material.engine else None,
        kernel_types=types,
        qdq_kernels=counts.qdq if counts else None,
        activation_bytes_dumped=counts.activation_bytes_dumped if counts and has_tensors else None,
        activation_bytes_fused=counts.activation_bytes_fused if counts and has_tensors else None,
        engine_bytes=build.engine_bytes if build else None,
        findings={severity.value: severities[severity] for severity in Severity},
        accuracy=headline(material.comparison) if material.comparison else None,
        verdict=UNDECIDED,
        assumptions=material.assumptions,
    )


def _count_words(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _group_by_word(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the names of nodes by format, in alphabetical order of the formats."""
    nodes_of: dict[str, list[str]] = defaultdict(list)
    for word, node in pairs:
        nodes_of[word].append(node)
    return {word: tuple(nodes) for word, nodes in sorted(nodes_of.items())}


def _count_kernels(engine: Engine) -> KernelCounts:
    """Count kernels by role, without activation bytes, which only an audit can determine."""
    roles = Counter(layer.role for layer in engine.kernels)
    return KernelCounts(
        kernels=len(engine.kernels),
        compute=roles[Role.COMPUTE],
        qdq=roles[Role.QDQ],
        activation_bytes_dumped=None,
        activation_bytes_fused=None,
    )


def _kernel_types(engine: Engine) -> dict[str, int]:
    return _count_words(layer.precision.value for layer in engine.kernels if layer.role is Role.COMPUTE)


def _builder(build: BuildResult) -> str:
    targets = ", ".join(target.upper() for target in build.targets)
    return f"{_BUILDERS.get(build.builder, build.builder)} {build.version}" + (
        f" for {targets}" if targets else ""
    )


def headline(comparison: Comparison) -> AccuracySummary | None:
    """Return the main accuracy figure: the first task metric, else the SQNR, else the first metric of the first output."""
    if comparison.task:
        task = comparison.task[0]
        return AccuracySummary(
            metric=task.metric,
            unit=task.unit,
            reference=task.reference,
            int8=task.candidate,
            samples=task.samples,
            meaningful=comparison.meaningful,
            sqnr_db=comparison.sqnr.sqnr_db if comparison.sqnr else None,
            interval=_ends(task),
        )
    measures = comparison.outputs[0].measures if comparison.outputs else ()
    measure = next(
        (entry for entry in measures if entry.metric == "sqnr_db"), measures[0] if measures else None
    )
    if measure is None:
        return None
    # for a single output both figures are equal, except for the last bit
    several = len(comparison.outputs) > 1 or comparison.parts
    of_all = comparison.sqnr if several and measure.metric == "sqnr_db" else None
    return AccuracySummary(
        metric=measure.metric,
        unit=measure.unit,
        reference=None,
        int8=of_all.sqnr_db if of_all else measure.value,
        samples=comparison.samples,
        meaningful=comparison.meaningful,
        sqnr_db=comparison.sqnr.sqnr_db if comparison.sqnr else None,
        interval=_ends(comparison.sqnr) if measure.metric == "sqnr_db" and comparison.sqnr else None,
    )


def _ends(estimate: TaskAccuracy | SqnrEstimate) -> tuple[float, float] | None:
    return None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)


def _fallback(verdict: NodeVerdict) -> Fallback:
    return Fallback(
        node=verdict.node,
        op=verdict.op,
        precision=verdict.precision.value,
        reason=verdict.reason or verdict.verdict.value,
        fix=verdict.fix,
        requested=verdict.requested,
    )


def _urgency(finding: Finding) -> tuple[int, int, str, str]:
    """Return a sort key for findings: the most severe first, then the most bytes."""
    return (-finding.severity.rank, -(finding.bytes or 0), finding.code, finding.subject)


def _notes(material: Material) -> tuple[str, ...]:
    """Return the notes of all steps, each sentence once.

    Notes on the reliability of the accuracy come first, then the others by step.

    A terminal shows the first few notes, so notes that limit the meaning of a figure should be among them.
    """
    table, build, comparison = material.table, material.build, material.comparison
    notes = [
        *((_RANDOM,) if table and not table.meaningful else ()),
        *(comparison.notes if comparison else ()),
        *((_describe_device(comparison),) if comparison and build else ()),
        *material.notes,
        *(material.placement.notes if material.placement else ()),
        *((table.equalized.words,) if table and table.equalized else ()),
        *((table.zero_points.words,) if table and table.zero_points else ()),
        *((_PROXY,) if build and build.builder == "rtx" else ()),
        *(map(_explain_warning, build.warnings) if build else ()),
        *(_unread(material.engine) if material.engine else ()),
        *(material.engine.notes if material.engine else ()),
        *(material.view.notes if material.view else ()),
        *(material.audit.notes if material.audit else ()),
    ]
    return tuple(dict.fromkeys(notes))


def _explain_warning(warning: str) -> str:
    """Return a builder warning. If its cause is known, add the meaning and the fix."""
    deciding = diagnosis([warning], OURS)
    if deciding is None or deciding[1].rank in UNNAMED:
        return warning
    return f"{warning}: {deciding[1].meaning}; {deciding[1].fix}"


def _unread(engine: Engine) -> tuple[str, ...]:
    words = ", ".join(f"{word!r} ({count})" for word, count in engine.unknown_formats)
    records = f"{count_noun(engine.unread, 'record of the layer information was', 'records of the layer information were')} not understood and are not counted."
    formats = f"Unknown types or formats: {words}."
    return (*((records,) if engine.unread else ()), *((formats,) if words else ()))


def _describe_device(comparison: Comparison) -> str:
    """Return the device that computed the accuracy, and the formats that were emulated."""
    _, _, more = comparison.candidate.partition(", ")
    is_emulated = more.endswith("emulated")
    place = "the CPU" if comparison.provider == "CPUExecutionProvider" else f"its {comparison.provider}"
    sentence = _ON_ORT.format(place, f" ({more})" if is_emulated else "", Command("compare"))
    return f"{sentence} {_IN_FP16}" if is_emulated and "FP16" in more else sentence
