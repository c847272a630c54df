"""The model's graph, rebuilt from the parser's blocks."""

from __future__ import annotations

from qdqtool.buildlog.grammar import Hear
from qdqtool.core.buildlog import LogNetwork, LogNode
from qdqtool.core.dtypes import DType
from qdqtool.core.tensors import TensorInfo


class NetworkBook:
    """Keeps nodes, and the text of their inputs and outputs until the run is over."""

    def __init__(self) -> None:
        self._inputs: list[tuple[str, str, str]] = []
        self._nodes: list[tuple[int, str, str]] = []
        self._sides: dict[str, list[str]] = {}
        self._layers: dict[str, str] = {}

    def ears(self) -> dict[str, Hear]:
        return {
            "network-input": self._input,
            "node-begins": self._begin,
            "node-inputs": self._take,
            "node-outputs": self._give,
            "layer-registered": self._layer,
        }

    def finish(self) -> LogNetwork:
        """The graph as values. Blocks without a `Parsing node:` line (excerpts) are left out."""
        return LogNetwork(
            inputs=tuple(
                TensorInfo(name=name, dtype=DType.parse(dtype), shape=_shape(dims))
                for name, dtype, dims in self._inputs
            ),
            nodes=tuple(self._node(*node) for node in self._nodes),
        )

    @property
    def layers(self) -> dict[str, str]:
        """Names of layers that differ from the name of the ONNX node they stand for."""
        return self._layers

    def _node(self, line: int, name: str, op: str) -> LogNode:
        takes, gives = self._sides.get(name, ("", ""))
        return LogNode(name=name, op=op, inputs=tensors_of(takes), outputs=tensors_of(gives), line=line)

    def _input(self, _line: int, tensor: str, dtype: str, dims: str) -> None:
        self._inputs.append((tensor, dtype, dims))

    def _begin(self, line: int, name: str, op: str) -> None:
        self._nodes.append((line, name, op))

    def _take(self, _line: int, node: str, _op: str, tensors: str) -> None:
        self._sides.setdefault(node, ["", ""])[0] = tensors

    def _give(self, _line: int, node: str, _op: str, tensors: str) -> None:
        self._sides.setdefault(node, ["", ""])[1] = tensors

    def _layer(self, _line: int, layer: str, node: str) -> None:
        if layer != node:
            self._layers[layer] = node


def tensors_of(text: str) -> tuple[TensorInfo, ...]:
    """Tensors of `[a -> (1, 3)[FLOAT]], [b -> ()[INT8]],`; without types up to TensorRT 7."""
    text = text.strip().rstrip(",")
    if not text.startswith("["):
        return ()
    return tuple(_tensor(piece) for piece in text[1:].removesuffix("]").split("], ["))


def _tensor(piece: str) -> TensorInfo:
    name, _, rest = piece.rpartition(" -> ")
    dims, _, dtype = rest.partition(")")
    return TensorInfo(
        name=name or piece,
        dtype=DType.parse(dtype.strip("[] ")),
        shape=_shape(dims.strip("( ")) if name else None,
    )


def _shape(dims: str) -> tuple[int | str, ...]:
    return tuple(_extent(dim.strip()) for dim in dims.split(",") if dim.strip())


def _extent(dim: str) -> int | str:
    digits = dim.removeprefix("-")
    return (
        int(dim) if digits.isascii() and digits.isdigit() and len(digits) < 20 else "?" if dim == "_" else dim
    )
