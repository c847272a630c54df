"""The steps of a run: each one reads files, calls one package, and writes files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from shutil import copyfile
from typing import Final

from qdqtool.accuracy.compare import compare as compare_runners
from qdqtool.accuracy.parts import OutputPart, with_parts
from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import examine, with_findings
from qdqtool.backends import BUILDERS
from qdqtool.calibration.collect import activations
from qdqtool.calibration.collect import collect as collect_histograms
from qdqtool.calibration.histograms import EQUALIZED, Histograms, load_histograms, save_histograms
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.table import formats_of, make_table
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.comparison import Comparison, OutputComparison
from qdqtool.core.findings import Audit
from qdqtool.core.kinds import (
    ACCURACY,
    AUDIT,
    BUILD,
    CALIBRATION,
    DATA,
    ENGINE,
    INSERTION,
    LOG,
    PLACEMENT,
    PREPARATION,
    REPORT,
    WORTH,
)
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.preparation import Insertion, Preparation
from qdqtool.core.protocols import Builder, BuildProgress, BuildRequest, InputProfile, Runner
from qdqtool.core.recipe import AUTO, InsertOptions, Recipe
from qdqtool.core.tensors import INT8
from qdqtool.core.weights import load_weights, save_weights
from qdqtool.core.wording import Command
from qdqtool.datachecks.evidence import NarrowLoss
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.errors import BuildError, MissingPackage
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.preparation.prepare import prepare as prepare_model
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.qdq.insert import insert_for_engine, refuse_quantized
from qdqtool.graph.qdq.kv_caches import with_float_caches
from qdqtool.graph.view import Model
from qdqtool.io.files import digest_file, write_text
from qdqtool.pipeline.building import (
    build_engine,
    build_request,
    recipe_profiles,
    refuse_early,
    value_profiles,
)
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.comparing import LARGE, both_sides, noise_inside, open_quantized
from qdqtool.pipeline.conversion import narrow_loss, reach_for
from qdqtool.pipeline.costs import FixCosts, against_fp16
from qdqtool.pipeline.datacheck import DataMaterial, data_report
from qdqtool.pipeline.preparations import assumptions
from qdqtool.pipeline.quantization import mark_provenance
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.pipeline.request import RunContext
from qdqtool.pipeline.writing import check_conversion, or_without, write
from qdqtool.placement.decide import decide
from qdqtool.runtime.device import device_use
from qdqtool.runtime.runner import open_model, open_runner

Measured = Mapping[str, float]

_QUANTIZED: Final = "model.qdq.onnx"
_CHANGES: Final = "equalization.npz"
"""File of the channels that the recipe equalizes; histograms are those of the network with them."""
_NOT_EQUALIZED: Final = "equalization.txt"
"""File with the reason why channels are not equalized although the recipe asks for it."""
_RECORDED: Final = "replay"
"""The builder that only returns the recording of another machine."""
_WITHOUT_GPU: Final = "rtx"
"""The builder that needs no GPU, so that the cost of a fix can be built in any run."""

KnownOutputs = Callable[[Callable[[], Runner], frozenset[str]], Runner]
"""Function that opens a model for many comparisons, from its opener and the inner tensors that it returns."""


def open_unchanged(open_it: Callable[[], Runner], _returned: frozenset[str]) -> Runner:
    """Open the model without changes, for a single comparison."""
    return open_it()


def prepare(work: RunContext) -> Measured:
    """Open the float model, fold its constants, and write it with notes on every change."""
    original = work.request.opened()
    refuse_quantized(original)
    refuse_unmatched(work.recipe, original.view, "prepare")
    model = prepare_model(original, work.recipe.preparing)
    preparation = Preparation(
        model=work.request.model.name,
        digest=digest_file(work.request.model),
        inputs=model.view.inputs,
        outputs=model.view.outputs,
        notes=model.notes,
    )
    PREPARATION.write(work.path("preparation.json"), preparation)
    check_conversion(model, work.samples)
    write(model, work.path("model.prepared.onnx"), step="prepare")
    return {}


def place(work: RunContext) -> Measured:
    """Decide for every node input whether it is quantized, with a reason."""
    view = work.model("model.prepared.onnx").view
    refuse_unmatched(work.recipe, view, "place", "calibrate", "insert")
    request = replace(_build_request(work, ()), model=work.path("model.prepared.onnx"))
    refuse_early(builder_of(work), request, work.request.model)
    PLACEMENT.write(work.path("placement.json"), decide(view, work.recipe.placing))
    return {}


def collect(work: RunContext) -> Measured:
    """Run the samples once, and keep a histogram of every tensor that placement quantizes."""
    job = _calibration(work)
    changes = job.changes
    kept = work.path(_CHANGES)
    notes = work.path(_NOT_EQUALIZED)
    kept.unlink(missing_ok=True)
    notes.unlink(missing_ok=True)
    if job.equalization_notes:
        write_text(notes, "\n".join(job.equalization_notes))
    if changes:
        save_weights(kept, changes)
    shared = None if changes else _shared_histograms(work, activations(job.placement))
    histograms = shared or _collect_histograms(work, job)
    save_histograms(work.path("histograms.npz"), histograms)
    return {"samples": float(histograms.samples)}


def _calibration(work: RunContext) -> Calibration:
    """Return a calibration job with the prepared model and the placement of the run folder."""
    request = work.request
    job = Calibration(CalibrationRequest(model=request.model, recipe=work.recipe, samples=request.samples))
    job.use(work.model("model.prepared.onnx"), PLACEMENT.read(work.path("placement.json")), work.samples)
    return job


def _collect_histograms(work: RunContext, job: Calibration) -> Histograms:
    """Run all samples once. If this step was interrupted, it continues."""
    kept = work.path("histograms.partial.npz")
    histograms = job.collect(_collect_options(work), kept, on_progress=work.listener.progressed)
    kept.unlink()
    return histograms


def _collect_options(work: RunContext) -> CollectOptions:
    return CollectOptions(on_nan=work.recipe.samples.nan)


def _shared_histograms(work: RunContext, tensors: tuple[str, ...]) -> Histograms | None:
    """Return the histograms of another run of this model and these samples; None if a tensor has no histogram."""
    if work.request.histograms is None:
        return None
    shared = load_histograms(work.request.histograms)
    if not set(tensors) <= set(shared.tensors):
        return None
    return replace(shared, tensors={name: shared.tensors[name] for name in tensors})


def calibrate(work: RunContext) -> Measured:
    """Choose a range for every tensor: for activations from histograms, for weights from their values; correct biases."""
    job = _calibration(work)
    refuse_unmatched(work.recipe, job.model.view, "calibrate")
    work.path(EQUALIZED).unlink(missing_ok=True)
    table = _given_table(work, job.placement) or _chosen_table(work, job)
    CALIBRATION.write(work.path("calibration.json"), job.with_findings(table))
    return {}


def _given_table(work: RunContext, placement: Placement) -> CalibrationTable | None:
    """Return the table of another run of this model and samples; None if it lacks a range for an INT8 tensor.

    Nodes with another format in that table get ranges of their own calibrator, and no bias shift.
    """
    if work.request.table is None:
        return None
    table = CALIBRATION.read(work.request.table)
    weights = (entry for entry in placement.quantized if entry.kind is SlotKind.WEIGHT)
    formats = {
        **{entry.tensor: entry.spec.format for entry in weights if entry.spec is not None},
        **dict.fromkeys(activations(placement), INT8),
        **formats_of(placement),
    }
    taken = {name: entry for name, entry in table.by_tensor().items() if entry.format == formats.get(name)}
    lacking = formats.keys() - taken.keys()
    if any(formats[name] == INT8 for name in lacking):
        return None
    if lacking:
        fresh = _own_ranges(work, placement, table)
        taken |= {name: entry for name, entry in fresh.by_tensor().items() if name in lacking}
    own_nodes = {decision.slot.node for decision in placement.quantized if decision.tensor in lacking}
    nodes = {decision.slot.node for decision in placement.quantized} - own_nodes
    beside = work.request.table.with_name(EQUALIZED)
    if beside.is_file():  # the samples from which the ranges were chosen
        copyfile(beside, work.path(EQUALIZED))
    changes = table.weights
    if changes is not None:
        rounded = {name: entry for name, entry in changes.rounded.items() if name not in lacking}
        changes = replace(changes, rounded=rounded)
    return replace(
        table,
        ranges=tuple(taken[name] for name in sorted(taken)),
        shifts=tuple(entry for entry in table.shifts if entry.node in nodes),
        weights=changes,
    )


def _own_ranges(work: RunContext, placement: Placement, table: CalibrationTable) -> CalibrationTable:
    """Make a table with the recipe's calibrator, for the network with the channels that `table` equalized."""
    model = undo_rounding(work.model("model.prepared.onnx"), table)
    if table.equalized is not None and work.recipe.weights.equalize == AUTO:
        histograms = collect_histograms(model, placement, work.samples, options=_collect_options(work))
    else:
        histograms = load_histograms(work.path("histograms.npz"))
    return make_table(histograms, placement, model.view, work.recipe.calibrate)


