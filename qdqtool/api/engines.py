"""Calls about engines: build, read, audit, fix, and the builder's logs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.api.inputs import (
    AnyPath,
    RecipeInput,
    SamplesInput,
    SettingsInput,
    architectures_of,
    count_of,
    ignored_words,
    labels_file,
    model_files,
    number_of,
    place_on,
    recipe_of,
    samples_of,
)
from qdqtool.api.progress import Progress, ProgressInput, public, showing
from qdqtool.api.results import BuiltEngine, Fixed
from qdqtool.auditing.context import AuditContext, stage
from qdqtool.auditing.full_audit import check_ignored, examine
from qdqtool.backends import BUILDERS
from qdqtool.backends.shapes import parse_shapes, profiles, usual_shapes
from qdqtool.buildlog import is_of_builder, not_of_builders
from qdqtool.buildlog import read as read_log
from qdqtool.buildlog.diff import compare as compare_logs
from qdqtool.calibration.samples import open_samples
from qdqtool.core.buildlog import BuildLog, LogRun
from qdqtool.core.difference import EngineDiff, LogDiff
from qdqtool.core.engine import Engine
from qdqtool.core.findings import Audit
from qdqtool.core.kinds import AUDIT, BUILD, PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Builder
from qdqtool.core.recipe import Recipe
from qdqtool.engine.diff import Explored
from qdqtool.engine.diff import compare as compare_engines
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.engine.view import view
from qdqtool.errors import QdqError, UsageError
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.io.files import path_of
from qdqtool.pipeline.autofix.run import FixRequest
from qdqtool.pipeline.autofix.run import fix as search_fixes
from qdqtool.pipeline.autofix.run import recipe_of as recipe_beside
from qdqtool.pipeline.autofix.search import Bounds
from qdqtool.pipeline.building import build_engine, build_request
from qdqtool.pipeline.costs import with_recorded
from qdqtool.pipeline.engine_files import engine_of, log_of
from qdqtool.pipeline.random_shapes import shapes_of

if TYPE_CHECKING:
    from qdqtool.api.inputs import LabelsInput, ModelInput

Shape = Sequence[int]
ShapesInput = Mapping[str, "Shape | tuple[Shape, Shape, Shape]"]
"""Shapes of dynamic inputs: {"image": (1, 3, 224, 224)}, or minimum, optimum and maximum: {"image": ((1, 3,
224, 224), (4, 3, 224, 224), (8, 3, 224, 224))}.
"""
LayersInput = AnyPath | Engine | BuiltEngine
_SHAPES_FIX = 'pass shapes={"image": (1, 3, 224, 224)}'
_ENGINE_FILES = frozenset({".log", ".txt", ".json"})
"""File endings of engines, logs and layer information, which are not models."""


@public
def build(
    model: ModelInput,
    out: AnyPath | None = None,
    *,
    shapes: ShapesInput | None = None,
    samples: SamplesInput | None = None,
    sm: Sequence[str] | str | float | None = None,
    builder: str | None = None,
    flags: str = "",
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    trust: bool = False,
    progress: ProgressInput = None,
) -> BuiltEngine:
    """Build an engine.

    Args:
        model: Q/DQ or float model: a file, a `ModelProto`, a `gs.Graph`, or the result of another call.
        out: folder for engine.plan, build.log, layers.txt and build.json; None writes no files.
        shapes: shapes of dynamic inputs, one each or (smallest, usual, largest). A dynamic dimension that is not given
            takes its length from `samples`, or 1, and `notes` of the result say so.
        samples: samples whose shapes are the usual ones, as for `calibrate`.
        sm: GPU architectures ("86" is SM86); None uses those of the recipe.
        builder: "rtx", or another builder; None uses the recipe's.
        flags: further options in trtexec's spelling, as "--builderOptimizationLevel=5".
        recipe: whose `build` section counts, as for `place`.
        settings: changes of the recipe, as {"build.timeout_s": 600}.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `calibrate`.

    Raises:
        BuildError: the builder refused, crashed or ran out of time.
        MissingPackage: the builder is not installed.
        InputFileError: the model or a sample cannot be read.
        UsageError: mistakes in the arguments.
        Interrupted: `progress` returned False.
    """
    chosen = _build_recipe(recipe_of(recipe, settings, trust=trust), sm, builder, flags)
    with model_files(model) as (path,), _folder() as folder, showing(progress) as shown:
        result = _build_engine(path, folder, chosen, _Shapes(shapes, samples), shown)
        if out is not None:
            result.save(path_of(out, "out"))
        return result


class _Shapes:
    """Shapes of dynamic inputs from the arguments `shapes` and `samples` of a call."""

    def __init__(self, shapes: ShapesInput | None, samples: SamplesInput | None) -> None:
        self.limits = [_spell_shapes(shapes, end) for end in range(3)]
        self.samples = samples_of(samples)


def _spell_shapes(shapes: object, end: int) -> dict[str, tuple[int, ...]]:
    """Return the minimum (0), optimum (1) or maximum (2) shapes of all inputs, spelled as on the command line."""
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise UsageError(
            f"the value cannot be of type {type(shapes).__name__}", fix=_SHAPES_FIX, where="shapes"
        )
    spelled = {}
    for name, shape in shapes.items():
        several = isinstance(shape, Sequence) and len(shape) == 3 and not _is_shape(shape)
        chosen = shape[end] if several else shape
        if not _is_shape(chosen):
            raise UsageError(f"{shape!r} is not a shape", fix=_SHAPES_FIX, where=f"shapes[{name!r}]")
        spelled[str(name)] = tuple(chosen)
    return spelled


def _is_shape(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(dim, int) and dim >= 0 for dim in value)


def _build_recipe(
    recipe: Recipe, sm: Sequence[str] | str | float | None, builder: str | None, flags: str
) -> Recipe:
    """Return the recipe, changed by the arguments of `build` that stand for one setting each."""
    changes: dict[str, Any] = {}
    if sm is not None:
        changes["build.sm"] = list(architectures_of(sm))
    if builder is not None:
        changes["build.builder"] = builder
    if flags:
        changes["build.flags"] = f"{recipe.build.flags} {flags}".strip()
    return recipe_of(recipe, changes)


def _build_engine(path: Path, folder: Path, recipe: Recipe, shapes: _Shapes, shown: Progress) -> BuiltEngine:
    options = recipe.build
    model = load(path)
    inputs = model.view.inputs
    low, opt, high = (
        parse_shapes(text) | option
        for text, option in zip(
            (options.min_shapes, options.opt_shapes, options.max_shapes), shapes.limits, strict=True
        )
    )
    if shapes.samples:
        first = next(iter(open_samples(shapes.samples, inputs, recipe.samples.preprocess)))
        usual = {name: array.shape for name, array in first.feeds.items()}
    else:
        usual = dict(usual_shapes(inputs) if low or opt or high else shapes_of(model))
    try:
        ranges, notes = profiles(inputs, low, opt, high, usual)
    except UsageError as error:
        raise UsageError(error.what, fix=_SHAPES_FIX, where="shapes") from error
    plugin: Builder = BUILDERS.load(options.builder)
    result, _ = build_engine(
        plugin,
        build_request(recipe, ranges, model=path, folder=folder),
        lambda each: shown.show("build", each.done, each.total),
        most=options.retries,
    )
    result = replace(result, notes=(*result.notes, *notes))
    names = (result.engine, result.log, result.layers, result.model)
    files = {name: (folder / name).read_bytes() for name in names if name and (folder / name).is_file()}
    return BuiltEngine(result=result, files=files)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qdqtool-build-") as folder:
        yield Path(folder)


@public
def audit(
    model: ModelInput,
    layers: LayersInput | None = None,
    *,
    placement: Placement | AnyPath | None = None,
    log: AnyPath | BuildLog | None = None,
    shapes: ShapesInput | None = None,
    sm: Sequence[str] | str | float | None = None,
    ignore: Mapping[str, str] | Sequence[str] = (),
    progress: ProgressInput = None,
) -> Audit:
    """Report the precision of every compute node of a Q/DQ model in its engine, with reason and fix.

    Args:
        model: the Q/DQ model as for `build`; or a finished run folder; or, without a model, a build log or layer
            information (.log, .txt, .json, also compressed), whose lines then give the verdicts.
        layers: the engine: the result of `build`, or its layer information (a file, also a build log, or an `Engine`).
            None builds one with TensorRT for RTX for this audit only.
        placement: the requested formats: a `Placement` or a placement.json; None uses the Q/DQ in the model.
        log: the verbose log of the build: then findings point to its lines.
        shapes: shapes of dynamic inputs for the build, as for `build`.
        sm: GPU architectures for the build and the checks.
        ignore: codes or names of checks to skip, with or without reasons: {"QDQ210": "known"} or ["QDQ210=known"].
        progress: as for `calibrate`.

    Raises:
        InputFileError: a file cannot be read.
        BuildError: the builder refuses the model.
        MissingPackage: the builder is not installed.
    """
    ignored = ignored_words(ignore)
    check_ignored(ignored)
    if isinstance(model, (str, PathLike)) and Path(model).is_dir():
        return _audited_folder(Path(model), ignored)
    if placement is not None and not isinstance(placement, Placement):
        placement = PLACEMENT.read(path_of(placement, "placement", "the result of `place`"))
    chosen = _build_recipe(recipe_of(None), sm, None, "")
    targets: tuple[str, ...] = tuple(f"sm{word}" for word in chosen.build.sm) if sm is not None else ()
    if layers is None and isinstance(model, (str, PathLike)) and _ENGINE_FILES & set(Path(model).suffixes):
        scene = stage(engine_of(Path(model)), None, placement, targets=targets)
        return examine(_with_files(scene, Path(model), log), ignore=ignored)
    with model_files(model) as (path,), _folder() as folder, showing(progress) as shown:
        if layers is None:
            layers = _build_engine(path, folder, chosen, _Shapes(shapes, None), shown)
        if isinstance(layers, BuiltEngine):
            targets = targets or layers.targets
            log = log if log is not None else _log_of(layers)
        scene = stage(_engine(layers), load(path), placement, targets=targets)
        return examine(_with_files(scene, layers, log), ignore=ignored)


def _with_files(context: AuditContext, layers: LayersInput, log: AnyPath | BuildLog | None) -> AuditContext:
    """Return the evidence of an audit, with the names of its files and the last run of its log."""
    if isinstance(layers, (str, PathLike)):
        context = replace(context, layers_file=Path(layers).name)
        if log is None:
            run = log_of(None, Path(layers), context.engine.form)
            return replace(context, log=run, log_file=Path(layers).name)
    if log is None:
        return context
    runs = log.runs if isinstance(log, BuildLog) else _log(path_of(log, "log"), str(log)).runs
    name = "build.log" if isinstance(log, BuildLog) else path_of(log, "log").name
    return replace(context, log=runs[-1] if runs else None, log_file=name)


def _audited_folder(folder: Path, ignore: tuple[str, ...]) -> Audit:
    """Audit a run folder from its files."""
    built = BUILD.read(folder / "build.json")
    scene = stage(
        read_layers(folder / (built.layers or "layers.txt")),
        load(folder / (built.model or "model.qdq.onnx")),
        PLACEMENT.read(folder / "placement.json") if (folder / "placement.json").is_file() else None,
        targets=built.targets,
    )
    runs = read_log(folder / built.log).runs
    result = examine(replace(scene, log=runs[-1] if runs else None, log_file=built.log), ignore=ignore)
    recorded = folder / "findings.json"
    return with_recorded(result, AUDIT.read(recorded), ignore) if recorded.is_file() else result


def _log_of(engine: BuiltEngine) -> BuildLog:
    with _folder() as folder:
        (folder / "build.log").write_bytes(engine.files[engine.result.log])
        return read_log(folder / "build.log")


@public
def fix(
    model: ModelInput,
    samples: SamplesInput | None = None,
    out: AnyPath | None = None,
    *,
    labels: LabelsInput = None,
    max_drop: float = 1.0,
    budget: int = 20,
    seconds: float | None = None,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    progress: ProgressInput = None,
) -> Fixed:
    """Try the edits that an audit suggests, and keep those that a build confirms.

    Args:
        model: Q/DQ model as for `build`, or a finished run folder.
        samples: for accuracy and missing ranges, as for `calibrate`; None uses 8 random ones.
        out: new run folder; None keeps only the result.
        labels: class indices of the samples, as for `repair`.
        max_drop: points (with `labels`), else dB of SQNR, that may be lost.
        budget: engines built at most.
        seconds: time limit, after which no further edit is tried.
        recipe: how engines are built; None uses the run folder's, else the defaults.
        settings: changes of the recipe.
        device: device for models: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the
            recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `calibrate`.

    Raises:
        UsageError: the subject has no Q/DQ, or `out` is not new.
        BuildError: the subject itself cannot be built.
    """
    bounds = Bounds(
        builds=count_of(budget, "budget", 0),
        seconds=None if seconds is None else number_of(seconds, "seconds"),
        max_drop=number_of(max_drop, "max_drop"),
    )
    with (
        model_files(model) as (path,),
        labels_file(labels) as label_file,
        _folder() as folder,
        showing(progress) as shown,
    ):
        method = recipe_beside(path)
        place = folder / "fixed" if out is None else path_of(out, "out")
        request = FixRequest(
            subject=path,
            out=place,
            recipe=recipe_of(
                recipe if recipe is not None else method,
                place_on(device, settings),
                trust=trust,
                labels=labels,
            ),
            samples=samples_of(samples) or "random:8",
            labels=label_file,
            bounds=bounds,
        )
        report, findings = search_fixes(request, shown.step("build"))
        fixed = load(place / "model.qdq.onnx")
        return Fixed(model=whole(fixed.proto), notes=report.notes, report=report, findings=findings)


@public
def parse_log(log: AnyPath | BuiltEngine) -> BuildLog:
    """Read a TensorRT log of any release and front end.

    Args:
        log: a file, the text of a log (with line breaks), or the result of `build`.

    Raises:
        InputFileError: the file cannot be read.
    """
    if isinstance(log, BuiltEngine):
        return _log_of(log)
    if isinstance(log, str) and "\n" in log:
        with _folder() as folder:
            (folder / "build.log").write_text(log, "utf-8")
            return _log(folder / "build.log", "log")
    return _log(path_of(log, "log"), str(log))


def _log(path: Path, where: str) -> BuildLog:
    """Read the build log at `path`, for an API call."""
    log = read_log(path)
    if not any(map(is_of_builder, log.runs)):
        raise not_of_builders(
            log.runs, where, "pass the log of a build; layer information is for read_engine"
        )
    return log


@public
def read_engine(layers: LayersInput) -> Engine:
    """Read the layers of an engine from the files that TensorRT writes about it.

    Args:
        layers: a file of layer information in any of its forms, its text (with line breaks), or the result of `build`.

    Raises:
        InputFileError: it cannot be read, or is in no known form.
    """
    return _engine(layers)


def _engine(layers: object) -> Engine:
    if isinstance(layers, Engine):
        return layers
    text = layers.layers if isinstance(layers, BuiltEngine) else layers
    if isinstance(text, str) and "\n" in text:
        with _folder() as folder:
            path = folder / "layers.txt"
            path.write_text(text, "utf-8")
            try:
                return read_layers(path)
            except QdqError as error:
                error.say(lambda words: words.replace(str(path), "layers"))
                raise
    return read_layers(path_of(text, "layers", "the result of `build` or `read_engine`"))


@public
def diff(
    first: AnyPath | BuildLog | Engine | BuiltEngine, second: AnyPath | BuildLog | Engine | BuiltEngine
) -> LogDiff | EngineDiff:
    """Compare two builds of one model: two logs by their decisions, or two engines by their layers.

    Args:
        first: a build log or layer information: a file, or the result of `parse_log`, `read_engine` or `build`.
        second: another log or engine, of the same kind.

    Raises:
        InputFileError: a file cannot be read.
        UsageError: one file is a log and the other an engine.
    """
    left, right = _side(first, "first"), _side(second, "second")
    if isinstance(left, LogRun) and isinstance(right, LogRun):
        return compare_logs(left, right)
    if isinstance(left, Explored) and isinstance(right, Explored):
        return compare_engines(left, right)
    raise UsageError(
        "one file is a log, the other is layer information",
        fix="pass two logs, or two files of layer information",
        where="diff",
    )


def _side(value: object, name: str) -> LogRun | Explored:
    """Read one argument of `diff`: the last run of a log, or an engine."""
    if isinstance(value, (str, PathLike)):
        runs = read_log(Path(value)).runs
        if runs and (runs[-1].events or runs[-1].funnel or runs[-1].performance is not None):
            return runs[-1]
        name = Path(value).name
    if isinstance(value, BuildLog):
        if not value.runs:
            raise UsageError("the log contains no run", fix="pass the log of a verbose build", where=name)
        return value.runs[-1]
    engine = _engine(value)
    return Explored(name=name, engine=engine, view=view(engine))
