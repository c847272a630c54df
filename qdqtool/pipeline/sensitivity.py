"""Sensitivity of a Q/DQ model, or of a float one that is placed, calibrated and given its Q/DQ on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from qdqtool.accuracy.parts import with_parts
from qdqtool.accuracy.run_store import RunJournal
from qdqtool.accuracy.sensitivity import SensitivityOptions, Subject, sensitivity
from qdqtool.accuracy.trials import TrialRunner
from qdqtool.calibration.histograms import fitting_histograms, load_histograms
from qdqtool.calibration.samples import SampleInput, open_samples
from qdqtool.core.calibration import NodeShift
from qdqtool.core.kinds import CALIBRATION, PLACEMENT, SENSITIVITY
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.wording import counted
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.stages import StagedModel
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import digest
from qdqtool.graph.qdq.changes import unrounded
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.insert import insert
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.causes import Origin, explained
from qdqtool.pipeline.own_models import or_without
from qdqtool.pipeline.random_shapes import opener, shaped
from qdqtool.pipeline.staged import StagedRunner
from qdqtool.trt.ops import PRODUCTS

OnStep = Callable[[str, int, "int | None"], None]
"""Called with what is being done, and how many pieces of how many are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityRequest:
    """One study, please.

    Attributes:
        model: a Q/DQ model, best in its run folder, or a float one.
        recipe: how a float model is quantized; preprocessing and task for both.
        samples: what is run, as typed; for a float model also what is calibrated on.
        eval_samples: what is run, where that is not `samples`.
        labels: file of class indices of what is run, or None.
        options: how thorough, and the limit.
        out: folder of the journal and of sensitivity.json; None keeps nothing.
        workers: samples that run at the same time; 0 takes one per processor.
    """

    model: Path
    recipe: Recipe
    samples: SampleInput
    eval_samples: SampleInput | None
    labels: str | None
    options: SensitivityOptions
    out: Path | None = None
    workers: int = 0


_STUCK = "what they read is stored in few bits, or in blocks whose scales are computed"


def study(request: SensitivityRequest, on_step: OnStep) -> Sensitivity:
    """The sensitivity of every quantized node; with `request.out` a study that was stopped goes on.

    Raises:
        UsageError: nothing is quantized, or an option does not fit.
        InputFileError: a file is unreadable or does not fit.
    """
    subject = _quantized(request, on_step)
    model, shifts, plain = subject.model, subject.shifts, subject.plain
    first, second, parts = with_parts(plain or model, model)
    staged = StagedModel(second, shifts, plain=first if plain else None)
    fixed = [node for node in staged.stuck if node not in staged.nodes]
    if fixed and not staged.nodes:
        raise UsageError(
            f"none of its {counted(len(fixed), 'quantized node')} can be switched alone: {_STUCK}",
            fix="compare formats of the whole model: `qdqtool sweep` varies place.format and place.formats",
            where=str(request.model),
        )
    samples = open_samples(
        shaped(
            request.eval_samples or request.samples,
            staged.inputs,
            request.recipe.build.opt_shapes,
            opener(model),
        ),
        staged.inputs,
        request.recipe.samples.preprocess,
        labels=request.labels,
        limit=request.recipe.compare.limit,
        on_nan=request.recipe.samples.nan,
    )
    about = {
        "model": digest(second),
        "shifts": [asdict(entry) for entry in shifts],
        "samples": samples.digest,
        "labels": request.labels,
        "compare": request.recipe.compare.model_dump(mode="json"),
    }
    key = hashlib.sha256(canonical(about).encode()).hexdigest()
    journal = None if request.out is None else RunJournal(request.out / "sensitivity.runs.jsonl", key)
    runner = StagedRunner(staged, request.model.name, workers=request.workers, network=model)
    bench = TrialRunner(runner, request.recipe.compare, store=journal, parts=parts)
    ops = {node.name: node.op for node in model.view.nodes}
    asked = Subject(
        name=request.model.name,
        ops={node: ops[node] for node in staged.nodes},
        compute=frozenset(name for name, op in ops.items() if op in PRODUCTS),
    )
    found = sensitivity(
        bench, asked, samples, request.options, lambda done, total: on_step("run", done, total)
    )
    if fixed:
        said = f"{counted(len(fixed), 'quantized node is', 'quantized nodes are')} not switched, the first {fixed[0]!r}: {_STUCK}"
        found = replace(found, notes=(*found.notes, said))
    if request.options.causes:
        before = found
        found, notes = or_without(
            "looking for causes and cures",
            lambda: explained(
                before,
                model,
                plain,
                subject.origin,
                samples,
                lambda done, total: on_step("try cures", done, total),
            ),
            lambda: before,
        )
        found = replace(found, notes=(*found.notes, *notes))
    if request.out is not None:
        SENSITIVITY.write(
            request.out / "sensitivity.json", found, {"options": canonical(asdict(request.options)).strip()}
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Quantized:
    """A Q/DQ model, the bias corrections in it, its float form, and what it was made of, as far as they are known."""

    model: Model
    shifts: tuple[NodeShift, ...] = ()
    plain: Model | None = None
    origin: Origin | None = None


def _quantized(request: SensitivityRequest, on_step: OnStep) -> _Quantized:
    """The model with its Q/DQ, calibrated here where it has none; what else is known of one stands in its run folder."""
    model = load(request.model)
    if quantized_ops(model):
        known = (
            request.model.name == "model.qdq.onnx" and request.model.with_name("calibration.json").is_file()
        )
        return _of_run(request, model) if known else _Quantized(model=model)
    if not request.samples:
        raise UsageError("samples are missing", fix="name them with --samples", where=str(request.model))
    calibration = Calibration(
        CalibrationRequest(model=request.model, recipe=request.recipe, samples=request.samples)
    )
    method = request.recipe.calibrate.method
    histograms = calibration.collect(
        # other calibrators are tried as cures, and most of them need counted magnitudes
        calibration.collect_options([AUTO if request.options.causes else method]),
        None,
        on_progress=lambda done, total: on_step("calibrate", done, total),
    )
    table = calibration.tables(histograms, [method])[method]
    return _Quantized(
        model=insert(calibration.model, calibration.placement, table, request.recipe.insert),
        shifts=table.shifts,
        plain=unrounded(calibration.model, table),
        origin=Origin(
            prepared=calibration.model,
            placement=calibration.placement,
            table=table,
            histograms=calibration.histograms[method],
            recipe=request.recipe,
        ),
    )


def _of_run(request: SensitivityRequest, model: Model) -> _Quantized:
    """A Q/DQ model in the folder of the run that made it."""
    folder = request.model.parent
    table = CALIBRATION.read(folder / "calibration.json")
    prepared, placement, histograms = (
        folder / name for name in ("model.prepared.onnx", "placement.json", fitting_histograms(folder).name)
    )
    if not prepared.is_file():
        return _Quantized(model=model, shifts=table.shifts)
    plain = load(prepared)
    origin = None
    if placement.is_file():
        origin = Origin(
            prepared=plain,
            placement=PLACEMENT.read(placement),
            table=table,
            histograms=load_histograms(histograms) if histograms.is_file() else None,
            recipe=request.recipe,
        )
    return _Quantized(model=model, shifts=table.shifts, plain=unrounded(plain, table), origin=origin)
