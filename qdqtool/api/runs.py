"""Calls with many steps: the whole pipeline, comparisons, and searches over many configurations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.accuracy.metric import list_passed
from qdqtool.api.inputs import (
    AnyPath,
    RecipeInput,
    SamplesInput,
    SettingsInput,
    count_of,
    fit_recipe,
    fitting_recipe,
    labels_file,
    model_files,
    number_of,
    place_on,
    recipe_of,
    samples_of,
    spell_settings,
    words_of,
)
from qdqtool.api.progress import ProgressInput, public, showing
from qdqtool.core.comparison import Comparison
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.sweep import Sweep
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.io.files import path_of
from qdqtool.pipeline.comparing import ComparedSides, compare_match
from qdqtool.pipeline.preparations import read_task
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.search import limited_run
from qdqtool.pipeline.search.float_nodes import Limit
from qdqtool.pipeline.search.sensitivity import SensitivityOptions, SensitivityRequest, study
from qdqtool.pipeline.third_party import course_of

if TYPE_CHECKING:
    from qdqtool.api.inputs import LabelsInput, ModelInput


@public
def run(
    model: ModelInput,
    samples: SamplesInput,
    out: AnyPath | None = None,
    *,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    eval_samples: SamplesInput | None = None,
    labels: LabelsInput = None,
    reference: ModelInput | None = None,
    progress: ProgressInput = None,
) -> Report:
    """Run the whole pipeline: from a model and samples to an audited engine and a report.

    Args:
        model: float model, or one with Q/DQ, which is linted and repaired first: a file, a `ModelProto`, a `gs.Graph`, or a pair of a torch module and example inputs.
        samples: calibration samples: arrays, feeds, a data loader, a calibration reader, a function, or a path.
        out: run folder, in which finished steps are not repeated; None keeps only the report.
        recipe: a shipped recipe's name, a .yaml file, a dict or a `Recipe`; None uses the shipped one that fits the
            model.
        settings: changes of the recipe, as {"place.first_layer": "float"}.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        eval_samples: evaluation samples; None compares on `samples`.
        labels: class indices of the evaluation samples: an array, a dict by file name, or a file.
        reference: the float model with which a model with Q/DQ is compared; None uses the model without its Q/DQ.
        progress: called with step, pieces done and pieces in all; returning False cancels.

    Raises:
        QdqError: a step failed; with `out`, finished steps stay, and the next call continues from them.
    """
    sources = [model] if reference is None else [model, reference]
    with (
        model_files(*sources) as (path, *references),
        labels_file(labels) as label_file,
        _folder(out) as folder,
        showing(progress) as shown,
    ):
        opened = cache(partial(load, path))
        request = RunRequest(
            model=path,
            recipe=fitting_recipe(recipe, place_on(device, settings), opened, trust=trust, labels=labels),
            brought=opened(),
            samples=samples_of(samples),
            eval_samples=samples_of(eval_samples) or None,
            labels=label_file,
            out=folder,
            reference=references[0] if references else None,
        )
        return limited_run.run(request, shown, course=course_of(request))


@contextmanager
def _folder(out: AnyPath | None) -> Iterator[Path]:
    """Provide the folder that the caller named, or a temporary folder that is removed afterwards."""
    if out is not None:
        yield path_of(out, "out")
        return
    with tempfile.TemporaryDirectory(prefix="qdqtool-run-") as folder:
        yield Path(folder)


@public
def compare(
    reference: ModelInput,
    candidate: ModelInput,
    samples: SamplesInput | None = None,
    *,
    labels: LabelsInput = None,
    inside: bool = False,
    metrics: Sequence[str | Callable[[Any, Any], float]] | None = None,
    recipe: RecipeInput = "conv-int8",
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    progress: ProgressInput = None,
) -> Comparison:
    """Compare the outputs of two models on the same samples, run by onnxruntime.

    Args:
        reference: a model as for `run`, "int:" and a Q/DQ file for its integer emulation, or stored outputs.
        candidate: the model or outputs to evaluate, as for `reference`.
        samples: inputs of both sides, as for `run`; two sides of stored outputs need none.
        labels: class indices of the samples, as for `run`.
        inside: also compare the tensors inside two ONNX models.
        metrics: names of metrics, and functions of two float64 arrays, the reference and the candidate of one
            sample's output, that return a number. The report shows the mean of a function over the samples under its
            name. None uses the recipe's.
        recipe: preprocessing and metrics, as for `run`.
        settings: changes of the recipe, as {"compare.metrics": ["cosine"]}.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `run`.

    Raises:
        InputFileError: a model or sample cannot be read, or does not fit.
        UsageError: mistakes in the arguments.
    """
    stored = [isinstance(side, (str, PathLike)) for side in (reference, candidate)]
    name, changes = spell_settings(recipe, place_on(device, settings))
    if labels is None and isinstance(reference, (str, PathLike)):
        changes = (*read_task(path_of(reference), name), *changes)
    chosen = recipe_of(name, changes, trust=trust, labels=labels)
    if isinstance(metrics, str) or callable(metrics):
        raise UsageError("metrics are not a list", fix='pass a list, such as ["cosine"]', where="metrics")
    with (
        model_files(reference, candidate) as paths,
        labels_file(labels) as label_file,
        showing(progress) as shown,
        list_passed(chosen.compare.metrics if metrics is None else metrics) as names,
    ):
        sides = [
            fspath(source) if is_spec and isinstance(source, (str, PathLike)) else str(path)
            for source, path, is_spec in zip((reference, candidate), paths, stored, strict=True)
        ]
        match = ComparedSides(
            reference=sides[0],
            candidate=sides[1],
            samples=samples_of(samples) or None,
            labels=label_file,
            recipe=chosen.model_copy(
                update={"compare": chosen.compare.model_copy(update={"metrics": names})}
            ),
            inside=inside,
        )
        return compare_match(match, shown.step("compare"))


@public
def sensitivity(
    model: ModelInput,
    samples: SamplesInput,
    out: AnyPath | None = None,
    *,
    eval_samples: SamplesInput | None = None,
    labels: LabelsInput = None,
    top: int = 10,
    quick: int = 4,
    groups: Sequence[str] = (),
    min_sqnr: float | None = None,
    max_drop: float | None = None,
    causes: bool = True,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    workers: int = 0,
    progress: ProgressInput = None,
) -> Sensitivity:
    """Measure the accuracy that each quantized node costs, and propose nodes to keep float.

    Args:
        model: a Q/DQ model, or a float one, as for `run`.
        samples: samples to measure on, and to calibrate a float model with, as for `run`.
        out: folder for sensitivity.json and finished runs; with it, a stopped study can be resumed.
        eval_samples: samples for the study, if they differ from `samples`.
        labels: class indices of these samples, as for `run`.
        top: nodes that are run exactly.
        quick: samples of the estimate.
        groups: glob patterns: nodes that match are switched together.
        min_sqnr: advise the smallest float set that keeps this SQNR in dB.
        max_drop: advise the smallest float set that loses at most this many points.
        causes: find out why the noisiest nodes are noisy, and try possible cures.
        recipe: as for `run`.
        settings: changes of the recipe.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        workers: samples that run in parallel; 0 is one per processor.
        progress: as for `run`.

    Raises:
        UsageError: no node is quantized, or mistakes in the arguments.
        InputFileError: a file is unreadable or does not fit.
    """
    limits = Limit(
        max_drop=None if max_drop is None else number_of(max_drop, "max_drop"),
        min_sqnr=None if min_sqnr is None else number_of(min_sqnr, "min_sqnr"),
    )
    with (
        model_files(model) as (path,),
        labels_file(labels) as label_file,
        showing(progress) as shown,
    ):
        request = SensitivityRequest(
            model=path,
            recipe=fitting_recipe(recipe, place_on(device, settings), path, trust=trust, labels=labels),
            samples=samples_of(samples),
            eval_samples=samples_of(eval_samples) or None,
            labels=label_file,
            options=SensitivityOptions(
                quick=count_of(quick, "quick"),
                top=count_of(top, "top", 0),
                groups=words_of(groups, "groups"),
                limit=limits,
                causes=causes,
            ),
            out=None if out is None else path_of(out, "out"),
            workers=count_of(workers, "workers", 0),
        )
        return study(request, shown.show)


@public
def sweep(
    model: ModelInput,
    samples: SamplesInput,
    out: AnyPath | None = None,
    *,
    eval_samples: SamplesInput | None = None,
    labels: LabelsInput = None,
    trials: int | None = None,
    storage: str = "",
    pick: str = "",
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    progress: ProgressInput = None,
) -> Sweep:
    """Try many configurations of a model, and return those with the best accuracy for their speed (the Pareto front).

    Args:
        model: float model, as for `run`.
        samples: calibration samples, as for `run`.
        out: folder of the sweep, with a run folder of every Pareto point; None keeps only the result.
        eval_samples: evaluation samples; None takes `samples`.
        labels: class indices of the evaluation samples, as for `run`.
        trials: how many; None tries the whole grid, or 50 with a sampler that draws.
        storage: address of the study, as postgresql://..., which many processes may share.
        pick: also make the run folder OUT/pick: "max-drop 0.5", "min-accuracy 70", "min-sqnr 30" or "max-ms 1.5".
        recipe: base recipe, as for `run`; its section `sweep` is the space.
        settings: changes of the base recipe, as {"sweep.keep_float": [0, 1]}.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `run`.

    Raises:
        MissingPackage: optuna is not installed.
        UsageError: there is nothing to search, or mistakes in the arguments.
        InputFileError: the storage or the folder cannot be used.
    """
    from qdqtool.pipeline.sweep import SweepRequest
    from qdqtool.pipeline.sweep import sweep as search

    with (
        model_files(model) as (path,),
        labels_file(labels) as label_file,
        _folder(out) as folder,
        showing(progress) as shown,
    ):
        name, changes = fit_recipe(recipe, place_on(device, settings), path, labels=labels)
        request = RunRequest(
            model=path,
            recipe=recipe_of(name, changes, trust=trust),
            samples=samples_of(samples),
            eval_samples=samples_of(eval_samples) or None,
            labels=label_file,
            out=folder,
        )
        sweep_request = SweepRequest(
            base=request,
            recipe=name,
            settings=changes,
            trials=None if trials is None else count_of(trials, "trials"),
            storage=storage,
        )
        return search(sweep_request, pick, shown.show)
