"""An activation scale of shape [1] where a scalar is needed.

    x ─ Q (s = [0.05]) ─ DQ ─ Conv      float
    x ─ Q (s = 0.05) ─ DQ ─ Conv        INT8

To the standard both are one scale per tensor. TensorRT for RTX takes [1] for per-channel quantization in front of
convolutions, and on the shortcut of an Add that a convolution fuses with.

Evidence: RTX 1.7.1 runs the Conv in float and adds dequantize kernels (act_scale_shape1); a shortcut scale of shape
[1] makes the Conv on the other branch float; MatMul and Gemm do not mind (matmul_scale_shape1).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import SCALAR_SCALE_READERS


def match(flow: Flow) -> Iterator[QdqPair]:
    """Activation pairs with one scale of rank 1."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.ACTIVATION and pair.scale_shape == (1,):
            yield pair


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Those that a Conv or an Add reads."""
    for pair in match(flow):
        for slot in pair.slots:
            op = flow.view.by_name[slot.node].op
            if op == "Add" and not is_int8(pair):
                continue  # an FP8 convolution takes no Add along
            if op in SCALAR_SCALE_READERS:
                yield Violation(
                    node=slot.node,
                    reason=f"the scale on its input {slot.index} has shape [1] instead of []",
                    effect=f"{op} and the convolution it fuses with run in float"
                    if op == "Add"
                    else f"{op} runs in float",
                    fix="store the scale as a scalar, shape []; `qdqtool repair` does",
                    products=_summed(flow, slot.node) if op == "Add" else (slot.node,),
                )


def _summed(flow: Flow, add: str) -> tuple[str, ...]:
    """The convolutions whose results an Add reads as floats, so that it fuses with them."""
    node = flow.plain.by_name.get(add)
    if node is None:
        return ()
    bare = [tensor for index, tensor in enumerate(node.inputs) if flow.source(node, index) is None]
    makers = [flow.plain.producer(tensor) for tensor in bare]
    return tuple(maker.name for maker in makers if maker is not None and maker.op == "Conv")


def fix(context: RepairContext) -> Iterator[Change]:
    """Make the scale of each activation pair a scalar, with the same value and type."""
    for pair in match(context.flow):
        whole = pair.quantize is not None and pair.dequantize is not None
        if whole and context.is_plain(pair) and context.is_known(pair):
            _make_scalar(context, pair)
            yield Change(
                subject=pair.quantize or "",
                what="scale of shape [1] became a scalar",
                reason="a scale of shape [1] on an activation keeps a Conv silently in float",
                error=0.0,
            )


def _make_scalar(context: RepairContext, pair: QdqPair) -> None:
    for name in (pair.quantize, pair.dequantize):
        node = context.nodes[name or ""]
        for index in range(1, len(node.input)):
            value = context.edit.value(node.input[index])
            if value is not None:
                node.input[index] = context.edit.constant(node.input[index], value.reshape(()))


PLUGIN = Rule(
    code="QDQ121",
    formats=frozenset({"int8", "fp8"}),
    severity=Severity.WARNING,
    targets=frozenset({"rtx"}),
    stage=Stage.LEGAL,
    after=("scale_value",),
    check=check,
    fix=fix,
)
