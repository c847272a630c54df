"""Every consumer gets a Q/DQ pair of its own.

A DequantizeLinear that feeds several nodes ties their fates: TensorRT fuses it into one of them and may leave a
dequantize kernel for the others, and no pair can be moved or removed for one consumer alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext, is_pair_op
from qdqtool.trt.ops import DEQUANTIZE, QUANTIZE

if TYPE_CHECKING:
    import onnx


def repair(context: RepairContext) -> Iterator[Change]:
    """Copy shared nodes, DequantizeLinear first, then QuantizeLinear."""
    for op in (DEQUANTIZE, QUANTIZE):
        consumers = context.edit.consumers()
        for node in [node for node in context.edit.nodes if is_pair_op(node) and node.op_type == op]:
            readers = consumers.get(node.output[0], [])
            kept = 0 if node.output[0] in context.pinned else 1
            spare = readers[kept:]
            for reader, index in spare:
                context.edit.connect(reader, index, _copy(context, node, reader, index))
            if spare:
                yield Change(
                    repair="dedicated",
                    subject=node.name,
                    what=f"{op} that {len(readers)} inputs read was copied for each of them",
                    reason="a shared node is fused into one consumer and may stay a kernel for the others",
                    error=0.0,
                )


def _copy(context: RepairContext, node: onnx.NodeProto, reader: onnx.NodeProto, index: int) -> str:
    """A node like `node` for one input of `reader`; returns its output."""
    result = context.edit.fresh(f"{node.output[0]}_{reader.name}_{index}")
    twin = context.edit.node(node.op_type, node.input, [result], name=f"{node.name}_{reader.name}_{index}")
    twin.attribute.extend(node.attribute)
    return result


PLUGIN = repair
