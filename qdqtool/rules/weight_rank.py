"""FP16 weights with one scale of shape [1].

    w (FP16) ─ Q (s = [0.01]) ─ DQ ─ Conv      no build
    w (FP16) ─ Q (s = 0.01) ─ DQ ─ Conv        INT8

One scale for the whole tensor must be a scalar in an FP16 model; in FP32 models both forms build.

Evidence: RTX 1.7.1 fails with `CHECK(same_symbolic_shapes(...))` for FP16 types and builds the same graph in FP32
(chain_pt_w_shape1).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, stored_again


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """FP16 weight pairs with a scale of one element and rank 1."""
    for pair in flow.pairs:
        if pair.kind is not SlotKind.WEIGHT or pair.scale_shape != (1,):
            continue
        name = pair.dequantize or pair.quantize or ""
        shape = flow.view.constant_shape(pair.tensor) or ()
        channels = shape[pair.axis] if pair.axis is not None and pair.axis < len(shape) else None
        if flow.view.info(flow.view.by_name[name].inputs[1]).dtype is DType.FLOAT16 and channels != 1:
            yield Violation(
                node=name,
                reason="FP16 weights have one scale of shape [1]",
                effect="the build fails with a check of shapes",
                fix="store the scale as a scalar, shape [], or use one scale per channel; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Store weights again whose one scale has a dimension."""
    return stored_again(context, _one_element)


def _one_element(_context: RepairContext, weight: StoredWeight) -> str:
    pair, shape = weight.pair, weight.shape
    if pair.scale_shape != (1,):
        return ""
    fits = pair.axis is not None and pair.axis < len(shape) and shape[pair.axis] == 1
    return "" if fits else "a scale of shape [1] is neither per tensor nor per channel, which fails in FP16"


PLUGIN = Rule(
    code="QDQ115",
    formats=frozenset({"int8", "fp8"}),
    severity=Severity.ERROR,
    targets=frozenset({"rtx"}),
    stage=Stage.LEGAL,
    after=("cast",),
    check=check,
    fix=fix,
)
