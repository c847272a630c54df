"""A scale that is zero, negative, not a number or no floating-point number.

    x ─ Q (s = 0) ─ DQ (s = 0) ─ Conv

A scale of zero often stands for a channel or a tensor that never fired, or for a small FP32 scale that became FP16.

Evidence: RTX 1.7.1 says `Scale coefficients must all be positive` (scale_zero, scale_negative, scale_nan; a tiny scale
turned FP16), also of an integer or
FP8 scale, whatever its value (scale_integer). Infinity alone is built, of FP8 and INT8 alike. Of INT4, per channel and in blocks, it builds negative scales, 0, NaN and
infinity alike, into the same kernels as for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import stored_again

_MENDED = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of pairs that `fix` mends."""


def match(flow: Flow) -> Iterator[tuple[QdqPair, tuple[float, ...]]]:
    """Pairs, and those of their scales that are not positive numbers."""
    for pair in flow.pairs:
        yield pair, tuple(value for value in pair.scale if not (isfinite(value) and value > 0))


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Pairs with a scale that no quantization can use."""
    for pair, bad in match(flow):
        node = pair.quantize or pair.dequantize or ""
        dtype = flow.view.info(flow.view.by_name[node].inputs[1]).dtype
        if not dtype.is_float and pair.scale_shape is not None:
            yield Violation(
                node=node,
                reason=f"its scale is stored as {'another type' if dtype is DType.UNKNOWN else dtype}",
                effect="the parser refuses it",
                fix=f"store the scale as FP32, or in the type of the data; {repairing(to_float=flow.products_of(pair) or [node])} takes the Q/DQ off",
            )
        if target.is_rtx and pair.dtype is DType.INT4:
            odd = [value for value in bad if not isfinite(value)]
            if odd:
                yield Violation(
                    node=node,
                    reason=f"{len(odd)} of {counted(len(pair.scale), 'scale')} are not numbers, the first is {odd[0]:g}",
                    effect="the builder takes them without a word, and what they multiply is NaN",
                    fix="quantize the float weight again",
                )
            continue
        if bad:
            taken = target.is_rtx and all(value == inf for value in bad)
            yield Violation(
                node=node,
                reason=f"{len(bad)} of {counted(len(pair.scale), 'scale is', 'scales are')} not positive numbers, the first is {bad[0]:g}",
                effect="the builder takes them without a word, and what they multiply is infinite or NaN"
                if taken
                else "the parser refuses it: Scale coefficients must all be positive",
                fix="calibrate again, or give dead channels a small positive scale such as 1e-5; "
                + (
                    "`qdqtool repair --samples DATA` does"
                    if pair.dtype in _MENDED
                    else f"{repairing(to_float=flow.products_of(pair) or [node])} takes the Q/DQ off"
                ),
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Make negative scales positive, take out activation pairs with unusable ones, store such weights again."""
    found = [(pair, bad) for pair, bad in match(context.flow) if bad and context.is_plain(pair)]
    for pair, bad in found:
        whole = pair.quantize is not None and pair.dequantize is not None
        if not whole or pair.kind is not SlotKind.ACTIVATION or not context.is_known(pair):
            continue
        negative = any(scale < 0 for scale in bad)
        unusable = not all(isfinite(scale) and scale != 0 for scale in bad)
        if unusable or (negative and any(pair.zero_point)):
            if context.result(pair) in context.pinned:
                continue
            context.dissolve(pair)
            yield Change(
                subject=pair.quantize or "",
                what="taken out: the tensor stays float",
                reason="the parser refuses a scale that is 0 or not a number"
                if unusable
                else "the parser refuses negative scales",
            )
        elif negative:
            context.restate(pair, np.abs(np.asarray(pair.scale)).max())
            yield Change(
                subject=pair.quantize or "",
                what="negative scale became positive",
                reason="the parser refuses negative scales",
            )
    yield from stored_again(
        context,
        (pair for pair, _ in found),
        lambda _: "the parser refuses scales that are not positive",
    )


PLUGIN = Rule(
    code="QDQ103", severity=Severity.ERROR, stage=Stage.LEGAL, after=("cast",), check=check, fix=fix
)
