"""Quantizers of nvidia-modelopt, the maintained successor of pytorch-quantization.

Its ranges are not trained: set `qat.scales: fixed`. Its placement and its exporter are not used, only its rounding,
so that quantizers are at the places where TensorRT fuses them.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

from qdqtool.backends.torch_qat import NVIDIA, need
from qdqtool.backends.torch_qat.fake_quant_backend import Start


class Modelopt:
    """Fake quantization by nvidia-modelopt."""

    learns = "none"
    formats = frozenset({"int8"})

    def quantizer(self, start: Start) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            modules = need("modelopt.torch.quantization.nn", fix=NVIDIA)
            config = need("modelopt.torch.quantization.config", fix=NVIDIA)
            quantizer = modules.TensorQuantizer(config.QuantizerAttributeConfig(num_bits=8, axis=start.axis))
        quantizer.amax = start.shaped()
        module: nn.Module = quantizer
        return module

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        amax: torch.Tensor = quantizer.amax
        return amax.detach()


PLUGIN = Modelopt()
