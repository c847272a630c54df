"""A kernel does nothing but cast or reorder, between two others.

Such a kernel reads and writes a whole tensor and computes nothing. It is often needed at inputs and outputs of the
engine. Elsewhere two neighbours use different types or memory layouts: one runs in FP16 and the next in FP32, or one
uses channels last and the next channels first.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.auditing.kernels import inside, origin
from qdqtool.core.claims import Says
from qdqtool.core.commands import Command
from qdqtool.core.engine import EngineLayer, dequantizes, quantizes, rounds
from qdqtool.core.findings import Severity
from qdqtool.trt.ops import CASTS, MAY_MOVE

_AGREE = "nothing to do: the builder chose different types or layouts for the kernels before and after it"
_IN_PLACE = "nothing to do: the model is correct, but the builder found no producer that can write in place"
_FLOAT_PART = (
    f"{Command('fix')} tries whether the Q/DQ of the nodes beside the concatenation save more than they cost; the copy stays: the builder found no "
    "producer that can write in place"
)


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per kernel inside the engine that casts or reorders."""
    for layer in context.kernels:
        if not inside(context, layer) or quantizes(layer) or dequantizes(layer) or rounds(layer):
            continue
        change, fix = _action_and_fix(context, layer)
        neighbours = (*context.wiring.writers(layer)[:1], *context.wiring.readers(layer)[:1])
        yield Draft(
            subject=layer.name,
            reason=f"a kernel that only {change} ({origin(layer)}), between "
            f"{' and '.join(other.name for other in neighbours)}",
            fix=fix,
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
        )


def _action_and_fix(context: AuditContext, layer: EngineLayer) -> tuple[str, str]:
    """Return the action of the kernel in words, and the fix."""
    source, target = layer.inputs[0], layer.outputs[0]
    asked = _model_nodes(context, layer)
    if source.dtype is not target.dtype:
        cast = asked.get("Cast")
        fix = f"give both sides of the model's {cast} the same type, and remove it" if cast else _AGREE
        return f"casts {source.dtype} to {target.dtype}", fix
    if context.wiring.in_parts(target):
        beside = target.dtype.is_float and any(other.precision.is_quantized for other in context.kernels)
        return f"copies its part of a {target.dtype} concatenation", _FLOAT_PART if beside else _IN_PLACE
    mover = next((name for op, name in asked.items() if op in MAY_MOVE | CASTS), "")
    fix = f"nothing to do: the model requires it, because it contains {mover}" if mover else _AGREE
    return f"reorders {source.dtype} in memory", fix


def _model_nodes(context: AuditContext, layer: EngineLayer) -> dict[str, str]:
    """Return the model's nodes in the kernel: operator -> name."""
    known = context.view.by_name if context.view is not None else {}
    return {known[name].op: name for name in layer.onnx_nodes if name in known}


PLUGIN = Check(code="QDQ203", severity=Severity.INFO, find=find, says=Says.STANDS_ALONE)
