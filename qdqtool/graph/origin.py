"""Finds the tool that quantized a model, from its metadata, its producer and typical node names."""

from __future__ import annotations

import re

from qdqtool.graph.model import Model
from qdqtool.graph.provenance import provenance
from qdqtool.trt.ops import QDQ

_NAMES = (
    ("pytorch-quantization", re.compile(r"(^|/)_(input|weight)_quantizer(_\d+)?/")),
    ("modelopt.torch", re.compile(r"(^|/)(input|weight|\w+_bmm)_quantizer(_\d+)?/")),
    ("torch.ao fake quantization", re.compile(r"(^|/)(weight_fake_quant|activation_post_process)(_\d+)*/")),
    ("PT2E", re.compile(r"^node_(de)?quantize_per_(tensor|channel)")),
    ("TensorFlow QAT", re.compile(r"FakeQuantWithMinMaxVars")),
)
_PRODUCERS = (("quark", "quark"), ("tf2onnx", "tf2onnx"), ("onnx.quantize", "onnxruntime or modelopt.onnx"))


def origin(model: Model) -> str:
    """Return the tool, with its version and digests if it was this one; "" if nothing in the model identifies it."""
    if (made := provenance(model)) is not None:
        return str(made)
    quantizers = [node.name for node in model.view.nodes if node.op in QDQ]
    for tool, pattern in _NAMES:
        if any(pattern.search(name) for name in quantizers):
            return tool
    producer = model.proto.producer_name
    return next((tool for start, tool in _PRODUCERS if producer.startswith(start)), "")
