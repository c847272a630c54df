"""A zero point that is not zero.

    x ─ Q (zero point 128, UINT8) ─ DQ      refused
    x ─ Q (zero point 0, INT8) ─ DQ

TensorRT quantizes symmetrically: its parser refuses the node. Asymmetric UINT8 exists for DLA only (from 10.11 on,
behind a parser flag).

The fix: UINT8 with zero point 128 is INT8 with another spelling and changes exactly. Other activations get the scale that
covers the same range, so their steps grow up to twofold; a range that starts at 0 was also a Relu that the quantizer had
removed, and it is put back. Weights keep their integers where these fit INT8, else they are quantized again.

Evidence: RTX 1.7.1 and TensorRT 8.x to 11 say `Assertion failed: shiftIsAllZeros(zeroPoint)`. Of FP8 RTX takes any and
builds the same engine bytes as for 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.advice import repairing
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.grids import stored_as
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.cut_below import cut_below
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, stored_again


def match(flow: Flow) -> Iterator[QdqPair]:
    """Pairs whose zero point is another number, or is computed."""
    return (pair for pair in flow.pairs if any(pair.zero_point) or (pair.scale and not pair.zero_point))


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for pair in match(flow):
        node = pair.quantize or pair.dequantize or ""
        if any(pair.zero_point):
            values = sorted(set(pair.zero_point))
            shown = str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
            yield Violation(
                node=node,
                reason=f"the zero point is {shown}",
                effect="it is ignored: every value is off by that many steps"
                if pair.dtype is DType.FLOAT8
                else "the parser refuses it: shiftIsAllZeros(zeroPoint)",
                fix="quantize symmetrically with zero point 0; `qdqtool repair` converts the model",
            )
        else:
            constant = flow.view.is_constant(flow.view.by_name[node].inputs[-1])
            yield Violation(
                node=node,
                reason="the zero point is not a number"
                if constant
                else "the zero point is computed at run time",
                effect="the parser refuses it: a zero point must be a constant",
                fix=_way(flow, pair),
            )


def _way(flow: Flow, pair: QdqPair) -> str:
    """What is typed against a zero point that nobody knows."""
    if pair.dtype is DType.FLOAT8:
        return "write zero point 0, which is what TensorRT takes it for; `qdqtool repair` does"
    wanted = "quantize symmetrically with zero point 0"
    if pair.quantize is None:
        return f"nothing to do by a command: what the stored values stand for is lost with their zero point; in the tool that wrote them, {wanted}"
    if pair.kind is SlotKind.ACTIVATION and pair.dtype in _PLAIN:
        return f"{wanted}; `qdqtool repair` takes the pair out"
    return f"{wanted}; {repairing(to_float=flow.products_of(pair) or [pair.quantize])} takes the Q/DQ off"


_PLAIN = frozenset({DType.INT8, DType.UINT8})


def fix(context: RepairContext) -> Iterator[Change]:
    """Restate every pair that is not symmetric INT8, also UINT8 of zero point 0: activations by their range, weights by values."""
    yield from stored_again(
        context, (pair for pair in context.pairs if not context.symmetric(pair)), _told_of
    )
    yield from _unknown_and_float(context)
    cut: dict[str, str] = {}
    for pair in context.pairs:
        whole = pair.quantize is not None and pair.dequantize is not None
        if not whole or pair.kind is SlotKind.WEIGHT or pair.scale_shape != () or not pair.zero_point:
            continue
        if context.symmetric(pair):
            yield from _written_out(context, pair)
            continue
        low, high = context.span(pair)
        old = pair.scale[0]
        exact = np.isclose(low, INT8.qmin * old) and np.isclose(high, INT8.qmax * old)
        scale = old if exact else max(-low, high) / INT8.qmax
        kind = str(context.integers(pair))
        context.restate(pair, np.asarray(scale))
        source = cut_below(context, pair.tensor, cut) if low == 0 else pair.tensor
        relu = source != pair.tensor
        if relu:
            context.edit.connect(context.nodes[pair.quantize or ""], 0, source)
        yield _told(pair, old, scale, relu=relu, kind=kind)


def _unknown_and_float(context: RepairContext) -> Iterator[Change]:
    """Pairs with a computed zero point go; zero points of FP8, which TensorRT takes for 0 whatever they are, become 0."""
    for pair in match(context.flow):
        if not pair.zero_point and context.is_plain(pair):
            yield from _taken_out(context, pair)
        if pair.dtype is not DType.FLOAT8 or (pair.zero_point and not any(pair.zero_point)):
            continue
        for name in (pair.quantize, pair.dequantize):
            node = context.nodes[name] if name else None
            if node is not None and len(node.input) > 2:
                zero = np.zeros(pair.scale_shape or (), stored_as(DType.FLOAT8))
                context.edit.connect(node, 2, context.edit.constant(f"{name}_zero_point", zero))
        yield Change(
            subject=pair.tensor,
            what=f"the FP8 zero point {f'{pair.zero_point[0]:g} ' if pair.zero_point else ''}became 0",
            reason="TensorRT ignores it, and other runtimes refuse it",
        )


def _taken_out(context: RepairContext, pair: QdqPair) -> Iterator[Change]:
    whole = pair.quantize is not None and pair.dequantize is not None
    if whole and pair.kind is SlotKind.ACTIVATION and context.result(pair) not in context.pinned:
        context.dissolve(pair)
        yield Change(
            subject=pair.quantize or "",
            what="taken out: the tensor stays float",
            reason="the parser refuses a zero point that is computed at run time",
        )


def _told_of(_weight: StoredWeight) -> str:
    return "TensorRT takes INT8 weights with zero point 0 only"


def _written_out(context: RepairContext, pair: QdqPair) -> Iterator[Change]:
    """Zero points that one node of a pair leaves out."""
    if all(len(context.nodes[name].input) > 2 for name in (pair.quantize, pair.dequantize) if name):
        return
    context.restate(pair, np.asarray(pair.scale[0]))
    yield Change(
        subject=pair.tensor,
        what="zero point 0 written out on both nodes",
        reason="without a zero point ONNX means uint8, and FP16 models stop with type errors",
        error=0.0,
    )


def _told(pair: QdqPair, old: float, scale: float, *, relu: bool, kind: str) -> Change:
    before = f"{kind} with zero point {pair.zero_point[0]}"
    what = (
        f"{before} became int8 with zero point 0, exactly"
        if scale == old
        else (f"{before} became int8 with zero point 0; the step grew from {old:.4g} to {scale:.4g}")
    )
    return Change(
        subject=pair.tensor,
        what=what + (", behind the Relu that the zero point stood for" if relu else ""),
        reason="TensorRT takes symmetric INT8 only: other zero points stop the parser, uint8 is read as int8",
        error=0.0 if scale == old else None,
    )


PLUGIN = Rule(
    code="QDQ101", severity=Severity.ERROR, stage=Stage.LEGAL, after=("requantized",), check=check, fix=fix
)
