"""Nodes that are not quantized run in FP32, because FP16 was not enabled.

The engine computes in INT8 (or FP8, FP4) and FP32, but not in FP16. With FP16 types in the model (or --fp16 for
TensorRT up to 10), the float part would be smaller and faster, with no visible loss for most networks. TensorRT's own
tools give the same hint. Kernels of nodes that lose their result in FP16 (`qdqtool convert` keeps them FP32 and gives
the reason) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.commands import Command, Setting
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import counted
from qdqtool.graph.sensitive import sensitive
from qdqtool.graph.typed.narrow import NARROW
from qdqtool.trt.ops import COMPUTE


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft for the whole engine."""
    computing = [layer for layer in context.kernels if layer.role is Role.COMPUTE]
    types = {tensor.dtype for layer in context.kernels for tensor in (*layer.inputs, *layer.outputs)}
    left = [layer for layer in computing if layer.precision is DType.FLOAT32]
    mixed = any(layer.precision.is_quantized for layer in computing)
    left, destroyed = _parted(context, left)
    if not mixed or not left or types & {DType.FLOAT16, DType.BFLOAT16}:
        return
    sizes = [context.bytes_of(layer) for layer in left]
    known = [size for size in sizes if size is not None]
    kept = f"; {len(destroyed)} more must stay FP32 (the first {destroyed[0]})" if destroyed else ""
    yield Draft(
        subject=left[0].name,
        reason=f"{len(left)} of {counted(len(computing), 'compute kernel runs', 'compute kernels run')} FP32 and none FP16: FP16 was not enabled{kept}",
        fix=_fix(context),
        bytes=sum(known) // 2 if len(known) == len(sizes) else None,
        evidence=tuple(context.at_layer(layer.name) for layer in left[:5]),
    )


def _fix(context: AuditContext) -> str:
    typed = (
        Command("convert", ("--types", "fp16"))
        if context.placement is None
        else Setting("insert.types", "fp16")
    )
    classic = "; without strong typing (TensorRT up to 10) pass --fp16 as well"
    return f"{typed} gives the float part FP16{'' if context.target.is_rtx else classic}"


def _parted(context: AuditContext, left: list[EngineLayer]) -> tuple[list[EngineLayer], list[str]]:
    """Return the kernels that may compute in FP16, and for each of the other kernels the reason against FP16."""
    if context.view is None or not left:
        return left, []
    reasons = sensitive(context.view, NARROW["fp16"].float_type)
    nodes = context.view.by_name
    possible, destroyed = [], []
    for layer in left:
        computing = [name for name in layer.onnx_nodes if name in nodes and nodes[name].op in COMPUTE]
        if computing and all(name in reasons for name in computing):
            destroyed.append(reasons[computing[0]])
        else:
            possible.append(layer)
    return possible, destroyed


PLUGIN = Check(code="QDQ212", severity=Severity.WARNING, find=find, says=Says.NO_HALF)
