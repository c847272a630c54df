"""Weights stored in FP8 that are not numbers.

    w (FP8: 0x7F) ─ DQ ─ MatMul      every output that it meets is NaN

E4M3 has a NaN and no infinity; a cast of a weight beyond 448 without saturation makes one. Nothing checks it.

Evidence: RTX 1.7.1 builds such weights without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Stored FP8 constants with a NaN."""
    for pair in flow.pairs:
        if pair.kind is not SlotKind.WEIGHT or pair.quantize is not None or pair.dtype is not DType.FLOAT8:
            continue
        value = flow.view.constant(pair.tensor)
        count = 0 if value is None else int(np.isnan(value.astype(np.float32)).sum())
        if count:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"{count} of the {value.size if value is not None else 0} stored values of {pair.tensor} are NaN",
                effect="every output that they meet is NaN",
                fix="quantize the float weight again with a scale of its largest magnitude / 448",
            )


PLUGIN = Rule(code="QDQ188", severity=Severity.ERROR, check=check)
