"""What an engine must be able to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a quantizer begins with.

    Attributes:
        amax: the magnitude that becomes 127: one value, or one per channel.
        axis: channel axis of a weight; None for one scale per tensor.
        rank: dimensions of the tensor, where `axis` is given.
        learn: whether training may move the scale.
    """

    amax: tuple[float, ...]
    axis: int | None = None
    rank: int = 0
    learn: bool = True

    def shaped(self) -> torch.Tensor:
        """The magnitudes in a shape that multiplies the tensor."""
        values = torch.tensor(self.amax, dtype=torch.float32)
        if self.axis is None:
            return values.reshape(())
        return values.reshape([-1 if dim == self.axis else 1 for dim in range(self.rank)])


class FakeQuantBackend(Protocol):
    """Makes modules that round a float tensor to the values INT8 can hold."""

    learns: str
    """Which scales it can learn: "all", "per-tensor" or "none"."""

    def quantizer(self, start: Start) -> nn.Module:
        """A module from float tensor to float tensor: symmetric INT8, gradients passed straight through.

        Raises:
            MissingPackage: the engine's package is not installed.
        """

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        """The magnitudes that become 127 now."""
