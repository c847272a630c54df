"""Where a Q ends up when it moves backward, and what each tensor is then wanted as."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtool.core.dtypes import DType
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.trt.ops import MAXIMUM_POOLS, carried_outputs, quantization_commutes

Scale = tuple[DType, tuple[float, ...]]


@dataclass(slots=True)
class Demand:
    """What the readers of a tensor want: few bits of some types and scales, a float value, or both."""

    scales: set[Scale] = field(default_factory=set)
    float: bool = False

    @property
    def closed(self) -> bool:
        """Whether all readers agree on one such form, so that the Q can fuse with the producer or pass it."""
        return len(self.scales) == 1 and not self.float


class Demands:
    """The demand for every tensor, after each Q moved as far back as it can."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._scales = {
            pair.quantize: (pair.dtype, pair.scale) for pair in flow.pairs if pair.quantize is not None
        }
        self._found: dict[str, Demand] = {}
        for node in reversed(flow.view.nodes):
            self._pass_on(node)

    def of(self, tensor: str) -> Demand:
        """What the readers of `tensor` want."""
        found = self._found.get(tensor)
        if found is None:
            found = self._found[tensor] = Demand(float=self._flow.view.is_output(tensor))
        return found

    def passes(self, node: Node) -> bool:
        """Whether the Q behind `node` moves in front of it."""
        if node.op == "Concat":
            return self.of(node.outputs[0]).closed
        if not quantization_commutes(self._flow.view, node):
            return False
        wanted = [self.of(output) for output in carried_outputs(node) if self._flow.view.uses(output)]
        scales = {scale for demand in wanted for scale in demand.scales}
        # RTX 1.7.1 has pools of INT8 values; in front of FP8 ones they work on floats.
        if node.op in MAXIMUM_POOLS and any(dtype is DType.FLOAT8 for dtype, _ in scales):
            return False
        return bool(wanted) and len(scales) == 1 and all(demand.closed for demand in wanted)

    def _pass_on(self, node: Node) -> None:
        if node.name in self._scales:
            self.of(node.inputs[0]).scales.add(self._scales[node.name])
        elif self.passes(node):
            scale = next(scale for output in carried_outputs(node) for scale in self.of(output).scales)
            count = len(node.inputs) if node.op == "Concat" else 1
            for tensor in node.inputs[:count]:
                self.of(tensor).scales.add(scale)
        else:
            for tensor in node.inputs:
                self.of(tensor).float = True
