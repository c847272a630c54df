"""Values behind a nearest Resize or a Pad are quantized again, with the scale they have.

    x ─ Q ─ DQ ─ Resize ─ Conv               becomes
    x ─ Q ─ DQ ─ Resize ─ Q ─ DQ ─ Conv

TensorRT for RTX carries a DequantizeLinear forward over what only moves values, but neither over a Resize nor over a
Pad with zeros (a Conv takes a Pad of its own height and width along), so the layer behind would run in float. What
comes out of a Resize or such a Pad lies on the grid already: the second pair changes no value, and the builder merges
both.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import PRODUCTS, holds_dequantize_back, quantization_commutes


def repair(bench: RepairContext) -> Iterator[Change]:
    """Put a pair in front of each factor that INT8 values reach through a Resize or Pad."""
    by_result = {bench.result(pair): pair for pair in bench.pairs if pair.dequantize is not None}
    for node in bench.view.nodes:
        for index in range(min(2, len(node.inputs))) if node.op in PRODUCTS else ():
            source, barrier = _source(bench.view, node.inputs[index])
            pair = by_result.get(source)
            if barrier is None or pair is None or pair.scale_shape != () or not bench.symmetric(pair):
                continue
            bench.edit.connect(bench.nodes[node.name], index, _twin(bench, pair, node.inputs[index]))
            yield Change(
                repair="carried",
                subject=node.inputs[index],
                what=f"quantized for {node.op} {node.name!r} with the scale of {pair.dequantize!r}",
                reason=f"{barrier.op} {barrier.name!r} keeps INT8 values from the layer behind it",
                error=0.0,
            )


def _source(view: GraphView, tensor: str) -> tuple[str, Node | None]:
    """The tensor whose values arrive in `tensor` by movement alone, and the first barrier on the way back."""
    barrier = None
    maker = view.producer(tensor)
    while maker is not None and quantization_commutes(view, maker):
        if barrier is None and holds_dequantize_back(view, maker):
            barrier = maker
        tensor = maker.inputs[0]
        maker = view.producer(tensor)
    return tensor, barrier


def _twin(bench: RepairContext, pair: QdqPair, tensor: str) -> str:
    """The result of a new pair on `tensor` like `pair`."""
    edit, like = bench.edit, bench.nodes[pair.dequantize or ""]
    integers, result = edit.fresh(f"{tensor}_quantized"), edit.fresh(f"{tensor}_dequantized")
    edit.node(QUANTIZE, [tensor, *like.input[1:]], [integers], name=f"{tensor}_QuantizeLinear")
    edit.node(DEQUANTIZE, [integers, *like.input[1:]], [result], name=f"{tensor}_DequantizeLinear")
    return result


PLUGIN = repair
