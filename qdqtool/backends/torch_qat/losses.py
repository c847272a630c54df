"""What is made small in training, and what counts as better."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {"cross_entropy": functional.cross_entropy, "mse": functional.mse_loss}


def distilled(outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """How far the student's outputs are from the float network's.

    Class scores [N, C]: Kullback-Leibler divergence at `temperature`, times its square, so that the gradient does not
    shrink with it (Hinton et al., Distilling the Knowledge in a Neural Network, 2015). Anything else: mean squared
    error.
    """
    if outputs.ndim != 2:
        return functional.mse_loss(outputs, teacher)
    student = functional.log_softmax(outputs / temperature, dim=1)
    target = functional.log_softmax(teacher / temperature, dim=1)
    return functional.kl_div(student, target, reduction="batchmean", log_target=True) * temperature**2


def top1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Share of samples whose best class is the true one, in percent."""
    return 100.0 * float((outputs.argmax(dim=1) == targets).float().mean())
