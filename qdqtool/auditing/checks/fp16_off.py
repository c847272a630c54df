"""What is not quantized runs in FP32, because FP16 was not enabled.

The engine computes in INT8 (or FP8, FP4) and FP32 and nowhere in FP16. With types of FP16 in the model (or --fp16 for TensorRT up to
10) the rest would be smaller and faster at no visible loss for most networks. TensorRT's own tools give the same hint.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Role
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted


def find(context: AuditContext) -> Iterator[Draft]:
    """One draft for the whole engine."""
    computing = [layer for layer in context.kernels if layer.role is Role.COMPUTE]
    types = {tensor.dtype for layer in context.kernels for tensor in (*layer.inputs, *layer.outputs)}
    left = [layer for layer in computing if layer.precision is DType.FLOAT32]
    mixed = any(layer.precision.is_quantized for layer in computing)
    if not mixed or not left or types & {DType.FLOAT16, DType.BFLOAT16}:
        return
    sizes = [context.bytes_of(layer) for layer in left]
    known = [size for size in sizes if size is not None]
    yield Draft(
        subject=left[0].name,
        reason=f"{len(left)} of {counted(len(computing), 'compute kernel runs', 'compute kernels run')} FP32 and none FP16: FP16 was not enabled",
        fix="give the float part FP16 (`qdqtool convert --types fp16`, in a recipe insert.types: fp16); "
        "for TensorRT up to 10 without strong typing pass --fp16 as well",
        bytes=sum(known) // 2 if len(known) == len(sizes) else None,
        evidence=tuple(context.at_layer(layer.name) for layer in left[:5]),
    )


PLUGIN = Check(code="QDQ212", severity=Severity.WARNING, find=find)
