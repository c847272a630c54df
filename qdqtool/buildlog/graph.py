"""Questions to the model's graph as the log shows it: who makes a tensor, who reads it, what is a weight."""

from __future__ import annotations

from qdqtool.core.buildlog import LogNetwork, LogNode

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


class Graph:
    """The rebuilt graph, indexed. Everything is empty or None where the log does not print it."""

    def __init__(self, network: LogNetwork) -> None:
        self.nodes = network.nodes
        self._by_name = {node.name: node for node in network.nodes}
        self._maker = {tensor.name: node for node in network.nodes for tensor in node.outputs}
        self._readers: dict[str, list[LogNode]] = {}
        for node in network.nodes:
            for tensor in node.inputs:
                self._readers.setdefault(tensor.name, []).append(node)
        self._inputs = {tensor.name for tensor in network.inputs}
        self.qdq = tuple(node for node in network.nodes if node.op in (_QUANTIZE, _DEQUANTIZE))

    def node(self, name: str) -> LogNode | None:
        """The node of that name."""
        return self._by_name.get(name)

    def maker(self, tensor: str) -> LogNode | None:
        """The node that makes a tensor; None for inputs and initializers."""
        return self._maker.get(tensor)

    def is_weight(self, dequantizer: str) -> bool | None:
        """Whether a DequantizeLinear carries a constant; None where the log does not show it."""
        node = self._by_name.get(dequantizer)
        if node is None or not node.inputs:
            return None
        tensor = node.inputs[0].name
        for _ in range(_FAR):
            maker = self._maker.get(tensor)
            if maker is None or maker.op == "Constant":
                return tensor not in self._inputs
            if maker.op not in _PASSING or not maker.inputs:
                return False
            tensor = maker.inputs[0].name
        return None

    def quantizers_of_output(self, node: str) -> tuple[str, ...]:
        """Q nodes that read what a node makes, directly or through nodes that a Q can move across."""
        found: list[str] = []
        waiting = [node]
        for _ in range(_FAR):
            if not waiting:
                break
            for reader in self._readers_of(waiting.pop()):
                if reader.op == _QUANTIZE:
                    found.append(reader.name)
                elif reader.op in _COMMUTING:
                    waiting.append(reader.name)
        return tuple(found)

    def quantizer_behind(self, node: str) -> str:
        """The Q that directly reads what a DQ makes, or "" where there is none."""
        return next((reader.name for reader in self._readers_of(node) if reader.op == _QUANTIZE), "")

    def producers_of_inputs(self, node: str) -> tuple[str, ...]:
        """For each input of a node, the name of the node that makes it ("" for inputs and initializers)."""
        found = self._by_name.get(node)
        makers = [self._maker.get(tensor.name) for tensor in found.inputs] if found else []
        return tuple(maker.name if maker else "" for maker in makers)

    def readers(self, node: str) -> tuple[LogNode, ...]:
        """Nodes that read any output of a node."""
        return tuple(self._readers_of(node))

    def _readers_of(self, name: str) -> list[LogNode]:
        node = self._by_name.get(name)
        return (
            [reader for tensor in node.outputs for reader in self._readers.get(tensor.name, ())]
            if node
            else []
        )


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
