"""Requested format of a node, type of its kernel's arithmetic, and type of its stored weight.

`asked` comes from the Q/DQ nodes before its two inputs. `realised` comes from the layer information. It is low-bit
arithmetic if both inputs of the kernel have the same small type. Otherwise it is float arithmetic with dequantization
inside the kernel, if the kernel reads a stored weight. Otherwise, if a separate kernel converts that weight to float
first, the format is lost: the weight is written and read again in every inference, although the engine file is just as
small.

Evidence: layer dumps of about 790 builds with TensorRT for RTX 1.7.1. Its log does not distinguish these cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqtool.core.engine import VECTOR_PRODUCT, Engine, EngineLayer, EngineTensor, Role, stored_weight
from qdqtool.core.quant_format import FLOAT, NAMES
from qdqtool.core.tensors import DType
from qdqtool.matching.evidence import NodeEvidence
from qdqtool.matching.silent_float import BEFORE

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Realised:
    """Requested and realised format of one node.

    Attributes:
        asked: a format ("int8", "nvfp4"), one of its weights alone ("int4-weights"), or "float".
        realised: in the same words; "float", "unknown", or weights that are dequantized before the kernel.
        layer: the kernel that dequantizes the weight, "" without one.
        bytes_lost: what that kernel writes and the next one reads, in every inference; None without one.
    """

    asked: str
    realised: str
    layer: str = ""
    bytes_lost: int | None = None


def realised(node_evidence: NodeEvidence, precision: DType) -> Realised:
    """Compare the requested format of one node with the engine; `precision` is the type of its arithmetic."""
    asked = node_evidence.asked
    if precision in NAMES:
        return Realised(asked=asked, realised=NAMES[precision])
    layers = node_evidence.holders.compute or tuple(
        layer for layer in node_evidence.holders.other if VECTOR_PRODUCT in layer.name
    )
    if not layers:
        return Realised(asked=asked, realised=UNKNOWN)
    held = stored_weight(layers)
    if held is not None:
        return Realised(asked=asked, realised=f"{_held_as(held, asked)}-weights")
    for layer in node_evidence.made:
        stored = stored_weight((layer,))
        if stored is not None and layer.outputs:
            size = layer.outputs[0].bytes
            return Realised(
                asked=asked,
                realised=f"{_held_as(stored, asked)}-weights{BEFORE}",
                layer=layer.name,
                bytes_lost=None if size is None else 2 * size,
            )
    return Realised(asked=asked, realised=FLOAT)


def _held_as(weight: EngineTensor, asked: str) -> str:
    """Return the format of a stored weight. A dump shows E4M3 values for MXFP8 too, and nothing of its scales."""
    if weight.dtype is DType.FLOAT8 and asked.startswith("mxfp8"):
        return "mxfp8"
    return NAMES[weight.dtype]


def makers(engine: Engine) -> Mapping[str, EngineLayer]:
    """Return the kernels that read constants only, by the tensor that they write."""
    return {
        tensor.name: layer
        for layer in engine.layers
        if layer.constants and not layer.inputs and layer.role is not Role.NONE
        for tensor in layer.outputs
    }
