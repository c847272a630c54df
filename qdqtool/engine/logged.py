"""Weights that layer information leaves out, from the model's graph as the log of the build prints it.

`Layer(...)` lines name the tensors of a layer but not its weights, so neither their bytes nor its multiplications can
be told. The parser's lines of the same log show every node with the shape of its weight. The type of a weight is not
printed; it is that of the layer's arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

from qdqtool.core.buildlog import LogNetwork, LogNode
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.tensors import TensorInfo
from qdqtool.engine.weights import RESULT
from qdqtool.trt.ops import PRODUCTS

FORMAT = "as the log shows it"


def with_weights(engine: Engine, network: LogNetwork) -> Engine:
    """`engine` whose compute layers have the weight and bias of the one node they hold, where they state none."""
    nodes = {node.name: node for node in network.nodes if node.op in PRODUCTS and len(node.inputs) > 1}
    running = _running(network)
    return replace(engine, layers=tuple(_completed(layer, nodes, running) for layer in engine.layers))


def _running(network: LogNetwork) -> set[str]:
    """Names of the tensors of run time: inputs, and what nodes make of them."""
    found = {tensor.name for tensor in network.inputs}
    for node in network.nodes:
        if any(tensor.name in found for tensor in node.inputs):
            found.update(tensor.name for tensor in node.outputs)
    return found


def _completed(layer: EngineLayer, nodes: dict[str, LogNode], running: set[str]) -> EngineLayer:
    held = [nodes[name] for name in layer.onnx_nodes if name in nodes]
    if layer.role is not Role.COMPUTE or layer.constants or len(held) != 1:
        return layer
    weight, *rest = held[0].inputs[1:]
    if weight.name in running:
        return layer
    found = [_constant("weights", weight, layer.precision)]
    found += [_constant("bias", bias, bias.dtype) for bias in rest[:1]]
    result = _constant("", held[0].outputs[0], layer.precision) if held[0].outputs else None
    shape = ((RESULT, str(list(result.shape))),) if result and result.shape else ()
    return replace(
        layer,
        constants=tuple(tensor for tensor in found if tensor is not None),
        attributes=tuple(sorted((*layer.attributes, *shape))),
    )


def _constant(name: str, info: TensorInfo, dtype: DType) -> EngineTensor | None:
    dims = [dim for dim in info.shape or () if isinstance(dim, int)]
    if info.shape is None or len(dims) != len(info.shape):
        return None
    return EngineTensor(name=name, shape=tuple(dims), dtype=dtype, format=FORMAT)
