"""Fixes float fallbacks and unnecessary kernels of an engine, and writes the result as a new run folder."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import Final

from qdqtool.auditing.full_audit import with_findings
from qdqtool.backends.shapes import usual_of
from qdqtool.buildlog import read as read_log
from qdqtool.buildlog.outputs import write_events
from qdqtool.calibration.histograms import EQUALIZED
from qdqtool.calibration.samples import SampleInput
from qdqtool.core.findings import Finding
from qdqtool.core.fixes import FixOutcome, FixReport
from qdqtool.core.kinds import (
    ACCURACY,
    AUDIT,
    BUILD,
    CALIBRATION,
    ENGINE,
    FIXES,
    INSERTION,
    LOG,
    PLACEMENT,
)
from qdqtool.core.preparation import DynamicRangeReport, Insertion
from qdqtool.core.protocols import InputProfile, SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.core.wording import REPAIR, Command
from qdqtool.errors import (
    BuildError,
    InputFileError,
    MissingPackage,
    QdqError,
    SystemFault,
    UsageError,
)
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.slots import slot_changes
from qdqtool.io.files import replacing, write_text
from qdqtool.pipeline import steps
from qdqtool.pipeline.autofix.builder import MODEL, CandidateBuilder
from qdqtool.pipeline.autofix.clock import HostClock
from qdqtool.pipeline.autofix.drafts import DraftModel, Foreign, Placed
from qdqtool.pipeline.autofix.search import Bounds, FixSearch, OnBuild
from qdqtool.pipeline.building import build_request, builder_flags, recipe_profiles, value_profiles
from qdqtool.pipeline.random_shapes import opener, samples_for, shapes_of
from qdqtool.pipeline.recipes import dump
from qdqtool.pipeline.request import NullProgress, RunContext, RunFolder, RunRequest
from qdqtool.pipeline.sweep.elsewhere import check_host, host_of
from qdqtool.pipeline.writing import write
from qdqtool.runtime.operators import use_operators
from qdqtool.runtime.session import on_device

_COPIED = ("preparation.json", "histograms.npz", EQUALIZED)
BUILDS: Final = ".builds"
"""Folder inside the new run folder, for the finished builds and times of a search until its end."""
_BUILT = ("engine.plan", "build.log", "layers.txt", "model.retried.onnx")


@dataclass(frozen=True, kw_only=True, slots=True)
class FixRequest:
    """Parameters of a search for fixes.

    Attributes:
        subject: a finished run folder, or a Q/DQ model.
        out: the new run folder.
        recipe: how engines are built and models compared.
        samples: source of the samples, as typed; "": accuracy is not measured.
        labels: file of class indices, or None.
        bounds: limits at which the search stops.
        cache: folder of finished builds to share, or None.
        on: machine whose measured times decide, "local" or ssh://user@host; "": kernels and bytes decide.
        trtexec: the program on that machine; "" looks for it.
    """

    subject: Path
    out: Path
    recipe: Recipe
    samples: SampleInput
    labels: str | None
    bounds: Bounds
    cache: Path | None = None
    on: str = ""
    trtexec: str = ""


@on_device(lambda request: request.recipe.compute.device)
def fix(request: FixRequest, on_build: OnBuild) -> tuple[FixReport, tuple[Finding, ...]]:
    """Write the new run folder; return all trials and the remaining findings. The old folder does not change.

    Raises:
        UsageError: the subject has no Q/DQ, or the new folder is the old one or not empty.
        BuildError: the subject itself cannot be built.
        MissingPackage: the machine for times cannot be reached, or has no trtexec.
    """
    _refuse_used(request)
    host = host_of(request.on) if request.on else None
    if host is not None:
        check_host(host, request.trtexec)
    use_operators(request.recipe)
    draft = _draft(request)
    samples = _samples(request, draft)
    draft.samples = samples
    folder = RunFolder(request.out)
    with (
        folder.locked(),
        _cache(request) as cache,
        tempfile.TemporaryDirectory(prefix="qdqtool-fix-") as bench,
    ):
        shapes, notes = _profiles(request.recipe, draft, samples)
        builder = CandidateBuilder(
            draft, request.recipe, samples, build_request(request.recipe, shapes, cache=cache)
        )
        clock = (
            None
            if host is None
            else HostClock(
                host,
                request.trtexec,
                request.out / BUILDS,
                builder_flags(request.recipe),
                request.cache,
                usual_of(shapes),
            )
        )
        search = _open_search(request, builder, Path(bench), clock)
        search.run(on_build)
        if clock is not None:
            clock.patterns.save()
        report = _report(request, search, builder, "" if clock is None else clock.measures)
        findings = _deliver(request, builder, search, notes)
        FIXES.write(folder / "fixes.json", report)
        if (folder / "accuracy.json").is_file() and (folder / "placement.json").is_file():
            _write_report(request, draft.recipe(search.best.settings))
        return report, findings


def _open_search(
    request: FixRequest, builder: CandidateBuilder, bench: Path, clock: HostClock | None
) -> FixSearch:
    """Start the search with its first engine."""
    try:
        return FixSearch(builder, bench, request.bounds, clock)
    except BuildError as error:
        raise BuildError(
            f"the model cannot be built unchanged: {error.what}",
            fix=f"run {REPAIR} on it first; {error.fix}",
            where=str(request.subject),
        ) from error


def _refuse_used(request: FixRequest) -> None:
    # A failed attempt leaves its lock file, and a killed attempt also its builds.
    there = {path.name for path in request.out.iterdir()} - {".lock"} if request.out.is_dir() else set()
    if request.out.resolve() == request.subject.resolve() or (there and not is_unfinished(request.out)):
        raise UsageError(
            "the new run folder must not exist yet",
            fix="choose another folder with --out",
            where=str(request.out),
        )


def _draft(request: FixRequest) -> DraftModel:
    """Open the run folder or the Q/DQ model for editing."""
    folder = request.subject
    if folder.is_dir() and (folder / "placement.json").is_file():
        return Placed(
            load(folder / "model.prepared.onnx"),
            PLACEMENT.read(folder / "placement.json"),
            CALIBRATION.read(folder / "calibration.json"),
            request.recipe,
        )
    model = load(folder / MODEL if folder.is_dir() else folder)
    if not quantized_ops(model):
        raise UsageError(
            "the model has no Q/DQ to fix",
            fix=f"quantize the model with {Command('run')}",
            where=str(request.subject),
        )
    return Foreign(model, request.recipe)


def _samples(request: FixRequest, draft: DraftModel) -> SampleSource | None:
    if not request.samples:
        return None
    model, recipe = draft.reference, request.recipe
    return samples_for(
        request.samples,
        model.view.inputs,
        recipe,
        opener(model),
        labels=request.labels,
        limit=recipe.compare.limit,
    )


def is_unfinished(out: Path) -> bool:
    """Return True if a search in this folder was stopped before its end. A new call continues with its finished builds."""
    return (out / BUILDS).is_dir()


@contextmanager
def _cache(request: FixRequest) -> Iterator[Path]:
    """Yield the shared folder of finished builds, or one in the new run folder that is removed at the end.

    It is kept if the process is killed or interrupted, if the disk fails, or if a host is lost that measures times: a
    repeated command resumes from it.
    """
    builds = request.out / BUILDS
    builds.mkdir(exist_ok=True)
    try:
        yield request.cache or builds
    except SystemFault:
        raise
    except MissingPackage:
        if not any(builds.iterdir()):
            builds.rmdir()
        raise
    except QdqError:
        shutil.rmtree(builds)
        raise
    shutil.rmtree(builds)


def _profiles(
    recipe: Recipe, draft: DraftModel, samples: SampleSource | None
) -> tuple[tuple[InputProfile, ...], tuple[str, ...]]:
    first = next(iter(samples), None) if samples is not None else None
    shapes = {name: array.shape for name, array in first.feeds.items()} if first else None
    inputs = draft.reference.view.inputs
    profiles, notes = recipe_profiles(recipe, inputs, shapes or shapes_of(draft.reference))
    return (*profiles, *value_profiles(inputs, samples or ())), notes


def _deliver(
    request: FixRequest, builder: CandidateBuilder, search: FixSearch, notes: tuple[str, ...]
) -> tuple[Finding, ...]:
    """Write the files of a run folder for the best engine of a search, and return its findings."""
    out, best = request.out, search.best
    source = best.folder
    for name in (MODEL, *_BUILT):
        if (source / name).is_file():
            with replacing(out / name) as written:
                shutil.copyfile(source / name, written)
    build = replace(best.build, notes=(*best.build.notes, *notes))
    BUILD.write(out / "build.json", build)
    log = read_log(out / "build.log")
    LOG.write(out / "log.json", log)
    write_events(log, out / "events.jsonl")
    ENGINE.write(out / "layers.json", best.context.engine)
    plan = builder.draft.plan(best.edits, best.settings)
    calibration = () if plan is None else plan.table.findings
    audit = with_findings(best.audit, calibration, request.recipe.audit.ignore)
    AUDIT.write(out / "findings.json", audit)
    comparison, _ = builder.compare(out / (build.model or MODEL))
    if comparison is not None:
        ACCURACY.write(out / "accuracy.json", comparison)
    if plan is None:
        return audit.findings
    write(builder.draft.reference, out / "model.prepared.onnx", step="prepare")
    PLACEMENT.write(out / "placement.json", plan.placement)
    CALIBRATION.write(out / "calibration.json", plan.table)
    INSERTION.write(out / "insertion.json", Insertion(notes=best.notes))
    for name in _COPIED:
        if (request.subject / name).is_file():
            shutil.copyfile(request.subject / name, out / name)
    write_text(out / "recipe.yaml", dump(builder.draft.recipe(best.settings)))
    return audit.findings


def _write_report(request: FixRequest, recipe: Recipe) -> None:
    """Write report.json and the HTML page, as a run does, with all trials."""
    run_request = RunRequest(
        model=request.out / "model.prepared.onnx",
        recipe=recipe,
        samples=request.samples,
        eval_samples=None,
        labels=request.labels,
        out=request.out,
    )
    steps.report(RunContext(run_request, RunFolder(request.out), NullProgress()))


def _report(request: FixRequest, search: FixSearch, builder: CandidateBuilder, clock: str) -> FixReport:
    notes = [f"measured: {clock}"] if clock else []
    samples, draft = builder.samples, builder.draft
    if samples is None:
        notes.append("accuracy was not measured, because no samples were passed")
    elif not samples.meaningful:
        notes.append("the samples were random: their accuracy means nothing")
    if any(trial.outcome is FixOutcome.NOT_TRIED and trial.edits for trial in search.trials):
        notes.append("a larger --budget or --time-budget tries more fixes")
    settings = search.best.settings
    if draft.recipe(settings).insert.types == "fp16":
        reach, unknown = draft.reach(settings)
        notes += unknown or _note_reach(reach, samples)
    if settings and isinstance(draft, Foreign):
        notes.append(f"the float part of the new model computes in FP16, as after {Command('convert')}")
    elif settings:
        typed = " ".join(f"--set {shlex.quote(setting)}" for setting in settings)
        notes.append(f"the recipe of the new run folder has {typed}")
    return FixReport(
        model=request.subject.name,
        trials=tuple(search.trials),
        before=search.first.standing(_finite(search.first_accuracy)),
        after=search.best.standing(_finite(search.accuracy)),
        builds=search.builds,
        budget=request.bounds.builds,
        metric=search.metric,
        max_drop=request.bounds.max_drop,
        notes=tuple(notes),
        slots=slot_changes(search.first.qdq, search.best.qdq),
        host=request.on,
    )


def _note_reach(reach: DynamicRangeReport | None, samples: SampleSource | None) -> tuple[str, ...]:
    """Return notes on how completely the overflow of FP16 was checked."""
    if samples is None:
        return ("overflows in FP16 were not checked, because no samples were passed",)
    if reach is not None and not samples.meaningful:
        return ("overflows in FP16 were checked on random samples only; pass --samples",)
    return ()


def _finite(value: float) -> float | None:
    return None if isinf(value) else value


def recipe_of(folder: Path) -> Path | None:
    """Return the recipe of a run folder; None for a model file, or without a recipe.

    Raises:
        InputFileError: it is not a run folder.
    """
    if not folder.is_dir():
        return None
    if not (folder / MODEL).is_file():
        raise InputFileError(
            f"the folder has no {MODEL}", fix="pass a finished run folder or a Q/DQ model", where=str(folder)
        )
    path = folder / "recipe.yaml"
    return path if path.is_file() else None
