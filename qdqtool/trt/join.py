"""Which engine layers hold which ONNX node.

Metadata says it for nearly every layer, but it says too much: a convolution is also named by the kernel that quantizes
its input and by the one that holds its bias. So a node belongs to the compute layers among those that name it.
Where Metadata is silent the layer's own name is read: `A+B_myl0_3` (TensorRT for RTX), `A + B`, `A || B`, `PWN(A)`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from qdqtool.core.engine import Certainty, Engine, EngineLayer, Role
from qdqtool.trt.names import parts, stem


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMatch:
    """The layers that name a node.

    Attributes:
        compute: those that do its arithmetic.
        other: those that hold its bias, its activation or its quantization.
        certainty: stated by metadata, or inferred from layer names.
    """

    compute: tuple[EngineLayer, ...] = ()
    other: tuple[EngineLayer, ...] = ()
    certainty: Certainty = Certainty.UNKNOWN


def join(engine: Engine, nodes: frozenset[str]) -> dict[str, LayerMatch]:
    """The layers that hold each of `nodes`; a node that no layer names gets an empty `LayerMatch`."""
    stated: dict[str, list[EngineLayer]] = defaultdict(list)
    named: dict[str, list[EngineLayer]] = defaultdict(list)
    for layer in engine.layers:
        if layer.certainty is Certainty.STATED:
            for node in layer.onnx_nodes:
                stated[node].append(layer)
        for node in _in_name(layer, nodes):
            named[node].append(layer)
    return {node: _match(stated.get(node, []), named.get(node, [])) for node in sorted(nodes)}


def _match(stated: list[EngineLayer], named: list[EngineLayer]) -> LayerMatch:
    compute = tuple(layer for layer in stated if layer.role is Role.COMPUTE)
    other = tuple(layer for layer in stated if layer.role is not Role.COMPUTE)
    if compute:
        return LayerMatch(compute=compute, other=other, certainty=Certainty.STATED)
    inferred = tuple(layer for layer in named if layer.role is Role.COMPUTE)
    certainty = Certainty.INFERRED if inferred else Certainty.STATED if other else Certainty.UNKNOWN
    return LayerMatch(compute=inferred, other=other, certainty=certainty)


def _in_name(layer: EngineLayer, nodes: frozenset[str]) -> list[str]:
    whole = stem(layer.name)
    if whole in nodes:
        return [whole]
    # Merged kernels of TensorRT for RTX join their nodes with a bare plus sign.
    pieces = (*parts(layer.name), *whole.split("+"))
    return [name for name in dict.fromkeys(pieces) if name in nodes]
