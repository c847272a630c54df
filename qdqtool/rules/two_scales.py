"""One tensor is quantized with different scales for different layers.

    x ─┬─ Q(s=0.05) ─ DQ ─ Conv      x is written twice
       └─ Q(s=0.10) ─ DQ ─ Conv

Its producer writes one INT8 copy per scale, and parallel layers that read it are not merged.

Evidence: RTX 1.7.1 writes two Int8 tensors (shared_scale_diff_consumers, two_scales_for_one_tensor) where equal scales
give one. Classic: HorizontalMergeQNodes needs equal scales; NVIDIA/TensorRT issue 1602.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Tensors with pairs of several scales."""
    for tensor, pairs in flow.by_tensor.items():
        scales = {pair.scale for pair in pairs if pair.scale}
        if len(scales) > 1 and not flow.view.is_constant(tensor):
            yield Violation(
                node=pairs[0].quantize or "",
                reason=f"{tensor} is quantized with {counted(len(scales), 'different scale')}",
                effect=f"its producer writes it {counted(len(scales), 'time')}",
                fix="use one scale for all readers of the tensor",
            )


PLUGIN = Rule(code="QDQ129", severity=Severity.WARNING, check=check)
