"""A kernel computes the same from constants in every inference.

It has no run-time input. Mostly it reads INT8 weights, turns them into floats and writes them, each time the engine
runs: that happens where a weight has Q/DQ but its operation runs in float, so the Q/DQ on the weight only costs.
Sometimes it multiplies two constants that nobody folded. Where only weights were to be INT8, matrix products need no
such kernel, and convolutions do.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.audit.check import Check, Draft
from qdqtool.audit.scene import Scene
from qdqtool.core.engine import Role
from qdqtool.core.findings import Severity

_FOLD = "fold constants before the build (prepare.fold_constants: true)"
_QUANTIZE = "quantize the activation of the operation that uses this weight, or take the Q/DQ off the weight"
_LEAVE = "leave Conv out of place.ops: only matrix products dequantize their weights inside their own kernel"


def find(scene: Scene) -> Iterator[Draft]:
    """One draft per kernel that reads constants only."""
    asked = any(case.weights_alone for case in scene.cases)
    for layer in scene.kernels:
        if layer.inputs or not layer.constants or not layer.outputs:
            continue
        sizes = [tensor.bytes for tensor in (*layer.constants, *layer.outputs)]
        folds = layer.role is Role.COMPUTE
        origin = ", ".join(layer.onnx_nodes[:3]) or layer.constants[0].name
        yield Draft(
            subject=layer.name,
            reason=f"{'multiplies constants' if folds else 'dequantizes a weight'} in every inference ({origin})",
            fix=_FOLD if folds else _LEAVE if asked else _QUANTIZE,
            bytes=sum(size for size in sizes if size is not None) if None not in sizes else None,
            evidence=(scene.at_layer(layer.name),),
        )


PLUGIN = Check(code="QDQ205", severity=Severity.WARNING, find=find)
