"""Runs the steps: prepare, place, collect, calibrate, insert, build, parse, engine, audit, compare, report.

Each step reads and writes files of the run folder. A step is skipped if all its inputs are unchanged: files, its part
of the recipe, the model, the samples, and the code that computes (`pipeline.own_code`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool._version import __version__
from qdqtool.backends.building.procedure import external_files
from qdqtool.calibration.histograms import EQUALIZED
from qdqtool.core.kinds import REPORT
from qdqtool.core.recipe import AUTO
from qdqtool.core.report import Report
from qdqtool.io.files import digest_file, digest_files, write_text
from qdqtool.io.json_files import canonical, digest_of
from qdqtool.pipeline import recipes, steps
from qdqtool.pipeline.own_code import code_behind, own_code, release
from qdqtool.pipeline.quantization import recipe_digest
from qdqtool.pipeline.request import (
    NullProgress,
    ProgressListener,
    RunContext,
    RunFolder,
    RunRequest,
    StepRecord,
    UsageMeter,
)
from qdqtool.platform import give_back
from qdqtool.report.section import sections
from qdqtool.runtime.operators import use_operators
from qdqtool.runtime.session import computing_on


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    """One step of a run.

    Attributes:
        name: as the user sees it.
        act: does the work and returns measurements in addition to time and memory.
        reads: files of the run folder it depends on.
        writes: files of the run folder it makes.
        may_write: files that it only sometimes makes.
        obeys: sections and derived options of the recipe it depends on.
        meanwhile: work for later steps that can be done while this step waits for another process.
        outside: digests of inputs outside the run folder.
    """

    name: str
    act: Callable[[RunContext], Mapping[str, float]]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    may_write: tuple[str, ...] = ()
    obeys: tuple[str, ...] = ()
    outside: Callable[[RunContext], Mapping[str, str]] = lambda _: {}
    meanwhile: Callable[[], None] | None = None


def model_digest(work: RunContext) -> Mapping[str, str]:
    """Return the digests of the model that a run starts from and of its weight files, and its name."""
    model = work.request.model
    return {"model": digest_file(model), "name": model.name, **_digest_weights(model)}


def _digest_weights(model: Path) -> Mapping[str, str]:
    """Return the digest of the files with a model's external weights; nothing if it has none."""
    files = external_files(model) if model.suffix.lower() == ".onnx" else ()
    return {f"weights of {model.name}": digest_files(files)} if files else {}


def _samples(work: RunContext) -> Mapping[str, str]:
    return {"samples": work.samples.digest}


def _digest_collection(work: RunContext) -> Mapping[str, str]:
    """Return the digests that decide whether the step `collect` must run again.

    Equalization that the recipe names comes first; otherwise no option of calibration matters yet.
    """
    recipe = work.recipe
    if recipe.weights.equalize in {"none", AUTO}:
        return _samples(work)
    options = [recipe.weight_ranges, recipe.weights.equalize, recipe.insert.model_dump(mode="json")]
    return {**_samples(work), "equalized": canonical(options)}


def _digest_calibration(work: RunContext) -> Mapping[str, str]:
    table = work.request.table
    return _samples(work) if table is None else {**_samples(work), "table": digest_file(table)}


def _digest_mark(work: RunContext) -> Mapping[str, str]:
    return {**_samples(work), "recipe": recipe_digest(work.recipe)}


def _shapes(work: RunContext) -> Mapping[str, str]:
    return {"builder": steps.builder_of(work).version(), "shapes": str(steps.profiles_of(work))}


def _digest_build(work: RunContext) -> Mapping[str, str]:
    return {"built": digest_file(work.path(steps.built_model(work)))}


def _evaluation(work: RunContext) -> Mapping[str, str]:
    reference = work.request.reference
    digests = {} if reference is None else {"reference": digest_file(reference), **_digest_weights(reference)}
    named = {name: code_behind(name.partition(":")[0]) for name in work.recipe.compare.metrics if ":" in name}
    return {**_digest_build(work), **digests, "samples": work.evaluation.digest, **named}


def _digest_check(work: RunContext) -> Mapping[str, str]:
    evaluation = {"evaluation": work.evaluation.digest, "recipe": work.recipe.name}
    return {**_digest_build(work), **_samples(work), **evaluation}


