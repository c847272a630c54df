"""A Clip on the integers between Q and DQ.

    x ─ Q (s) ─ Clip (0 ... 127) ─ DQ (s)      a Clip between Q and DQ
    x ─ Q (s') ─ DQ (s')                       the scale of the range that the Clip leaves

PyTorch's fake quantization with seven of eight bits (`reduce_range`) and Brevitas (QCDQ) export so. Clip of weights is folded.
Of activations TensorRT for RTX builds it, and classic TensorRT does not clip integers.
The fix is exact where INT8 has the limits that the Clip had; a Relu takes the place of a limit at the zero point.

Evidence: exports of PyTorch's fake quantization with `reduce_range` (FX graph mode); RTX 1.7.1 builds a QCDQ export of three
convolutions with all of them INT8.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.matching.cut_below import cut_below
from qdqtool.matching.rule import Rule, Stage

_EXACT = frozenset({(0, INT8.qmax), (INT8.qmin, INT8.qmax)})
"""Steps below and above zero that INT8 has, too; below 0 a Relu cuts off."""


def fix(context: RepairContext) -> Iterator[Change]:
    """Let each DequantizeLinear behind a Clip of integers read the QuantizeLinear, with a scale that fits."""
    cut: dict[str, str] = {}
    for pair in context.pairs:
        clip = context.view.producer(pair.tensor) if pair.quantize is None else None
        quantize = _quantize(context, pair, clip)
        if clip is None or quantize is None:
            continue
        limits = _limits(context, pair, clip)
        step = pair.scale[0]
        low, high = (limit - pair.zero_point[0] for limit in limits)
        if low >= high:
            continue
        exact = (low, high) in _EXACT
        scale = step if exact else max(-low, high) * step / INT8.qmax
        node = context.nodes[pair.dequantize or ""]
        twin = context.edit.node(
            "QuantizeLinear",
            [quantize.inputs[0], *node.input[1:]],
            [context.edit.fresh(f"{quantize.inputs[0]}_quantized")],
            name=f"{node.name}_QuantizeLinear",
        )
        context.edit.connect(node, 0, twin.output[0])
        context.restate_nodes((twin, node), quantize.inputs[0], np.asarray(scale))
        if low == 0:
            context.edit.connect(twin, 0, cut_below(context, quantize.inputs[0], cut))
        yield Change(
            subject=clip.name,
            what=f"Clip of integers to {limits[0]} ... {limits[1]} taken out; the scale is {scale:.4g} now, was {step:.4g}",
            reason="TensorRT imports no Clip of integers, and the pair around it would not fuse",
            error=0.0 if exact else None,
        )


def _quantize(context: RepairContext, pair: QdqPair, clip: Node | None) -> Node | None:
    """The QuantizeLinear before a Clip that a DequantizeLinear reads."""
    known = pair.kind is SlotKind.ACTIVATION and len(pair.scale) == 1 and len(pair.zero_point) == 1
    if clip is None or clip.op != "Clip" or not known or not pair.scale[0] > 0:
        return None
    maker = context.view.producer(clip.inputs[0])
    bounds = [name for name in clip.inputs[1:] if name]
    numbers = context.view.by_name[pair.dequantize or ""].inputs[1:]
    same = maker is not None and maker.op == "QuantizeLinear" and maker.inputs[1:] == numbers
    return maker if same and all(context.view.is_constant(name) for name in bounds) else None


def _limits(context: RepairContext, pair: QdqPair, clip: Node) -> tuple[int, int]:
    """Smallest and largest integer that the Clip lets through."""
    kind = np.iinfo(context.integers(pair))
    given = [context.edit.value(name) if name else None for name in (*clip.inputs[1:], "", "")]
    low, high = given[0], given[1]
    return (
        kind.min if low is None else int(low.reshape(())),
        kind.max if high is None else int(high.reshape(())),
    )


PLUGIN = Rule(code="QDQ119", formats=frozenset({"int8"}), stage=Stage.WRITE_OUT, after=("domain",), fix=fix)
