"""A Q/DQ pair fused with no neighbour and costs a separate kernel.

    kernel -> Quantize -> kernel          the value was not made in INT8
    kernel -> Dequantize -> kernel        the reader cannot take INT8
    kernel -> Quantize, Dequantize -> ..  a fake-quantize before a float operation

At an input of the engine a quantize kernel is needed: the input must become INT8. Float compute nodes, poolings,
reductions and some normalizations cannot write INT8 either, so a layer that reads them in INT8 needs this kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.auditing.kernels import inside, origin
from qdqtool.core.advice import as_float
from qdqtool.core.claims import Says
from qdqtool.core.commands import Command
from qdqtool.core.engine import EngineLayer, Role, dequantizes, quantizes, rounds
from qdqtool.core.findings import Severity


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per quantize, dequantize or fake-quantize kernel inside the engine."""
    for layer in context.kernels:
        said = _reason_and_fix(layer) if inside(context, layer) else None
        if said is None or context.wiring.round_trip_of(layer) is not None:
            continue
        does, fix = said
        if quantizes(layer):
            fix = _beside(context, layer) or fix
        yield Draft(
            subject=layer.name,
            reason=f"a kernel that only {does} ({origin(layer)}), between {context.wiring.writers(layer)[0].name} and "
            f"{context.wiring.readers(layer)[0].name}",
            fix=fix,
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
        )


def _reason_and_fix(layer: EngineLayer) -> tuple[str, str] | None:
    if rounds(layer):
        return (
            "rounds to eight bits and converts back to float",
            f"{Command('fix')} tries to remove this pair, and to quantize every input of the operation after it",
        )
    if quantizes(layer):
        return (
            "quantizes",
            f"{Command('fix')} tries to move it to the kernel that produces the value, where it fuses",
        )
    if dequantizes(layer):
        return (
            "dequantizes",
            f"{Command('fix')} tries to quantize the operation after it too, and to remove the pair",
        )
    return None


def _beside(context: AuditContext, layer: EngineLayer) -> str:
    """Return the fix from the float neighbours of a quantize kernel: its writer or its readers; "" if no node is known."""
    writer = context.wiring.writers(layer)[0]
    if writer.role is Role.COMPUTE:
        made = [told for told in context.verdicts_on(writer) if told.precision.is_float]
        return f"{made[0].fix} ({made[0].node} computes in float and writes floats)" if made else ""
    readers = [told for reader in context.wiring.readers(layer) for told in context.verdicts_on(reader)]
    if not readers:
        return ""
    node = readers[0].node
    word = next((t.dtype.value.upper() for t in layer.outputs if t.dtype.is_quantized), "few bits")
    return (
        f"the kernel before it cannot write {word}: keep it if {node} gains more from {word}, otherwise "
        f"{as_float([node], placed=context.placement is not None)}"
    )


PLUGIN = Check(code="QDQ206", severity=Severity.INFO, find=find, says=Says.STANDS_ALONE)