def _chosen_table(work: RunContext, job: Calibration) -> CalibrationTable:
    histograms = load_histograms(work.path("histograms.npz"))
    method = work.recipe.calibrate.method
    kept = work.path(_CHANGES)
    kept_notes = work.path(_NOT_EQUALIZED)
    notes = tuple(kept_notes.read_text("utf-8").splitlines()) if kept_notes.exists() else ()
    job.use_changes(load_weights(kept) if kept.exists() else None, notes)
    table = job.tables(histograms, [method], work.listener.progressed)[method]
    if job.histograms[method] is not histograms:
        save_histograms(work.path(EQUALIZED), job.histograms[method])
    return table


def insert(work: RunContext) -> Measured:
    """Write the Q/DQ model."""
    placement = PLACEMENT.read(work.path("placement.json"))
    table = CALIBRATION.read(work.path("calibration.json"))
    prepared, options = work.model("model.prepared.onnx"), work.recipe.insert
    refuse_unmatched(work.recipe, prepared.view, "insert")
    reach, notes = reach_for(prepared, options, work.samples, work.listener.progressed)
    model = insert_for_engine(prepared, placement, table, options, reach)
    model = mark_provenance(model, work.recipe, table, work.samples.digest)
    write(model, work.path(_QUANTIZED), step="insert")
    INSERTION.write(work.path("insertion.json"), Insertion(notes=(*model.notes, *notes)))
    return {}


