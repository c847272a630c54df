"""Quantizers of NVIDIA's pytorch-quantization 2.1.3, the package whose ONNX names older models carry.

`pip install 'qdqtool[qat-nvidia]'` brings it: a wheel without CUDA code, which is all that this engine needs. It
trains the range of a whole tensor (a trained clip before the rounding); ranges per channel keep their calibrated
values. It rounds to [-127, 127], one step less than QuantizeLinear on the negative side.
"""

from __future__ import annotations

import logging
import warnings

import torch
from torch import nn

from qdqtool.backends.torch_qat import NVIDIA, need
from qdqtool.backends.torch_qat.fake_quant_backend import Start


class PytorchQuantization:
    """Fake quantization by pytorch-quantization."""

    learns = "per-tensor"
    formats = frozenset({"int8"})

    def quantizer(self, start: Start) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            modules = need("pytorch_quantization.nn", fix=NVIDIA)
            descriptors = need("pytorch_quantization.tensor_quant", fix=NVIDIA)
            # Do not use absl's set_verbosity: it changes all loggers.
            logging.getLogger("absl").setLevel(logging.ERROR)
            axis = None if start.axis is None else (start.axis,)
            learn = start.learn and start.axis is None
            amax = start.shaped().tolist()
            chosen = descriptors.QuantDescriptor(num_bits=8, axis=axis, amax=amax, learn_amax=learn)
            quantizer: nn.Module = modules.TensorQuantizer(chosen)
        return quantizer

    def amax(self, quantizer: nn.Module) -> torch.Tensor:
        clip = getattr(quantizer, "clip", None)
        if clip is None:
            fixed: torch.Tensor = quantizer.amax
            return fixed.detach()
        return torch.max(-clip.clip_value_min, clip.clip_value_max).detach()


PLUGIN = PytorchQuantization()