def read_by_sections(work: RunContext) -> Mapping[str, str]:
    """Return digests of the files that sections of the report read."""
    names = {name for _, section in sections() for name in section.reads}
    return {name: digest_file(work.path(name)) for name in sorted(names) if work.path(name).is_file()}


LINE = (
    RunStep(
        name="prepare",
        act=steps.prepare,
        reads=(),
        writes=("model.prepared.onnx", "preparation.json"),
        obeys=("preparing",),
        outside=model_digest,
    ),
    RunStep(
        name="place",
        act=steps.place,
        reads=("model.prepared.onnx",),
        writes=("placement.json",),
        obeys=("placing", "build", "runtime"),
    ),
    RunStep(
        name="collect",
        act=steps.collect,
        reads=("model.prepared.onnx", "placement.json"),
        writes=("histograms.npz",),
        may_write=("equalization.npz", "equalization.txt"),
        obeys=("samples", "compute", "runtime"),
        outside=_digest_collection,
    ),
    RunStep(
        name="calibrate",
        act=steps.calibrate,
        reads=("model.prepared.onnx", "placement.json", "histograms.npz"),
        writes=("calibration.json",),
        may_write=("calibration.weights.npz", EQUALIZED),
        obeys=("samples", "place", "calibrate", "weights", "insert", "build", "compute", "runtime"),
        outside=_digest_calibration,
    ),
    RunStep(
        name="insert",
        act=steps.insert,
        reads=("model.prepared.onnx", "placement.json", "calibration.json"),
        writes=("model.qdq.onnx", "insertion.json"),
        obeys=("samples", "insert", "compute", "runtime"),
        outside=_digest_mark,
    ),
    RunStep(
        name="build",
        act=steps.build,
        reads=("model.qdq.onnx", "preparation.json"),
        writes=("engine.plan", "build.log", "layers.txt", "build.json"),
        may_write=("model.retried.onnx",),
        obeys=("build",),
        outside=_shapes,
        meanwhile=steps.get_ready,
    ),
    RunStep(
        name="parse",
        act=steps.parse,
        reads=("build.log",),
        writes=("log.json", "events.jsonl"),
    ),
    RunStep(
        name="engine",
        act=steps.engine,
        reads=("layers.txt",),
        writes=("layers.json",),
    ),
    RunStep(
        name="audit",
        act=steps.audit,
        reads=(
            "model.prepared.onnx",
            "placement.json",
            "calibration.json",
            "layers.json",
            "log.json",
            "build.json",
        ),
        writes=("findings.json",),
        obeys=("audit", "prepare", "place", "calibrate", "insert", "build", "runtime"),
        outside=lambda work: {**_digest_build(work), **_samples(work)},
    ),
    RunStep(
        name="worth",
        act=steps.worth,
        reads=("model.prepared.onnx", "layers.json", "build.json"),
        writes=("worth.json",),
        obeys=("placing", "build"),
        outside=_digest_build,
    ),
    RunStep(
        name="compare",
        act=steps.compare,
        reads=("model.prepared.onnx",),
        writes=("accuracy.json",),
        obeys=("compare", "compute", "runtime"),
        outside=_evaluation,
    ),
    RunStep(
        name="data",
        act=steps.data,
        reads=("model.prepared.onnx", "placement.json", "accuracy.json"),
        writes=("data.json",),
        obeys=("audit", "compare", "samples", "place", "insert", "compute", "runtime"),
        outside=_digest_check,
    ),
    RunStep(
        name="report",
        act=steps.report,
        reads=(
            "preparation.json",
            "placement.json",
            "calibration.json",
            "insertion.json",
            "build.json",
            "log.json",
            "histograms.npz",
            "layers.json",
            "findings.json",
            "worth.json",
            "accuracy.json",
            "data.json",
        ),
        writes=("report.json", "report.html"),
        obeys=("samples", "build", "compare", "accuracy"),
        outside=read_by_sections,
    ),
)


