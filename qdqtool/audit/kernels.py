"""What a converting kernel does, from the types of its tensors."""

from __future__ import annotations

from qdqtool.audit.scene import Scene
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import EngineLayer, EngineTensor, Role


def quantizes(layer: EngineLayer) -> bool:
    """Float in, Int8 out."""
    return not _int8(layer.inputs) and _int8(layer.outputs)


def dequantizes(layer: EngineLayer) -> bool:
    """Int8 in, float out."""
    return _int8(layer.inputs) and not _int8(layer.outputs)


def rounds(layer: EngineLayer) -> bool:
    """Float in, rounded to eight bits inside, float out: a fake-quantize."""
    return "Roun" in layer.name and not _int8(layer.inputs) and not _int8(layer.outputs)


def origin(layer: EngineLayer) -> str:
    """Where the layer comes from, in words: its Origin field and its ONNX nodes."""
    stated = dict(layer.attributes).get("Origin", "")
    nodes = ", ".join(layer.onnx_nodes[:3])
    return " of ".join(part for part in (stated, nodes) if part) or "no ONNX node"


def inside(scene: Scene, layer: EngineLayer) -> bool:
    """Whether a converting kernel stands between two kernels, not at the border of the engine."""
    names = {tensor.name for tensor in (*layer.inputs, *layer.outputs)}
    between = bool(scene.writers(layer)) and bool(scene.readers(layer))
    return layer.role is Role.QDQ and bool(layer.inputs) and between and not names & scene.border


def round_trip_of(scene: Scene, layer: EngineLayer) -> EngineLayer | None:
    """The INT8 kernel whose float result `layer` only turns back into INT8; None where `layer` is no such kernel."""
    if layer.role is not Role.QDQ or not quantizes(layer):
        return None
    writers = scene.writers(layer)
    back = len(writers) == 1 and writers[0].role is Role.COMPUTE and writers[0].precision is DType.INT8
    return writers[0] if back else None


def _int8(tensors: tuple[EngineTensor, ...]) -> bool:
    return any(tensor.dtype is DType.INT8 for tensor in tensors)
