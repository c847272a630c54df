"""Q/DQ in front of an average pool, built with TensorRT for RTX.

    Conv ─ Relu ─ Q ─ DQ ─ AveragePool      Float in, Float out, one rounding more
    Conv ─ Relu ─ AveragePool               the same kernels

Averages are computed in float, so the pair only adds a rounding, unless another layer reads the same values in INT8:
then they are not written as float too (see the rule `pooling`).

Evidence: RTX 1.7.1: `avgpool` Float to Float behind a fake-quantize; a global average is computed in float inside the
convolution's epilogue with the pair and without, in as many kernels (gap_q).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.trt.ops import AVERAGES


def find(flow: Flow, _asked: Target) -> Iterator[Violation]:
    """Average pools that read a DequantizeLinear."""
    for pair in flow.pairs:
        for slot in pair.slots:
            node = flow.view.by_name[slot.node]
            if node.op in AVERAGES and slot.index == 0 and not _saves_a_copy(flow, node):
                yield Violation(
                    node=node.name,
                    reason=f"{node.op} has Q/DQ on its input",
                    effect="it averages in float: the pair only adds a rounding",
                    fix="take the pair off",
                )


def _saves_a_copy(flow: Flow, pool: Node) -> bool:
    """Whether other layers read INT8 what the pool averages; a global average is part of the kernel in front of it."""
    pair = flow.origins.get(pool.inputs[0])
    if pool.op != "AveragePool" or pair is None:
        return False
    slots = (slot for other in flow.by_tensor.get(pair.tensor, (pair,)) for slot in other.slots)
    return any(flow.view.by_name[slot.node].op not in AVERAGES for slot in slots)


PLUGIN = LintRule(code="QDQ131", severity=Severity.INFO, find=find, targets=frozenset({"rtx"}))
