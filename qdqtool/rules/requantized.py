"""A tensor is dequantized and quantized again with another scale.

    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.05) ─ DQ ─ Conv      two roundings
    x ─ Q(s=0.10) ─ DQ ─ MaxPool ─ Q(s=0.10) ─ DQ ─ Conv      one

Two roundings instead of one; the coarser scale decides what is left. Equal scales cost nothing: the second pair
changes no value and is removed. Scales one step apart change no value either.

Evidence: RTX 1.7.1 quantizes twice (double_qdq); with equal scales one kernel is left. Across MaxPool the same happens
(B3 rule 1: the scale must not change through operators that only move values).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs whose tensor is INT8 already, with another scale."""
    for pair in flow.pairs:
        before = flow.origins.get(pair.tensor)
        if before is None or pair.quantize is None or not before.scale or _alike(before.scale, pair.scale):
            continue
        yield Violation(
            node=pair.quantize,
            reason=f"its input comes from {before.dequantize} with another scale",
            effect="the values are rounded twice, and the coarser scale is lost in the finer one",
            fix="use one scale for both pairs, or remove one; `qdqtool repair` does",
        )


def _alike(before: tuple[float, ...], scale: tuple[float, ...]) -> bool:
    """Whether no INT8 value can tell the scales from each other: 128 steps differ by less than half a step."""
    return len(before) == len(scale) and all(
        abs(one - other) * 256 < other for one, other in zip(before, scale, strict=True)
    )


PLUGIN = Rule(code="QDQ128", severity=Severity.WARNING, check=check)
