"""Kernels that only convert: their origin in words, and whether they are inside the engine."""

from __future__ import annotations

from qdqtool.auditing.context import AuditContext
from qdqtool.core.engine import Certainty, EngineLayer, Role


def origin(layer: EngineLayer) -> str:
    """Describe the origin of a layer: its Origin field and its ONNX nodes."""
    stated = dict(layer.attributes).get("Origin", "")
    nodes = ", ".join(layer.onnx_nodes[:3]) if layer.certainty is Certainty.STATED else ""
    return " of ".join(part for part in (stated, nodes) if part) or "no ONNX node"


def inside(context: AuditContext, layer: EngineLayer) -> bool:
    """Return whether a converting kernel is between two kernels, not at an input or output of the engine."""
    names = {tensor.name for tensor in (*layer.inputs, *layer.outputs)}
    between = bool(context.wiring.writers(layer)) and bool(context.wiring.readers(layer))
    return layer.role is Role.QDQ and bool(layer.inputs) and between and not names & context.border
