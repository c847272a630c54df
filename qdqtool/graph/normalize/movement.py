"""DequantizeLinear moves before operators that only move integers.

TensorFlow's converter transposes and reshapes the integers themselves: Q -> Transpose -> DQ. TensorRT wants the
pair together, so the movement happens behind it in float, where TensorRT moves Q and DQ back across it freely.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqtool.core.repair import Change
from qdqtool.graph.normalize.bench import MOVES, Bench

if TYPE_CHECKING:
    import onnx


def repair(bench: Bench) -> Iterator[Change]:
    """Swap `move -> DQ` into `DQ -> move`, as often as it takes."""
    makers = bench.edit.producers()
    for pair in bench.pairs:
        if pair.dequantize is None or pair.scale_shape is None or len(pair.scale) != 1:
            continue
        node = bench.nodes[pair.dequantize]
        while (move := makers.get(node.input[0])) is not None and move.op_type in MOVES | {"MaxPool"}:
            node = _swap(bench, move, node)
            makers = bench.edit.producers()
            yield Change(
                repair="movement",
                subject=node.name,
                what=f"moved before {move.op_type} {move.name!r}, which now moves floats",
                reason="TensorRT fuses a Q and a DQ that stand together; an operator on bare integers keeps them apart",
                error=0.0,
            )


def _swap(bench: Bench, move: onnx.NodeProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Give `move` a float twin behind a DequantizeLinear, which is returned; the old nodes are pruned later."""
    edit = bench.edit
    inner = edit.fresh(f"{move.input[0]}_dequantized")
    result = node.output[0]
    node.output[0] = edit.fresh(f"{result}_unused")
    twin = edit.node(move.op_type, [inner, *move.input[1:]], [result], name=f"{move.name}_float")
    twin.attribute.extend(move.attribute)
    moved = edit.node(
        "DequantizeLinear", [move.input[0], *node.input[1:]], [inner], name=f"{node.name}_moved"
    )
    edit.remove([node])
    return moved


PLUGIN = repair
