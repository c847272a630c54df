"""Q/DQ between a compute node and its activation, or inside SiLU, goes.

TensorRT fuses Conv, bias and activation into one kernel. A pair in the middle adds a rounding in the best case and
splits the fusion in the worst; the pair belongs behind the activation.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.bench import WEIGHTED, Bench
from qdqtool.graph.view import Node

_ACTIVATIONS = frozenset(
    {
        "Relu",
        "Clip",
        "LeakyRelu",
        "PRelu",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Elu",
        "Tanh",
        "Mish",
        "Gelu",
    }
)


def repair(bench: Bench) -> Iterator[Change]:
    """Dissolve pairs that stand before an activation or before the product of a SiLU."""
    for pair in bench.pairs:
        reader, maker = bench.consumer(pair), bench.view.producer(pair.tensor)
        if reader is None or maker is None or pair.quantize is None or pair.kind is SlotKind.WEIGHT:
            continue
        behind = maker.op in WEIGHTED | {"BatchNormalization", "Add"} and reader.op in _ACTIVATIONS
        if behind or _inside_silu(bench, pair, reader):
            bench.dissolve(pair)
            yield Change(
                repair="activation",
                subject=pair.quantize,
                what=f"taken out between {maker.op} {maker.name!r} and {reader.op} {reader.name!r}",
                reason="a pair between a node and its activation adds a rounding and may split their fusion",
            )


def _inside_silu(bench: Bench, pair: QdqPair, reader: Node) -> bool:
    """Whether `reader` multiplies x with sigmoid(x), and the pair is on one of the two."""
    if reader.op != "Mul" or len(reader.inputs) != 2:
        return False
    sources = [_source(bench, name) for name in reader.inputs]
    for gate, value in (sources, sources[::-1]):
        node = bench.view.producer(gate)
        if (
            node is not None
            and node.op in {"Sigmoid", "HardSigmoid"}
            and _source(bench, node.inputs[0]) == value
        ):
            return pair.tensor in {gate, value}
    return False


def _source(bench: Bench, tensor: str) -> str:
    """The float tensor behind Q/DQ nodes."""
    node = bench.view.producer(tensor)
    while node is not None and node.op in {"DequantizeLinear", "QuantizeLinear"}:
        tensor = node.inputs[0]
        node = bench.view.producer(tensor)
    return tensor


PLUGIN = repair
