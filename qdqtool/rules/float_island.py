"""A layer without Q/DQ between INT8 layers.

    QDQ ─ Conv ─ Relu ─ Conv ─ Relu ─ QDQ ─ Conv            float tensors around the Conv in the middle
    QDQ ─ Conv ─ Relu ─ QDQ ─ Conv ─ Relu ─ QDQ ─ Conv      INT8 throughout

Its input is written in float for it and its result is quantized for the next layer, so tensors on both sides are four
times larger than they need to be. Layers that placement keeps float, for want of an INT8 kernel or of any gain, are not
meant.

Evidence: RTX 1.7.1 (depthwise_noq): the layer before writes Float, and a quantize kernel stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import Node
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.vetoes import refusals
from qdqtool.trt.ops import ISLAND_BORDER, PRODUCTS

# Operators that are followed on either side of a float product.
_FARTHEST = 6


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products without Q/DQ whose neighbours on both sides have it."""
    islands = [node for node in flow.products() if _is_island(flow, node)]
    meant = refusals(flow, target) if islands else {}
    for node in islands:
        if node.name not in meant:
            yield Violation(
                node=node.name,
                reason=f"{node.op} has no Q/DQ, the layers before and behind it have",
                effect="float tensors are written and read on both sides of it",
                fix=f"{repairing(to_int8=[node.name], samples=True)} puts Q/DQ on both of its inputs",
            )


def _is_island(flow: Flow, node: Node) -> bool:
    bare = all(flow.origin(node, index) is None for index in (0, 1))
    return bare and _int8_before(flow, node) and _int8_behind(flow, node)


def _int8_before(flow: Flow, node: Node) -> bool:
    tensor = node.inputs[0]
    for _ in range(_FARTHEST):
        producer = flow.view.producer(tensor)
        if producer is None:
            return False
        if producer.op in PRODUCTS:
            return all(is_int8(flow.origin(producer, index)) for index in (0, 1))
        if producer.op not in ISLAND_BORDER:
            return False
        tensor = producer.inputs[0]
    return False


def _int8_behind(flow: Flow, node: Node) -> bool:
    tensor = node.outputs[0]
    for _ in range(_FARTHEST):
        readers = flow.readers(tensor)
        if not readers:
            return False
        if all(reader.op == "QuantizeLinear" for reader in readers):
            return True
        if readers[-1].op not in ISLAND_BORDER:
            return False
        tensor = readers[-1].outputs[0]
    return False


PLUGIN = Rule(code="QDQ134", formats=frozenset({"int8"}), severity=Severity.INFO, check=check)
