"""FP4 quantizations with constant block scales that would share a kernel with a sum over rows."""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.row_sums import RowSums


def in_sums(flow: Flow) -> Iterator[tuple[QdqPair, str]]:
    """Yield pairs with constant two-level scales, and the sum over rows whose kernel would quantize them."""
    sums = RowSums(flow.view)
    constant = {pair.dequantize for pair in flow.scales if pair.kind is SlotKind.WEIGHT}
    for pair in flow.pairs:
        if pair.quantize is None or pair.dtype is not DType.FLOAT4 or pair.kind is SlotKind.WEIGHT:
            continue
        scale = flow.view.producer(flow.view.by_name[pair.quantize].inputs[1])
        total = None if scale is None or scale.name not in constant else sums.in_front(pair.tensor)
        if total is not None:
            yield pair, total.name
