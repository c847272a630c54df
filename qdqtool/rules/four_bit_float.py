"""FP4 on a GPU or a release without it.

    weights FP4 ─ DQ (blocks of 16) ─ MatMul      builds for SM100 and newer only

FP4 needs a Blackwell GPU (SM100, SM120) and TensorRT 10.8 or newer.

Evidence: RTX 1.7.1: `model contains HW-specific datatypes: fp4_e2m1` for SM86 and SM89; SM120 builds (fp4_weights).
Changelog of TensorRT 10.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import NVFP4, first_sm
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """FP4 pairs, where the release or a GPU that was named has none, or no GPU was named."""
    first = first_sm(NVFP4, rtx=target.is_rtx)
    old = sorted((sm for sm in target.sm if int(sm) < first), key=int)
    early = target.is_before(*NVFP4.release)
    if target.sm and not old and not early:
        return
    effect = f"the build fails for SM{', SM'.join(old)}" if old else f"the build fails below SM{first}"
    for node in flow.quantizers({NVFP4.name}):
        yield Violation(
            node=node,
            reason="the values between Q and DQ are FP4",
            effect="the parser refuses it: FP4 came with TensorRT 10.8" if early else effect,
            fix=f"use INT4 weights, or build for SM{first} or newer with TensorRT 10.8 or newer",
            severity=Severity.ERROR if old or early else None,
        )


PLUGIN = Rule(code="QDQ117", formats=frozenset({"nvfp4"}), severity=Severity.WARNING, check=check)
