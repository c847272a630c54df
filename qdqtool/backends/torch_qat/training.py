"""Fine-tunes a quantized network in one or many processes. Resumes after any epoch; stops at a NaN or infinite loss."""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import distributed, nn

from qdqtool.backends.torch_qat.data import Feed
from qdqtool.backends.torch_qat.flat import join_batches, map_tensors, run, tensors
from qdqtool.backends.torch_qat.losses import Loss, measure_distillation
from qdqtool.backends.torch_qat.model import QatModel
from qdqtool.core.qat import Epoch
from qdqtool.core.recipe import QatOptions
from qdqtool.core.wording import Setting
from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.io.files import write_bytes

# --- checkpoints -----------------------------------------------------------------------------------------------------
# Training checkpoints: written atomically, read without running code, bound to one model and recipe.


def write(path: Path, key: str, state: dict[str, Any]) -> None:
    """Write a training checkpoint to `path` atomically. `key` identifies its model, data and recipe."""
    stream = io.BytesIO()
    torch.save({"key": key, **state}, stream)
    write_bytes(path, stream.getvalue())


def read(path: Path, key: str) -> dict[str, Any] | None:
    """Read the training checkpoint at `path`; None if there is none.

    Raises:
        InputFileError: damaged, or it belongs to another model or recipe.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError, BadZipFile) as error:
        raise InputFileError(
            f"the file is not a checkpoint: {' '.join(str(error).split())[:200]}",
            fix="delete the file; training then starts again",
            where=str(path),
        ) from error
    if not isinstance(state, dict) or state.get("key") != key:
        raise InputFileError(
            "the file is a checkpoint of another model, data or recipe",
            fix="choose another --out, or delete the file; training then starts again",
            where=str(path),
        )
    return state


# --- ranks -----------------------------------------------------------------------------------------------------------
# Shares data between the processes of a distributed training.


T = TypeVar("T")


def _several() -> bool:
    return (
        distributed.is_available() and distributed.is_initialized() and int(distributed.get_world_size()) > 1
    )


def gather_lists(mine: list[T]) -> list[T]:
    """Join the lists of all ranks in order; return `mine` if there is one process."""
    if not _several():
        return mine
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, mine)
    return [entry for entries in everyone for entry in entries]


def from_first(make: Callable[[], T]) -> T:
    """Return the value of the first rank on all ranks.

    Its error is raised on all ranks, because they would wait forever otherwise.

    Raises:
        QdqError: `make` raised it on the first rank.
    """
    if not _several():
        return make()
    box: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            box = [make()]
        except QdqError as error:
            box = [error]
    distributed.broadcast_object_list(box)
    result: Any = box[0]
    if isinstance(result, QdqError):
        raise result
    return result


# --- choice ----------------------------------------------------------------------------------------------------------
# Chooses the epoch whose weights are kept when validation scores are noisy.
#
# A score on 200 samples is uncertain by more than a point, so the best of 15 epochs is often only the luckiest. In the
# digits example, the second epoch is by chance as good as any other on the validation samples, but three points worse
# than the last epoch on the test samples. So scores are smoothed over three epochs. Among the epochs within one
# standard error of the best, the latest is kept: it has trained longest and, at the end of a schedule, with the
# smallest steps.


# Number of epochs whose scores are averaged, so that no single lucky epoch is chosen.
_WINDOW = 3


def kept_epoch(epochs: Sequence[Epoch], noise: float) -> int:
    """Return the number of the epoch to keep; 0 if no trained epoch is better than calibration alone.

    Args:
        epochs: all so far, number 0 first.
        noise: standard error of a score; see `noise_of`.
    """
    untrained, trained = epochs[0].rank, [epoch.rank for epoch in epochs[1:]]
    windows = (
        [score for score in trained[max(0, end - _WINDOW) : end] if math.isfinite(score)]
        for end in range(1, len(trained) + 1)
    )
    smooth = [sum(window) / len(window) if window else -math.inf for window in windows]
    best = max((score for score in smooth if math.isfinite(score)), default=-math.inf)
    kept = [
        epochs[1 + place].number
        for place, score in enumerate(smooth)
        if score >= best - noise and score > untrained and math.isfinite(trained[place])
    ]
    return kept[-1] if kept else epochs[0].number


def noise_of(metric: str, score: float, samples: int) -> float:
    """Return the standard error of a validation score; 0 if it is unknown.

    For a share of right answers (top1, in percent) it is that of the binomial distribution.
    """
    if metric != "top1" or samples < 1:
        return 0.0
    share = min(max(score / 100, 1 / (samples + 1)), 1 - 1 / (samples + 1))
    return 100 * math.sqrt(share * (1 - share) / samples)


# --- training --------------------------------------------------------------------------------------------------------


LAST, BEST = "checkpoint.pt", "best.pt"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Parameters of a training, apart from the network.

    Attributes:
        teacher: the float network.
        train: training batches.
        validate: validation batches.
        loss: made small.
        score: of the outputs and targets of all validation samples; higher is better.
        options: of the recipe.
        folder: folder of the checkpoints.
        key: which model, data and recipe they belong to.
        on_step: called with the number of finished steps and their total.
        on_epochs: called with the results of all epochs so far.
    """

    teacher: nn.Module
    train: Feed
    validate: Feed
    loss: Loss
    score: Callable[[Any, Any], float]
    options: QatOptions
    folder: Path
    key: str
    on_step: Callable[[int, int], object]
    on_epochs: Callable[[tuple[Epoch, ...]], object]


