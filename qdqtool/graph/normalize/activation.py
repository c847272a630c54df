"""Q/DQ between a compute node and its activation or BatchNormalization, or inside SiLU, goes; before a lone Relu it moves behind.

TensorRT fuses Conv, bias and activation into one kernel. A pair in the middle adds a rounding in the best case and
splits the fusion in the worst; the pair belongs behind the activation. Where only a Relu stands between a pair and a
Conv, the Conv would run in float: the pair moves behind the Relu, which is exact for zero point 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.view import Node
from qdqtool.trt.ops import FUSES_ACTIVATION, FUSES_BEHIND_PRODUCT, GATES, PRODUCTS, QDQ


def repair(bench: RepairContext) -> Iterator[Change]:
    """Dissolve pairs that stand before an activation or before the product of a SiLU."""
    for pair in bench.pairs:
        reader, maker = bench.consumer(pair), bench.maker(pair.tensor)
        if reader is None or pair.quantize is None or pair.kind is SlotKind.WEIGHT:
            continue
        behind = maker in FUSES_ACTIVATION and reader.op in FUSES_BEHIND_PRODUCT
        if behind or _inside_silu(bench, pair, reader):
            bench.dissolve(pair)
            yield Change(
                repair="activation",
                subject=pair.quantize,
                what=f"taken out between {maker or 'the input'} and {reader.op} {reader.name!r}",
                reason="a pair between a node and its activation adds a rounding and may split their fusion",
            )
        elif reader.op == "Relu" and bench.symmetric(pair) and _feeds_compute(bench, reader):
            _move_behind(bench, pair, reader)
            yield Change(
                repair="activation",
                subject=pair.quantize,
                what=f"moved behind Relu {reader.name!r}",
                reason="a Relu between a pair and a compute node keeps that node in float",
                error=0.0,
            )


def _feeds_compute(bench: RepairContext, relu: Node) -> bool:
    """Whether a Relu feeds data inputs of compute nodes only."""
    uses = bench.view.uses(relu.outputs[0])
    pinned = relu.outputs[0] in bench.pinned
    return bool(uses) and not pinned and all(use.node.op in PRODUCTS and use.index < 2 for use in uses)


def _move_behind(bench: RepairContext, pair: QdqPair, relu: Node) -> None:
    quantize = bench.nodes[pair.quantize or ""]
    bench.redirect(relu.outputs[0], bench.result(pair))
    bench.edit.connect(bench.nodes[relu.name], 0, pair.tensor)
    bench.edit.connect(quantize, 0, relu.outputs[0])


def _inside_silu(bench: RepairContext, pair: QdqPair, reader: Node) -> bool:
    """Whether `reader` multiplies x with sigmoid(x), and the pair is on one of the two."""
    if reader.op != "Mul" or len(reader.inputs) != 2:
        return False
    sources = [_source(bench, name) for name in reader.inputs]
    for gate, value in (sources, sources[::-1]):
        node = bench.view.producer(gate)
        if node is not None and node.op in GATES and _source(bench, node.inputs[0]) == value:
            return pair.tensor in {gate, value}
    return False


def _source(bench: RepairContext, tensor: str) -> str:
    """The float tensor behind Q/DQ nodes."""
    node = bench.view.producer(tensor)
    while node is not None and node.op in QDQ:
        tensor = node.inputs[0]
        node = bench.view.producer(tensor)
    return tensor


PLUGIN = repair
