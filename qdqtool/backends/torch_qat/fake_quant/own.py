"""Fake quantization on torch's own operators, with learned step sizes.

Rounds half to even and saturates to the ends of the format, exactly as QuantizeLinear does. A learned scale follows LSQ (Esser
et al., Learned Step Size Quantization, ICLR 2020): inside the range its gradient is round(x/s) - x/s, outside it is
the bound, and it is divided by sqrt(elements * largest number) so that scales move about as fast as weights. Learns every scale,
per tensor or per channel, and runs wherever torch runs.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import nn

from qdqtool.backends.torch_qat.fake_quant_backend import Start
from qdqtool.core.tensors import DType

_SMALLEST = 1e-8
"""Smallest scale: a scale never becomes zero or negative."""


class FakeQuantize(nn.Module):
    """Module that rounds a float tensor to INT8 or FP8 values times its scale."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.format = start.format
        self.scale = nn.Parameter(start.shaped() / start.format.qmax, requires_grad=start.learn)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        scale = self.scale.clamp_min(_SMALLEST)
        if self.scale.requires_grad:
            share = 1.0 / sqrt(max(1, value.numel() // self.scale.numel()) * self.format.qmax)
            scale = (scale - scale * share).detach() + scale * share
        steps = (value.float() / scale).clamp(self.format.qmin, self.format.qmax)
        steps = steps + (self._round_steps(steps) - steps).detach()
        return (steps * scale).to(value.dtype)

    def _round_steps(self, steps: torch.Tensor) -> torch.Tensor:
        if self.format.dtype is DType.FLOAT8:
            return steps.detach().to(torch.float8_e4m3fn).float()
        return steps.round()


class Own:
    """Fake quantization by torch's own operators."""

    learns = "all"
    formats = frozenset({"int8", "fp8"})

    def quantizer(self, start: Start) -> nn.Module:
        return FakeQuantize(start)

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        assert isinstance(quantizer, FakeQuantize)
        return quantizer.scale.detach().clamp_min(_SMALLEST) * quantizer.format.qmax


PLUGIN = Own()
