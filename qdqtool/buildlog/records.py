"""Layers as a log prints them: records that are parsed on request, and names of nodes and layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from qdqtool.core.engine import EngineLayer, EngineTensor
from qdqtool.core.tensors import DType
from qdqtool.trt.layer_records import Fields, layer_of, line_fields, record_fields
from qdqtool.trt.names import onnx_nodes, parts
from qdqtool.trt.ops import CASTS, MAY_MOVE, MOVING, QDQ, QUANTIZE

# --- layers ----------------------------------------------------------------------------------------------------------

_LONGEST = 1 << 18
"""Most characters of one record that are parsed; real records are far shorter."""

Tensors = tuple[EngineTensor, ...]
Region = tuple[int, str, tuple[str, ...]]
"""A Myelin region: its line, its name, its ONNX nodes."""


class LoggedLayer:
    """An engine layer of which the log prints only the name (default profiling verbosity).

    Attributes:
        line: number of its line in the log.
        name: as printed.
        kind: LayerType; "" if only names are printed.
        text: the remaining text.
    """

    def __init__(self, line: int, name: str, kind: str = "", text: str = "") -> None:
        self.line = line
        self.name = name
        self.kind = kind
        self.rest = text[:_LONGEST]

    @cached_property
    def value(self) -> EngineLayer:
        """The completely parsed layer; only name and kind if its record cannot be parsed."""
        return layer_of(self._fields() or {"Name": self.name, "LayerType": self.kind})

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        """ONNX nodes that the layer names."""
        return ()

    @property
    def inputs(self) -> Tensors:
        """Inputs of the layer that are computed at run time."""
        return self.value.inputs

    @property
    def constants(self) -> Tensors:
        """Weights and other constants, if the dump lists them separately."""
        return self.value.constants

    @property
    def outputs(self) -> Tensors:
        """Outputs of the layer."""
        return self.value.outputs

    def _fields(self) -> Fields | None:
        return None


class LineLayer(LoggedLayer):
    """An engine layer in the section `Engine Layer Information:` of a log; `rest` begins with its tactic id."""

    def _fields(self) -> Fields | None:
        tactic, _, tensors = self.rest.partition(", ")
        return line_fields(self.kind, self.name, tactic, tensors)


class RecordLayer(LoggedLayer):
    """An engine layer in the section `Layers:` of a log; `rest` begins with its type."""

    def __init__(self, line: int, name: str, text: str) -> None:
        super().__init__(line, name, text[:_LONGEST].partition(", ")[0], text)

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        return onnx_nodes(self.rest.rpartition("Metadata: ")[2])

    def _fields(self) -> Fields | None:
        return record_fields(self.name, self.rest)


def types(tensors: Tensors) -> list[DType]:
    """Return the element types of printed tensors."""
    return [tensor.dtype for tensor in tensors]


# --- names -----------------------------------------------------------------------------------------------------------
# Names of nodes and layers. They may contain ` + `, ` with `, ` and `, brackets and spaces, so separators do not show
# where a name ends.


class LoggedNames:
    """All names that a run has printed, to separate names that are joined in a message."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._known = set(names)
        self._parts: dict[str, tuple[str, ...]] = {}

    def add(self, name: str) -> None:
        """Add a name that an optimizer step has just created."""
        self._known.add(name)

    def split(self, text: str, separator: str) -> tuple[str, str]:
        """Split two joined names. The separator may also occur inside a name.

        If several borders are possible, a border with two known names is best, then one with a single known name,
        then the first border. The second part is "" if the separator does not occur.
        """
        first, middle, second = text.partition(separator)
        if not middle or separator not in second:
            return first, second
        best = (-1, first, second)
        at = text.find(separator)
        for _ in range(_PLACES):
            left, right = text[:at], text[at + len(separator) :]
            score = self._trust(left) + self._trust(right)
            if score > best[0]:
                best = (score, left, right)
            at = text.find(separator, at + 1)
            if at < 0:
                break
        return best[1], best[2]

    def parts(self, name: str) -> tuple[str, ...]:
        """Split a fused name into its nodes: `A + B` and `A || B`, with `PWN(...)` opened."""
        if " + " not in name and " || " not in name and not name.startswith("PWN("):
            return (name,)
        nodes = self._parts.get(name)
        if nodes is None:
            nodes = self._parts[name] = parts(name)
        return nodes

    def _trust(self, name: str) -> int:
        if name in self._known:
            return 2
        return 1 if name and all(part in self._known for part in name.split(" + ")) else 0


