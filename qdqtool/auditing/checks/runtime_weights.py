"""A kernel computes the same from constants in every inference.

The kernel has no run-time input. Usually it reads INT8 weights, converts them to floats and writes them, in every
inference. This happens if a weight has Q/DQ but its operation runs in float, so the Q/DQ on the weight has a cost
without a gain. A weight with two successive pairs is rounded a second time in every inference. Sometimes the kernel
multiplies or gathers constants that were not folded. Constants that `prepare` does not fold, and the constant first
state of a recurrence, are for information only. With weight-only quantization, MatMul nodes need no such kernel, but
convolutions do.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.advice import setting
from qdqtool.core.claims import Says
from qdqtool.core.commands import REPAIR, Command
from qdqtool.core.engine import EngineLayer, Role, stored_weight
from qdqtool.core.findings import NodeVerdict, Severity
from qdqtool.core.tensors import DType
from qdqtool.trt.ops import CONVOLUTIONS, RECURRENT

_FOLD = f"fold constants before the build: {REPAIR} does it"
_FOLDED = "nothing to do: `prepare` folded all constants that it can"
_QUANTIZE = f"{Command('repair', ('--samples', 'DATA'))} quantizes the activation of the operation that uses this weight"
_TWICE = f"keep only one of the successive Q/DQ pairs on this weight ({REPAIR} removes the other)"


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per kernel that reads constants only."""
    asked = any(case.weights_alone for case in context.cases)
    for layer in context.kernels:
        if layer.inputs or not layer.constants or not layer.outputs:
            continue
        sizes = [tensor.bytes for tensor in (*layer.constants, *layer.outputs)]
        folds = layer.role is Role.COMPUTE or "Sum" in layer.name or not _holds_stored_weight(layer)
        origin = ", ".join(layer.onnx_nodes[:3]) or layer.constants[0].name
        all_readers = _readers(context, layer)
        readers = [told for told in all_readers if not told.precision.is_quantized]
        yield Draft(
            subject=layer.name,
            reason=f"{_does(layer, folds=folds)} in every inference ({origin}){'' if folds else _because(readers)}",
            fix=context.way_out((layer.name,)) or _folded(context, readers)
            if folds
            else _leave(all_readers)
            if asked and all_readers
            else _fix(context, layer, all_readers),
            bytes=sum(size for size in sizes if size is not None) if None not in sizes else None,
            evidence=(context.at_layer(layer.name),),
        )


def _leave(readers: list[NodeVerdict]) -> str:
    """Return the setting that keeps these nodes float, by type if all are convolutions.

    Convolutions never dequantize their weights inside their own kernel.
    """
    if {told.op for told in readers} <= CONVOLUTIONS:
        ops = sorted({told.op for told in readers})
        return f"{setting('place.exclude_ops', ops)} leaves them float: only MatMul and Gemm nodes dequantize their weights inside their kernel"
    return f"{setting('place.exclude', sorted({told.node for told in readers}))} leaves them float"


def _folded(context: AuditContext, readers: list[NodeVerdict]) -> str:
    if any(told.op in RECURRENT for told in readers):
        return "nothing to do: the recurrence starts with a constant state"
    return _FOLD if context.placement is None else _FOLDED


def _does(layer: EngineLayer, *, folds: bool) -> str:
    if folds:
        return "multiplies constants" if layer.role is Role.COMPUTE else "computes from constants"
    return "rounds a weight a second time" if _again(layer) else "dequantizes a weight"


def _holds_stored_weight(layer: EngineLayer) -> bool:
    return "Roun" in layer.name or stored_weight((layer,)) is not None


def _again(layer: EngineLayer) -> bool:
    """Return whether a kernel reads INT8 values and writes INT8 values again."""
    types = [{tensor.dtype for tensor in side} for side in (layer.constants, layer.outputs)]
    return "Roun" in layer.name and all(DType.INT8 in side for side in types)


def _readers(context: AuditContext, layer: EngineLayer) -> list[NodeVerdict]:
    """Return the verdicts on the nodes that read the weight."""
    held = set(layer.onnx_nodes)
    return [
        told
        for case, told in zip(context.cases, context.verdicts, strict=True)
        if any(
            operand.pair and {operand.pair.quantize, operand.pair.dequantize} & held
            for operand in case.operands
        )
    ]


def _because(readers: list[NodeVerdict]) -> str:
    return f": {readers[0].node} computes in float" if readers else ""


def _fix(context: AuditContext, layer: EngineLayer, readers: list[NodeVerdict]) -> str:
    """Return the fix of the node that reads the weight, because it removes this kernel too."""
    slow = [told for told in readers if not told.precision.is_quantized]
    if not slow and _again(layer):
        return _TWICE
    said = [told.fix for told in slow[:3]] or [context.lint_fixes.get(told.node, "") for told in readers[:3]]
    return "; ".join(dict.fromkeys(filter(None, said))) or _QUANTIZE


PLUGIN = Check(code="QDQ205", severity=Severity.WARNING, find=find, says=Says.FROM_CONSTANTS)