_OF_ENGINE = frozenset({"build", "parse", "engine", "audit", "worth"})
_FILES_OF_ENGINE = frozenset(name for step in LINE if step.name in _OF_ENGINE for name in step.writes)
TRIAL_LINE = tuple(
    replace(step, act=steps.audit_without_costs) if step.name == "audit" else step for step in LINE
)
"""Steps of a run that a search makes to measure it: nobody follows its fixes, so their costs are not built."""
WITHOUT_ENGINE = tuple(
    replace(step, reads=tuple(name for name in step.reads if name not in _FILES_OF_ENGINE))
    for step in LINE
    if step.name not in _OF_ENGINE
)
"""Steps of a run on a machine without a builder: the Q/DQ model, its accuracy and the report."""


_TIMED = frozenset({"build.log", "log.json"})
"""Files with the builder's own times, so that no two builds give equal bytes."""


def start(request: RunRequest, last: str, listener: ProgressListener | None = None) -> RunContext:
    """Run the steps up to the step `last`. Blocks until other runs in this folder have finished."""
    folder = RunFolder(request.out)
    with folder.locked(wait=True), computing_on(request.recipe.compute.device):
        use_operators(request.recipe)
        work = RunContext(request, folder, listener or NullProgress())
        for step in LINE:
            _do(step, work)
            if step.name == last:
                break
        return work


def run(
    request: RunRequest, listener: ProgressListener | None = None, *, course: tuple[RunStep, ...] = LINE
) -> Report:
    """Run all steps in `request.out`, and return the report. `course` is the sequence of steps; default: `LINE`.

    Raises:
        QdqError: a step failed; finished steps stay, and the next run continues from them.
    """
    folder = RunFolder(request.out)
    with folder.locked(), computing_on(request.recipe.compute.device):
        use_operators(request.recipe)
        work = RunContext(request, folder, listener or NullProgress())
        if course is not WITHOUT_ENGINE:
            steps.check_builder(work)
        write_text(folder / "recipe.yaml", recipes.dump(work.recipe))
        for step in course:
            _do(step, work)
            if "preparation.json" in step.writes:
                work.open_samples()
        write_text(folder / "provenance.json", provenance(work))
        return REPORT.read(folder / "report.json")


def provenance(work: RunContext) -> str:
    """Return the versions of the tool and the libraries, and digests of the inputs, for the files of the run folder."""
    libraries = ("numpy", "onnx", "onnxruntime", "tensorrt-rtx")
    return canonical(
        {
            "kind": "provenance",
            "schema": 1,
            "provenance": {"qdqtool": __version__},
            "data": {
                "libraries": {name: release(name) for name in libraries},
                "model": digest_file(work.request.model),
                "samples": {
                    "calibration": work.samples.description,
                    "evaluation": work.evaluation.description,
                },
                "files": {
                    name: digest
                    for footprint in work.folder.footprints().values()
                    for name, digest in footprint.outputs.items()
                    if name not in _TIMED
                },
            },
        }
    )


def _do(step: RunStep, work: RunContext) -> None:
    work.listener.started(step.name)
    earlier = work.folder.footprints().get(step.name)
    key = _key(step, work)
    if earlier is not None and work.folder.is_up_to_date(step.name, key):
        work.listener.finished(step.name, earlier.measured, skipped=True)
        return
    give_back()  # return the memory that the previous step freed
    with UsageMeter() as meter, _beside(step.meanwhile):
        extra = step.act(work)
    written = (*step.writes, *(name for name in step.may_write if work.path(name).exists()))
    for name in written:
        work.forget(name)
    measured = {**meter.measured, **extra}
    outputs = {name: digest_file(work.path(name)) for name in written}
    work.folder.remember(step.name, StepRecord(key=key, outputs=outputs, measured=measured))
    work.listener.finished(step.name, measured, skipped=False)


@contextmanager
def _beside(job: Callable[[], None] | None) -> Iterator[None]:
    """Run the job in a separate thread during the `with` block. At its end, raise the job's error if there is one."""
    if job is None:
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        running = pool.submit(job)
        yield
        running.result()


def _key(step: RunStep, work: RunContext) -> str:
    return digest_of(
        {
            "step": step.name,
            "qdqtool": own_code(),
            "reads": {name: digest_file(work.path(name)) for name in step.reads},
            "obeys": {name: getattr(work.recipe, name).model_dump(mode="json") for name in step.obeys},
            "outside": dict(step.outside(work)),
        }
    )
