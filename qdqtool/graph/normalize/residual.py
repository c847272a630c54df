"""Of the two inputs of a residual Add only the shortcut keeps its pair.

TensorRT fuses the Add into the Conv that feeds it, and reads the shortcut as INT8. A pair between that Conv and the
Add rounds once more and, in classic TensorRT, splits the fusion.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext
from qdqtool.trt.ops import PRODUCTS


def repair(bench: RepairContext) -> Iterator[Change]:
    """Dissolve the pair on the Conv side of each Add that has two."""
    by_slot = {(slot.node, slot.index): pair for pair in bench.pairs for slot in pair.slots}
    for node in bench.view.nodes:
        pairs = [by_slot.get((node.name, index)) for index in range(2)] if node.op == "Add" else []
        both = [pair for pair in pairs if pair is not None and pair.kind is SlotKind.ACTIVATION]
        fused = [pair for pair in both if _fuses(bench, pair)]
        if len(both) < 2 or not fused:
            continue
        last = max(fused, key=lambda pair: _position(bench, pair))
        bench.dissolve(last)
        yield Change(
            repair="residual",
            subject=last.tensor,
            what=f"pair before Add {node.name!r} taken out; the shortcut keeps its own",
            reason="the Add is fused into the Conv before it, where a pair in between rounds again or splits the fusion",
        )


def _fuses(bench: RepairContext, pair: QdqPair) -> bool:
    """Whether a compute node makes the tensor for this Add alone."""
    whole = pair.quantize is not None and bench.consumer(pair) is not None
    alone = len(bench.view.uses(pair.tensor)) == 1 and pair.tensor not in bench.pinned
    return whole and alone and bench.maker(pair.tensor) in PRODUCTS


def _position(bench: RepairContext, pair: QdqPair) -> int:
    maker = bench.view.producer(pair.tensor)
    return -1 if maker is None else maker.position


PLUGIN = repair
