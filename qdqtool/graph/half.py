"""Turns the float part of a model into FP16, where every operator allows it.

Each FP32 tensor may exist in two forms, wide (FP32) and half (FP16). Its maker gives one of them; a Cast makes the
other only where somebody needs it, and constants are simply stored in the form that is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import onnx

from qdqtool.core.dtypes import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.graph.walk import bodies, captured

_WIDE, _HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
_LARGEST = float(np.finfo(np.float16).max)
_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
_TYPED = {"Cast": "to", "EyeLike": "dtype", "RandomNormal": "dtype", "RandomUniform": "dtype"}


def to_half(model: Model, *, keep_io: bool) -> Model:
    """The same model computing in FP16; with `keep_io` inputs and outputs stay FP32 behind a Cast.

    Inputs that ONNX allows in FP32 only (Resize scales, NonMaxSuppression, Range), foreign operators and control
    flow stay FP32. Constants beyond +-65504 are clipped with a note; tiny ones that would become zero are kept at
    FP16's smallest number, so that an epsilon still protects its division.
    """
    edit = Edit(model)
    forms = _Forms(edit, model.view, keep_io)
    for node in edit.nodes:
        _retype(node)
        for index, name in enumerate(node.input):
            forms.read(name, wide=_takes_only_wide(node, index, edit.opset))
        for index, name in enumerate(node.output):
            forms.write(name, wide=_makes_only_wide(node, index, edit.opset))
    for node in edit.nodes:
        for index, name in enumerate(node.input):
            node.input[index] = forms.name(name, wide=_takes_only_wide(node, index, edit.opset))
        for index, name in enumerate(node.output):
            node.output[index] = forms.name(name, wide=_makes_only_wide(node, index, edit.opset))
    forms.connect()
    return edit.finish(retyped=True)


class _Forms:
    """Which form of each tensor exists, and which is read."""

    def __init__(self, edit: Edit, view: GraphView, keep_io: bool) -> None:
        self._edit = edit
        self._view = view
        self._keep_io = keep_io
        self._float: dict[str, bool] = {}
        self._read: set[tuple[str, bool]] = set()
        self._made: dict[str, bool] = {}
        self._names: dict[tuple[str, bool], str] = {}
        self._clipped: list[str] = []

    def is_float(self, tensor: str) -> bool:
        """Whether the tensor was FP32 before."""
        if tensor not in self._float:
            self._float[tensor] = bool(tensor) and self._view.info(tensor).dtype is DType.FLOAT32
        return self._float[tensor]

    def read(self, tensor: str, *, wide: bool) -> None:
        """Somebody reads that form."""
        if self.is_float(tensor):
            self._read.add((tensor, wide))

    def write(self, tensor: str, *, wide: bool) -> None:
        """Some node makes that form."""
        if self.is_float(tensor):
            self._made[tensor] = wide

    def name(self, tensor: str, *, wide: bool) -> str:
        """What that form is called.

        One form has the old name: FP32 where outsiders or all readers of a constant know it as FP32, else FP16.
        """
        if not self.is_float(tensor):
            return tensor
        known_wide = tensor in self._bodies or (self._keep_io and tensor in self._outside)
        known_wide |= self._view.is_constant(tensor) and (tensor, False) not in self._read
        if wide == known_wide:
            return tensor
        key = (tensor, wide)
        if key not in self._names:
            self._names[key] = self._edit.fresh(f"{tensor}_{'fp32' if wide else 'fp16'}")
        return self._names[key]

    def connect(self) -> None:
        """Declare inputs and outputs, store constants and add the Casts that are needed."""
        for value in self._edit.inputs:
            if self.is_float(value.name):
                self._made[value.name] = self._keep_io or value.name in self._bodies
                value.type.tensor_type.elem_type = _WIDE if self._made[value.name] else _HALF
        for value in self._edit.outputs:
            if self.is_float(value.name):
                wide = self._keep_io or value.name in self._bodies
                self._read.add((value.name, wide))
                value.type.tensor_type.elem_type = _WIDE if wide else _HALF
        self._read |= {(name, True) for name in self._bodies if self.is_float(name)}
        for tensor, wide in sorted(self._read):
            if tensor in self._made:
                self._cast(tensor, wide=wide)
            else:
                self._store(tensor, wide=wide)
        self._forget()
        if self._clipped:
            names = ", ".join(repr(name) for name in self._clipped[:5])
            self._edit.notes.append(
                f"{len(self._clipped)} constants reach beyond FP16 and were clipped to 65504: {names}"
            )

    @cached_property
    def _bodies(self) -> frozenset[str]:
        """Tensors that bodies of control flow read under their own name and in FP32."""
        return frozenset(name for node in self._edit.nodes for name in captured(node))

    @cached_property
    def _outside(self) -> frozenset[str]:
        """Inputs and outputs, which keep their names whatever their type."""
        return frozenset(value.name for value in (*self._edit.inputs, *self._edit.outputs))

    def _cast(self, tensor: str, *, wide: bool) -> None:
        if self._made[tensor] == wide:
            return
        source, target = self.name(tensor, wide=not wide), self.name(tensor, wide=wide)
        self._edit.node("Cast", [source], [target], name=f"{target}_Cast", to=_WIDE if wide else _HALF)

    def _store(self, tensor: str, *, wide: bool) -> None:
        value = self._view.constant(tensor)
        if value is None:
            return
        if not wide:
            finite = np.isfinite(value)
            if (np.abs(value[finite]) > _LARGEST).any():
                self._clipped.append(tensor)
            bounded = np.where(finite, np.clip(value, -_LARGEST, _LARGEST), value)
            lost = (bounded != 0) & (np.abs(bounded) < _SMALLEST)
            value = np.where(lost, np.copysign(_SMALLEST, bounded), bounded).astype(np.float16)
        self._edit.put(self.name(tensor, wide=wide), value)

    def _forget(self) -> None:
        """Drop FP32 constants whose old name nobody reads any more."""
        read = {self.name(tensor, wide=wide) for tensor, wide in self._read}
        for name in [name for name in self._edit.constants if self.is_float(name) and name not in read]:
            del self._edit.constants[name]


def _retype(node: onnx.NodeProto) -> None:
    """Make operators that choose their type by an attribute choose FP16 instead of FP32."""
    if node.op_type == "ConstantOfShape":
        _retype_fill(node)
    wanted = _TYPED.get(node.op_type)
    if wanted is None or node.domain:
        return
    there = [attribute for attribute in node.attribute if attribute.name == wanted]
    if there and there[0].i == _WIDE:
        there[0].i = _HALF
    if not there and node.op_type.startswith("Random"):
        node.attribute.append(onnx.helper.make_attribute(wanted, _HALF))


def _retype_fill(node: onnx.NodeProto) -> None:
    value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if value is None:
        fill = onnx.numpy_helper.from_array(np.zeros(1, np.float16))
        node.attribute.append(onnx.helper.make_attribute("value", fill))
    elif value.data_type == _WIDE:
        number = onnx.numpy_helper.to_array(value)
        value.CopyFrom(onnx.numpy_helper.from_array(np.clip(number, -_LARGEST, _LARGEST).astype(np.float16)))


@dataclass(frozen=True, slots=True)
class _Signature:
    """Whether each input and output of an operator may be FP16; the last entry repeats."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


@lru_cache(maxsize=1024)
def _signature(op: str, domain: str, opset: int) -> _Signature | None:
    """What the operator's schema allows; None for operators that onnx does not know."""
    if domain not in {"", "ai.onnx"} or not onnx.defs.has(op):
        return None
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return None
    types = {entry.type_param_str: entry.allowed_type_strs for entry in schema.type_constraints}

    def half(parameter: str) -> bool:
        return "tensor(float16)" in types.get(parameter, (parameter,))

    return _Signature(
        tuple(half(entry.type_str) for entry in schema.inputs),
        tuple(half(entry.type_str) for entry in schema.outputs),
    )


def _takes_only_wide(node: onnx.NodeProto, index: int, opset: int) -> bool:
    signature = None if any(True for _ in bodies(node)) else _signature(node.op_type, node.domain, opset)
    return signature is None or not signature.inputs[min(index, len(signature.inputs) - 1)]


def _makes_only_wide(node: onnx.NodeProto, index: int, opset: int) -> bool:
    signature = None if any(True for _ in bodies(node)) else _signature(node.op_type, node.domain, opset)
    return signature is None or not signature.outputs[min(index, len(signature.outputs) - 1)]