def build(work: RunContext) -> Measured:
    """Build the engine and keep its log and its layer information."""
    profiles, notes = profiles_of(work)
    result, cost = build_engine(
        builder_of(work),
        _build_request(work, profiles),
        lambda progress: _report_progress(work, progress),
        most=work.recipe.build.retries,
        source=work.request.model,
    )
    if result.layers is None:
        raise BuildError(
            "the builder wrote no layer information, so the precision is unknown",
            fix="build with detailed profiling verbosity (build.flags=--profilingVerbosity=detailed)",
            where=str(work.path(result.engine)),
        )
    BUILD.write(work.path("build.json"), replace(result, notes=(*result.notes, *notes)))
    peak = {} if cost.peak_mib is None else {"builder_peak_mib": cost.peak_mib}
    return {"builder_seconds": cost.seconds, "cached": float(cost.cached), **peak}


def _build_request(work: RunContext, profiles: tuple[InputProfile, ...]) -> BuildRequest:
    return build_request(
        work.recipe, profiles, model=work.path(_QUANTIZED), folder=work.folder.path, cache=work.request.cache
    )


def get_ready() -> None:
    """Load modules that later steps need while the builder runs in its own process."""
    from qdqtool.buildlog.grammar import grammar
    from qdqtool.core.artefacts import get_ready as check_and_write
    from qdqtool.report.html import get_ready as fill_pages

    grammar()
    check_and_write(LOG, ENGINE, AUDIT, WORTH, ACCURACY, DATA, REPORT)
    fill_pages()


def parse(work: RunContext) -> Measured:
    """Read the build log: the actions of the optimizer, and what became of every Q and DQ."""
    from qdqtool.buildlog import read as read_log
    from qdqtool.buildlog.outputs import write_events

    log = read_log(work.path("build.log"))
    LOG.write(work.path("log.json"), log)
    write_events(log, work.path("events.jsonl"))
    return {}


def engine(work: RunContext) -> Measured:
    """Read the layer information of the engine."""
    ENGINE.write(work.path("layers.json"), read_layers(work.path("layers.txt")))
    return {}


