"""The steps of training with quantizers, one by one, for training loops of other people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from qdqtool.backends.torch_qat.export import export as write_float
from qdqtool.backends.torch_qat.flat import flatten, placeholders
from qdqtool.backends.torch_qat.model import QatModel
from qdqtool.backends.torch_qat.quantized_model import fold_norms
from qdqtool.calibration.samples import sample_objects
from qdqtool.calibration.span import Span
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.graph.insert import insert
from qdqtool.graph.load import load
from qdqtool.graph.model import Model
from qdqtool.graph.prepare import prepare as prepare_graph
from qdqtool.graph.save import save
from qdqtool.pipeline.calibration import Calibration, CalibrationOrder
from qdqtool.placement.decide import decide


class PreparedModel(QatModel):
    """What `prepare` returns: the module to train, with what its calibration and export need."""

    recipe: Recipe
    example: tuple[torch.Tensor, ...]
    inputs: tuple[str, ...]


def prepare(
    network: nn.Module, example_inputs: Any, recipe: Recipe, placement: Placement | None = None
) -> PreparedModel:
    """The network with quantizers where the recipe's placement, or the one given, wants them.

    Raises:
        UsageError: the network cannot be traced or exported, or the placement quantizes nothing.
    """
    example = _example(example_inputs, network)
    flat = flatten(network, example)
    if recipe.qat.batchnorm == "fold":
        flat = fold_norms(flat)
    names = placeholders(flat)
    if len(names) != len(example):
        raise UsageError(
            f"there are {len(example)} example inputs, and forward() takes {len(names)}: {', '.join(names)}",
            fix="pass one example for every input of forward()",
            where="example_inputs",
        )
    with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
        path = Path(folder) / "float.onnx"
        write_float(flat, example, path, exporter=recipe.qat.exporter, opset=recipe.qat.opset)
        ready = prepare_graph(load(path), recipe.prepare)
    chosen = placement or decide(ready.view, recipe.placing)
    if not chosen.quantized:
        raise UsageError(
            "the placement quantizes nothing, so there is nothing to train",
            fix="read the reasons: qdqtool.place((model, example_inputs))",
            where="recipe",
        )
    made = PreparedModel(flat, chosen, ready.view, recipe.qat)
    made.recipe, made.example, made.inputs = recipe, example, names
    return made


def calibrate(model: PreparedModel, loader: Iterable[Any], limit: int) -> CalibrationTable:
    """Choose all ranges on the first `limit` samples and start the quantizers from them; in place.

    With torch.distributed every rank gives the samples of its own loader, and all get the same ranges: those of one
    process that sees all samples.

    Raises:
        InputFileError: the loader gives nothing, or what does not fit.
    """
    feeds = _feeds(loader, model.inputs, limit)
    ranks = torch.distributed.get_world_size() if _distributed() else 1
    table: CalibrationTable | QdqError | None = None
    if ranks > 1:
        everyone: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(everyone, feeds)
        feeds = [feed for given in everyone for feed in given]
    with _float(model) as (path, ready):
        if ranks == 1 or torch.distributed.get_rank() == 0:
            try:
                table = _table(model, path, ready, feeds)
            except QdqError as error:
                # The other ranks wait for a table, so they are told.
                table = error
        if ranks > 1:
            box = [table]
            torch.distributed.broadcast_object_list(box)
            table = box[0]
        if not isinstance(table, CalibrationTable):
            assert table is not None
            raise table
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
    order = CalibrationOrder(model=path, recipe=model.recipe, samples=sample_objects(feeds))
    job = Calibration(order)
    job.use(ready, model.placement)
    method = model.recipe.calibrate.method
    collection = job.collection(job.manner([method]), resumable=False)
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


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _example(given: Any, network: nn.Module) -> tuple[torch.Tensor, ...]:
    """Example inputs in the order of forward(), one sample of each, on the network's device."""
    values = given.values() if isinstance(given, Mapping) else given
    values = tuple(values) if isinstance(given, (Mapping, tuple, list)) else (values,)
    if not values or not all(isinstance(value, torch.Tensor) and value.ndim for value in values):
        raise UsageError(
            f"example inputs cannot be read from {type(given).__name__}",
            fix="pass a tensor with a batch dimension, or a tuple or dict of them in the order of forward()",
            where="example_inputs",
        )
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    return tuple(value[:1].to(device) for value in values)


def _feeds(loader: Iterable[Any], names: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """The inputs in what a loader gives, batch by batch, as arrays by name: of a pair with targets the first part."""
    feeds: list[dict[str, Any]] = []
    count = 0
    for number, batch in enumerate(loader):
        values = _inputs(batch, names)
        if values is None:
            raise InputFileError(
                f"has no {len(names)} input tensors ({', '.join(names)})",
                fix="give a tensor, (inputs, targets), or a dict by the names of forward()",
                where=f"loader, batch {number}",
            )
        feed = {
            name: value[: limit - count].detach().cpu().numpy()
            for name, value in zip(names, values, strict=True)
        }
        feeds.append(feed)
        count += len(feed[names[0]])
        if count >= limit:
            break
    return feeds


def _inputs(batch: Any, names: Sequence[str]) -> tuple[torch.Tensor, ...] | None:
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        found = tuple(batch.get(name) for name in names)
    else:
        found = tuple(batch)
        if found and not isinstance(found[0], torch.Tensor):
            return _inputs(found[0], names)
        found = found[: len(names)]
    whole = len(found) == len(names) and all(isinstance(value, torch.Tensor) for value in found)
    return found if whole else None
