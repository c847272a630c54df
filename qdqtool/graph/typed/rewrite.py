"""Applies a type plan: renames, adds Casts, stores constants, and gives Q/DQ their scales."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx

from qdqtool.core.tensors import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import is_whole, narrowed
from qdqtool.graph.qdq.encode import storable_as
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.typed.forms import NARROW, WIDE, Form, Forms
from qdqtool.graph.typed.narrow import Narrow, fits, is_faint, stored
from qdqtool.graph.typed.narrow_scales import PAIRS, rounded_scales
from qdqtool.graph.view import GraphView

TYPE_ATTRIBUTES = {
    "Cast": "to",
    DEQUANTIZE: "output_dtype",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
}
"""Operators that state the type of their result -> attribute that states it."""


_FLOAT = onnx.TensorProto.FLOAT


class Rewrite:
    """Changes the nodes of `edit` as `forms` says.

    Attributes:
        casts: how many Cast nodes were added.
        clipped: constants that reached beyond the narrow type.
        faint: constants that are too small for its digits.
    """

    def __init__(self, edit: Edit, view: GraphView, narrow: Narrow, forms: Forms) -> None:
        self._edit = edit
        self._view = view
        self._narrow = narrow
        self._forms = forms
        self._names: dict[tuple[str, Form], str] = {}
        self._read: set[tuple[str, Form]] = set()
        self._integers: dict[str, str] = {}
        self._rounded = rounded_scales(edit, forms)
        self._scales = {node.input[1] for node in edit.nodes if node.op_type in PAIRS}
        self.casts = 0
        self.clipped: list[str] = []
        self.faint: list[str] = []

    def run(self) -> None:
        """Apply the type plan."""
        plan = [
            (node, index, self._forms.read(node, index))
            for node in self._edit.nodes
            for index, name in enumerate(node.input)
            if self._forms.is_float(name)
        ]
        self._read |= {(node.input[index], form) for node, index, form in plan}
        self._read |= {(name, WIDE) for name in self._forms.bodies if self._forms.is_float(name)}
        idle = [node for node in self._edit.nodes if self._is_idle(node)]
        twins = [self._twins(node) for node in self._edit.nodes if node.op_type in PAIRS]
        for node, index, form in plan:
            node.input[index] = self._name(node.input[index], form)
        for make in filter(None, twins):
            make()
        for node in self._edit.nodes:
            self._retype(node)
        self._declare()
        for tensor, form in sorted(self._read):
            if self._forms.made(tensor):
                self._cast(tensor, form)
            else:
                self._store(tensor, form)
        self._forget()
        self._drop(idle)

    def _name(self, tensor: str, form: Form) -> str:
        """Return the tensor name of a form.

        One form has the old name: FP32 where outsiders or all readers of a constant know it as FP32, else the
        narrow one.
        """
        known = self._forms.outside(tensor)
        if known is None and any(value.name == tensor for value in self._edit.inputs):
            known = next(iter(self._forms.made(tensor)))
        if known is None:
            constant = self._view.is_constant(tensor)
            known = WIDE if constant and (tensor, NARROW) not in self._read else NARROW
        if form == known:
            return tensor
        key = (tensor, form)
        if key not in self._names:
            word = "fp32" if form == WIDE else str(self._narrow.dtype)
            self._names[key] = self._edit.fresh(f"{tensor}_{word}")
        return self._names[key]

    def _is_idle(self, node: onnx.NodeProto) -> bool:
        """Return True if this Cast of the original has equal types before and after."""
        if node.op_type != "Cast" or self._forms.outside(node.output[0]) is not None:
            return False
        forms, (source, target) = self._forms, (node.input[0], node.output[0])
        read = self._element(forms.read(node, 0)) if forms.is_float(source) else self._view.info(source).dtype
        made = (
            self._element(min(forms.made(target)))
            if forms.is_float(target)
            else self._view.info(target).dtype
        )
        return read == made

    def _element(self, form: Form) -> DType:
        return DType.FLOAT32 if form == WIDE else self._narrow.dtype

    def _twins(self, node: onnx.NodeProto) -> Callable[[], None] | None:
        """Return the function that adds an FP32 pair beside a narrow one.

        None unless narrow and FP32 consumers share a Q or a DQ.
        """
        if node.op_type == QUANTIZE:
            made = [self._forms.made(reader.output[0]) for reader in self._forms.behind(node)]
            if not any(WIDE in forms for forms in made) or not any(NARROW in forms for forms in made):
                return None
            return partial(self._twin_of_quantize, node, tuple(node.input))
        if len(self._forms.made(node.output[0])) < 2:
            return None
        return partial(self._twin_of_dequantize, node, tuple(node.input))

    def _twin_of_quantize(self, node: onnx.NodeProto, inputs: tuple[str, ...]) -> None:
        """Add an FP32 Q for the FP32 consumers of the integers."""
        self._integers[node.output[0]] = self._edit.fresh(f"{node.output[0]}_fp32")
        source, scale = (self._wide(name) for name in inputs[:2])
        outputs = [self._integers[node.output[0]]]
        twin = self._edit.node(QUANTIZE, [source, scale, *inputs[2:]], outputs, name=f"{node.name}_fp32")
        twin.attribute.extend(node.attribute)
        for reader in self._forms.behind(node):
            if self._forms.made(reader.output[0]) == {WIDE}:
                reader.input[0] = outputs[0]

    def _twin_of_dequantize(self, node: onnx.NodeProto, inputs: tuple[str, ...]) -> None:
        """Add a second DQ that makes the FP32 form; the first makes the narrow one."""
        integers = self._integers.get(inputs[0], inputs[0])
        outputs = [self._name(node.output[0], WIDE)]
        made = [integers, self._wide(inputs[1]), *inputs[2:]]
        twin = self._edit.node(DEQUANTIZE, made, outputs, name=f"{node.name}_fp32")
        twin.attribute.extend(node.attribute)
        node.output[0] = self._name(node.output[0], NARROW)

    def _wide(self, tensor: str) -> str:
        """Return the FP32 form of a tensor, and mark it as read; tensors of other types are unchanged."""
        if not self._forms.is_float(tensor):
            return tensor
        self._read.add((tensor, WIDE))
        return self._name(tensor, WIDE)

    def _retype(self, node: onnx.NodeProto) -> None:
        """Rename outputs by their type, and set the type attribute of operators that have one."""
        for index, name in enumerate(node.output):
            made = self._forms.made(name)
            if self._forms.is_float(name) and len(made) == 1:
                form = next(iter(made))
                if node.op_type == DEQUANTIZE and self._forms.is_float(node.input[1]):
                    _drop_result_type(node)  # the scale has the type of the result, and says it
                elif form == NARROW:
                    _choose(node, self._narrow)
                node.output[index] = self._name(name, form)

    def _declare(self) -> None:
        """Declare the types of inputs and outputs."""
        for value in self._edit.inputs:
            if self._forms.is_float(value.name):
                made = next(iter(self._forms.made(value.name)))
                value.type.tensor_type.elem_type = _FLOAT if made == WIDE else self._narrow.element
        for value in self._edit.outputs:
            if self._forms.is_float(value.name):
                wanted = self._forms.outside(value.name)
                assert wanted is not None
                self._read.add((value.name, wanted))
                value.type.tensor_type.elem_type = _FLOAT if wanted == WIDE else self._narrow.element

    def _cast(self, tensor: str, form: Form) -> None:
        if form in self._forms.made(tensor):
            return
        source, target = self._name(tensor, not form), self._name(tensor, form)
        element = _FLOAT if form == WIDE else self._narrow.element
        self._edit.node("Cast", [source], [target], name=f"{target}_Cast", to=element)
        self.casts += 1

    def _store(self, tensor: str, form: Form) -> None:
        value = self._view.constant(tensor)
        if value is None:
            return
        if tensor in self._rounded:
            value = storable_as(value, self._narrow.dtype)
        name = self._name(tensor, form)
        source = self._edit.constants.get(tensor)
        stays = source if source is not None and is_whole(source) and tensor not in self._rounded else None
        if form == WIDE and stays is not None and name == tensor:
            return
        if form == WIDE:
            self._edit.put(name, np.asarray(value, np.float32))
            return
        if not fits(self._narrow, value):
            self.clipped.append(tensor)
        elif is_faint(self._narrow, value) and tensor not in self._scales:
            self.faint.append(tensor)
        self._edit.constants[name] = (
            stored(self._narrow, name, value)
            if stays is None
            else narrowed(stays, name, self._narrow.element)
        )

    def _forget(self) -> None:
        """Remove FP32 constants whose old name has no consumer."""
        read = {self._name(tensor, form) for tensor, form in self._read}
        for name in [
            name for name in self._edit.constants if self._forms.is_float(name) and name not in read
        ]:
            del self._edit.constants[name]

    def _drop(self, idle: list[onnx.NodeProto]) -> None:
        """Remove these Casts; consumers of their results read the inputs of the Casts."""
        instead = {node.output[0]: node.input[0] for node in idle}
        for node in self._edit.nodes:
            for index in range(len(node.input)):
                while node.input[index] in instead:
                    node.input[index] = instead[node.input[index]]
        self._edit.remove(idle)


def _choose(node: onnx.NodeProto, narrow: Narrow) -> None:
    """Change the type attribute of an operator from FP32 to the narrow type."""
    if node.op_type == "ConstantOfShape":
        _refill(node, narrow)
    wanted = TYPE_ATTRIBUTES.get(node.op_type)
    there = [attribute for attribute in node.attribute if attribute.name == wanted]
    if there and there[0].i == _FLOAT:
        there[0].i = narrow.element
    if wanted and not there and node.op_type.startswith("Random"):
        node.attribute.append(onnx.helper.make_attribute(wanted, narrow.element))


def _drop_result_type(node: onnx.NodeProto) -> None:
    """Remove `output_dtype`: onnxruntime's casts around FP16 nodes change the scale, and would contradict it."""
    kept = [attribute for attribute in node.attribute if attribute.name != TYPE_ATTRIBUTES[DEQUANTIZE]]
    del node.attribute[:]
    node.attribute.extend(kept)


def _refill(node: onnx.NodeProto, narrow: Narrow) -> None:
    value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    if value is None:
        node.attribute.append(
            onnx.helper.make_attribute("value", stored(narrow, "", np.zeros(1, np.float32)))
        )
    elif value.data_type == _FLOAT:
        value.CopyFrom(stored(narrow, value.name, onnx.numpy_helper.to_array(value)))
