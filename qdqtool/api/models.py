"""Calls that convert or inspect one ONNX model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from qdqtool.api.inputs import (
    AnyPath,
    RecipeInput,
    SamplesInput,
    SettingsInput,
    fitting_recipe,
    ignored_words,
    labels_file,
    model_files,
    place_on,
    recipe_of,
    samples_of,
    target_of,
    words_of,
)
from qdqtool.api.progress import ProgressInput, public, showing
from qdqtool.api.results import Converted, ModelResult, Quantized, Repaired
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.findings import LintReport, waivers
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.placement import Placement
from qdqtool.core.prediction import Prediction
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.io.files import path_of
from qdqtool.pipeline.building import predict_built
from qdqtool.pipeline.conversion import convert_file
from qdqtool.pipeline.quantization import QuantizationJob
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.pipeline.repair import RepairRequest, repair_file
from qdqtool.pipeline.writing import check_made
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint as lint_model
from qdqtool.prediction.predict import predict as predict_model

if TYPE_CHECKING:
    from qdqtool.api.inputs import LabelsInput, ModelInput


@public
def place(
    model: ModelInput, *, recipe: RecipeInput | None = None, settings: SettingsInput = (), trust: bool = False
) -> Placement:
    """Return the node inputs that would be quantized, with the reason for every input. The model is not changed.

    Args:
        model: float model: a file, a `ModelProto`, a `gs.Graph`, or a pair of a torch module and example inputs.
        recipe: a shipped recipe's name, a .yaml file, a dict or a `Recipe`; None uses the shipped one that fits the
            model.
        settings: changes of the recipe, as {"place.first_layer": "float"}.
        trust: whether a recipe file may name Python functions, which are imported and run.

    Raises:
        InputFileError: the model cannot be read.
        UsageError: mistakes in the recipe or the settings.
    """
    with model_files(model) as (path,):
        opened = cache(partial(load, path))
        chosen = fitting_recipe(recipe, settings, opened, trust=trust)
        view = prepare(opened(), chosen.preparing).view
        refuse_unmatched(chosen, view, "place")
        return decide(view, chosen.placing)


@public
def calibrate(
    model: ModelInput,
    samples: SamplesInput,
    *,
    placement: Placement | AnyPath | None = None,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    progress: ProgressInput = None,
) -> CalibrationTable:
    """Run the samples and choose the range of every tensor that will be quantized.

    Args:
        model: float model, as for `place`.
        samples: calibration samples: arrays, feeds, a data loader, a calibration reader, a function, or a path.
        placement: the result of `place`, or a placement.json; None decides again.
        recipe: as for `place`.
        settings: as for `place`; {"calibrate.method": "max"} takes another calibrator.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: called with step, pieces done and pieces in all; returning False cancels.

    Raises:
        InputFileError: the model or a sample cannot be read, or does not fit.
        UsageError: mistakes in the arguments.
        Interrupted: `progress` returned False.
    """
    with model_files(model) as (path,), showing(progress) as shown:
        opened = cache(partial(load, path))
        chosen = fitting_recipe(recipe, place_on(device, settings), opened, trust=trust)
        work = QuantizationJob(path, chosen, samples_of(samples), _placement_of(placement), opened=opened)
        return work.table(shown.show)


@public
def quantize(
    model: ModelInput,
    samples: SamplesInput,
    out: AnyPath | None = None,
    *,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    device: str | None = None,
    trust: bool = False,
    progress: ProgressInput = None,
) -> Quantized:
    """Place, calibrate and insert Q/DQ. Returns the quantized model with placement and ranges.

    Args:
        model: float model, as for `place`.
        samples: calibration samples, as for `calibrate`.
        out: ONNX file to write; None writes nothing.
        recipe: as for `place`.
        settings: as for `place`.
        device: where models run: "cpu", "cuda:1", "openvino", as --device of the command line; None uses the recipe's.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `calibrate`.

    Raises:
        InputFileError: the model or a sample cannot be read, or does not fit.
        UsageError: mistakes in the arguments, or the model is quantized already.
        Interrupted: `progress` returned False.
    """
    with model_files(model) as (path,), showing(progress) as shown:
        opened = cache(partial(load, path))
        chosen = fitting_recipe(recipe, place_on(device, settings), opened, trust=trust)
        work = QuantizationJob(path, chosen, samples_of(samples), opened=opened)
        table = work.table(shown.show)
        return _quantize_model(work, table, work.inserted(table, shown.show), out, path)


@public
def insert(
    model: ModelInput,
    calibration: CalibrationTable | AnyPath,
    out: AnyPath | None = None,
    *,
    placement: Placement | AnyPath | None = None,
    recipe: RecipeInput | None = None,
    settings: SettingsInput = (),
    trust: bool = False,
) -> Quantized:
    """Insert Q/DQ with known ranges.

    Args:
        model: the float model that was calibrated.
        calibration: the result of `calibrate`, or a calibration.json.
        out: ONNX file to write; None writes nothing.
        placement: the placement that was calibrated; None decides again.
        recipe: as for `place`.
        settings: as for `place`.
        trust: whether a recipe file may name Python functions, which are imported and run.

    Raises:
        InputFileError: the model cannot be read.
        UsageError: a quantized tensor has no range, or the model is quantized already.
    """
    table = calibration if isinstance(calibration, CalibrationTable) else None
    with model_files(model) as (path,):
        opened = cache(partial(load, path))
        chosen = fitting_recipe(recipe, settings, opened, trust=trust)
        work = QuantizationJob(path, chosen, placement=_placement_of(placement), opened=opened)
        table = table or CALIBRATION.read(path_of(calibration, "calibration", "the result of `calibrate`"))
        return _quantize_model(work, table, work.inserted(table), out, path)


def _placement_of(placement: Placement | AnyPath | None) -> Placement | Path | None:
    return (
        placement
        if isinstance(placement, Placement | None)
        else path_of(placement, "placement", "the result of `place`")
    )


def _quantize_model(
    work: QuantizationJob, table: CalibrationTable, written: Model, out: AnyPath | None, original: Path
) -> Quantized:
    check_made(written)
    result = Quantized(
        model=whole(written.proto), notes=written.notes, placement=work.placement, calibration=table
    )
    _save_elsewhere(result, out, original)
    return result


_FloatType = Literal["fp16", "bf16"]


@public
def convert(
    model: ModelInput,
    out: AnyPath | None = None,
    types: _FloatType = "fp16",
    *,
    keep: Sequence[str] = (),
    samples: SamplesInput | None = None,
    settings: SettingsInput = (),
    progress: ProgressInput = None,
) -> Converted:
    """Convert the float part of a model to FP16 or BF16, around Q/DQ nodes if there are any.

    Args:
        model: as for `place`, with or without Q/DQ.
        out: ONNX file to write; None writes nothing.
        types: the new type.
        keep: globs of nodes that stay FP32.
        samples: with samples, tensors that overflow stay FP32, or are only reported ({"insert.overflow": "name"}).
        settings: changes of the recipe, as {"insert.keep_io": False}.
        progress: as for `calibrate`.

    Raises:
        InputFileError: the model or the samples cannot be read.
        UsageError: mistakes in the arguments.
    """
    if str(out) in get_args(_FloatType):
        raise UsageError(
            f"{out!r} is a number type, but `out` is the path of the new model",
            fix=f"pass the number type as types={out!r}",
            where="out",
        )
    kept = [f"insert.keep_nodes={json.dumps(words_of(keep, 'keep'))}"] if keep else []
    typed = recipe_of(recipe_of(None, settings), [f"insert.types={types}", *kept])
    with (
        model_files(model) as (path,),
        tempfile.TemporaryDirectory(prefix="qdqtool-convert-") as folder,
        showing(progress) as shown,
    ):
        target = Path(folder) / "model.onnx"
        conversion = convert_file(path, target, typed, samples_of(samples), shown.step("FP16 range"))
        result = Converted(model=whole(load(target).proto), notes=conversion.notes, conversion=conversion)
        _save_elsewhere(result, out, path)
        return result


@public
def repair(
    model: ModelInput,
    out: AnyPath | None = None,
    *,
    samples: SamplesInput | None = None,
    labels: LabelsInput = None,
    to_float: Sequence[str] | str = (),
    to_int8: Sequence[str] | str = (),
    recipe: RecipeInput = "conv-int8",
    settings: SettingsInput = (),
    trust: bool = False,
    progress: ProgressInput = None,
) -> Repaired:
    """Apply every static fix to a Q/DQ model of any origin. Returns the model and the changes.

    Args:
        model: Q/DQ model, as for `place`.
        out: ONNX file to write; None writes nothing.
        samples: with samples, the change of the outputs is measured, and missing ranges are calibrated.
        labels: class indices of the samples: an array, a dict by file name, or a file.
        to_float: nodes whose inputs lose their Q/DQ, or a code as "QDQ131" for all that `lint` advises it for.
        to_int8: nodes whose weights are quantized again; a code likewise.
        recipe: preprocessing and metrics, as for `place`.
        settings: as for `place`.
        trust: whether a recipe file may name Python functions, which are imported and run.
        progress: as for `calibrate`.

    Raises:
        UsageError: the model has no Q/DQ at all, or not the nodes that are named.
        InputFileError: the model or the samples cannot be read.
    """
    chosen = recipe_of(recipe, settings, trust=trust, labels=labels)
    with (
        model_files(model) as (path,),
        labels_file(labels) as label_file,
        tempfile.TemporaryDirectory(prefix="qdqtool-repair-") as folder,
        showing(progress) as shown,
    ):
        target = Path(folder) / "model.onnx"
        request = RepairRequest(
            model=path,
            out=target,
            samples=samples_of(samples),
            labels=label_file,
            recipe=chosen,
            to_float=words_of(to_float, "to_float"),
            to_int8=words_of(to_int8, "to_int8"),
        )
        report = repair_file(request, shown.step("compare"))
        result = Repaired(model=whole(load(target).proto), notes=report.notes, report=report)
        _save_elsewhere(result, out, path)
        return result


def _save_elsewhere(result: ModelResult, out: AnyPath | None, original: Path) -> None:
    """Write the result to the caller's path, but never over its source."""
    if out is None:
        return
    place = path_of(out, "out")
    if place.exists() and original.exists() and place.samefile(original):
        raise UsageError(
            "the output would overwrite the original model",
            fix="choose another output path",
            where=str(place),
        )
    result.save(place)


