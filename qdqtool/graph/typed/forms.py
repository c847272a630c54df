"""Chooses the type of each FP32 tensor, the type that each consumer reads, and scales that this type can represent.

Each FP32 tensor may exist in two forms: wide (FP32) and narrow (16 bits). Its producer makes one form. A Cast makes
the other form only if a consumer needs it. Constants are stored in the form that is read.

Q/DQ nodes have the type of their consumers, so there is never a Cast after them. A DequantizeLinear makes the form
that its consumer needs, and is written twice if two consumers differ. The QuantizeLinear before it has the same form.
Both sides of a pair have one type, with one scale of this type. A Cast may be before the pair; TensorRT then fuses
the Cast into the kernel that quantizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import bodies, find_captured
from qdqtool.graph.qdq.encode import SMALLEST_HALF, storable_as
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.typed.narrow import Narrow
from qdqtool.graph.view import GraphView, Model

WIDE, NARROW = True, False
Form = bool
"""Type of a tensor: `WIDE` is FP32, `NARROW` the 16-bit type."""


class Forms:
    """Type plan of a model: the FP32 and narrow forms of every tensor, computed before anything is changed."""

    def __init__(
        self, edit: Edit, view: GraphView, narrow: Narrow, kept: Collection[str], *, keep_io: bool
    ) -> None:
        self._edit = edit
        self._view = view
        self._narrow = narrow
        self._kept = kept
        self._keep_io = keep_io
        self._float: dict[str, bool] = {}
        self._readers = edit.consumers()
        self._makers = edit.producers()
        self._of_tensor: dict[str, frozenset[Form]] = {}
        for value in edit.inputs:
            wide = keep_io or value.name in self.bodies
            self._of_tensor[value.name] = frozenset({WIDE if wide else NARROW})
        for name in self._makers:
            self.of(name)

    def is_float(self, tensor: str) -> bool:
        """Return True if the tensor was FP32 in the original model."""
        if tensor not in self._float:
            self._float[tensor] = bool(tensor) and self._view.info(tensor).dtype is DType.FLOAT32
        return self._float[tensor]

    def of(self, tensor: str) -> frozenset[Form]:
        """Return the forms in which a node makes a tensor; none for constants, stored in each form read."""
        if tensor not in self._of_tensor:
            # Dequantized scales could depend on each other, so the first answer is a guess.
            self._of_tensor[tensor] = frozenset({NARROW})
            self._of_tensor[tensor] = self._producer_forms(tensor)
        return self._of_tensor[tensor]

    def read(self, node: onnx.NodeProto, index: int) -> Form:
        """Return the form in which a node input reads its tensor."""
        if node.op_type == DEQUANTIZE and index == 1:
            return min(self.of(node.output[0]), default=WIDE)  # the result has its own type
        if node.op_type == QUANTIZE and index < 2:
            return self._find_quantized_form(node)
        if node.name in self._kept:
            return WIDE
        return not signature(node, self._edit.opset, self._narrow.word).takes(index)

    def outside(self, tensor: str) -> Form | None:
        """Return the form of a model input or output, or of a tensor that bodies read; None for the rest."""
        if tensor in self.bodies:
            return WIDE
        if tensor in self.ends:
            return WIDE if self._keep_io else NARROW
        return None

    @cached_property
    def bodies(self) -> frozenset[str]:
        """Tensors that bodies of control flow read by name, in FP32."""
        return frozenset(name for node in self._edit.nodes for name in find_captured(node))

    @cached_property
    def ends(self) -> frozenset[str]:
        """Names of model inputs and outputs. These names stay when the tensors change their type."""
        return frozenset(value.name for value in (*self._edit.inputs, *self._edit.outputs))

    def _producer_forms(self, tensor: str) -> frozenset[Form]:
        node = self._makers.get(tensor)
        if node is None or not self.is_float(tensor):
            return frozenset()
        if node.op_type == DEQUANTIZE:
            return frozenset(self._reader_forms(tensor)) or frozenset({NARROW})
        signed = signature(node, self._edit.opset, self._narrow.word)
        narrow = node.name not in self._kept and signed.makes(list(node.output).index(tensor))
        return frozenset({NARROW if narrow else WIDE})

    def _reader_forms(self, tensor: str) -> Iterator[Form]:
        """Yield the form (FP32 or 16 bits) in which each consumer reads a tensor."""
        for node, index in self._readers.get(tensor, ()):
            yield self.read(node, index)
        outside = self.outside(tensor)
        if outside is not None:
            yield outside

    def behind(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the DequantizeLinear nodes that read the output of this QuantizeLinear."""
        return [reader for reader, _ in self._readers.get(node.output[0], ()) if reader.op_type == DEQUANTIZE]

    def _find_quantized_form(self, node: onnx.NodeProto) -> Form:
        """Return the form of a QuantizeLinear: that of its DequantizeLinear outputs; 16 bits if they differ.

        Without a DequantizeLinear, return the form of the input tensor.
        """
        forms = {form for reader in self.behind(node) for form in self.of(reader.output[0])}
        return min(forms or self.of(node.input[0]) or {NARROW})


# --- signatures of operators -----------------------------------------------------------------------------------------
# The inputs and outputs of an operator for which its schema allows a narrow float type.


