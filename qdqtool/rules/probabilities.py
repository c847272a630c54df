"""The probabilities of a Softmax with a scale that does not fit them.

    Softmax ─ Q (scale 0.05) ─ DQ ─ MatMul        values from 0 to 1 on 20 of 127 steps
    Softmax ─ Q (scale 1/127) ─ DQ ─ MatMul       all 127 steps

Probabilities never exceed 1, so a scale above 1/127 leaves steps unused. For FP8 the fused attention of NVIDIA's own
tools takes 1/448, the largest FP8 number being 448.

Evidence: the range is the operator's definition. RTX 1.7.1 builds the same kernels for any scale
(probabilities_coarse), so only accuracy is lost; NVIDIA-Model-Optimizer fixes 1/448 for FP8.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import FP8, INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Violation

_LARGEST = {entry.dtype: entry.qmax for entry in (INT8, FP8)}
# Scales of calibration are quotients in FP32, and some tools divide by 128 for INT8.
_TOLERANCE = 1.05


def match(flow: Flow) -> Iterator[tuple[QdqPair, float]]:
    """Pairs right behind a Softmax with one scale above the largest that probabilities can use, and its divisor."""
    for pair in flow.pairs:
        producer, largest = flow.view.producer(pair.tensor), _LARGEST.get(pair.dtype)
        if producer is None or producer.op != "Softmax" or largest is None or len(pair.scale) != 1:
            continue
        if pair.scale[0] * largest > _TOLERANCE:
            yield pair, largest


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for pair, largest in match(flow):
        yield Violation(
            node=pair.quantize or pair.dequantize or "",
            reason=f"probabilities reach 1, its scale {pair.scale[0]:.3g} is for {pair.scale[0] * largest:.3g}",
            effect="most steps stand for values that never come",
            fix=f"store the scale 1/{largest} = {1 / largest:.6f}; `qdqtool repair` does",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Scale 1 / the format's largest number, in pairs without a zero point."""
    for pair, largest in match(context.flow):
        if pair.quantize and pair.dequantize and not any(pair.zero_point):
            for name in (pair.quantize, pair.dequantize):
                node = context.nodes[name]
                kind = context.scale_type(node)
                stored = np.full(pair.scale_shape or (), 1 / largest).astype(kind)
                node.input[1] = context.edit.constant(f"{pair.tensor}_probability_scale", stored)
            yield Change(
                subject=pair.quantize,
                what=f"scale {pair.scale[0]:.4g} became 1/{largest}",
                reason="probabilities reach 1, and all steps above it stand for values that never come",
            )


PLUGIN = Rule(code="QDQ151", severity=Severity.INFO, after=("scale_rank",), check=check, fix=fix)
