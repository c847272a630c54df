"""Questions to the model's graph as the log shows it: who makes a tensor, who reads it, what is a weight."""

from __future__ import annotations

from collections.abc import Iterable

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


class Node:
    """A node of the graph: its operator and the names of its tensors."""

    __slots__ = ("inputs", "name", "op", "outputs")

    def __init__(self, name: str, op: str, inputs: list[str], outputs: list[str]) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.outputs = outputs


class Graph:
    """The rebuilt graph, indexed. Everything is empty or None where the log does not print it.

    Args:
        nodes: in the order of the log.
        inputs: names of the model's inputs.
    """

    def __init__(self, nodes: Iterable[Node], inputs: Iterable[str]) -> None:
        self.nodes = tuple(nodes)
        self.qdq = tuple(node for node in self.nodes if node.op in (_QUANTIZE, _DEQUANTIZE))
        self._inputs = frozenset(inputs)
        self._by_name: dict[str, Node] = {}
        self._maker: dict[str, Node] = {}
        self._reader: dict[str, list[Node]] = {}
        for node in self.nodes:
            self._by_name[node.name] = node
            for tensor in node.outputs:
                self._maker[tensor] = node
            for tensor in node.inputs:
                self._reader.setdefault(tensor, []).append(node)

    def node(self, name: str) -> Node | None:
        """The node of that name."""
        return self._by_name.get(name)

    def maker(self, tensor: str) -> Node | None:
        """The node that makes a tensor; None for inputs and initializers."""
        return self._maker.get(tensor)

    def readers(self, name: str) -> list[Node]:
        """Nodes that read any output of a node."""
        node = self._by_name.get(name)
        return [reader for tensor in node.outputs for reader in self._reader.get(tensor, ())] if node else []

    def is_weight(self, dequantizer: str) -> bool | None:
        """Whether a DequantizeLinear carries a constant; None where the log does not show it."""
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
                if reader.op == _QUANTIZE:
                    found.append(reader.name)
                elif reader.op in _COMMUTING:
                    waiting.append(reader.name)
        return tuple(found)

    def quantizer_behind(self, name: str) -> str:
        """The Q that directly reads what a DQ makes, or "" where there is none."""
        return next((reader.name for reader in self.readers(name) if reader.op == _QUANTIZE), "")

    def producers_of_inputs(self, name: str) -> tuple[str, ...]:
        """For each input of a node, the name of the node that makes it ("" for inputs and initializers)."""
        node = self._by_name.get(name)
        makers = [self._maker.get(tensor) for tensor in node.inputs] if node else []
        return tuple(maker.name if maker else "" for maker in makers)


_PASSING = frozenset({_QUANTIZE, "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that carry a constant without making it another one."""
_COMMUTING = frozenset(
    {
        "MaxPool",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Slice",
        "Resize",
        "Flatten",
        "Split",
        "Concat",
    }
)
"""Operators that a Q can move across."""
_FAR = 64
"""Nodes looked at behind one node."""
