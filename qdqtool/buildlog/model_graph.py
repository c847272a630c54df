"""Questions to the model's graph as the log shows it: who makes a tensor, who reads it, what is a weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from qdqtool.core.dtypes import DType
from qdqtool.trt.ops import CASTS, MAY_MOVE, MOVING, QDQ, QUANTIZE


class LoggedNode:
    """A node of the graph: its operator and the names of its tensors."""

    __slots__ = ("inputs", "name", "op", "outputs")

    def __init__(self, name: str, op: str, inputs: list[str], outputs: list[str]) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.outputs = outputs


Block = tuple[str, str, str, str]
"""What the parser prints of a node: its name, its operator, the text of its inputs and that of its outputs."""


class Graph:
    """The rebuilt graph, indexed when first asked. Everything is empty or None if the log does not print it.

    Args:
        blocks: of all nodes, in the order of the log.
        inputs: names of the model's inputs.

    Attributes:
        qdq: name and operator of every QuantizeLinear and DequantizeLinear.
    """

    def __init__(self, blocks: Sequence[Block], inputs: Iterable[str]) -> None:
        self._blocks = blocks
        self.qdq = tuple((name, op) for name, op, _, _ in blocks if op in QDQ)
        self._inputs = frozenset(inputs)

    @cached_property
    def nodes(self) -> tuple[LoggedNode, ...]:
        """All nodes."""
        return tuple(
            LoggedNode(name, op, names_of(takes), names_of(gives)) for name, op, takes, gives in self._blocks
        )

    @cached_property
    def _by_name(self) -> dict[str, LoggedNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _maker(self) -> dict[str, LoggedNode]:
        return {tensor: node for node in self.nodes for tensor in node.outputs}

    @cached_property
    def _reader(self) -> dict[str, list[LoggedNode]]:
        readers: dict[str, list[LoggedNode]] = {}
        for node in self.nodes:
            for tensor in node.inputs:
                readers.setdefault(tensor, []).append(node)
        return readers

    @cached_property
    def types(self) -> dict[str, DType]:
        """The types that are printed of what Q nodes read and write, and DQ nodes too."""
        found: dict[str, DType] = {}
        for _, op, takes, gives in self._blocks:
            for piece in (*pieces_of(takes), *pieces_of(gives)) if op in QDQ else ():
                tensor, _, shown = piece.rpartition(" -> ")
                found[tensor] = DType.parse(shown.rpartition("[")[2].rstrip("]"))
        return found

    def node(self, name: str) -> LoggedNode | None:
        """The node of that name."""
        return self._by_name.get(name)

    def maker(self, tensor: str) -> LoggedNode | None:
        """The node that makes a tensor; None for inputs and initializers."""
        return self._maker.get(tensor)

    def around(self, tensor: str) -> tuple[str, ...]:
        """Names of the nodes that make or read a tensor."""
        maker = self._maker.get(tensor)
        return tuple(node.name for node in (*((maker,) if maker else ()), *self._reader.get(tensor, ())))

    def readers(self, name: str) -> list[LoggedNode]:
        """Nodes that read any output of a node."""
        node = self._by_name.get(name)
        return [reader for tensor in node.outputs for reader in self._reader.get(tensor, ())] if node else []

    def is_weight(self, dequantizer: str) -> bool | None:
        """Whether a DequantizeLinear carries a constant; None if the log does not show it."""
        node = self._by_name.get(dequantizer)
        if node is None or not node.inputs:
            return None
        tensor = node.inputs[0]
        for _ in range(_FAR):
            maker = self._maker.get(tensor)
            if maker is None or maker.op == "Constant":
                return tensor not in self._inputs
            if maker.op not in _PASSING or not maker.inputs:
                return False
            tensor = maker.inputs[0]
        return None

    def quantizers_of_output(self, name: str) -> tuple[str, ...]:
        """Q nodes that read what a node makes, directly or through nodes that a Q can move across."""
        found: list[str] = []
        waiting = [name]
        for _ in range(_FAR):
            if not waiting:
                break
            for reader in self.readers(waiting.pop()):
                if reader.op == QUANTIZE:
                    found.append(reader.name)
                elif reader.op in MAY_MOVE:
                    waiting.append(reader.name)
        return tuple(found)

    def quantizer_behind(self, name: str) -> str:
        """The Q that directly reads what a DQ makes, or "" if there is none."""
        return next((reader.name for reader in self.readers(name) if reader.op == QUANTIZE), "")

    def producers_of_inputs(self, name: str) -> tuple[str, ...]:
        """For each input of a node, the name of the node that makes it ("" for inputs and initializers)."""
        node = self._by_name.get(name)
        makers = [self._maker.get(tensor) for tensor in node.inputs] if node else []
        return tuple(maker.name if maker else "" for maker in makers)


_PASSING = MOVING | CASTS | {QUANTIZE}
"""Operators that carry a constant without making it another one."""
_FAR = 64
"""Nodes looked at behind one node."""


def names_of(text: str) -> list[str]:
    """Names of the tensors of `[a -> (1, 3)[FLOAT]], [b -> ()[INT8]],`."""
    if "], [" not in text:
        name, found, _ = text.partition(" -> ")
        return [name.lstrip()[1:]] if found else []
    return [piece.rpartition(" -> ")[0] or piece for piece in pieces_of(text)]


def pieces_of(text: str) -> list[str]:
    """The tensors of such a text, each as it is printed."""
    text = text.strip(" ,")
    return text[1:].removesuffix("]").split("], [") if text.startswith("[") else []
