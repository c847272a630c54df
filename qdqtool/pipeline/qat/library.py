"""The steps of training with quantizers as separate functions, for users with their own training loop."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdqtool.backends.torch_qat.export import export as write_float
from qdqtool.backends.torch_qat.material import Traced, feeds_of, trace
from qdqtool.backends.torch_qat.model import PreparedModel
from qdqtool.backends.torch_qat.quantized_model import TRAINED
from qdqtool.backends.torch_qat.training import from_first, gather_lists
from qdqtool.calibration.samples import sample_objects
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import AUTO, Recipe, WeightOptions
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare as prepare_graph
from qdqtool.graph.preparation.prepare import prepare_as_placed
from qdqtool.graph.qdq.insert import insert_for_engine
from qdqtool.graph.view import Model
from qdqtool.io.files import make_folder
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.conversion import reach_for, wants_samples
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.pipeline.writing import write
from qdqtool.placement.decide import decide

_LOGGER = logging.getLogger(__name__)


def prepare(
    network: Any, example_inputs: Any, recipe: Recipe, placement: Placement | None = None
) -> PreparedModel:
    """Return the network with quantizers, as the recipe's placement or the passed placement requires.

    Raises:
        UsageError: the network cannot be traced or exported, or the placement quantizes nothing.
    """
    return prepare_traced(trace(network, example_inputs, recipe.qat), recipe, placement)


def prepare_traced(traced: Traced, recipe: Recipe, placement: Placement | None = None) -> PreparedModel:
    """Prepare a network as `prepare` does; the network is already traced."""
    with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
        path = Path(folder) / "float.onnx"
        write_float(traced.flat, traced.example, path, exporter=recipe.qat.exporter, opset=recipe.qat.opset)
        ready = _ready(path, recipe, placement)
        ready = replace(ready, proto=whole(ready.proto))  # it exists longer than its file
    refuse_unmatched(recipe, ready.view, "calibrate", "insert", *([] if placement else ["place"]))
    chosen = placement or decide(ready.view, recipe.placing)
    if not chosen.quantized:
        raise UsageError(
            "the placement quantizes nothing, so there is nothing to train",
            fix="to see why each node stays float, call qdqtool.place((model, example_inputs))",
            where="recipe",
        )
    prepared = PreparedModel(traced.flat, chosen, ready.view, recipe.qat)
    prepared.recipe, prepared.example, prepared.inputs = _for_training(recipe), traced.example, traced.inputs
    return prepared


def _for_training(recipe: Recipe) -> Recipe:
    """Return the recipe without changes of weights: training changes the weights, and rounds to nearest.

    A table with rounded weights or scaled channels would put those of before the training into the exported model.
    """
    plain = WeightOptions(rounding="mse" if recipe.weights.rounding == "mse" else "nearest", equalize="none")
    if recipe.weights.rounds_by_outputs or recipe.weights.equalize not in {"none", AUTO}:
        _LOGGER.warning(
            "weights.rounding=%s and weights.equalize=%s apply to calibration only: training ignores them",
            recipe.weights.rounding,
            recipe.weights.equalize,
        )
    return recipe.model_copy(update={"weights": plain})


def calibrate(model: PreparedModel, loader: Iterable[Any], limit: int) -> CalibrationTable:
    """Choose all ranges on the first `limit` samples, and initialize the quantizers with them, in place.

    With torch.distributed, every rank reads the samples of its own loader. All ranks get equal ranges: the ranges of
    one process that reads all samples.

    Raises:
        InputFileError: the loader returns no samples, or samples that do not fit the model.
    """
    feeds = gather_lists(feeds_of(loader, model.inputs, limit))
    with _float(model) as (path, ready):
        if not feeds:
            raise InputFileError("the loader has no samples", fix="pass at least one batch", where="loader")
        table = from_first(lambda: _calibration(model, path, ready, feeds, {}).table())
        model.set_calibration(table, ready.view)
    return table


def start_from(model: PreparedModel, table: CalibrationTable) -> None:
    """Initialize the quantizers with a table that `calibrate` returned for this model earlier."""
    with _float(model) as (_, ready):
        model.set_calibration(table, ready.view)


def export(model: PreparedModel, path: Path, loader: Iterable[Any] = (), limit: int = 512) -> Path:
    """Write the trained network as a Q/DQ model with the trained ranges. If it fails, no file is written.

    Slots without a quantizer get ranges of the trained network on the samples of `loader`; without samples they keep those
    that calibration gave them.

    Raises:
        UsageError: the model was never calibrated, or the exporter refuses it.
        InputFileError: the samples do not fit.
    """
    table, options = model.trained(), model.recipe.insert
    is_fed = bool(model.sites.lost) or wants_samples(options)
    feeds = feeds_of(loader, model.inputs, limit) if is_fed else []
    with _float(model) as (source, ready):
        reach = None
        if feeds:
            # Keep the trained biases, which began as the corrected biases.
            job = _calibration(model, source, ready, feeds, {"bias": "keep"})
            table = _refresh_ranges(table, job) if model.sites.lost else table
            reach, notes = reach_for(ready, options, job.samples)
            for note in notes:
                _LOGGER.warning("%s", note)
        make_folder(path.parent)
        write(insert_for_engine(ready, model.placement, table, options, reach), path, step="qat export")
    return path


def _refresh_ranges(trained: CalibrationTable, job: Calibration) -> CalibrationTable:
    """Return the table with new ranges for the trained network; trained quantizers keep their ranges."""
    kept = {entry.tensor: entry for entry in trained.ranges if entry.method == TRAINED}
    fresh = job.table()
    return replace(fresh, ranges=tuple(kept.get(entry.tensor, entry) for entry in fresh.ranges))


def _calibration(
    model: PreparedModel, path: Path, ready: Model, feeds: list[Any], changes: Mapping[str, Any]
) -> Calibration:
    """Return a calibration job for the network with its current weights and the samples."""
    # the trained quantizers are symmetric
    options = model.recipe.calibrate.model_copy(update={**changes, "symmetric": "always"})
    recipe = model.recipe.model_copy(update={"calibrate": options})
    job = Calibration(CalibrationRequest(model=path, recipe=recipe, samples=sample_objects(feeds)))
    job.use(ready, model.placement)
    return job


@contextmanager
def _float(model: PreparedModel) -> Iterator[tuple[Path, Model]]:
    """Yield the float ONNX file of the network with its current weights, and the prepared model."""
    with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
        path = Path(folder) / "float.onnx"
        model.write_float(path, model.example)
        yield path, _ready(path, model.recipe, model.placement)


def _ready(path: Path, recipe: Recipe, placement: Placement | None) -> Model:
    """Prepare the exported network as `run` and `place` do, but keep tensor names for the quantizers.

    So projections are not merged, and Transposes are not moved.
    """
    if placement is None:
        return prepare_graph(load(path), recipe.preparing_by_name)
    return prepare_as_placed(load(path), recipe.preparing_by_name, placement)
