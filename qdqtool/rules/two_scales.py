"""One tensor is quantized with different scales for different layers.

    x ─┬─ Q(s=0.05) ─ DQ ─ Conv      x is written twice
       └─ Q(s=0.10) ─ DQ ─ Conv

Its producer writes one INT8 copy per scale, and parallel layers that read it are not merged.

The fix gives all of them the largest scale.

Evidence: RTX 1.7.1 writes two Int8 tensors (shared_scale_diff_consumers, two_scales_for_one_tensor) where equal scales
give one. Classic: HorizontalMergeQNodes needs equal scales; NVIDIA/TensorRT issue 1602.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Violation


def match(flow: Flow) -> Iterator[tuple[str, tuple[QdqPair, ...]]]:
    """Run-time tensors with pairs of several scales, and these pairs."""
    for tensor, pairs in flow.by_tensor.items():
        if len({pair.scale for pair in pairs if pair.scale}) > 1 and not flow.view.is_constant(tensor):
            yield tensor, pairs


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for tensor, pairs in match(flow):
        scales = {pair.scale for pair in pairs if pair.scale}
        yield Violation(
            node=pairs[0].quantize or "",
            reason=f"{tensor} is quantized with {counted(len(scales), 'different scale')}",
            effect=f"its producer writes it {counted(len(scales), 'time')}",
            fix="use one scale for all readers of the tensor; `qdqtool repair` takes the largest",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Give the symmetric pairs of such a tensor the largest of their scales, in which nothing is clipped more."""
    for tensor, all_pairs in match(context.flow):
        pairs = [
            pair
            for pair in all_pairs
            if pair.dequantize and context.is_plain(pair) and context.symmetric(pair)
        ]
        scales = [pair.scale[0] for pair in pairs if len(pair.scale) == 1 and pair.scale[0] > 0]
        if len(scales) < len(pairs) or len(set(scales)) < 2:
            continue
        for pair in pairs:
            if pair.scale[0] != max(scales):
                context.restate(pair, np.asarray(max(scales)))
                yield Change(
                    subject=pair.quantize or "",
                    what=f"scale {pair.scale[0]:.4g} became {max(scales):.4g}, that of another reader of {tensor}",
                    reason="a tensor is written once for every scale that it is read with",
                )


PLUGIN = Rule(
    code="QDQ129",
    severity=Severity.WARNING,
    after=("requantized", "residual_add", "concat", "probabilities"),
    check=check,
    fix=fix,
)
