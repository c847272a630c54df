"""Two pairs in a row become one.

DQ -> Q rounds twice and costs a kernel where the scales differ. The first pair goes when its range covers that of
the second, the second one when it is the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext


def repair(context: RepairContext) -> Iterator[Change]:
    """Dissolve the needless one of two pairs that follow each other."""
    following = _following(context)
    before = {second.quantize or "": first for first, second in following.items()}
    for first in context.pairs:
        while (second := following.get(first.quantize or "")) is not None:
            loser = _loser(context, first, second)
            if loser is None:
                break
            context.dissolve(loser)
            yield Change(
                repair="doubled",
                subject=loser.quantize or "",
                what=f"taken out {'before' if loser is first else 'behind'} another pair on the same tensor",
                reason="a value that is quantized twice is rounded twice, and different scales cost a kernel",
            )
            _unlink(following, before, loser)


def _following(context: RepairContext) -> dict[str, QdqPair]:
    """For each pair, by the name of its QuantizeLinear, the pair that reads nothing but its result."""
    by_node = {pair.quantize: pair for pair in context.pairs if pair.quantize and context.is_known(pair)}
    found = {}
    for pair in by_node.values():
        reader = context.consumer(pair) if pair.dequantize and pair.kind is not SlotKind.WEIGHT else None
        if reader is not None and reader.name in by_node:
            found[pair.quantize or ""] = by_node[reader.name]
    return found


def _unlink(following: dict[str, QdqPair], before: dict[str, str], gone: QdqPair) -> None:
    """Let the pair before a dissolved one see the pair behind it; `before` says who is before whom."""
    behind = following.pop(gone.quantize or "", None)
    first = before.pop(gone.quantize or "", None)
    if first is not None:
        following.pop(first)
    if behind is None:
        return
    before.pop(behind.quantize or "")
    if first is not None:
        following[first] = behind
        before[behind.quantize or ""] = first


def _loser(context: RepairContext, first: QdqPair, second: QdqPair) -> QdqPair | None:
    """The pair whose range covers the other's, within one step; the second only where it can be spared."""
    (low_1, high_1), (low_2, high_2) = context.span(first), context.span(second)
    step = max(first.scale[0], second.scale[0])
    if low_1 <= low_2 + step and high_1 >= high_2 - step:
        return first
    spare = second.dequantize is not None and context.result(second) not in context.pinned
    covers = low_2 <= low_1 + step and high_2 >= high_1 - step
    return second if spare and covers else None


PLUGIN = repair
