"""INT8 for a GPU without INT8 tensor cores, or without INT8 convolutions in TensorRT for RTX.

    x ─ Q ─ DQ ─ Conv ─ Relu ─ Q ─ DQ        SM86: one INT8 kernel. SM61: no fused one. SM75 with RTX: Half

TensorRT for RTX builds convolutions for SM75 as Half, without a word. Classic releases have no tensor cores to use
below SM75 (SM72, Xavier, excepted): fused INT8 layers are missing there, and INT8 is seldom faster than FP16.

Evidence: RTX 1.7.1: every INT8 Conv of ResNet-18 is Half for SM75 and Int8 for SM80 to SM121. NVIDIA/TensorRT issue
3127 (Pascal).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.evidence import Claim, Explanation, NodeEvidence
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Quantized products, when a GPU was named that has no kernels for them."""
    old = ", ".join(f"SM{sm}" for sm in sorted(target.sm, key=int) if _is_old(sm, target))
    if not old:
        return
    for node in flow.products():
        meant = node.op == "Conv" or not target.is_rtx
        if meant and all(is_int8(flow.origin(node, index)) for index in (0, 1)):
            yield Violation(
                node=node.name,
                reason=f"{old} has no INT8 convolution in TensorRT for RTX"
                if target.is_rtx
                else f"{old} has no INT8 tensor cores",
                effect="it runs in Half or Float"
                if target.is_rtx
                else "it does not fuse with what is around it, and may find no implementation",
                fix="build for SM80 or newer, or leave convolutions float"
                if target.is_rtx
                else "build for SM75 or newer, or leave the model float",
            )


def _is_old(sm: str, target: Target) -> bool:
    return int(sm) <= 75 if target.is_rtx else int(sm) < 75 and sm != "72"


def explain(evidence: NodeEvidence) -> Iterator[Explanation]:
    """RTX has no INT8 convolution for SM75."""
    if evidence.rtx and evidence.node.op == "Conv" and "sm75" in evidence.targets:
        yield Explanation(
            reason="built for SM75, where TensorRT for RTX silently runs every INT8 convolution in float",
            fix="build for SM80 or newer; on SM75 leave convolutions float",
            claim=Claim.NO_KERNEL,
        )


PLUGIN = Rule(code="QDQ135", severity=Severity.WARNING, check=check, explain=explain)
