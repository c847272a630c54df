"""One pair feeds several layers.

Classic TensorRT fuses a DequantizeLinear into one consumer and has to copy it for the others; some releases missed
fusions then. NVIDIA's own tools write a pair per consumer. TensorRT for RTX does not mind.

Evidence: nvidia-modelopt writes dedicated pairs; RTX 1.7.1 builds the same kernels either way (shared_pair).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import CLASSIC, Asked, LintRule, Wrong
from qdqtool.placement.weighted import COMPUTE


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Pairs that several products or Adds read."""
    for pair in flow.pairs:
        readers = {slot.node for slot in pair.slots if flow.view.by_name[slot.node].op in COMPUTE | {"Add"}}
        if len(readers) > 1:
            yield Wrong(
                node=pair.dequantize or "",
                reason=f"{len(readers)} layers share it",
                effect="releases differ in whether every one of them fuses",
                fix="give each layer a pair of its own with the same scale; `qdqtool repair` does",
            )


PLUGIN = LintRule(code="QDQ143", severity=Severity.INFO, find=find, targets=CLASSIC)
