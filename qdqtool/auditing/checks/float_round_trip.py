"""A low-precision kernel writes floats, and the next kernel turns them back.

    conv (INT8) -> FP16 tensor -> Quantize -> conv (INT8)
                       |
                       +-> residual Add in FP16

The tensor is read or written three times in sixteen or thirty-two bits instead of once in eight. The usual cause is a
residual connection whose shortcut has no Q/DQ: the Add needs the float value, so the convolution must write it.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.commands import REPAIR
from qdqtool.core.engine import EngineLayer
from qdqtool.core.findings import Severity


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per kernel that only quantizes the result of a low-precision kernel again."""
    for layer in context.kernels:
        source = context.wiring.round_trip_of(layer)
        if source is None:
            continue
        others = [reader for reader in context.wiring.readers(source) if reader.name != layer.name]
        why = f", which {others[0].name} reads unchanged" if others else ""
        yield Draft(
            subject=layer.name,
            reason=f"{source.name} computes in {source.precision.value.upper()} and writes {layer.inputs[0].dtype}{why}; "
            f"this kernel only turns it back into {layer.outputs[0].dtype.value.upper()}",
            fix=_fix(context, others),
            layers=(source.name,),
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(source.name), context.at_layer(layer.name)),
        )


def _fix(context: AuditContext, others: list[EngineLayer]) -> str:
    if not others:
        return "put the Q directly after the operation (and its activation), so that it fuses with the kernel"
    refused = context.refusals(others)
    if refused or context.placement is not None:
        return refused or f"nothing to do: placement kept the shortcut into {others[0].name} float"
    return (
        f"put Q/DQ on the input of {others[0].name} that reads this tensor, as {REPAIR} does for a shortcut"
    )


PLUGIN = Check(code="QDQ207", severity=Severity.WARNING, find=find, says=Says.STANDS_ALONE)
