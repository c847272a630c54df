"""The steps of training with quantizers, one by one, for training loops of other people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdqtool.backends.torch_qat.export import export as write_float
from qdqtool.backends.torch_qat.material import feeds_of, trace
from qdqtool.backends.torch_qat.model import PreparedModel
from qdqtool.backends.torch_qat.ranks import from_first, gathered
from qdqtool.calibration.samples import sample_objects
from qdqtool.calibration.span import Span
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.preparation.prepare import prepare as prepare_graph
from qdqtool.graph.qdq.insert import insert
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.placement.decide import decide


def prepare(
    network: Any, example_inputs: Any, recipe: Recipe, placement: Placement | None = None
) -> PreparedModel:
    """The network with quantizers where the recipe's placement, or the one given, wants them.

    Raises:
        UsageError: the network cannot be traced or exported, or the placement quantizes nothing.
    """
    traced = trace(network, example_inputs, recipe.qat)
    with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
        path = Path(folder) / "float.onnx"
        write_float(traced.flat, traced.example, path, exporter=recipe.qat.exporter, opset=recipe.qat.opset)
        ready = prepare_graph(load(path), recipe.prepare)
    chosen = placement or decide(ready.view, recipe.placing)
    if not chosen.quantized:
        raise UsageError(
            "the placement quantizes nothing, so there is nothing to train",
            fix="read the reasons: qdqtool.place((model, example_inputs))",
            where="recipe",
        )
    made = PreparedModel(traced.flat, chosen, ready.view, recipe.qat)
    made.recipe, made.example, made.inputs = recipe, traced.example, traced.inputs
    return made


def calibrate(model: PreparedModel, loader: Iterable[Any], limit: int) -> CalibrationTable:
    """Choose all ranges on the first `limit` samples and start the quantizers from them; in place.

    With torch.distributed every rank gives the samples of its own loader, and all get the same ranges: those of one
    process that sees all samples.

    Raises:
        InputFileError: the loader gives nothing, or what does not fit.
    """
    feeds = gathered(feeds_of(loader, model.inputs, limit))
    with _float(model) as (path, ready):
        table = from_first(lambda: _table(model, path, ready, feeds))
        model.set_calibration(table, ready.view)
    return table


def export(model: PreparedModel, path: Path) -> Path:
    """Write the trained network as a Q/DQ model with the trained ranges, all or nothing.

    Raises:
        UsageError: the model was never calibrated, or the exporter refuses it.
    """
    table = model.trained()
    with _float(model) as (_, ready):
        made = insert(ready, model.placement, table, model.recipe.insert)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(made, path)
    return path


def _table(model: PreparedModel, path: Path, ready: Model, feeds: list[Any]) -> CalibrationTable:
    if not feeds:
        raise InputFileError("the loader gives no samples", fix="pass at least one batch", where="loader")
    request = CalibrationRequest(model=path, recipe=model.recipe, samples=sample_objects(feeds))
    job = Calibration(request)
    job.use(ready, model.placement)
    method = model.recipe.calibrate.method
    collection = job.collection(job.collect_options([method]), resumable=False)
    histograms = collection.run(Span(total=len(job.samples)))
    table = job.tables(histograms, [method])[method]
    return replace(table, findings=job.findings(table))


@contextmanager
def _float(model: PreparedModel) -> Iterator[tuple[Path, Model]]:
    """The network with its weights of now as a prepared ONNX model."""
    with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
        path = Path(folder) / "float.onnx"
        model.write_float(path, model.example)
        yield path, prepare_graph(load(path), model.recipe.prepare)
