"""Weights with one scale for the whole tensor.

    w [64, 32, 3, 3] ─ Q (1 scale) ─ DQ ─ Conv
    w [64, 32, 3, 3] ─ Q (64 scales, axis 0) ─ DQ ─ Conv      same speed, less error

Per-channel scales cost nothing at run time and keep more accuracy, most of all for depthwise convolutions. A weight
that two layers read along different axes has none that serves both.

Evidence: RTX 1.7.1 builds INT8 either way (chain_pertensor); with FP16 types the per-tensor Conv keeps bias and
activation inside and writes Half, so it can even be the faster one.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.quant_format import INT8
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import State, products
from qdqtool.matching.products import weight_specs
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """INT8 products whose weights have several channels and one scale."""
    specs = weight_specs(flow.plain, PlacementOptions(target=target.name))
    for product in products(flow, target):
        node = product.node
        ready = all(factor.state is State.READY for factor in product.factors)
        if node.op == "ConvTranspose" or product.arithmetic != INT8.name or not ready:
            continue
        for factor in product.factors:
            pair = factor.pair
            if pair is None or pair.kind is not SlotKind.WEIGHT:
                continue
            float_node = flow.plain.by_name.get(node.name)
            if float_node is None:
                continue  # it leads to no output
            tensor = float_node.inputs[factor.index]
            axis = specs[tensor].axis if tensor in specs else None
            shape = flow.plain.info(tensor).shape or ()
            if len(pair.scale) == 1 and axis is not None and axis < len(shape) and shape[axis] != 1:
                yield Violation(
                    node=node.name,
                    reason="its weights have one scale for all channels",
                    effect="INT8, with more rounding error than per-channel scales would give",
                    fix=f"{repairing(to_int8=[node.name])} gives its weights one scale per output channel",
                )


PLUGIN = Rule(code="QDQ144", severity=Severity.INFO, check=check)
