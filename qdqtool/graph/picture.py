"""Writes an engine as an ONNX file for viewers such as Netron; the file cannot be run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import helper

from qdqtool.core.engine import EngineTensor
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.tensors import DType
from qdqtool.graph.view import Model

# --- annotate --------------------------------------------------------------------------------------------------------
# Writes facts about nodes into the model, so that viewers such as Netron show them.


_LOWEST_IR = 10
"""First IR version whose nodes have metadata."""


def annotate(model: Model, facts: Mapping[str, Mapping[str, str]]) -> Model:
    """Return a copy of `model` whose nodes carry `facts` (by node name) as metadata and as documentation.

    Recent viewers show the metadata; the documentation string repeats it for older viewers. The computation does not
    change.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.ir_version = max(proto.ir_version, _LOWEST_IR)
    for node in proto.graph.node:
        facts_of_node = facts.get(node.name, {})
        for key in sorted(facts_of_node):
            node.metadata_props.add(key=key, value=facts_of_node[key])
        if facts_of_node:
            node.doc_string = "\n".join(f"{key}: {facts_of_node[key]}" for key in sorted(facts_of_node))
    return replace(model, proto=proto)


# --- picture ---------------------------------------------------------------------------------------------------------


_DOMAIN = "engine"
_TYPES = {
    DType.FLOAT32: onnx.TensorProto.FLOAT,
    DType.FLOAT16: onnx.TensorProto.FLOAT16,
    DType.BFLOAT16: onnx.TensorProto.BFLOAT16,
    DType.FLOAT8: onnx.TensorProto.FLOAT8E4M3FN,
    DType.FLOAT8_E5M2: onnx.TensorProto.FLOAT8E5M2,
    DType.FLOAT8_E8M0: onnx.TensorProto.FLOAT8E8M0,
    DType.FLOAT4: onnx.TensorProto.FLOAT4E2M1,
    DType.INT4: onnx.TensorProto.INT4,
    DType.FLOAT64: onnx.TensorProto.DOUBLE,
    DType.INT8: onnx.TensorProto.INT8,
    DType.UINT8: onnx.TensorProto.UINT8,
    DType.INT16: onnx.TensorProto.INT16,
    DType.INT32: onnx.TensorProto.INT32,
    DType.INT64: onnx.TensorProto.INT64,
    DType.BOOL: onnx.TensorProto.BOOL,
}


def picture(view: EngineView) -> Model:
    """Return an ONNX model with one node per engine layer, with its kind as operator and its facts as attributes."""
    written = {tensor.name for layer in view.layers for tensor in layer.outputs}
    read = {tensor.name for layer in view.layers for tensor in layer.inputs}
    tensors = {
        tensor.name: tensor
        for layer in view.layers
        for tensor in (*layer.inputs, *layer.outputs)
        if tensor.name
    }
    graph = helper.make_graph(
        [_node(layer, index) for index, layer in enumerate(view.layers)],
        "engine",
        [_value(tensors[name]) for name in tensors if name not in written],
        [_value(tensors[name]) for name in tensors if name in written and name not in read],
        value_info=[_value(tensors[name]) for name in tensors if name in written and name in read],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="qdqtool")
    return Model(proto=proto, path=Path("engine.onnx"))


def _node(layer: LayerView, index: int) -> onnx.NodeProto:
    facts = {
        "precision": layer.precision.value,
        "role": layer.role.value,
        "tactic": layer.tactic,
        "onnx_nodes": list(layer.onnx_nodes),
        "ms": layer.ms,
        "bytes": layer.bytes,
        "macs": layer.macs,
        "formats": _formats((*layer.inputs, *layer.outputs)),
    }
    node = helper.make_node(
        re.sub(r"\W+", "_", layer.kind) or "Layer",
        [tensor.name for tensor in layer.inputs],
        [tensor.name for tensor in layer.outputs],
        name=f"{index} {layer.name}",
        domain=_DOMAIN,
    )
    stated = {key: value for key, value in facts.items() if value not in (None, "", [])}
    node.attribute.extend(helper.make_attribute(key, value) for key, value in stated.items())
    return node


def _formats(tensors: Iterable[EngineTensor]) -> list[str]:
    return [f"{tensor.name}: {tensor.format}" for tensor in tensors if tensor.format]


def _value(tensor: EngineTensor) -> onnx.ValueInfoProto:
    shape = None if tensor.shape is None else [dim if dim >= 0 else "?" for dim in tensor.shape]
    return helper.make_tensor_value_info(
        tensor.name, _TYPES.get(tensor.dtype, onnx.TensorProto.UNDEFINED), shape
    )