_PLACES = 64
"""Most separators tried in one text; real names have a handful."""


# --- model graph -----------------------------------------------------------------------------------------------------
# The model's graph from the log: the producer and the readers of a tensor, and which tensors are weights.


class LoggedNode:
    """A node of the model in a log: its operator and the names of its tensors."""

    __slots__ = ("inputs", "name", "op", "outputs")

    def __init__(self, name: str, op: str, inputs: list[str], outputs: list[str]) -> None:
        self.name = name
        self.op = op
        self.inputs = inputs
        self.outputs = outputs


Block = tuple[str, str, str, str]
"""A node as the parser prints it: its name, its operator, the text of its inputs and that of its outputs."""


class Graph:
    """The model's graph from a log. If the log prints no graph, all answers are empty or None.

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
        """All nodes of the graph, in the order of the log."""
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
        """Printed types of the tensors that Q and DQ nodes read or write."""
        types: dict[str, DType] = {}
        for _, op, takes, gives in self._blocks:
            for piece in (*pieces_of(takes), *pieces_of(gives)) if op in QDQ else ():
                tensor, _, shown = piece.rpartition(" -> ")
                types[tensor] = DType.parse(shown.rpartition("[")[2].rstrip("]"))
        return types

    def node(self, name: str) -> LoggedNode | None:
        """Return the node called `name`; None if there is none."""
        return self._by_name.get(name)

    def maker(self, tensor: str) -> LoggedNode | None:
        """Return the node that writes a tensor; None for inputs and initializers."""
        return self._maker.get(tensor)

    def around(self, tensor: str) -> tuple[str, ...]:
        """Return the names of the nodes that write or read a tensor."""
        maker = self._maker.get(tensor)
        return tuple(node.name for node in (*((maker,) if maker else ()), *self._reader.get(tensor, ())))

    def readers(self, name: str) -> list[LoggedNode]:
        """Return the nodes that read any output of a node."""
        node = self._by_name.get(name)
        return [reader for tensor in node.outputs for reader in self._reader.get(tensor, ())] if node else []

    def is_weight(self, dequantizer: str) -> bool | None:
        """Return True if a DequantizeLinear reads a constant; None if the log does not show it."""
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
        """Return the Q nodes that read a node's outputs, directly or through operators that move values."""
        quantizers: list[str] = []
        waiting = [name]
        for _ in range(_FAR):
            if not waiting:
                break
            for reader in self.readers(waiting.pop()):
                if reader.op == QUANTIZE:
                    quantizers.append(reader.name)
                elif reader.op in MAY_MOVE:
                    waiting.append(reader.name)
        return tuple(quantizers)

    def quantizer_behind(self, name: str) -> str:
        """Return the Q that directly reads the output of a DQ, or "" if there is none."""
        return next((reader.name for reader in self.readers(name) if reader.op == QUANTIZE), "")

    def producers_of_inputs(self, name: str) -> tuple[str, ...]:
        """Return the node that writes each input of a node; "" for inputs and initializers."""
        node = self._by_name.get(name)
        makers = [self._maker.get(tensor) for tensor in node.inputs] if node else []
        return tuple(maker.name if maker else "" for maker in makers)


_PASSING = MOVING | CASTS | {QUANTIZE}
"""Operators that pass a constant on unchanged."""
_FAR = 64
"""Most nodes that are searched from one node."""


def names_of(text: str) -> list[str]:
    """Return the tensor names in `[a -> (1, 3)[FLOAT]], [b -> ()[INT8]],` of a log."""
    if "], [" not in text:
        name, arrow, _ = text.partition(" -> ")
        return [name.lstrip()[1:]] if arrow else []
    return [piece.rpartition(" -> ")[0] or piece for piece in pieces_of(text)]


def pieces_of(text: str) -> list[str]:
    """Split the tensors in `[a -> (1, 3)[FLOAT]], [b -> ()[INT8]],` of a log."""
    text = text.strip(" ,")
    return text[1:].removesuffix("]").split("], [") if text.startswith("[") else []
