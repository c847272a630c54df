"""Losses for training, and metrics for validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from qdqtool.backends.torch_qat.flat import tensors
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError

Loss = Callable[[Any, Any], torch.Tensor]
"""Function of the network's outputs and the targets."""


def _cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(only(outputs, "qat.loss"), targets)


def _mse(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(only(outputs, "qat.loss"), targets)


LOSSES: dict[str, Loss] = {"cross_entropy": _cross_entropy, "mse": _mse}


def only(outputs: Any, where: str) -> torch.Tensor:
    """Return the only tensor in a network's outputs, which may be in a container.

    Raises:
        UsageError: it returns several tensors.
    """
    returned = tensors(outputs)
    if len(returned) != 1:
        raise UsageError(
            f"the network returns {count_noun(len(returned), 'tensor')}, but this loss needs exactly one",
            fix="write a loss function and pass its name as module:function; the function receives the network's outputs and the targets",
            where=where,
        )
    return returned[0]


def measure_distillation(outputs: Any, teacher: Any, temperature: float) -> torch.Tensor:
    """Return the distance of the student's outputs from the teacher's: the mean over all float tensors.

    Raises:
        UsageError: the two return different tensors, or none that are float.
    """
    mine, target = (
        [value for value in tensors(side) if value.is_floating_point()] for side in (outputs, teacher)
    )
    shapes = [[tuple(value.shape) for value in side] for side in (mine, target)]
    if not mine or shapes[0] != shapes[1]:
        raise UsageError(
            f"outputs of shapes {shapes[0]} cannot be compared with {shapes[1]}",
            fix="pass the outputs of both networks for the same inputs: float tensors in any structure",
            where="distillation",
        )
    return torch.stack(
        [_distance(*pair, temperature).float() for pair in zip(mine, target, strict=True)]
    ).mean()


def _distance(outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the distance of a student's tensor from the teacher's tensor.

    Class scores [N, C]: Kullback-Leibler divergence at `temperature`, times `temperature` squared, so that the
    gradient does not shrink with the temperature (Hinton et al., Distilling the Knowledge in a Neural Network, 2015).
    Anything else: mean squared error.
    """
    if outputs.ndim != 2:
        return functional.mse_loss(outputs, teacher)
    student = functional.log_softmax(outputs / temperature, dim=1)
    target = functional.log_softmax(teacher / temperature, dim=1)
    return functional.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def top1(outputs: Any, targets: torch.Tensor) -> float:
    """Return the percentage of samples whose best class is the true one."""
    outputs = only(outputs, "qat.metric")
    return 100.0 * float((outputs.argmax(dim=1) == targets).float().mean())
