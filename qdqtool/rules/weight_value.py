"""Weights stored in FP8 that are not numbers, and weights far beyond the range of their scale.

    w (FP8: 0x7F) ─ DQ ─ MatMul               every output that it meets is NaN
    w = 100 ─ Q (FP8, scale 0.01) ─ DQ        4.48: the largest value of FP8 is 448

E4M3 has a NaN and no infinity; a cast of a weight beyond 448 without saturation makes one. With saturation, and in
integers, what lies beyond is clipped. Calibration clips a little on purpose; more than four times the range is a scale
that belongs to other weights, or the reciprocal of one.

Evidence: RTX 1.7.1 builds such weights without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8, QuantFormat, of_dtype
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.lift import IrregularityKind
from qdqtool.matching.rule import Rule, Violation

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLIPPED = 4
"""How many times the range the largest weight is; calibrators that clip stay far below."""


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Stored FP8 constants with a NaN, and constants beyond their range."""
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
                fix="quantize the float model again, `qdqtool run FLOAT_MODEL --recipe transformer-fp8 --sm 89`: the values are lost",
            )
    for slot, entry in flow.lifted.assignment.items():
        assigned = flow.by_slot.get(slot)
        if assigned is not None and entry.scale is not None and entry.block is None:
            yield from _clipped(flow, assigned, entry.scale, entry.axis, entry.format)
    # a pair without saturation is none that the lift takes, and its weights are clipped all the same
    for pair in flow.pairs:
        format_ = of_dtype(pair.dtype)
        if (
            format_ is not None
            and pair.scale
            and IrregularityKind.SATURATION in flow.irregular.get(pair.dequantize or "", ())
        ):
            axis = pair.axis if pair.scale_shape else None
            yield from _clipped(flow, pair, np.array(pair.scale, np.float32), axis, format_)


def _command(flow: Flow, pair: QdqPair, format_: QuantFormat) -> str:
    readers = flow.products_of(pair) or (pair.quantize or "",)
    if format_ is INT8 and flow.products_of(pair):
        return f"{repairing(to_int8=readers)} quantizes the weight again"
    return f"{repairing(to_float=readers)} takes the Q/DQ off"


def _clipped(
    flow: Flow, pair: QdqPair, scale: NDArray[Any], axis: int | None, format_: QuantFormat
) -> Iterator[Violation]:
    """A float weight behind Q that its scale cannot hold by far."""
    value = None if pair.quantize is None else flow.view.constant(pair.tensor)
    if value is None or value.size == 0:
        return
    others = tuple(dim for dim in range(value.ndim) if dim != axis) if axis is not None else None
    largest = np.abs(value).max(axis=others)
    times = float((largest / (np.abs(scale) * format_.qmax)).max())
    if np.isfinite(times) and times > _CLIPPED:
        yield Violation(
            node=pair.quantize or "",
            reason=f"the largest value of {pair.tensor} is {times:.3g} times what its scale can hold",
            effect=f"it is clipped to {format_.qmax:g} steps, and the products it takes part in are wrong",
            fix=f"store the scale of its largest magnitude / {format_.qmax:g}; {_command(flow, pair, format_)}",
            severity=Severity.WARNING,
        )


PLUGIN = Rule(code="QDQ188", formats=frozenset({"fp8"}), severity=Severity.ERROR, check=check)
