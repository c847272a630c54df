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
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import stored_again


def match(flow: Flow) -> Iterator[QdqPair]:
    """Weight pairs with one scale of rank 1 for more than one channel."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and pair.scale_shape == (1,):
            shape = flow.view.constant_shape(pair.tensor) or ()
            if pair.axis is None or pair.axis >= len(shape) or shape[pair.axis] != 1:
                yield pair


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Those in FP16."""
    for pair in match(flow):
        name = pair.dequantize or pair.quantize or ""
        if flow.view.info(flow.view.by_name[name].inputs[1]).dtype is DType.FLOAT16:
            yield Violation(
                node=name,
                reason="FP16 weights have one scale of shape [1]",
                effect="the build fails with a check of shapes",
                fix="store the scale as a scalar, shape [], or use one scale per channel; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Store them again; an FP32 model may become FP16 later."""
    why = "a scale of shape [1] is neither per tensor nor per channel, which fails in FP16"
    return stored_again(context, match(context.flow), lambda _: why)


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