@public
def lint(
    model: ModelInput,
    *,
    target: str = "rtx",
    sm: Sequence[str] | str | float = (),
    select: Sequence[str] = (),
    ignore: Mapping[str, str] | Sequence[str] | None = None,
) -> LintReport:
    """Check a Q/DQ model before any build: report faults, their places, their effects in TensorRT, and fixes.

    Args:
        model: Q/DQ model, as for `place`.
        target: "rtx", a family ("8", "10", "11") or a TensorRT release ("10.13").
        sm: GPU architectures, as "86", or a single one.
        select: codes to check; all if empty.
        ignore: codes or names of rules whose findings are accepted, each with its reason: {"QDQ141": "known"} or ["QDQ141=known"].

    Raises:
        InputFileError: the model cannot be read.
        UsageError: an unknown target or code.
    """
    aim = target_of(target, sm)
    accepted = waivers(ignored_words(ignore or ()))
    if not all(accepted.values()):
        raise UsageError(
            "a code in `ignore` has no reason",
            fix='pass a reason for each code: {"QDQ101": "why this finding is accepted"}',
            where="ignore",
        )
    with model_files(model) as (path,):
        return lint_model(load(path), aim, select=words_of(select, "select"), waivers=accepted)


@public
def predict(
    model: ModelInput, *, target: str = "rtx", sm: Sequence[str] | str | float = (), build: bool = True
) -> Prediction:
    """Predict the precision of each node of a Q/DQ model in TensorRT and, if known, the layers.

    Args:
        model: Q/DQ model, as for `place`.
        target: as for `lint`.
        sm: as for `lint`.
        build: build the model if `target` is TensorRT for RTX, which needs no GPU: kernels, layers and precisions
            then come from the engine. Without it, or without the extra `rtx`, kernels are None.

    Raises:
        InputFileError: the model cannot be read.
        UsageError: an unknown target.
    """
    aim = target_of(target, sm)
    with model_files(model) as (path,):
        return predict_built(path, aim) if build else predict_model(load(path), aim)


__all__ = ["calibrate", "convert", "insert", "lint", "place", "predict", "quantize", "repair"]
