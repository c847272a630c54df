"""A region was compiled as one block, and the layer information does not say what is inside.

TensorRT 8 prints a Myelin region as one `{ForeignNode[first...last]}` layer: its kernels and their types stay unknown,
also to the profiler. TensorRT 9 and later list the kernels of a region. Only the nodes in this finding are known.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.auditing.regions import is_opaque
from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per region."""
    for layer in context.kernels:
        if is_opaque(layer):
            nodes = layer.onnx_nodes
            held = (
                f"{counted(len(nodes), 'ONNX node')}, {', '.join(nodes[:5])}"
                if nodes
                else "nodes that are not listed"
            )
            yield Draft(
                subject=layer.name,
                reason=f"a region whose kernels are not listed; it contains {held}",
                fix="nothing to do with this release: TensorRT 9 and newer list the kernels of such regions",
                bytes=context.bytes_of(layer),
                evidence=(context.at_layer(layer.name),),
            )


PLUGIN = Check(code="QDQ214", severity=Severity.INFO, find=find)
