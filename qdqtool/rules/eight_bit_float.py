"""FP8 on a GPU or a release without it.

    x ─ Q (FP8) ─ DQ ─ MatMul      SM89 and newer

FP8 needs SM89 or newer, and TensorRT 9 or newer for more than experiments.

Evidence: RTX 1.7.1: `model contains HW-specific datatypes: fp8_e4m3` for SM86; SM89 and SM120 build (fp8_matmul).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import FP8, MXFP8
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """FP8 pairs, where a GPU that was named is too old or none was named."""
    old = sorted((sm for sm in target.sm if int(sm) < FP8.sm), key=int)
    if target.sm and not old:
        return
    for node in flow.quantizers({FP8.name, MXFP8.name}):
        yield Violation(
            node=node,
            reason="the values between Q and DQ are FP8",
            effect=f"the build fails for SM{', SM'.join(old)}" if old else "the build fails below SM89",
            fix="use INT8, or build for SM89 or newer only",
            severity=Severity.ERROR if old else None,
        )


PLUGIN = Rule(code="QDQ111", formats=frozenset({"fp8"}), severity=Severity.WARNING, check=check)
