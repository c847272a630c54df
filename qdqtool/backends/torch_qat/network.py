"""A PyTorch network on its way: traced, exported, given quantizers, trained."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qdqtool.backends.torch_qat import losses, training
from qdqtool.backends.torch_qat.callables import resolve
from qdqtool.backends.torch_qat.choice import noise_of
from qdqtool.backends.torch_qat.data import Feed
from qdqtool.backends.torch_qat.export import export
from qdqtool.backends.torch_qat.flat import mapped, run
from qdqtool.backends.torch_qat.journal import Journal
from qdqtool.backends.torch_qat.material import trace
from qdqtool.backends.torch_qat.model import QatModel
from qdqtool.backends.torch_qat.sites import Sites
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.qat import Epoch
from qdqtool.core.recipe import QatOptions
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training left.

    Attributes:
        table: ranges as trained; tensors without a quantizer keep what calibration gave them.
        epochs: how it went.
        kept: number of the epoch whose weights were taken.
        noise: standard error of a validation score; 0 where it is not known.
        sites: where quantizers were.
        device: where it was trained.
    """

    table: CalibrationTable
    epochs: tuple[Epoch, ...]
    kept: int
    noise: float
    sites: Sites
    device: str


class Network:
    """The network that a recipe names, with its data.

    Raises:
        UsageError: a function cannot be found, the network cannot be traced, or it cannot take the samples.
        InputFileError: the data is wrong.
    """

    def __init__(self, options: QatOptions, beside: Path) -> None:
        if not options.model or not options.data:
            raise UsageError(
                "the recipe names no network and data",
                fix="set qat.model and qat.data to module:function",
                where="qat",
            )
        self.options, self._beside = options, beside
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        made = resolve(options.model, beside, "qat.model")()
        if not isinstance(made, nn.Module):
            raise UsageError(
                f"returns {type(made).__name__}", fix="return a torch.nn.Module", where=options.model
            )
        data = resolve(options.data, beside, "qat.data")
        self.train, self.validate, self.test = (
            Feed(data, split, batch=options.batch, seed=options.seed)
            for split in ("train", "validate", "test")
        )
        inputs, _ = self.train.first()
        traced = trace(made, inputs, options, self.train.where)
        self.flat, self.inputs, self._example = traced.flat, traced.inputs, traced.example
        self._try(inputs)

    def export(self, path: Path) -> None:
        """Write the network as it is now as float ONNX."""
        export(self.flat, self._example, path, exporter=self.options.exporter, opset=self.options.opset)

    def fit(
        self,
        start: tuple[Placement, CalibrationTable, GraphView],
        folder: Path,
        key: str,
        on_step: Callable[[int, int], object],
    ) -> Trained:
        """Train with quantizers where the placement wants them, from the table's ranges on.

        `start` is placement, table and prepared graph of this network's export. Checkpoints go to `folder`.
        """
        placement, table, view = start
        model = QatModel(self.flat, placement, view, self.options)
        teacher = copy.deepcopy(self.flat)
        model.set_calibration(table, view)
        with Journal(folder, tensorboard=self.options.tensorboard) as journal:
            epochs, kept = training.train(model, self._lesson(teacher, folder, key, on_step, journal))
        return Trained(
            table=model.trained(),
            epochs=epochs,
            kept=kept,
            noise=noise_of(self.options.metric, max(epoch.score for epoch in epochs), self._validated()),
            sites=model.sites,
            device=str(training.device_of(self.options)),
        )

    def _lesson(
        self,
        teacher: nn.Module,
        folder: Path,
        key: str,
        on_step: Callable[[int, int], object],
        journal: Journal,
    ) -> training.TrainingConfig:
        loss = self._loss()
        return training.TrainingConfig(
            teacher=teacher,
            train=self.train,
            validate=self.validate,
            loss=loss,
            score=self._score(loss),
            options=self.options,
            folder=folder,
            key=key,
            on_step=on_step,
            on_epochs=journal.write,
        )

    def _loss(self) -> losses.Loss:
        return losses.LOSSES.get(self.options.loss) or resolve(self.options.loss, self._beside, "qat.loss")

    def _validated(self) -> int:
        return sum(len(inputs[0]) for inputs, _ in self.validate.batches())

    def _score(self, loss: losses.Loss) -> Callable[[Any, Any], float]:
        if self.options.metric == "top1":
            return losses.top1
        if self.options.metric == "loss":
            return lambda outputs, targets: -float(loss(outputs, targets))
        return resolve(self.options.metric, self._beside, "qat.metric")

    def score(self) -> Callable[[Any, Any], float]:
        """What the recipe's metric makes of all outputs and targets of a split; higher is better."""
        return self._score(self._loss())

    def structured(self, arrays: Sequence[Any]) -> Any:
        """What an exported model returned, in the structure that the network returns."""
        with torch.no_grad():
            form = run(self.flat, self._example)
        leaves = iter(arrays)
        return mapped(form, lambda _: torch.from_numpy(next(leaves)))

    def _try(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Run the network on the first training batch."""
        try:
            with torch.no_grad():
                run(self.flat, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(list(value.shape)) for value in inputs)
            raise UsageError(
                f"the network cannot take samples of shape {shapes}: {' '.join(str(error).split())[:200]}",
                fix="give samples of the shape and type that forward() takes",
                where=self.train.where,
            ) from error


def digest(network: Network) -> str:
    """SHA-256 over all weights, names and shapes of the network as it is now."""
    sha = hashlib.sha256()
    state: dict[str, Any] = network.flat.state_dict()
    for name in sorted(state):
        value = state[name]
        sha.update(f"{name} {tuple(value.shape)} {value.dtype};".encode())
        sha.update(value.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()
