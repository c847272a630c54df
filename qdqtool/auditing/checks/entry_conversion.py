"""The first thing the engine does is to convert its input.

    input (fp32) -> Quantize -> kernel (INT8)

The kernel reads the whole input in four bytes per element to write it in one. The program that produces the input can
often convert it during preprocessing at no cost, and pass INT8 or FP16 in the layout of the first kernel. No change of
the Q/DQ nodes can remove this part of the engine's time. FP4 and MXFP8 are an exception: this kernel also computes the
scale of each block, which no program can pass. The check reports engines without a model, or with a model without Q and
Cast nodes, as for TensorRT's calibrators. If the model has such nodes, it requested the conversion.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.findings import Severity
from qdqtool.core.tensors import DType
from qdqtool.trt.ops import CASTS, QUANTIZE

_BLOCKED = frozenset({DType.FLOAT4, DType.FLOAT8_E8M0})
"""Types that kernels write only together with a scale per block."""
_DYNAMIC = "nothing to do: the kernel computes a scale per block from each input, and a low-bit input could not carry that scale"


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per kernel that only converts an input of the engine to another type."""
    for layer in () if _is_asked_for(context) else context.kernels:
        if layer.role is not Role.QDQ or not layer.inputs or context.wiring.writers(layer):
            continue
        source, target = layer.inputs[0], _result(layer)
        if not source.dtype.is_float or target == source.dtype.value or not context.wiring.readers(layer):
            continue
        yield Draft(
            subject=layer.name,
            reason=f"turns the input {source.name} from {source.dtype} into {target}",
            fix=_DYNAMIC
            if any(made.dtype in _BLOCKED for made in layer.outputs)
            else f"nothing to do if preprocessing gives {source.dtype}; if it can give {target}, build with trtexec --inputIOFormats={target}:chw",
            bytes=context.bytes_of(layer),
            evidence=(context.at_layer(layer.name),),
        )


def _is_asked_for(context: AuditContext) -> bool:
    """Return whether the model contains conversions, or was asked to."""
    if context.view is None:
        return False
    return context.placement is not None or any(node.op in {QUANTIZE, *CASTS} for node in context.view.nodes)


def _result(layer: EngineLayer) -> str:
    return layer.outputs[0].dtype.value if layer.outputs else layer.inputs[0].dtype.value


PLUGIN = Check(code="QDQ217", severity=Severity.INFO, find=find, says=Says.STANDS_ALONE)
