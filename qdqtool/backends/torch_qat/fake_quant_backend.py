"""Interface of implementations of fake quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from qdqtool.core.tensors import INT8, QuantFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The first range, channel axis and format of a fake quantizer, and whether training may change its scale.

    Attributes:
        amax: the magnitude that becomes the largest number of the format: a single value, or one value per channel.
        axis: channel axis of a weight; None for one scale per tensor.
        rank: dimensions of the tensor, if there is an `axis`.
        learn: whether training may move the scale.
        format: format of the rounding.
    """

    amax: tuple[float, ...]
    axis: int | None = None
    rank: int = 0
    learn: bool = True
    format: QuantFormat = INT8

    def shaped(self) -> torch.Tensor:
        """Return `amax`, the largest magnitudes, in a shape that broadcasts to the quantized tensor."""
        values = torch.tensor(self.amax, dtype=torch.float32)
        if self.axis is None:
            return values.reshape(())
        return values.reshape([-1 if dim == self.axis else 1 for dim in range(self.rank)])


class FakeQuantBackend(Protocol):
    """Makes fake quantizers: modules that round a float tensor to the values of a format."""

    learns: str
    """Scales that the engine can learn: "all", "per-tensor" or "none"."""
    formats: frozenset[str]
    """Names of the formats that the engine can round to."""

    def quantizer(self, start: Start) -> nn.Module:
        """Return a fake quantizer, a module from float tensor to float tensor with straight-through gradients.

        Raises:
            MissingPackage: the engine's package is not installed.
        """

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        """Return the largest magnitudes that a fake quantizer can represent, one per tensor or channel."""