def train(model: QatModel, lesson: TrainingConfig) -> tuple[tuple[Epoch, ...], int]:
    """Train to the last epoch, from the last checkpoint if any. Finally, `model` has the weights of the chosen epoch.

    Returns all epochs and the number of the chosen epoch; `choice` describes the choice. Epoch 0 is the network as
    calibration left it, so that training never ends with something worse on the validation samples. An interrupted
    and resumed training gives the result of an uninterrupted one (on one kind of processor).

    Raises:
        UsageError: the loss became NaN or infinite; the last good checkpoint stays.
        InputFileError: the checkpoint belongs to another model, or the data is wrong.
    """
    course = _TrainingRun(model, lesson)
    course.resume()
    while course.epoch < lesson.options.epochs:
        course.one_epoch()
    return tuple(course.records), course.take_best()


def device_of(options: QatOptions) -> torch.device:
    """Return the torch device that the recipe requests.

    Raises:
        UsageError: it asks for a GPU that is not here.
    """
    here = torch.cuda.is_available()
    if options.device == "cuda" and not here:
        raise UsageError(
            "torch finds no usable GPU", fix=f"{Setting('qat.device', 'auto')}", where="qat.device"
        )
    return torch.device("cuda" if here and options.device != "cpu" else "cpu")


class _TrainingRun:
    def __init__(self, model: QatModel, lesson: TrainingConfig) -> None:
        self.lesson, self.options = lesson, lesson.options
        self.device = device_of(self.options)
        self.model = model.to(self.device)
        self.network = model.network
        self.teacher = lesson.teacher.to(self.device).eval()
        self.steps = len(lesson.train)
        self.optimizer = _optimizer(model, self.options)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.epoch = 0
        self.records: list[Epoch] = []
        self._validated = 0
        # masks of attention may hold -Inf from the start
        self._unbounded = {name for name, value in self.network.state_dict().items() if not _is_finite(value)}

    def resume(self) -> None:
        """Resume from the last checkpoint, or begin with epoch 0."""
        state = read(self.lesson.folder / LAST, self.lesson.key)
        if state is None:
            self._record(loss=None, start=time.perf_counter())
            return
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]
        self.records = [Epoch(**record) for record in state["records"]]
        self.lesson.on_epochs(tuple(self.records))

    def one_epoch(self) -> None:
        """Train on all batches once, validate, and save a checkpoint."""
        start = time.perf_counter()
        _seed(self.options.seed + self.epoch + 1)
        self.model.train()
        self.model.freeze_norms(self.epoch >= self.options.freeze_epoch)
        total = 0.0
        for number, (inputs, targets) in enumerate(self.lesson.train.batches(self.epoch)):
            total += self._step(inputs, targets, number)
            self.lesson.on_step(self.epoch * self.steps + number + 1, self.options.epochs * self.steps)
        self._refuse_weights_that_are_no_numbers()
        self.epoch += 1
        self._record(loss=total / self.steps, start=start)

    def take_best(self) -> int:
        """Load the weights of the chosen epoch into the student; return the number of the epoch."""
        best = read(self.lesson.folder / BEST, self.lesson.key)
        assert best is not None
        self.network.load_state_dict(best["network"])
        self.model.to("cpu").eval()
        return int(best["epoch"])

    def _step(self, inputs: tuple[torch.Tensor, ...], targets: Any, number: int) -> float:
        inputs, targets = self._here(inputs), self._here(targets)
        with self._precision():
            outputs = _forward(self.model, inputs, self.lesson.train.where)
            loss = self._loss(outputs, targets, inputs)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise UsageError(
                f"the loss became {value} in epoch {self.epoch + 1}, step {number + 1} of {self.steps}; "
                f"the checkpoint of epoch {self.epoch} is kept",
                fix="lower qat.learning_rate, add qat.warmup_epochs, or check the targets for outliers; use another --out",
                where=str(self.lesson.folder / LAST),
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.options.clip_gradient:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip_gradient)
        self.optimizer.step()
        self.scheduler.step()
        return value

    def _refuse_weights_that_are_no_numbers(self) -> None:
        """Raise an error if weights are NaN or infinite.

        A finite loss can have NaN gradients, which would show only after the checkpoint.
        """
        for name, value in self.network.state_dict().items():
            if name not in self._unbounded and not _is_finite(value):
                raise UsageError(
                    f"{name} became NaN or infinite in epoch {self.epoch + 1}; the checkpoint of epoch {self.epoch} "
                    "is kept",
                    fix="lower qat.learning_rate, or set qat.clip_gradient; use another --out",
                    where=str(self.lesson.folder / LAST),
                )

    def _loss(self, outputs: Any, targets: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        share = self.options.distill
        loss = self.lesson.loss(outputs, targets) if share < 1 else tensors(outputs)[0].new_zeros(())
        if share > 0:
            with torch.no_grad():
                target = run(self.teacher, inputs)
            loss = (1 - share) * loss + share * measure_distillation(
                outputs, target, self.options.temperature
            )
        return loss

    def _record(self, *, loss: float | None, start: float) -> None:
        """Validate, save a checkpoint, and report the epoch."""
        score = self._validate()
        rate = self.scheduler.get_last_lr()[0]
        seconds = round(time.perf_counter() - start, 3)
        record = Epoch(number=self.epoch, loss=loss, score=score, learning_rate=rate, seconds=seconds)
        self.records.append(record)
        folder, key = self.lesson.folder, self.lesson.key
        # The epoch that is finally kept was already kept when it ended, because later epochs only raise the best
        # score.
        if kept_epoch(self.records, self._noise()) == self.epoch:
            write(folder / BEST, key, {"epoch": self.epoch, "network": self.network.state_dict()})
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "records": [asdict(entry) for entry in self.records],
        }
        write(folder / LAST, key, state)
        self.lesson.on_epochs(tuple(self.records))

    def _noise(self) -> float:
        best = max(entry.rank for entry in self.records)
        return noise_of(self.options.metric, best, self._validated)

    @torch.no_grad()
    def _validate(self) -> float | None:
        """Compute the score over all validation samples together, because mAP is not a mean over batches.

        Validation runs in FP32 even if steps compute in bfloat16, because the network is exported in FP32, and epochs
        may differ by less than the rounding of bfloat16.
        """
        self.model.eval()
        outputs, expected, counts = [], [], []
        for inputs, targets in self.lesson.validate.batches():
            outputs.append(_forward(self.model, self._here(inputs), self.lesson.validate.where))
            expected.append(self._here(targets))
            counts.append(len(inputs[0]))
        self._validated = sum(counts)
        score = self.lesson.score(join_batches(outputs, counts), join_batches(expected, counts))
        return score if math.isfinite(score) else None

    def _here(self, values: Any) -> Any:
        return map_tensors(values, lambda value: value.to(self.device, non_blocking=True))

    def _precision(self) -> AbstractContextManager[Any]:
        if self.options.mixed and self.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def _rate(self, step: int) -> float:
        """Return the factor of the learning rate at a step: warm-up, then half a cosine to zero, or constant."""
        warm = self.options.warmup_epochs * self.steps
        if step < warm:
            return (step + 1) / (warm + 1)
        if self.options.schedule == "constant":
            return 1.0
        share = (step - warm) / max(1, self.options.epochs * self.steps - warm)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def _is_finite(value: torch.Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _seed(number: int) -> None:
    """Seed all random generators that a data function may use, so that an epoch is repeatable."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % (1 << 32))  # noqa: NPY002 -- augmentations draw from the global generator


def _optimizer(model: QatModel, options: QatOptions) -> torch.optim.Optimizer:
    """Return the optimizer; learned scales have a separate learning rate and no weight decay."""
    scales = model.scale_parameters()
    scale_ids = {id(parameter) for parameter in scales}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in scale_ids]
    rate = options.learning_rate
    groups: list[Mapping[str, Any]] = [{"params": weights, "lr": rate, "weight_decay": options.weight_decay}]
    if scales:
        groups.append({"params": scales, "lr": rate * options.scale_rate, "weight_decay": 0.0})
    if options.optimizer == "sgd":
        return torch.optim.SGD([dict(group) for group in groups], lr=rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW([dict(group) for group in groups], lr=rate)


def _forward(network: nn.Module, inputs: tuple[torch.Tensor, ...], where: str) -> Any:
    try:
        return run(network, inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise UsageError("the GPU's memory is full", fix="lower qat.batch", where="qat.batch") from error
        shapes = ", ".join(str(list(value.shape)) for value in inputs)
        raise UsageError(
            f"the network does not accept samples of shape {shapes}: {' '.join(str(error).split())[:200]}",
            fix="pass the inputs that forward() accepts",
            where=where,
        ) from error
