"""Q/DQ between a Pad and the convolution it belongs to.

    x ─ Pad ─ Q ─ DQ ─ Conv      the Pad is a kernel
    x ─ Q ─ DQ ─ Pad ─ Conv      the Pad becomes the Conv's own

Classic TensorRT folds a zero Pad into the convolution's own padding only where nothing stands between them. Zero stays
zero when quantized, so the pair can go in front of the Pad. TensorRT for RTX does this itself.

Evidence: NVIDIA/TensorRT issue 2592; RTX 1.7.1 leaves no kernel for the Pad (pad_behind_pair).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import CLASSIC, Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs that quantize the result of a Pad for a Conv."""
    for pair in flow.pairs:
        producer = flow.view.producer(pair.tensor)
        readers = [flow.view.by_name[slot.node].op for slot in pair.slots]
        if producer is not None and producer.op == "Pad" and "Conv" in readers:
            yield Violation(
                node=pair.quantize or "",
                reason=f"it stands between Pad {producer.name} and its convolution",
                effect="the Pad is a kernel of its own",
                fix="quantize the input of the Pad instead",
            )


PLUGIN = Rule(code="QDQ136", severity=Severity.INFO, check=check, targets=CLASSIC)
