"""Constants of the float model, for graphs that contain a Q/DQ model and its float form.

A Q/DQ model may hold other constants than the float one: weights stored in few bits, or rounded otherwise than to the
nearest.
"""

from __future__ import annotations

import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model


class Originals:
    """Finds the constant that a node of a Q/DQ model reads in the float model; adds it if it is missing."""

    def __init__(self, edit: Edit, model: Model) -> None:
        self._edit = edit
        self._nodes = {node.name: node for node in model.proto.graph.node}
        self._constants = {tensor.name: tensor for tensor in model.proto.graph.initializer}
        self._names: dict[str, str] = {}

    def constant(self, node: onnx.NodeProto, index: int) -> str | None:
        """Return the name of the float constant of a node's input; None if the float model reads no constant there."""
        original = self._nodes.get(node.name)
        name = original.input[index] if original is not None and index < len(original.input) else ""
        if name not in self._constants:
            return None
        if name not in self._names:
            self._names[name] = self._added(name)
        return self._names[name]

    def _added(self, name: str) -> str:
        wanted, here = self._constants[name], self._edit.constants.get(name)
        if here is not None and here == wanted:
            return name
        copy = onnx.TensorProto()
        copy.CopyFrom(wanted)
        copy.name = self._edit.fresh(f"{name}_float")
        self._edit.constants[copy.name] = copy
        return copy.name
