"""Words and borders of converting kernels."""

from __future__ import annotations

from qdqtool.auditing.context import AuditContext
from qdqtool.core.engine import Certainty, EngineLayer, Role


def origin(layer: EngineLayer) -> str:
    """Where the layer comes from, in words: its Origin field and its ONNX nodes."""
    stated = dict(layer.attributes).get("Origin", "")
    nodes = ", ".join(layer.onnx_nodes[:3]) if layer.certainty is Certainty.STATED else ""
    return " of ".join(part for part in (stated, nodes) if part) or "no ONNX node"


def inside(context: AuditContext, layer: EngineLayer) -> bool:
    """Whether a converting kernel stands between two kernels, not at the border of the engine."""
    names = {tensor.name for tensor in (*layer.inputs, *layer.outputs)}
    between = bool(context.wiring.writers(layer)) and bool(context.wiring.readers(layer))
    return layer.role is Role.QDQ and bool(layer.inputs) and between and not names & context.border
