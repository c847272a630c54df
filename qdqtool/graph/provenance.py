"""The origin of a model: the tool that quantized it, the metadata that this tool writes, and the modules of a framework.

The entries are metadata of the model. They hold no path and no time, so equal inputs give equal bytes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

import onnx

from qdqtool._version import __version__
from qdqtool.graph.view import Model
from qdqtool.trt.ops import LAYOUT, QDQ, computes_integers

# --- modules ---------------------------------------------------------------------------------------------------------
# Maps node names to the modules of the framework that a model was exported from.
#
# /layer1/0/conv/_input_quantizer/QuantizeLinear      layer1.0.conv      torch.onnx, TorchScript based
# /layer1/layer1.0/conv/Conv                          layer1.0.conv      the same, children of a Sequential
# pkg.torch.onnx.name_scopes: ['', 'fc', 'linear']    fc                 torch.onnx, dynamo based (metadata)
# model/quant_stem/Conv2D                             stem               TensorFlow QAT through tf2onnx


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

        A DequantizeLinear may be between the weight and the node.
        """
        for tensor in tensors:
            source, names = tensor, [tensor]
            while (maker := self._view.producer(source)) is not None and maker.op in _BETWEEN:
                names += maker.inputs[:2]
                source = maker.inputs[0]
            matches = [match for name in names if (match := _WEIGHT.match(name))]
            if matches and maker is None:
                return matches[0][1]
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


# --- origin ----------------------------------------------------------------------------------------------------------
# Finds the tool that quantized a model, from its metadata, its producer and typical node names.


_NAMES = (
    ("pytorch-quantization", re.compile(r"(^|/)_(input|weight)_quantizer(_\d+)?/")),
    ("modelopt.torch", re.compile(r"(^|/)(input|weight|\w+_bmm)_quantizer(_\d+)?/")),
    ("torch.ao fake quantization", re.compile(r"(^|/)(weight_fake_quant|activation_post_process)(_\d+)*/")),
    ("PT2E", re.compile(r"^node_(de)?quantize_per_(tensor|channel)")),
    ("TensorFlow QAT", re.compile(r"FakeQuantWithMinMaxVars")),
)
_PRODUCERS = (("quark", "quark"), ("tf2onnx", "tf2onnx"), ("onnx.quantize", "onnxruntime or modelopt.onnx"))


def origin(model: Model) -> str:
    """Return the tool that wrote a Q/DQ model, with version and digests if it was qdqtool; "" if unknown."""
    if (record := provenance(model)) is not None:
        return str(record)
    quantizers = [node.name for node in model.view.nodes if node.op in QDQ]
    for tool, pattern in _NAMES:
        if any(pattern.search(name) for name in quantizers):
            return tool
    if not quantizers and not any(computes_integers(node.op) for node in model.view.nodes):
        return ""  # a float model: its producer only exported it
    producer = model.proto.producer_name
    return next((tool for start, tool in _PRODUCERS if producer.startswith(start)), "")


# --- provenance ------------------------------------------------------------------------------------------------------


_TOOL: Final = "qdqtool"
PICTURES: Final = f"{_TOOL}.made.pictures"
"""Key of the preparation of pictures, which commands for the Q/DQ model read."""
_LONGEST: Final = 80
"""Largest number of characters that are read back of an entry; anybody may have written it."""
_SHOWN: Final = 12
"""Digits of a digest that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Origin of the Q/DQ of a model.

    Attributes:
        version: version of this tool.
        recipe: SHA-256 of the settings that the Q/DQ depends on.
        samples: digest of the calibration samples and their preparation; "" if the ranges came from a file.
        method: the calibrators of the activations, separated by commas.
        source: producer of the float model; "" if it names none.
        pictures: the preparation of pictures as JSON; "" if it is unknown.
    """

    version: str = __version__
    recipe: str
    samples: str = ""
    method: str = ""
    source: str = ""
    pictures: str = ""

    def __str__(self) -> str:
        parts = [f"recipe {self.recipe[:_SHOWN]}"]
        parts += [f"samples {self.samples[:_SHOWN]}"] if self.samples else []
        parts += [f"method {self.method}"] if self.method else []
        parts += [f"exported by {self.source}"] if self.source else []
        return f"{_TOOL} {self.version} ({', '.join(parts)})"


def stamp_provenance(model: Model, provenance: Provenance) -> Model:
    """Return a copy of the model that names its provenance. The producer of the float model is kept in `source`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    source = f"{proto.producer_name} {proto.producer_version}".strip()
    kept = [entry for entry in proto.metadata_props if not entry.key.startswith(f"{_TOOL}.made.")]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    for key, value in asdict(replace(provenance, source=source)).items():
        if value:
            proto.metadata_props.add(key=f"{_TOOL}.made.{key}", value=value)
    proto.producer_name, proto.producer_version = _TOOL, provenance.version
    return replace(model, proto=proto)


def provenance(model: Model) -> Provenance | None:
    """Return the recorded origin of the model's Q/DQ; None if this tool did not write it."""
    metadata = printable_metadata(model)
    keys = ("version", "recipe", "samples", "method", "source")
    read = {key: metadata.get(f"{_TOOL}.made.{key}", "") for key in keys}
    return Provenance(**read) if read["version"] and read["recipe"] else None


def printable_metadata(model: Model) -> dict[str, str]:
    """Return the metadata of a model; names and values are cut to what fits into a line."""
    return {_brief(name): _brief(value) for name, value in model.metadata.items()}


def exporter(model: Model) -> str:
    """Return the program that wrote the file, with its version; "" if the file names none."""
    return _brief(f"{model.proto.producer_name} {model.proto.producer_version}".strip())


def _brief(text: str) -> str:
    return "".join(filter(str.isprintable, text[: 2 * _LONGEST]))[:_LONGEST]
