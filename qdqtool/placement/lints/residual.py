"""Q/DQ on the wrong branch of a residual Add.

    x ─┬─ Conv ─ Relu ─ Conv ──┐
       │                        Add ─ Relu ─ QDQ ─ Conv
       └─ Q ─ DQ ──────────────┘

The Add fuses with the convolution on one branch, whose result never leaves the kernel in float. Q/DQ belongs on the
other branch, the shortcut, where its values are INT8 for another layer anyway.

Evidence: RTX 1.7.1: the convolution's branch quantized is one more rounding inside the kernel (res_both); the shortcut
bare makes its producer write a float copy beside the INT8 one (res_missing). Classic: quantizing both branches splits
the fusion; NVIDIA/TensorRT issues 1144, 3205.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.placement.flow import Flow, is_int8
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.trt.ops import PRODUCTS


def find(flow: Flow, asked: Target) -> Iterator[Violation]:
    """Adds of two activations with Q/DQ on the product's branch, or none on a shortcut that is INT8 elsewhere."""
    for node in flow.view.nodes:
        if node.op != "Add" or any(map(flow.view.is_constant, node.inputs)):
            continue
        pairs = [flow.origins.get(tensor) for tensor in node.inputs]
        branches = [_is_branch(flow, node, index) for index in (0, 1)]
        if all(branches):
            continue
        for index in (0, 1):
            if branches[index] and pairs[index] is not None:
                yield Violation(
                    node=node.name,
                    reason=f"input {index}, the convolution's branch, has Q/DQ",
                    effect="the sum rounds it once more"
                    if asked.is_rtx
                    else "the Add does not fuse with the convolution",
                    fix="take the pair off this branch",
                )
            elif (
                branches[1 - index] and pairs[index] is None and _is_int8_elsewhere(flow, node.inputs[index])
            ):
                yield Violation(
                    node=node.name,
                    reason=f"input {index}, the shortcut, is float here and INT8 for another layer",
                    effect="its producer writes a float copy beside the INT8 one",
                    fix="put Q/DQ with the same scale on this input",
                )


def _is_branch(flow: Flow, node: Node, index: int) -> bool:
    """Whether input `index` comes from a product that only this Add reads, Q/DQ aside."""
    pair = flow.origins.get(node.inputs[index])
    tensor = node.inputs[index] if pair is None else pair.tensor
    producer = flow.view.producer(tensor)
    return producer is not None and producer.op in PRODUCTS and len(flow.view.uses(tensor)) == 1


def _is_int8_elsewhere(flow: Flow, tensor: str) -> bool:
    return any(is_int8(pair) for pair in flow.by_tensor.get(tensor, ()))


PLUGIN = LintRule(code="QDQ127", severity=Severity.INFO, find=find)
