"""An INT8 kernel does not run on tensor cores.

Its name (or its runner, for depthwise convolutions) shows that it uses the ordinary INT8 dot product, which is many
times slower per multiprocessor. Usual reasons: a depthwise or grouped convolution, a number of channels that is not a
multiple of sixteen or thirty-two, or a first layer with three channels. FP16 on tensor cores may be faster there.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.core.wording import counted


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per INT8 kernel that is known to run without tensor cores."""
    for layer in context.kernels:
        known = layer.role is Role.COMPUTE and layer.precision is DType.INT8 and layer.tensor_cores is False
        if known:
            yield Draft(
                subject=layer.name,
                reason=f"INT8 without tensor cores ({layer.tactic or layer.kind}){_likely(layer)}",
                fix="compare its time with an FP16 build; if FP16 is faster, keep this node float",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


def _likely(layer: EngineLayer) -> str:
    shape = layer.inputs[0].shape if layer.inputs else None
    channels = shape[1] if shape and len(shape) > 2 else None
    groups = dict(layer.attributes).get("Groups", "1")
    if "Depthwise" in layer.kind or groups not in {"", "1"}:
        return ": a depthwise or grouped convolution"
    if channels is not None and 0 < channels < 16:
        return f": only {counted(channels, 'input channel')}"
    if channels is not None and channels % 16:
        return f": {counted(channels, 'input channel is', 'input channels are')} not a multiple of 16"
    return ""


PLUGIN = Check(code="QDQ210", severity=Severity.INFO, find=find)