@dataclass(frozen=True, slots=True)
class Signature:
    """Flags of the inputs and outputs of an operator that may be narrow; the last one holds for all later."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    def takes(self, index: int) -> bool:
        """Return True if the operator accepts a 16-bit float type at input number `index`."""
        return bool(self.inputs) and self.inputs[min(index, len(self.inputs) - 1)]

    def makes(self, index: int) -> bool:
        """Return True if output number `index` of the operator can have a 16-bit float type."""
        return bool(self.outputs) and self.outputs[min(index, len(self.outputs) - 1)]


_CONTAINERS = ("seq(", "optional(")
_WIDE = Signature((False,), (False,))
_STATES_TYPE = frozenset({"dtype", "output_datatype"})
"""Attributes that state the element type of a result, as random operators, windows and EyeLike have."""


def signature(node: onnx.NodeProto, opset: int, word: str) -> Signature:
    """Return the inputs and outputs that the node's operator allows to be narrow.

    Foreign operators and control flow take and make FP32 only, as do operators on sequences, whose declared types do
    not change with their elements, and BitCast, which looks at the bits. Operators that make tensors of a stated type,
    as RandomNormalLike or HannWindow, stay FP32 too: onnxruntime 1.32 has no kernel of 16 bits for any of them.

    `word` is ONNX's spelling of the narrow type, as "tensor(float16)".
    """
    if node.domain not in {"", "ai.onnx"} or node.op_type == "BitCast" or any(True for _ in bodies(node)):
        return _WIDE
    return _signature(node.op_type, opset, word)


@lru_cache(maxsize=1024)
def _signature(op: str, opset: int, word: str) -> Signature:
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return _WIDE
    if _STATES_TYPE & schema.attributes.keys():
        return _WIDE
    types = {entry.type_param_str: entry.allowed_type_strs for entry in schema.type_constraints}

    for entry in (*schema.inputs, *schema.outputs):
        kinds = types.get(entry.type_str, [entry.type_str])
        if all(kind.startswith(_CONTAINERS) for kind in kinds):
            return _WIDE

    def allows(parameter: str) -> bool:
        return word in types.get(parameter, (parameter,))

    return Signature(
        tuple(allows(entry.type_str) for entry in schema.inputs),
        tuple(allows(entry.type_str) for entry in schema.outputs),
    )


# --- scales that must stay -------------------------------------------------------------------------------------------
# Finds scales that a narrow type must not change on only one side of their integers.


def rounded_scales(edit: Edit, forms: Forms) -> frozenset[str]:
    """Return the scales of narrow Q/DQ pairs: Q and DQ must use one value, which the narrow type represents.

    Scales of stored integers are not included: they are rounded to the nearest number, which changes the constant by
    less than its own rounding.
    """
    pairs: list[tuple[frozenset[str], bool]] = []
    for node in edit.nodes:
        if node.op_type == QUANTIZE:
            sides = (node, *forms.behind(node))
            narrow = any(_has_narrow(side, forms) for side in sides)
            pairs.append((frozenset(side.input[1] for side in sides), narrow))
    rounded: frozenset[str] = frozenset()
    growing = True
    while growing:
        touched = [scales for scales, narrow in pairs if narrow or scales & rounded]
        grown = rounded.union(*touched)
        growing, rounded = grown != rounded, grown
    return rounded


def _has_narrow(node: onnx.NodeProto, forms: Forms) -> bool:
    if node.op_type == QUANTIZE:
        return forms.read(node, 1) == NARROW
    return NARROW in forms.of(node.output[0])


# --- other scales for stored integers --------------------------------------------------------------------------------
# If a narrow type would distort the scale of stored integers, both get new values.

_COARSE = frozenset({"int8", "uint8"})
"""Integer types for which rounding a scale changes the values by less than their own rounding."""
_FINE = frozenset({"int16", "uint16", "int32"})
"""Integer types that are finer than any narrow scale, so that they follow a changed scale exactly."""


def rescale_integers(model: Model, narrow: Narrow) -> Model:
    """Requantize stored integers if rounding their scales to the narrow type would change values much.

    This happens for tiny scales in FP16 (below 2**-20), as dead channels have, and for INT32 biases. Other scales are
    rounded to the nearest number when they are stored.
    """
    edit = Edit(model)
    changed = 0
    for node in edit.nodes:
        if node.op_type == DEQUANTIZE:
            changed += _rescale(edit, node, narrow)
    if not changed:
        return model
    edit.prune()
    edit.notes.append(
        f"{count_noun(changed, 'integer constant was', 'integer constants were')} rescaled to scales that {narrow.dtype} holds"
    )
    return edit.finish()


def _rescale(edit: Edit, node: onnx.NodeProto, narrow: Narrow) -> bool:
    integers, scale = edit.value(node.input[0]), edit.value(node.input[1])
    zero = edit.value(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros((), np.int64)
    if integers is None or scale is None or zero is None or scale.dtype != np.float32 or scale.ndim > 1:
        return False
    small = scale < SMALLEST_HALF if str(narrow.dtype) == "fp16" else np.zeros(scale.shape, bool)
    if integers.dtype.name in _FINE:
        small = np.ones(scale.shape, bool)
    elif integers.dtype.name not in _COARSE:
        return False
    if not small.any() or (scale <= 0).any():
        return False
    target = np.where(small, storable_as(scale, narrow.dtype), scale)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    ratio, offset = (_along(value, axis, integers.ndim) for value in (scale / target, zero.astype(np.int64)))
    moved = np.rint((integers.astype(np.int64) - offset) * ratio) + offset
    limits = np.iinfo(integers.dtype)
    node.input[0] = edit.constant(
        f"{node.input[0]}_rescaled", np.clip(moved, limits.min, limits.max).astype(integers.dtype)
    )
    node.input[1] = edit.constant(f"{node.input[1]}_rescaled", target.astype(np.float32))
    return True


def _along(value: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Reshape values per channel so that they broadcast to the integers."""
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])
