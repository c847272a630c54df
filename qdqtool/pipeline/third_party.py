"""The pipeline for a model that is already quantized: lint, repair, predict, build, parse, engine, audit, compare, report.

Takes a Q/DQ model of any origin, or a float model with a calibration cache, which becomes a Q/DQ model first. The
float model for the accuracy comparison is the model without all Q/DQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqtool.calibration.caches import read_cache
from qdqtool.core.advice import repairing
from qdqtool.core.kinds import (
    AUDIT,
    LINT,
    PREDICTION,
    PREPARATION,
    REPAIR,
)
from qdqtool.core.preparation import Preparation
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import give_constants
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.io.files import digest_file
from qdqtool.pipeline import readback, steps
from qdqtool.pipeline.repair import RepairRequest, repair_file
from qdqtool.pipeline.request import RunContext, RunRequest
from qdqtool.pipeline.runner import LINE, RunStep, model_digest, read_by_sections
from qdqtool.pipeline.steps import Measured
from qdqtool.pipeline.writing import write
from qdqtool.placement.lint import lint as find_mistakes
from qdqtool.prediction.predict import predict as foresee

GIVEN = "model.given.onnx"
"""File of the Q/DQ model as it was given, or as it was made from a cache."""


def take(work: RunContext) -> Measured:
    """Copy the original model to the run folder; with a calibration cache, turn the cache into Q/DQ nodes first."""
    order = work.request
    if order.calibration_cache is None:
        write(load(order.model), work.path(GIVEN), step="load")
        return {}
    cache = read_cache(order.calibration_cache)
    typed = order.samples if isinstance(order.samples, str) else ""
    samples = "" if typed.startswith("random") else typed
    model, notes = readback.to_qdq(order.model, cache, order.recipe, samples)
    write(model, work.path(GIVEN), step="cache to-qdq")
    return {"notes": float(len(notes))}


def lint(work: RunContext) -> Measured:
    """Report the problems of the original model."""
    result = find_mistakes(work.model(GIVEN), work.recipe.placing.builder)
    LINT.write(work.path("lint.json"), result)
    return {"findings": float(len(result.findings))}


def repair(work: RunContext) -> Measured:
    """Make the quantized model valid and fast for TensorRT, and keep the float model without its Q/DQ."""
    request = RepairRequest(
        model=work.path(GIVEN),
        out=work.path("model.qdq.onnx"),
        samples=work.shaped(work.request.samples, work.model(GIVEN).view.inputs),
        labels=_labels(work),
        recipe=work.recipe,
    )
    report = repair_file(request, work.listener.progressed)
    REPAIR.write(work.path("repair.json"), replace(report, model=work.request.model.name))
    repaired = load(work.path("model.qdq.onnx"))
    plain = float_graph(repaired)
    write(plain, work.path("model.prepared.onnx"), step="prepare")
    preparation = Preparation(
        model=work.request.model.name,
        digest=digest_file(work.request.model),
        inputs=plain.view.inputs,
        outputs=plain.view.outputs,
        notes=(*([f"quantized by {report.origin}"] if report.origin else []), *report.notes),
    )
    PREPARATION.write(work.path("preparation.json"), preparation)
    return {"changes": float(len(report.changes))}


def predict(work: RunContext) -> Measured:
    """Predict the behaviour of TensorRT for the repaired model."""
    PREDICTION.write(
        work.path("prediction.json"), foresee(work.model("model.qdq.onnx"), work.recipe.placing.builder)
    )
    return {}


def audit(work: RunContext) -> Measured:
    """Give every compute node a verdict. There is no placement, so the Q/DQ nodes show the requested formats."""
    AUDIT.write(work.path("findings.json"), steps.audit_folder(work, None))
    return {}


def data(work: RunContext) -> Measured:
    """Check the samples and the labels of a quantized model, and find the nodes that lose most of the signal."""
    steps.judge_data(work, None)
    return {}


def report(work: RunContext) -> Measured:
    """Write the report, for people and for scripts."""
    repaired = REPAIR.read(work.path("repair.json"))
    tool = f"; written by {repaired.origin}" if repaired.origin else ""
    came = f"the model already contained Q/DQ{tool}: repair made {count_noun(len(repaired.changes), 'change')} (repair.json)"
    steps.write_report(work, came, *without_effect(work))
    return {}


_ASKED = ("exclude", "exclude_ops", "format", "formats", "kept_float", "only", "skip_rules")
"""Settings of `place` that users give for some nodes."""


def without_effect(work: RunContext) -> tuple[str, ...]:
    """Return a note on placement settings without effect: a model with Q/DQ is not placed again."""
    if work.request.calibration_cache is not None:
        return ()
    default, options = PlacementOptions(), work.recipe.place
    named = [f"place.{key}" for key in _ASKED if getattr(options, key) != getattr(default, key)]
    if not named:
        return ()
    without = f"{', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect: the model already contains Q/DQ"
    return (f"{without}; {repairing(to_float=['NODE'])} removes them from a node",)


def _labels(work: RunContext) -> str | None:
    """Return the labels of the samples that repair runs; None if the labels belong to separate evaluation samples."""
    return None if work.request.eval_samples else work.request.labels


def _origin(work: RunContext) -> Mapping[str, str]:
    order = work.request
    if order.calibration_cache is None:
        return model_digest(work)
    inputs = give_constants(order.opened(), work.recipe.prepare.constants).view.inputs
    samples = work.opened(order.samples, inputs).digest
    return {
        **model_digest(work),
        "calibration cache": digest_file(order.calibration_cache),
        "samples": samples,
    }


def _samples(work: RunContext) -> Mapping[str, str]:
    inputs = work.model(GIVEN).view.inputs
    return {"samples": work.opened(work.request.samples, inputs, labels=_labels(work)).digest}


_BY_NAME = {step.name: step for step in LINE}
QDQ_LINE = (
    RunStep(
        name="take",
        act=take,
        reads=(),
        writes=(GIVEN,),
        obeys=("prepare", "placing", "calibrate", "insert", "samples"),
        outside=_origin,
    ),
    RunStep(name="lint", act=lint, reads=(GIVEN,), writes=("lint.json",), obeys=("placing",)),
    RunStep(
        name="repair",
        act=repair,
        reads=(GIVEN,),
        writes=("model.qdq.onnx", "model.prepared.onnx", "repair.json", "preparation.json"),
        obeys=("samples", "place", "build", "compare", "compute"),
        outside=_samples,
    ),
    RunStep(
        name="predict",
        act=predict,
        reads=("model.qdq.onnx",),
        writes=("prediction.json",),
        obeys=("placing",),
    ),
    _BY_NAME["build"],
    _BY_NAME["parse"],
    _BY_NAME["engine"],
    RunStep(
        name="audit",
        act=audit,
        reads=("model.prepared.onnx", "layers.json", "log.json", "build.json"),
        writes=("findings.json",),
        obeys=("audit",),
        outside=_BY_NAME["audit"].outside,
    ),
    _BY_NAME["worth"],
    _BY_NAME["compare"],
    RunStep(
        name="data",
        act=data,
        reads=("model.prepared.onnx", "accuracy.json"),
        writes=("data.json",),
        obeys=("audit", "compare", "samples", "place", "insert", "compute"),
        outside=_BY_NAME["data"].outside,
    ),
    RunStep(
        name="report",
        act=report,
        reads=(
            "preparation.json",
            "repair.json",
            "build.json",
            "log.json",
            "layers.json",
            "findings.json",
            "worth.json",
            "accuracy.json",
            "data.json",
        ),
        writes=("report.json", "report.html"),
        obeys=("place", *_BY_NAME["report"].obeys),
        outside=read_by_sections,
    ),
)
"""Steps of a run of a Q/DQ model. Steps that do not depend on the origin of the Q/DQ are those of a float model."""


def course_of(request: RunRequest) -> tuple[RunStep, ...]:
    """Return the steps of a run: for a float model, for a quantized model, or for a model with the ranges of a cache.

    Raises:
        InputFileError: the model cannot be read.
        UsageError: a float model is to be compared with another one.
    """
    if request.calibration_cache is not None or quantized_ops(request.opened()):
        return QDQ_LINE
    if request.reference is not None:
        raise UsageError(
            "a float model is compared with itself",
            fix="remove the reference, or run the model with Q/DQ",
            where=str(request.model),
        )
    return LINE
