"""LSTM, GRU and RNN are left alone.

Their state is carried through hundreds of steps, where rounding errors pile up, and no TensorRT release has an INT8
kernel for them in explicit quantization.

Evidence: NVIDIA's support matrix lists recurrence (loops) in FP32 and FP16 only.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import HAS_NO_KERNEL
from qdqtool.core.placement import Opinion, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.evidence import Explanation, NodeEvidence
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import RECURRENT


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto input, weights and recurrence weights."""
    for node in view.nodes:
        if node.op in RECURRENT:
            for index in range(3):
                yield Opinion(
                    slot=Slot(node=node.name, index=index),
                    stance=Stance.VETO,
                    reason=f"TensorRT has no INT8 kernel for {node.op}",
                    fix="nothing to do; FP16 is the fastest it runs in (trtexec --fp16)"
                    if options.builder.is_before(10)
                    else "nothing to do; --set insert.types=fp16 is the fastest it runs in",
                    claim=HAS_NO_KERNEL,
                )


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """No INT8 kernel, with whatever Q/DQ around it."""
    if evidence.node.op in RECURRENT:
        yield Explanation(
            reason=f"TensorRT has no {evidence.arithmetic} kernel for {evidence.node.op}",
            fix=f"{evidence.without_qdq}; FP16 (`qdqtool convert`) is the fastest it runs in",
            no_kernel=True,
        )


PLUGIN = Rule(code="QDQ177", place=place, explain=explain)
