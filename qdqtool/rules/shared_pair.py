"""One pair feeds several layers.

    x ─ Q ─ DQ ─┬─ Conv               x ─┬─ Q ─ DQ ─ Conv
                └─ Conv                  └─ Q ─ DQ ─ Conv      same scale: the two Q become one

TensorRT 8 fuses a DequantizeLinear into one consumer and has to copy it for the others. A pair per consumer spares it
that; the Q that are equal are merged again. Later releases and TensorRT for RTX do not mind.

The fix is applied for every builder: a pair that serves one consumer can be moved or taken away for it alone.

Evidence: logs of TensorRT 8 (`Eliminating ... which duplicates (Q) ...`); nvidia-modelopt can write dedicated pairs;
RTX 1.7.1 builds the same kernels either way (shared_pair).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import DEQUANTIZE, PRODUCTS, QUANTIZE

if TYPE_CHECKING:
    import onnx


def match(flow: Flow) -> Iterator[QdqPair]:
    """Pairs with several readers, and what the model returns counts as one."""
    return (pair for pair in flow.pairs if len(pair.slots) + pair.returned > 1)


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Those that several products or Adds read."""
    for pair in match(flow):
        readers = {slot.node for slot in pair.slots if flow.view.by_name[slot.node].op in PRODUCTS | {"Add"}}
        if len(readers) > 1:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"{counted(len(readers), 'layer shares', 'layers share')} it",
                effect="TensorRT 8 copies it, and may not fuse every copy",
                fix="give each layer a pair of its own with the same scale; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Copy shared nodes, DequantizeLinear first, then QuantizeLinear."""
    shared = frozenset(pair.dequantize for pair in match(context.flow))
    for op in (DEQUANTIZE, QUANTIZE):
        consumers = context.edit.consumers()
        for node in [node for node in context.edit.nodes if node.op_type == op]:
            if op == DEQUANTIZE and node.name not in shared:
                continue
            readers = consumers.get(node.output[0], [])
            kept = 0 if node.output[0] in context.pinned else 1
            spare = readers[kept:]
            for reader, index in spare:
                context.edit.connect(reader, index, _copy(context, node, reader, index))
            if spare:
                yield Change(
                    subject=node.name,
                    what=f"{op} that {counted(len(readers), 'input reads', 'inputs read')} was copied for each of them",
                    reason="a shared node is fused into one consumer and may stay a kernel for the others",
                    error=0.0,
                )


def _copy(context: RepairContext, node: onnx.NodeProto, reader: onnx.NodeProto, index: int) -> str:
    """A node like `node` for one input of `reader`; returns its output."""
    result = context.edit.fresh(f"{node.output[0]}_{reader.name}_{index}")
    twin = context.edit.node(node.op_type, node.input, [result], name=f"{node.name}_{reader.name}_{index}")
    twin.attribute.extend(node.attribute)
    return result


PLUGIN = Rule(
    code="QDQ143",
    severity=Severity.INFO,
    targets=frozenset({"8"}),
    stage=Stage.LEGAL,
    after=("dynamic", "four_bits"),
    check=check,
    fix=fix,
)
