"""A low-precision kernel hands floats to another kernel.

Its arithmetic is INT8 (or FP8, FP4), but its result is two or four times larger than necessary, and the next kernel
computes or adds in float. If the next kernel could read the low-bit type, a Q/DQ pair before it lets this kernel write
that type. Outputs of the engine, which should be float, are not reported, nor are kernels that TensorRT for RTX splits
into a MatMul and its epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.trt.ops import QDQ

_GENERATED = frozenset({"kgen", "runtime_fusion"})


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per low-precision kernel with a float result that another kernel of the engine reads."""
    for layer in context.kernels:
        result = layer.outputs[0] if layer.outputs else None
        if layer.role is not Role.COMPUTE or not layer.precision.is_quantized or result is None:
            continue
        readers = _float_readers(context, layer)
        lost = not context.border and not context.wiring.readers(layer) and layer.kind not in _GENERATED
        if not result.dtype.is_float or result.name in context.border or not (readers or lost):
            continue
        smaller = (
            None
            if result.bytes is None or result.dtype.bits is None
            else result.bytes * (layer.precision.bits or 8) // result.dtype.bits
        )
        yield Draft(
            subject=layer.name,
            reason=f"computes in {layer.precision.value.upper()} and writes {result.dtype} for {_named(readers)}",
            fix=_fix(context, readers),
            bytes=None if result.bytes is None or smaller is None else 2 * (result.bytes - smaller),
            evidence=(context.at_layer(layer.name),),
        )


def _fix(context: AuditContext, readers: list[EngineLayer]) -> str:
    """Return the fix at the ONNX node that could read INT8. Skips kernels that only convert, because no edit reaches them."""
    if not readers:
        return (
            "nothing to do if this is an output of the engine; otherwise put Q/DQ on the input that reads it"
        )
    waiting, seen = list(readers), set()
    while waiting:
        reader = waiting.pop(0)
        if reader.name in seen:
            continue
        seen.add(reader.name)
        nodes = sorted(name for name in reader.onnx_nodes if _computes(context, name))
        if nodes:
            return context.refusals([reader]) or (
                f"nothing to do by a command, unless node {nodes[0]!r} can read quantized values: then put Q/DQ on its input"
            )
        waiting += context.wiring.readers(reader)
    return "nothing to do: only conversions read it, and their results are outputs of the engine"


def _computes(context: AuditContext, name: str) -> bool:
    """Return whether an ONNX node does more than quantize. Without a model, return true for every node that a layer names."""
    node = context.view.by_name.get(name) if context.view is not None else None
    return context.view is None or (node is not None and node.op not in QDQ)


def _named(readers: list[EngineLayer]) -> str:
    """Return the names of the first three readers, or a phrase if the layer information lists none."""
    return (
        ", ".join(reader.name for reader in readers[:3])
        or "a reader that the layer information does not list"
    )


def _float_readers(context: AuditContext, layer: EngineLayer) -> list[EngineLayer]:
    """Return the layers that read the floats, without epilogues; empty if another check already reports a round trip."""
    readers = context.wiring.readers(layer)
    if any(context.wiring.round_trip_of(reader) is not None for reader in readers):
        return []
    return [reader for reader in readers if reader.kind not in _GENERATED]


PLUGIN = Check(code="QDQ208", severity=Severity.INFO, find=find, says=Says.WRITES_FLOAT)
