"""A kernel does nothing but cast or reorder, between two others.

Such a kernel reads and writes a whole tensor and computes nothing. At the border of the engine one is often needed.
Elsewhere two neighbours want different types or memory layouts: one runs in FP16 and the next in FP32, or one wants
channels last and the next channels first.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.audit.check import Check, Draft
from qdqtool.audit.kernels import inside, origin
from qdqtool.audit.scene import Scene, bytes_of
from qdqtool.core.findings import Severity
from qdqtool.core.wiring import dequantizes, quantizes, rounds


def find(scene: Scene) -> Iterator[Draft]:
    """One draft per kernel inside the engine that casts or reorders."""
    for layer in scene.kernels:
        if not inside(scene, layer) or quantizes(layer) or dequantizes(layer) or rounds(layer):
            continue
        source, target = layer.inputs[0], layer.outputs[0]
        change = (
            f"casts {source.dtype} to {target.dtype}"
            if source.dtype is not target.dtype
            else f"reorders {source.dtype} in memory"
        )
        neighbours = (*scene.wiring.writers(layer)[:1], *scene.wiring.readers(layer)[:1])
        yield Draft(
            subject=layer.name,
            reason=f"a kernel that only {change} ({origin(layer)}), between "
            f"{' and '.join(other.name for other in neighbours)}",
            fix="look at its neighbours: both in one type and layout need no such kernel",
            bytes=bytes_of(layer),
            evidence=(scene.at_layer(layer.name),),
        )


PLUGIN = Check(code="QDQ203", severity=Severity.INFO, find=find)
