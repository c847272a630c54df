"""Layers and ledger of a classic TensorRT engine (8.x to 10.x)."""

from __future__ import annotations

from collections.abc import Collection

from qdqtool.core.dtypes import DType
from qdqtool.core.events import End
from qdqtool.core.prediction import PredictedLayer
from qdqtool.graph.qdq.flow import Flow
from qdqtool.prediction.demand import Demands
from qdqtool.prediction.layers import Groups
from qdqtool.prediction.ledger import Fates
from qdqtool.prediction.naming import layer_name


class ClassicPlan:
    """What the optimizer's passes will leave.

    Attributes:
        layers: in graph order; each product with the weight's Q and the Q of its result.
        ledger: the fate of every Q and DQ.
    """

    def __init__(
        self, flow: Flow, precision: dict[str, DType], stored: Collection[str] = frozenset()
    ) -> None:
        """Plan for nodes that compute in these types; those of `stored` dequantize their weights themselves."""
        demands = Demands(flow)
        self._groups = Groups(flow, demands, precision)
        self.ledger = Fates(flow, demands, self._groups, precision, stored).rows()
        self._position = {node.name: node.position for node in flow.view.nodes}
        self.layers = self._layers()

    def _layers(self) -> tuple[PredictedLayer, ...]:
        """Groups with the Q that they take, and the Q and DQ that stay kernels."""
        taken: dict[str, list[str]] = {}
        found = []
        for row in self.ledger:
            if row.end in {End.WEIGHT, End.OUTPUT} and row.kind == "Q":
                taken.setdefault(row.into, []).append(row.node)
            elif row.end is End.COPY:
                found.append(PredictedLayer(name=row.node, nodes=(row.node,)))
        for group in {id(group): group for group in self._groups.of.values()}.values():
            extra = taken.get(group.host.name, []) if group.host is not None else []
            names = sorted({*extra, *(node.name for node in group.nodes)}, key=self._place)
            found.append(PredictedLayer(name=layer_name(names), nodes=tuple(names)))
        return tuple(sorted(found, key=lambda layer: (self._place(layer.nodes[0]), layer.name)))

    def _place(self, node: str) -> tuple[int, str]:
        """Graph order; clones stand where the Q they were made from stands."""
        return self._position.get(node.partition("_clone_")[0], -1), node
