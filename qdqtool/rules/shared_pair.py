"""One pair feeds several layers.

    x ─ Q ─ DQ ─┬─ Conv               x ─┬─ Q ─ DQ ─ Conv
                └─ Conv                  └─ Q ─ DQ ─ Conv      same scale: the two Q become one

TensorRT 8 fuses a DequantizeLinear into one consumer and has to copy it for the others. A pair per consumer spares it
that; the Q that are equal are merged again. Later releases and TensorRT for RTX do not mind.

Evidence: logs of TensorRT 8 (`Eliminating ... which duplicates (Q) ...`); nvidia-modelopt can write dedicated pairs;
RTX 1.7.1 builds the same kernels either way (shared_pair).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import PRODUCTS


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs that several products or Adds read."""
    for pair in flow.pairs:
        readers = {slot.node for slot in pair.slots if flow.view.by_name[slot.node].op in PRODUCTS | {"Add"}}
        if len(readers) > 1:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"{len(readers)} layers share it",
                effect="TensorRT 8 copies it, and may not fuse every copy",
                fix="give each layer a pair of its own with the same scale; `qdqtool repair` does",
            )


PLUGIN = Rule(code="QDQ143", severity=Severity.INFO, check=check, targets=frozenset({"8"}))