def audit(work: RunContext) -> Measured:
    """Give every compute node a verdict, and every fallback a reason and a fix with its cost."""
    built = BUILD.read(work.path("build.json"))
    table = CALIBRATION.read(work.path("calibration.json"))
    request = _build_request(work, built.profiles)
    builder = builder_of(work) if work.recipe.build.builder == _WITHOUT_GPU else None
    costs = FixCosts(work.model("model.prepared.onnx"), work, table, builder, request)
    return _write_audit(work, table, costs.added_to)


def audit_without_costs(work: RunContext) -> Measured:
    """Audit without the builds that measure the cost of a fix."""
    return _write_audit(work, CALIBRATION.read(work.path("calibration.json")), lambda result: result)


def _write_audit(work: RunContext, table: CalibrationTable, costed: Callable[[Audit], Audit]) -> Measured:
    result = costed(audit_folder(work, PLACEMENT.read(work.path("placement.json"))))
    AUDIT.write(work.path("findings.json"), with_findings(result, table.findings, work.recipe.audit.ignore))
    return {}


def audit_folder(work: RunContext, placement: Placement | None) -> Audit:
    """Audit the engine of the run folder. Without a placement, the Q/DQ nodes show the requested formats."""
    runs = LOG.read(work.path("log.json")).runs
    scene = stage(
        ENGINE.read(work.path("layers.json")),
        work.model(built_model(work)),
        placement,
        targets=BUILD.read(work.path("build.json")).targets,
    )
    return examine(
        replace(scene, log=runs[-1] if runs else None),
        float_view=work.model("model.prepared.onnx").view,
        ignore=work.recipe.audit.ignore,
    )


def worth(work: RunContext) -> Measured:
    """Build the network in FP16 too, and compare the times of both engines."""
    built = BUILD.read(work.path("build.json"))
    times = against_fp16(
        work.model("model.prepared.onnx"),
        work.recipe,
        None if work.recipe.build.builder == _RECORDED else builder_of(work),
        _build_request(work, built.profiles),
        work.path("layers.json"),
    )
    WORTH.write(work.path("worth.json"), times)
    return {}


def compare(work: RunContext) -> Measured:
    """Run the float and the Q/DQ model on the evaluation samples."""
    comparison = compare_outputs(work)
    models = (work.model("model.prepared.onnx"), with_float_caches(work.model(_QUANTIZED)))
    inside, notes = or_without(
        "the comparison of tensors inside",
        lambda: noise_inside(models, work.evaluation, work.recipe.compare),
        tuple[OutputComparison, ...],
    )
    if work.request.reference is not None:
        notes += ("inner tensors are compared with those of the model without its Q/DQ",)
    use = device_use()
    notes = (*comparison.notes, *notes, *use.notes())
    ACCURACY.write(
        work.path("accuracy.json"),
        replace(comparison, tensors=inside, notes=notes, provider=use.provider.name),
    )
    return {"samples": float(comparison.samples)}


def compare_outputs(work: RunContext, open_float: KnownOutputs = open_unchanged) -> Comparison:
    """Measure how much the outputs differ on the evaluation samples; `open_float` opens the float model."""
    reference = work.request.reference
    float_model = work.path("model.prepared.onnx") if reference is None else reference
    models = (work.model("model.prepared.onnx"), with_float_caches(work.model(_QUANTIZED)))
    quantized = built_model(work)
    names = ("float model on onnxruntime", "Q/DQ model on onnxruntime")
    first: Callable[[], Runner] = partial(open_runner, float_model, description=names[0], crowded=True)
    second: Callable[[], Runner] = partial(open_quantized, work.path(quantized), names[1])
    parts: tuple[OutputPart, ...] = ()
    large = weight_bytes(models[0]) >= LARGE
    if reference is None and quantized == _QUANTIZED:
        *both, parts = with_parts(*models)
        if parts:
            first, second = (
                partial(open_model, model, description=name, crowded=True)
                for model, name in zip(both, names, strict=True)
            )
    returned = frozenset(name for part in parts for name in part.names)
    first = partial(open_float, first, returned)
    with both_sides(first, second, work.evaluation, work.recipe.compare.limit, large=large) as sides:
        return compare_runners(
            *sides,
            work.evaluation,
            work.recipe.compare,
            parts=parts,
            on_progress=work.listener.progressed,
        )


def data(work: RunContext) -> Measured:
    """Check the samples, the labels and the recipe, and find the nodes that lose most of the signal."""
    judge_data(work, PLACEMENT.read(work.path("placement.json")))
    return {}


