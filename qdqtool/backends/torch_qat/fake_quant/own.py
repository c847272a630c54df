"""Fake quantization on torch's own operators, with learned step sizes.

Rounds half to even and saturates to [-128, 127], exactly as QuantizeLinear does. A learned scale follows LSQ (Esser
et al., Learned Step Size Quantization, ICLR 2020): inside the range its gradient is round(x/s) - x/s, outside it is
the bound, and it is divided by sqrt(elements * 127) so that scales move about as fast as weights. Learns every scale,
per tensor or per channel, and runs wherever torch runs.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import nn

from qdqtool.backends.torch_qat.fake_quant_backend import Start
from qdqtool.core.calibration import INT8_LEVELS

_SMALLEST = 1e-8
"""A scale never becomes zero or negative."""


class FakeQuantize(nn.Module):
    """Float in, the nearest multiples of the scale out."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.scale = nn.Parameter(start.shaped() / INT8_LEVELS, requires_grad=start.learn)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        scale = self.scale.clamp_min(_SMALLEST)
        if self.scale.requires_grad:
            share = 1.0 / sqrt(max(1, value.numel() // self.scale.numel()) * INT8_LEVELS)
            scale = (scale - scale * share).detach() + scale * share
        steps = (value.float() / scale).clamp(-128.0, 127.0)
        steps = steps + (steps.round() - steps).detach()
        return (steps * scale).to(value.dtype)


class Own:
    """The engine."""

    learns = "all"

    def quantizer(self, start: Start) -> nn.Module:
        return FakeQuantize(start)

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        assert isinstance(quantizer, FakeQuantize)
        return quantizer.scale.detach().clamp_min(_SMALLEST) * INT8_LEVELS


PLUGIN = Own()
