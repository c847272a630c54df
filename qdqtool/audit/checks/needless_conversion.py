"""A kernel does nothing but quantize, dequantize, cast or reformat, between two others.

Such a kernel reads and writes a whole tensor and computes nothing. At the border of the engine one is needed: the
input has to become INT8, an output has to become float. Elsewhere it shows Q/DQ that fused with no neighbour, a
fake-quantize left in front of a float operation, or two neighbours that want different memory layouts.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.audit.check import Check, Draft
from qdqtool.audit.scene import Scene
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity


def find(scene: Scene) -> Iterator[Draft]:
    """One draft per converting kernel inside the engine."""
    border = {binding.name for binding in scene.engine.bindings}
    for layer in scene.kernels:
        tensors = (*layer.inputs, *layer.outputs)
        if layer.role is not Role.QDQ or not layer.inputs or any(tensor.name in border for tensor in tensors):
            continue
        sizes = [tensor.bytes for tensor in tensors]
        moved = sum(size for size in sizes if size is not None) if None not in sizes else None
        origin = ", ".join(layer.onnx_nodes[:3]) or "no ONNX node"
        yield Draft(
            subject=layer.name,
            reason=f"a kernel that only {_does(layer)}; it comes from {origin}",
            fix=_fix(layer),
            bytes=moved,
            evidence=(scene.at_layer(layer.name),),
        )


def _types(layer: EngineLayer) -> tuple[bool, bool]:
    return any(t.dtype is DType.INT8 for t in layer.inputs), any(t.dtype is DType.INT8 for t in layer.outputs)


def _does(layer: EngineLayer) -> str:
    match _types(layer):
        case (False, True):
            return "quantizes"
        case (True, False):
            return "dequantizes"
        case (False, False) if "Roun" in layer.name:
            return "rounds to eight bits and goes back to float"
        case _:
            return "casts or reorders"


def _fix(layer: EngineLayer) -> str:
    match _types(layer):
        case (False, False) if "Roun" in layer.name:
            return "take this Q/DQ pair away, or quantize every input of the operation behind it"
        case (True, False):
            return "quantize the operation behind it too, or take the Q/DQ pair away"
        case (False, True):
            return "move the Q/DQ pair so that the quantization fuses with the kernel that makes the value"
        case _:
            return (
                "look at the formats of its neighbours: both sides in one type and layout need no such kernel"
            )


PLUGIN = Check(code="QDQ203", severity=Severity.INFO, find=find)
