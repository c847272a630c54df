"""A Q/DQ model open for the fixes of rules, with its nodes and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.fixes import Change
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.encode import storable
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.unquantize import typed_source
from qdqtool.graph.view import GraphView, Node

STORED_INTEGERS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of integers that a pair may store and a fix may store again."""
_INTEGERS = frozenset(np.dtype(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32))


class RepairContext:
    """A Q/DQ model open for changes.

    Attributes:
        target: the builder whose abilities count; None for all of them.
        model: the model before any change.
        edit: the changes.
        path: the file it came from, for messages.
        view: the model before them.
        pairs: its Q/DQ pairs of 8, 16 or 32 bit integers; block scales, INT4 and FP8 are not our business.
        nodes: the private copies of its nodes, by name.
    """

    def __init__(self, model: Model, target: Target | None = None) -> None:
        self.target = target
        self._open(model)

    def _open(self, model: Model) -> None:
        self.model = model
        self.edit = Edit(model)
        self.path = model.path
        self.view: GraphView = model.view
        self.nodes = {node.name: node for node in self.edit.nodes}
        self.pairs = tuple(pair for pair in find(model) if self.is_plain(pair))
        self._pinned = self.edit.pinned
        self._flow: Flow | None = None

    @property
    def flow(self) -> Flow:
        """Q/DQ flow of the model before any change; made on first use."""
        if self._flow is None:
            self._flow = Flow(self.model)
        return self._flow

    def is_plain(self, pair: QdqPair) -> bool:
        """Return True if a pair is one of `pairs`: integers of 8, 16 or 32 bits, without blocks."""
        # A Q without a zero point states no type of its own: without this, FP8 scales of FP4 blocks pass for uint8.
        narrow = pair.dtype.bits is not None and pair.dtype not in STORED_INTEGERS
        return not narrow and self.integers(pair) in _INTEGERS and len(pair.scale_shape or ()) <= 1

    def finish(self) -> Model:
        """Return the changed model, without nodes and constants that no output needs."""
        self.edit.prune()
        return self.edit.finish(retyped=True)

    def require_opset(self, version: int) -> str | None:
        """Reopen the model in this opset, before any other change. Return a note, or None if the opset is high enough."""
        if self.edit.opset >= version:
            return None
        proto, note = raise_opset(self.model.proto, version, self.path)
        self._open(Model(proto=proto, path=self.path, notes=self.model.notes))
        return note

    @property
    def pinned(self) -> frozenset[str]:
        """Tensors that keep their names: model outputs, and tensors that bodies of control flow read."""
        return self._pinned

    def result(self, pair: QdqPair) -> str:
        """Return the output tensor of a pair."""
        return self.view.by_name[pair.dequantize or pair.quantize or ""].outputs[0]

    def consumer(self, pair: QdqPair) -> Node | None:
        """Return the only consumer of a pair; None if there are more, or if the result is a model output."""
        if len(pair.slots) != 1 or self.result(pair) in self.pinned:
            return None
        return self.view.by_name[pair.slots[0].node]

    def maker(self, tensor: str) -> str:
        """Return the operator type of the node that makes a tensor; "" for inputs and constants."""
        node = self.view.producer(tensor)
        return "" if node is None else node.op

    def redirect(self, old: str, new: str) -> None:
        """Connect every consumer of `old` to `new`."""
        self.edit.redirect(old, new)

    def restate(self, pair: QdqPair, scale: NDArray[Any]) -> None:
        """Give both nodes of a pair this scale and an INT8 zero point of 0."""
        nodes = [self.nodes[name] for name in (pair.quantize, pair.dequantize) if name]
        self.restate_nodes(nodes, pair.tensor, scale)

    def restate_nodes(self, nodes: Iterable[onnx.NodeProto], stem: str, scale: NDArray[Any]) -> None:
        """Give Q and DQ nodes this scale and an INT8 zero point of 0; the names of the constants begin with `stem`."""
        scale = np.asarray(scale)
        for node in nodes:
            kind = self.scale_type(node)
            exact = storable(scale, half=kind is np.float16)
            stored = self.edit.constant(f"{stem}_scale", exact.astype(kind))
            zero = self.edit.constant(f"{stem}_zero_point", np.zeros(scale.shape, np.int8))
            del node.input[1:]
            node.input.extend([stored, zero])
            set_axis(node, None, drop=("output_dtype",))

    def integers(self, pair: QdqPair) -> np.dtype[Any]:
        """Return the NumPy type of the integers; a QuantizeLinear without a zero point makes uint8."""
        node = self.nodes[pair.quantize or pair.dequantize or ""]
        stored = self.edit.constants.get(node.input[2]) if len(node.input) > 2 else None
        if stored is None and pair.quantize is None:
            stored = self.edit.constants.get(pair.tensor)
            types = {DType.INT8: np.int8, DType.UINT8: np.uint8, DType.INT32: np.int32}
            return np.dtype(types.get(pair.dtype, np.uint8)) if stored is None else _numpy_type(stored)
        return np.dtype(np.uint8) if stored is None else _numpy_type(stored)

    def span(self, pair: QdqPair) -> tuple[float, float]:
        """Return the smallest and largest real value that a pair can represent, over all channels."""
        limits = np.iinfo(self.integers(pair))
        scale, zero = np.asarray(pair.scale, np.float64), np.asarray(pair.zero_point, np.float64)
        ends = np.stack([(limits.min - zero) * scale, (limits.max - zero) * scale])
        return float(ends.min()), float(ends.max())

    def stored_type(self, tensor: str) -> np.dtype[Any] | None:
        """Return the NumPy type of a constant; None for other tensors."""
        stored = self.edit.constants.get(tensor)
        return None if stored is None else _numpy_type(stored)

    def is_known(self, pair: QdqPair) -> bool:
        """Return True if scale and zero point of a pair are constants."""
        return bool(pair.scale) and bool(pair.zero_point)

    def symmetric(self, pair: QdqPair) -> bool:
        """Return True if a pair is INT8 with zero point 0, as TensorRT requires."""
        return self.integers(pair) == np.int8 and bool(pair.zero_point) and not any(pair.zero_point)

    def scale_type(self, node: onnx.NodeProto) -> Any:
        """Return the NumPy type of a Q or DQ node's scale: float16 if it is float16 now, otherwise float32."""
        stored = self.edit.constants.get(node.input[1])
        half = stored is not None and stored.data_type == onnx.TensorProto.FLOAT16
        return np.float16 if half else np.float32

    def dissolve(self, pair: QdqPair) -> None:
        """Remove a pair with a QuantizeLinear; its consumers then read the input of the QuantizeLinear."""
        quantize = self.nodes[pair.quantize or ""]
        dequantize = self.nodes[pair.dequantize] if pair.dequantize else quantize
        self.redirect(self.result(pair), typed_source(self.edit, quantize, dequantize))
        self.edit.remove([self.nodes[name] for name in (pair.quantize, pair.dequantize) if name])

    def removed(self, pair: QdqPair, reason: str) -> Iterator[Change]:
        """Remove the pair of an activation and yield the change; nothing if it has one node only, or its result keeps its name."""
        if is_whole(pair) and pair.kind is SlotKind.ACTIVATION and self.result(pair) not in self.pinned:
            self.dissolve(pair)
            yield Change(subject=pair.quantize or "", what="removed: the tensor stays float", reason=reason)


def is_whole(pair: QdqPair) -> bool:
    """Return True if a pair has both nodes."""
    return pair.quantize is not None and pair.dequantize is not None


def set_axis(node: onnx.NodeProto, axis: int | None, *, drop: Sequence[str] = ()) -> None:
    """Set or remove the axis of a node, and remove the attributes `drop`."""
    kept = [attribute for attribute in node.attribute if attribute.name not in {"axis", *drop}]
    del node.attribute[:]
    node.attribute.extend(kept)
    if axis is not None:
        node.attribute.append(onnx.helper.make_attribute("axis", axis))


def cast_to(kind: np.dtype[Any] | type[np.generic]) -> int:
    """Return ONNX's type number of a NumPy type, as Cast takes it."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))


def _numpy_type(tensor: onnx.TensorProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
