"""QuantizeLinear and DequantizeLinear of one pair have different scales.

    x ─ Q (s=0.05) ─ DQ (s=0.10) ─ Conv      the Conv reads 2 x

The pair then also multiplies: what comes out is the input times the ratio of the scales. It is legal, and nearly
always a mistake of an edit or an exporter.

Evidence: RTX 1.7.1 builds it as INT8, each half with its own scale (halves_apart).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Whole pairs whose halves name different constants with different values."""
    view = flow.view
    for pair in flow.pairs:
        if pair.quantize is None or pair.dequantize is None:
            continue
        first, second = view.by_name[pair.quantize].inputs[1], view.by_name[pair.dequantize].inputs[1]
        if first == second:
            continue
        scales = view.constant(first), view.constant(second)
        if scales[0] is not None and scales[1] is not None and not _agree(scales[0], scales[1]):
            yield Violation(
                node=pair.dequantize,
                reason=f"its scale differs from that of {pair.quantize}",
                effect="every value is multiplied by the ratio of the two",
                fix=f"give both halves the same scale; {repairing(to_float=[pair.quantize])} takes the pair off",
            )


def _agree(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether two scales are the same number, in the coarser of their types."""
    coarser = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
    return np.array_equal(first.astype(coarser), second.astype(coarser), equal_nan=True)


PLUGIN = Rule(code="QDQ138", severity=Severity.WARNING, check=check)
