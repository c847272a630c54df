"""A PyTorch network: it is traced, exported, gets quantizers, and is trained."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn

from qdqtool.backends.torch_qat import losses, need, training
from qdqtool.backends.torch_qat.data import Feed
from qdqtool.backends.torch_qat.export import export
from qdqtool.backends.torch_qat.flat import map_tensors, run
from qdqtool.backends.torch_qat.material import Traced, trace
from qdqtool.backends.torch_qat.model import QatModel
from qdqtool.backends.torch_qat.training import noise_of
from qdqtool.core.qat import Epoch
from qdqtool.core.recipe import QatOptions
from qdqtool.core.wording import Setting
from qdqtool.errors import UsageError
from qdqtool.io.files import write_text
from qdqtool.plugins import resolve

# --- journal ---------------------------------------------------------------------------------------------------------
# Records every epoch: one JSON line per epoch, and TensorBoard logs if the recipe requests them.


FILE = "training.jsonl"


class EpochJournal:
    """Context manager that records epochs: call `write` after each epoch, and once when a training resumes.

    Raises:
        MissingPackage: TensorBoard logs are wanted and its package is not installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._folder = folder
        self._writer: Any = None
        if tensorboard:
            module = need(
                "torch.utils.tensorboard",
                fix=f"pip install tensorboard, or {Setting('qat.tensorboard', 'false')}",
            )
            self._writer = module.SummaryWriter
        self._board: Any = None

    def __enter__(self) -> EpochJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def write(self, epochs: Sequence[Epoch]) -> None:
        """Write the results of all epochs so far, as a whole file each time."""
        lines = [json.dumps(asdict(epoch), sort_keys=True) + "\n" for epoch in epochs]
        write_text(self._folder / FILE, "".join(lines))
        if self._writer is not None:
            self._draw(epochs[-1])

    def _draw(self, epoch: Epoch) -> None:
        if self._board is None:
            # Hide the points that an interrupted training already wrote for this epoch and later ones.
            self._board = self._writer(str(self._folder / "tensorboard"), purge_step=epoch.number)
        if epoch.score is not None:
            self._board.add_scalar("score", epoch.score, epoch.number)
        self._board.add_scalar("learning_rate", epoch.learning_rate, epoch.number)
        if epoch.loss is not None:
            self._board.add_scalar("loss", epoch.loss, epoch.number)
        self._board.flush()


# --- network ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Result of quantization-aware training.

    Attributes:
        epochs: how it went.
        kept: number of the epoch whose weights were taken.
        noise: standard error of a validation score; 0 if it is not known.
        device: device of the training.
    """

    epochs: tuple[Epoch, ...]
    kept: int
    noise: float
    device: str


class Network:
    """PyTorch network and data that the section `qat` of a recipe names.

    Raises:
        UsageError: a function cannot be found, the network cannot be traced, or it cannot take the samples.
        InputFileError: the data is wrong.
    """

    def __init__(self, options: QatOptions, beside: Path) -> None:
        if not options.model or not options.data:
            raise UsageError(
                "the recipe does not name a network and data",
                fix="set qat.model and qat.data to module:function",
                where="qat",
            )
        self.options, self._beside = options, beside
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        module = resolve(options.model, beside, "qat.model")()
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"the function returns {type(module).__name__}",
                fix="return a torch.nn.Module",
                where=options.model,
            )
        data = resolve(options.data, beside, "qat.data")
        self.train, self.validate, self.test = (
            Feed(data, split, batch=options.batch, seed=options.seed)
            for split in ("train", "validate", "test")
        )
        inputs, _ = self.train.first()
        self.traced: Traced = trace(module, inputs, options, self.train.where)
        self._try(inputs)
        # Distillation uses the original network: calibration corrects biases, and training changes weights.
        self._teacher = copy.deepcopy(self.flat)

    @property
    def flat(self) -> fx.GraphModule:
        """The traced network; training changes its weights."""
        return self.traced.flat

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of forward()."""
        return self.traced.inputs

    def export(self, path: Path) -> None:
        """Write the network with its current weights as a float ONNX model."""
        export(self.flat, self.traced.example, path, exporter=self.options.exporter, opset=self.options.opset)

    def fit(self, model: QatModel, folder: Path, key: str, on_step: Callable[[int, int], object]) -> Trained:
        """Train `model`, which `prepare` made from this network. Training starts from its calibration.

        Checkpoints are written to `folder`.
        """
        with EpochJournal(folder, tensorboard=self.options.tensorboard) as journal:
            epochs, kept = training.train(model, self._config(folder, key, on_step, journal))
        return Trained(
            epochs=epochs,
            kept=kept,
            noise=noise_of(
                self.options.metric, max(epoch.rank for epoch in epochs), self._validate_batches()
            ),
            device=str(training.device_of(self.options)),
        )

    def _config(
        self, folder: Path, key: str, on_step: Callable[[int, int], object], journal: EpochJournal
    ) -> training.TrainingConfig:
        loss = self._loss()
        return training.TrainingConfig(
            teacher=self._teacher,
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

    def _validate_batches(self) -> int:
        return sum(len(inputs[0]) for inputs, _ in self.validate.batches())

    def _score(self, loss: losses.Loss) -> Callable[[Any, Any], float]:
        if self.options.metric == "top1":
            return losses.top1
        if self.options.metric == "loss":
            return lambda outputs, targets: -float(loss(outputs, targets))
        return resolve(self.options.metric, self._beside, "qat.metric")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all weights, names and shapes of the original network."""
        sha = hashlib.sha256()
        state: dict[str, Any] = self._teacher.state_dict()
        for name in sorted(state):
            value = state[name]
            sha.update(f"{name} {tuple(value.shape)} {value.dtype};".encode())
            sha.update(value.detach().cpu().contiguous().numpy().tobytes())
        return sha.hexdigest()

    def score(self) -> Callable[[Any, Any], float]:
        """Return the recipe's metric as a function of outputs and targets; higher is better."""
        return self._score(self._loss())

    def structured(self, arrays: Sequence[Any]) -> Any:
        """Convert the outputs of an exported model to the structure of the network's outputs."""
        with torch.no_grad():
            form = run(self.flat, self.traced.example)
        leaves = iter(arrays)
        return map_tensors(form, lambda _: torch.from_numpy(next(leaves)))

    def _try(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """Run the network on the first training batch, to find errors early."""
        try:
            with torch.no_grad():
                run(self.flat, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(list(value.shape)) for value in inputs)
            raise UsageError(
                f"the network does not accept samples of shape {shapes}: {' '.join(str(error).split())[:200]}",
                fix="pass samples of the shape and type that forward() accepts",
                where=self.train.where,
            ) from error
