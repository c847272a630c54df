"""Q/DQ inside the body of an If or a Loop.

    If ── then: x ─ Q ─ DQ ─ y
       └─ else: x

TensorRT imports bodies of conditionals and loops partly, and fuses nothing across their border: what enters in float is
quantized inside, in a kernel of its own. Lint, prediction and audit do not look inside.

Evidence: RTX 1.7.1 runs a Conv with Q/DQ inside an If in INT8, behind a quantize kernel in each branch
(conv_inside_if); a lone pair is a float kernel (pair_inside_if). Parser documentation of classic releases: If and Loop
partly.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import QDQ

_WAY_OUT = (
    "nothing to do by a command: in the exporting code, write the control flow out: in PyTorch decide a condition in Python before torch.onnx.export, or "
    "compute both branches and choose with torch.where; a loop of a known number of rounds is unrolled by torch.jit.trace"
)


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Control-flow nodes that hold Q/DQ."""
    for node in flow.view.nodes:
        count = sum(op in QDQ for op in flow.view.body_ops(node))
        if count:
            yield Violation(
                node=node.name,
                reason=f"{counted(count, 'Q/DQ node is', 'Q/DQ nodes are')} inside its bodies",
                effect="nothing fuses across the border of a body, and what is inside is not checked here",
                fix=_WAY_OUT,
                severity=Severity.INFO if target.is_rtx else None,
            )


PLUGIN = Rule(code="QDQ114", severity=Severity.WARNING, check=check)
