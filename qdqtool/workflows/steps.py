"""What each step of the line does: read files, call one room, write files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice

from qdqtool.accuracy.compare import compare as compare_runners
from qdqtool.audit.run import audit as audit_engine
from qdqtool.backends.ort import open_runner
from qdqtool.backends.shapes import parse_shapes, profiles
from qdqtool.buildlog import read as read_log
from qdqtool.calibration.collect import collect as collect_histograms
from qdqtool.calibration.histograms import load_histograms, save_histograms
from qdqtool.calibration.table import make_table
from qdqtool.core.build import BuildProgress, BuildRequest, InputProfile
from qdqtool.core.files import digest_file, write_text
from qdqtool.core.kinds import ACCURACY, AUDIT, BUILD, CALIBRATION, ENGINE, PLACEMENT, REPORT
from qdqtool.core.preparation import Preparation
from qdqtool.core.protocols import Builder, SampleSource
from qdqtool.engine.read import read as read_layers
from qdqtool.graph.insert import insert as insert_pairs
from qdqtool.graph.load import load
from qdqtool.graph.prepare import prepare as prepare_model
from qdqtool.graph.save import save
from qdqtool.placement.decide import decide
from qdqtool.plugins import Shelf
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from qdqtool.workflows.work import PREPARATION, Work

Measured = Mapping[str, float]


def prepare(work: Work) -> Measured:
    """Open the float model, fold what can be folded, and keep the result with notes of every change."""
    model = prepare_model(load(work.order.model), work.recipe.prepare)
    save(model, work.path("model.prepared.onnx"))
    preparation = Preparation(
        model=work.order.model.name,
        digest=digest_file(work.order.model),
        inputs=model.view.inputs,
        outputs=model.view.outputs,
        notes=model.notes,
    )
    PREPARATION.write(work.path("preparation.json"), preparation)
    return {}


def place(work: Work) -> Measured:
    """Decide for every slot whether it is quantized, and why."""
    view = work.model("model.prepared.onnx").view
    PLACEMENT.write(work.path("placement.json"), decide(view, work.recipe.place))
    return {}


def collect(work: Work) -> Measured:
    """Run the samples once and keep a histogram of every tensor that placement wants quantized."""
    placement = PLACEMENT.read(work.path("placement.json"))
    histograms = collect_histograms(
        work.model("model.prepared.onnx"),
        placement,
        limited(work.samples, work.recipe.samples.limit),
        batch=work.recipe.samples.batch,
        on_progress=work.listener.progressed,
    )
    save_histograms(work.path("histograms.npz"), histograms)
    return {"samples": float(histograms.samples)}


def calibrate(work: Work) -> Measured:
    """Choose a range for every tensor: activations from histograms, weights from their values."""
    table = make_table(
        load_histograms(work.path("histograms.npz")),
        PLACEMENT.read(work.path("placement.json")),
        work.model("model.prepared.onnx").view,
        work.recipe.calibrate,
    )
    CALIBRATION.write(work.path("calibration.json"), table)
    return {}


def insert(work: Work) -> Measured:
    """Write the Q/DQ model."""
    placement = PLACEMENT.read(work.path("placement.json"))
    table = CALIBRATION.read(work.path("calibration.json"))
    model = insert_pairs(work.model("model.prepared.onnx"), placement, table, work.recipe.insert)
    save(model, work.path("model.qdq.onnx"))
    NOTES.write(work.path("insertion.json"), model.notes)
    return {}


def build(work: Work) -> Measured:
    """Build the engine and keep its log and its layer information."""
    options = work.recipe.build
    found, notes = profiles_of(work)
    request = BuildRequest(
        model=work.path("model.qdq.onnx"),
        folder=work.folder.path,
        targets=tuple(f"sm{number.removeprefix('sm')}" for number in options.sm),
        profiles=found,
        timeout_s=options.timeout_s,
        stack_mib=options.stack_mib,
        cache=work.order.cache,
    )
    result, cost = builder_of(work).build(request, partial(_built, work))
    BUILD.write(work.path("build.json"), replace(result, notes=(*result.notes, *notes)))
    peak = {} if cost.peak_mib is None else {"builder_peak_mib": cost.peak_mib}
    return {"builder_seconds": cost.seconds, "cached": float(cost.cached), **peak}
