"""Maps node names to the modules of the framework that a model was exported from.

/layer1/0/conv/_input_quantizer/QuantizeLinear      layer1.0.conv      torch.onnx, TorchScript based
/layer1/layer1.0/conv/Conv                          layer1.0.conv      the same, children of a Sequential
pkg.torch.onnx.name_scopes: ['', 'fc', 'linear']    fc                 torch.onnx, dynamo based (metadata)
model/quant_stem/Conv2D                             stem               TensorFlow QAT through tf2onnx
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import onnx

from qdqtool.graph.model import Model
from qdqtool.trt.ops import LAYOUT, QDQ

_SCOPES = "pkg.torch.onnx.name_scopes"
_QUANTIZER = re.compile(r"^(_?(input|weight|output|\w+_bmm)_quantizer|weight_fake_quant|quant)(_\d+)*$")
_KERAS = re.compile(r"^(?:StatefulPartitionedCall/)?(?:[\w.-]+/)?quant_([\w.-]+)/")
_WEIGHT = re.compile(r"^([A-Za-z_][\w.]*)\.(?:weight|bias)(?:_fake_quant\.scale|_\w+)?$")
_BETWEEN = QDQ | LAYOUT
"""Operators between a weight and the node that computes with the weight."""
_MOST = 10_000
"""Longest metadata, in characters, that is read."""


class Modules:
    """Module names of the nodes of one model."""

    def __init__(self, model: Model) -> None:
        self._view = model.view
        self._scopes = {node.name: _scope(node) for node in model.proto.graph.node}

    def of(self, name: str) -> str:
        """Return the module of a node, from its metadata, its weight's name or its own name; "" if none of them names one."""
        node = self._view.by_name.get(name)
        of_weight = "" if node is None else self._of_weight(node.inputs)
        return self._scopes.get(name) or of_weight or module_of(name)

    def _of_weight(self, tensors: Iterable[str]) -> str:
        """Return the module of a weight named like `layer1.0.conv.weight`, or of its scale.

        DequantizeLinear may be in between.
        """
        for tensor in tensors:
            source, names = tensor, [tensor]
            while (maker := self._view.producer(source)) is not None and maker.op in _BETWEEN:
                names += maker.inputs[:2]
                source = maker.inputs[0]
            found = [match for name in names if (match := _WEIGHT.match(name))]
            if found and maker is None:
                return found[0][1]
        return ""


def module_of(name: str) -> str:
    """Return the module in a node's name; "" if the name has no path."""
    keras = _KERAS.match(name)
    if keras:
        return keras[1]
    if not name.startswith("/"):
        return ""
    path: list[str] = []
    for part in name.split("/")[1:-1]:
        if _QUANTIZER.match(part):
            break
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def _scope(node: onnx.NodeProto) -> str:
    """Return the innermost module in the metadata of torch's exporter; the last entry there is the operator."""
    text = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "")
    if not text or len(text) > _MOST:
        return ""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ""
    good = isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str)
    return scopes[-2] if good else ""
