"""QuantizeLinear and DequantizeLinear of the com.microsoft domain become standard ones.

onnxruntime's quantizer writes them for types that the standard did not have yet. TensorRT reads them in FP32 and
stops with type errors in FP16.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext, is_pair_op


def repair(context: RepairContext) -> Iterator[Change]:
    """Move Q/DQ nodes to the default domain."""
    for node in context.edit.nodes:
        if is_pair_op(node) and node.domain == "com.microsoft":
            node.domain = ""
            yield Change(
                repair="domain",
                subject=node.name,
                what=f"com.microsoft.{node.op_type} became the standard operator",
                reason="TensorRT reads the com.microsoft form in FP32 only",
                error=0.0,
            )


PLUGIN = repair