def judge_data(work: RunContext, placement: Placement | None) -> None:
    """Write data.json. `placement` is None if the ranges came with the model."""
    comparison = ACCURACY.read(work.path("accuracy.json"))
    material = DataMaterial(
        calibration=work.samples,
        evaluation=work.evaluation,
        comparison=comparison,
        recipe=work.recipe,
        narrow=_narrow_loss(work, placement) if placement is not None and comparison.meaningful else None,
    )
    models = (work.model("model.prepared.onnx"), work.model(built_model(work)))
    DATA.write(work.path("data.json"), data_report(models, placement, material))


def _narrow_loss(work: RunContext, placement: Placement) -> NarrowLoss | None:
    """Return the accuracy loss from FP16 or BF16; None if the loss is small."""
    options = work.recipe.insert
    if options.types == "fp32":
        return None
    prepared = work.model("model.prepared.onnx")

    def make(changed: InsertOptions) -> Model:
        table = CALIBRATION.read(work.path("calibration.json"))
        return insert_for_engine(
            prepared, placement, table, changed, reach_for(prepared, changed, work.samples)[0]
        )

    models = (prepared, work.model(_QUANTIZED))
    return narrow_loss(models, make, work.evaluation, options, work.recipe.compare)


def report(work: RunContext) -> Measured:
    """Write the report, for people and for scripts."""
    write_report(work)
    return {}


def write_report(work: RunContext, *notes: str) -> None:
    """Write report.json and report.html from the files of the steps. The `notes` come first in the report."""
    from qdqtool.pipeline.report import read_material
    from qdqtool.report.assemble import assemble
    from qdqtool.report.html import render
    from qdqtool.report.judgement import Limits

    material = read_material(work.folder.path)
    drops = [work.recipe.compare.max_drop, work.recipe.accuracy.max_drop]
    limits = Limits(
        max_drop=min((drop for drop in drops if drop is not None), default=None),
        min_sqnr=work.recipe.accuracy.min_sqnr,
    )
    typed = work.request.typed()
    result = assemble(
        replace(
            material,
            notes=(*notes, *material.notes),
            limits=limits,
            typed=typed,
            assumptions=assumptions(work.recipe, material.build.profiles if material.build else ()),
        )
    )
    REPORT.write(work.path("report.json"), result)
    write_text(work.path("report.html"), render(result))


def built_model(work: RunContext) -> str:
    """Return the name of the built model: the Q/DQ model, or a copy without the Q/DQ for which there was no kernel."""
    built = work.path("build.json")
    return (BUILD.read(built).model if built.is_file() else None) or _QUANTIZED


def builder_of(work: RunContext) -> Builder:
    """Return the builder that the recipe names."""
    plugin: Builder = BUILDERS.load(work.recipe.build.builder)
    return plugin


def can_build(recipe: Recipe) -> bool:
    """Return whether the builder that the recipe names is installed."""
    try:
        BUILDERS.load(recipe.build.builder).version()
    except MissingPackage:
        return False
    return True


def check_builder(work: RunContext) -> None:
    """Refuse a builder that is not installed, and GPU architectures that it cannot build for, before slow steps begin.

    Raises:
        MissingPackage: the builder is not installed.
        UsageError: there is such an architecture.
    """
    builder = builder_of(work)
    try:
        builder.version()
    except MissingPackage as error:
        fix = f"{error.fix}; {Command('quantize')} writes the Q/DQ model without a builder"
        raise MissingPackage(error.what, fix=fix) from error
    refuse = getattr(builder, "check_targets", None)
    if refuse is not None:
        refuse(work.recipe.build.sm)


def profiles_of(work: RunContext) -> tuple[tuple[InputProfile, ...], tuple[str, ...]]:
    """Return the shapes of dynamic inputs, from the recipe or from the first sample, and notes on all assumptions."""
    first = next(iter(work.samples))
    usual = {name: array.shape for name, array in first.feeds.items()}
    shapes, notes = recipe_profiles(work.recipe, work.preparation.inputs, usual)
    return (*shapes, *value_profiles(work.preparation.inputs, work.samples)), notes


def _report_progress(work: RunContext, progress: BuildProgress) -> None:
    work.listener.progressed(progress.done, progress.total)
