"""The model's graph, rebuilt from what the parser prints in a log."""

from __future__ import annotations

from qdqtool.buildlog.grammar import Handler
from qdqtool.buildlog.records import Graph, pieces_of
from qdqtool.core.buildlog import LogNetwork, LogNode
from qdqtool.core.tensors import DType, TensorInfo


class NetworkCollector:
    """Keeps the model's inputs, nodes and layer names from a log; tensors of nodes are parsed late."""

    def __init__(self) -> None:
        self._inputs: list[tuple[str, str, str]] = []
        self._nodes: list[tuple[int, str, str]] = []
        self._takes: dict[int, str] = {}
        self._gives: dict[int, str] = {}
        self._name = ""
        self.layers: set[str] = set()

    def __len__(self) -> int:
        return len(self._inputs) + len(self._nodes) + len(self._takes) + len(self._gives) + len(self.layers)

    def handlers(self) -> dict[str, Handler]:
        return {
            "network-input": self._input,
            "node-begins": self._begin,
            "node-inputs": self._take,
            "node-outputs": self._give,
            "layer-registered": self._layer,
        }

    def names(self) -> set[str]:
        """Return the names of all printed nodes, and of layers with other names."""
        return self.layers | {name for _, name, _ in self._nodes}

    def graph(self) -> Graph:
        """Return the graph of the model with names only."""
        takes, gives = self._takes, self._gives
        return Graph(
            [
                (name, op, takes.get(at, ""), gives.get(at, ""))
                for at, (_, name, op) in enumerate(self._nodes)
            ],
            (tensor for tensor, _, _ in self._inputs),
        )

    def finish(self) -> LogNetwork:
        """Return the graph of the model with shapes and types."""
        return LogNetwork(
            inputs=tuple(
                TensorInfo(name=name, dtype=DType.parse(dtype), shape=_shape(dims))
                for name, dtype, dims in self._inputs
            ),
            nodes=tuple(
                LogNode(
                    name=name,
                    op=op,
                    inputs=tensors_of(self._takes.get(at, "")),
                    outputs=tensors_of(self._gives.get(at, "")),
                    line=line,
                )
                for at, (line, name, op) in enumerate(self._nodes)
            ),
        )

    def _input(self, _line: int, tensor: str, dtype: str, dims: str) -> None:
        self._inputs.append((tensor, dtype, dims))

    def _begin(self, line: int, name: str, op: str) -> None:
        self._name = name
        self._nodes.append((line, name, op))

    def _take(self, _line: int, node: str, tensors: str) -> None:
        # Excerpts may show the inputs of a node without the beginning of its block.
        if node.startswith(self._name):
            self._takes[len(self._nodes) - 1] = tensors

    def _give(self, _line: int, node: str, tensors: str) -> None:
        if node.startswith(self._name):
            self._gives[len(self._nodes) - 1] = tensors

    def _layer(self, _line: int, layer: str, node: str) -> None:
        if layer != node:
            self.layers.add(layer)


def tensors_of(text: str) -> tuple[TensorInfo, ...]:
    """Parse the tensors in `[a -> (1, 3)[FLOAT]], [b -> ()[INT8]],` of a log."""
    return tuple(_tensor(piece) for piece in pieces_of(text))


def _tensor(piece: str) -> TensorInfo:
    name, _, shape_and_type = piece.rpartition(" -> ")
    dims, _, dtype = shape_and_type.partition(")")
    return TensorInfo(
        name=name or piece,
        dtype=DType.parse(dtype.strip("[] ")),
        shape=_shape(dims.strip("( ")) if name else None,
    )


def _shape(dims: str) -> tuple[int | str, ...]:
    return tuple(_extent(dim.strip()) for dim in dims.split(",") if dim.strip())


def _extent(dim: str) -> int | str:
    digits = dim.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        return int(dim)
    return "?" if dim == "_" else dim
