"""Asymmetric and unsigned activations become symmetric INT8.

TensorRT knows no zero point but 0, and reads uint8 as int8, which halves the range in silence. uint8 with zero point
128 is INT8 in other clothes and changes exactly. Other pairs get the scale that covers the same range, so their steps
grow up to twofold. A range that starts at 0 was also a Relu that the quantizer had removed: it is put back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.view import Node
from qdqtool.trt.ops import AVERAGE_POOLS, NEVER_NEGATIVE, QDQ, carried_inputs


def repair(context: RepairContext) -> Iterator[Change]:
    """Restate every activation pair that has a QuantizeLinear and is not symmetric INT8."""
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


def _written_out(context: RepairContext, pair: QdqPair) -> Iterator[Change]:
    """Zero points that one node of a pair leaves out."""
    if all(len(context.nodes[name].input) > 2 for name in (pair.quantize, pair.dequantize) if name):
        return
    context.restate(pair, np.asarray(pair.scale[0]))
    yield Change(
        repair="zero_points",
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
        repair="zero_points",
        subject=pair.tensor,
        what=what + (", behind the Relu that the zero point stood for" if relu else ""),
        reason="TensorRT takes symmetric INT8 only: other zero points stop the parser, uint8 is read as int8",
        error=0.0 if scale == old else None,
    )


def cut_below(context: RepairContext, tensor: str, cut: dict[str, str]) -> str:
    """`tensor` behind a Relu, one for all its pairs, which `cut` remembers; `tensor` itself where it is never negative."""
    if _never_negative(context, tensor):
        return tensor
    if tensor not in cut:
        cut[tensor] = context.edit.fresh(f"{tensor}_relu")
        context.edit.node("Relu", [tensor], [cut[tensor]], name=f"{tensor}_Relu")
    return cut[tensor]


def _never_negative(context: RepairContext, tensor: str) -> bool:
    """Whether everything that the values of `tensor` come from is never negative."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        node = context.view.producer(waiting.pop())
        if node is None:
            return False
        carried = (0,) if node.op in QDQ | AVERAGE_POOLS else carried_inputs(context.view, node)
        if not carried and not _is_positive(context, node):
            return False
        fresh = {node.inputs[index] for index in carried} - seen
        seen |= fresh
        waiting += fresh
    return True


def _is_positive(context: RepairContext, node: Node) -> bool:
    if node.op != "Clip":
        return node.op in NEVER_NEGATIVE
    bound = context.edit.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return bound is not None and float(bound) >= 0


PLUGIN = repair
