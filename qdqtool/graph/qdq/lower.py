"""Writes a float graph and the quantizations of its node inputs as the Q/DQ nodes that TensorRT reads; `lift` is the reverse.

    one scale, or one per channel      x -> Q -> DQ -> slot            W (INT8) -> DQ -> slot if stored
    blocks                             W (INT4) -> DQ (block_size) -> slot
    two levels (NVFP4)                 scales (FP8) -> DQ (global scale) -> the scale of Q and DQ
    computed blocks (NVFP4)            x -> TRT_FP4DynamicQuantize -> values, scales -> DQ -> DQ -> slot
    MXFP8                              TRT_MXFP8DynamicQuantize and TRT_MXFP8DequantizeLinear, scales as UINT8

TensorRT for RTX 1.7.1 builds these forms. For NVFP4 and MXFP8 it rejected other forms, or they fell back to float
(scales of one level, FLOAT8E8M0 initializers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.grids import get_storage_type
from qdqtool.core.placement import Slot
from qdqtool.core.tensors import MXFP8, DType, QuantFormat
from qdqtool.core.wording import Command
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import array, is_worth, spill_tensor
from qdqtool.graph.onnx_io.save import weight_bytes
from qdqtool.graph.qdq.encode import effective, encode
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import Model
from qdqtool.trt.ops import FP4_DYNAMIC, MX_DYNAMIC, TRT_DOMAIN

# --- graph -----------------------------------------------------------------------------------------------------------
# A float graph and the quantizations of its slots: the meaning of a Q/DQ model without its Q/DQ nodes.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quantization:
    """Quantization of the values that one node input reads.

    Attributes:
        format: how values are stored.
        scale: float32. Shape (): a single scale; (channels,): one scale per channel along `axis`; the tensor's shape
            with `axis` divided by `block`: one scale per block. Block scales of formats with two levels are those of
            the first level. None if the model computes a scale per block at run time.
        axis: channel axis, or the axis that blocks divide; None for one scale.
        block: values along `axis` that share a scale; None without blocks.
        global_scale: second level of formats with two levels, else None.
        stored: whether a constant is stored in the format, before a single DequantizeLinear.
        codes: the stored values of a constant, if they differ from the nearest ones; None if they do not differ, or
            if nodes quantize the constant.
        pair: the first slot, in graph order, that reads the same Q/DQ pair; None if the pair serves this slot alone.
        zero_point: the integer that stands for 0; other than 0 for INT8 activations only.
    """

    format: QuantFormat
    scale: NDArray[np.float32] | None
    axis: int | None = None
    block: int | None = None
    global_scale: float | None = None
    stored: bool = False
    codes: NDArray[Any] | None = None
    pair: Slot | None = None
    zero_point: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of a quantization: node inputs that read one tensor with equal keys share the constants."""
        scale = None if self.scale is None else (self.scale.shape, self.scale.astype(np.float32).tobytes())
        return (
            self.format.name,
            scale,
            self.axis,
            self.block,
            self.global_scale,
            self.stored,
            self.zero_point,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantization) and (self.key, self.pair) == (other.key, other.pair)

    def __hash__(self) -> int:
        return hash((self.key, self.pair))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedGraph:
    """A float model and the quantization of each of its node inputs.

    Attributes:
        model: the float model. Constants that are stored in a low-bit format have their float values here.
        assignment: quantizations by slot, in graph order; slots that are not in it are float.
    """

    model: Model
    assignment: Mapping[Slot, Quantization] = field(default_factory=lambda: MappingProxyType({}))

    def __eq__(self, other: object) -> bool:
        """Return True if the assignments and graphs are equal; the order of constants does not matter."""
        if not isinstance(other, QuantizedGraph):
            return NotImplemented
        return dict(self.assignment) == dict(other.assignment) and _content(self.model) == _content(
            other.model
        )

    __hash__ = None  # type: ignore[assignment]


def _content(model: Model) -> tuple[Any, ...]:
    graph = model.proto.graph
    return (
        sorted(node.SerializeToString(deterministic=True) for node in graph.node),
        {tensor.name: _value(tensor) for tensor in graph.initializer},
        [value.name for value in graph.input],
        [value.name for value in graph.output],
    )


def _value(tensor: onnx.TensorProto) -> tuple[int, tuple[int, ...], bytes]:
    value = array(tensor)
    content = value.tobytes() if value.dtype.kind != "O" else b"\0".join(tensor.string_data)
    return tensor.data_type, tuple(tensor.dims), content


# --- nodes -----------------------------------------------------------------------------------------------------------

_SPILLED: Final = 1 << 30
"""Bytes of a model's weights from which the stored values wait in files until they are written."""
MX_DEQUANTIZE: Final = "TRT_MXFP8DequantizeLinear"
FLOAT_TYPES: Final = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.UNKNOWN: np.dtype(np.float32),
}
"""Float types of quantized tensors, and so of their scales; FP32 if the type is unknown."""


def lower(graph: QuantizedGraph) -> Model:
    """Return the Q/DQ model. A constant that several node inputs read in the same way is written once.

    Nodes are named `<tensor>_<node>_<input>_QuantizeLinear` and `..._DequantizeLinear`.

    Raises:
        UsageError: the model's opset is too low for a format, or blocks do not divide their axis.
        InputFileError: the model has no such slot, or a value to store is not constant.
    """
    writer = _PairWriter(graph.model, graph.assignment)
    for slot, quantization in graph.assignment.items():
        writer.write(slot, quantization)
    return writer.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Constants:
    """Names of the constants that hold a tensor's scale, zero point and stored values.

    Attributes:
        scale: the scale of Q and DQ; the FP8 scales if there are two levels; "" if scales of blocks are computed.
        zero_point: the zero point, which gives Q its type; "" if the nodes have none.
        values: the stored constant; None if nodes quantize.
        level: the second level of scales, "" without one.
    """

    scale: str
    zero_point: str = ""
    values: str | None = None
    level: str = ""


class _PairWriter:
    """Adds Q/DQ pairs to one model."""

    def __init__(self, model: Model, assignment: Mapping[Slot, Quantization]) -> None:
        self._model = model
        self._assignment = assignment
        self._edit = Edit(model)
        self._nodes = {node.name: node for node in self._edit.nodes}
        self._constants: dict[tuple[Any, ...], _Constants] = {}
        self._results: dict[tuple[str, Slot], str] = {}
        self._ir = 0
        self._spills = weight_bytes(model) >= _SPILLED

    def write(self, slot: Slot, quantization: Quantization) -> None:
        """Insert the Q/DQ for one input of a node."""
        node = self._nodes.get(slot.node)
        if node is None or slot.index >= len(node.input) or not node.input[slot.index]:
            raise InputFileError(
                f"the model has no input {slot}",
                fix="pass an input of this model",
                where=str(self._model.path),
            )
        tensor = node.input[slot.index]
        shared = (tensor, slot if quantization.pair is None else quantization.pair)
        if shared not in self._results:
            self._check(tensor, slot, quantization)
            self._results[shared] = self._pair(tensor, slot, quantization)
        node.input[slot.index] = self._results[shared]

    def finish(self) -> Model:
        """Return the model with all Q/DQ pairs. Float constants that have lost their last consumer are removed."""
        self._edit.prune()
        model = self._edit.finish()
        model.proto.ir_version = max(model.proto.ir_version, self._ir)
        return model

    def _check(self, tensor: str, slot: Slot, quantization: Quantization) -> None:
        format_ = quantization.format
        self._ir = max(self._ir, format_.ir_version)
        if self._edit.opset < format_.opset:
            raise UsageError(
                f"opset {self._edit.opset} cannot hold {format_}, which needs opset {format_.opset}",
                fix=f"export the model with opset {format_.opset} or newer",
                where=str(slot),
            )
        shape, axis, block = self._model.view.info(tensor).shape, quantization.axis, quantization.block
        if block is None or axis is None or shape is None or axis >= len(shape):
            return
        length = shape[axis]
        if isinstance(length, int) and length % block:
            raise UsageError(
                f"blocks of {block} do not divide axis {axis} of {tensor!r}, which has {length} values",
                fix=f"choose a block that divides {length}, or leave the node float",
                where=str(slot),
            )

    def _pair(self, tensor: str, slot: Slot, quantization: Quantization) -> str:
        """Add the Q/DQ nodes for one input of a node, and return the tensor that the input then reads."""
        stem = f"{tensor}_{slot.node}_{slot.index}"
        kind = FLOAT_TYPES.get(self._model.view.info(tensor).dtype, FLOAT_TYPES[DType.FLOAT32])
        key = (tensor, quantization.key)
        if key not in self._constants:
            self._constants[key] = self._store(tensor, quantization, kind)
        constants = self._constants[key]
        if quantization.format == MXFP8:
            return self._lower_microscaled(tensor, stem, quantization, constants, kind)
        if quantization.scale is None:
            level = constants.level
            return computed_blocks(self._edit, tensor, stem, level, quantization.axis, quantization.block)
        return self._plain(tensor, stem, quantization, constants)

    def _plain(self, tensor: str, stem: str, quantization: Quantization, constants: _Constants) -> str:
        """Add Q and DQ, or only DQ after a stored constant; return the result."""
        edit = self._edit
        along = {} if quantization.axis is None else {"axis": quantization.axis}
        along |= {} if quantization.block is None else {"block_size": quantization.block}
        scale = constants.scale
        if constants.level:
            scale = edit.fresh(f"{stem}_scales")
            edit.node(
                DEQUANTIZE, [constants.scale, constants.level], [scale], name=f"{stem}_scales_{DEQUANTIZE}"
            )
        zero_points = [constants.zero_point] if constants.zero_point else []
        values = constants.values
        if values is None:
            values = edit.fresh(f"{stem}_quantized")
            typed = {} if zero_points else {"output_dtype": _element(quantization.format)}
            edit.node(
                QUANTIZE, [tensor, scale, *zero_points], [values], name=f"{stem}_{QUANTIZE}", **along, **typed
            )
        result = edit.fresh(f"{stem}_dequantized")
        edit.node(DEQUANTIZE, [values, scale, *zero_points], [result], name=f"{stem}_{DEQUANTIZE}", **along)
        return result

    def _lower_microscaled(
        self, tensor: str, stem: str, quantization: Quantization, constants: _Constants, kind: np.dtype[Any]
    ) -> str:
        edit, values, scale = self._edit, constants.values, constants.scale
        edit.imports[TRT_DOMAIN] = 1
        shared = {"domain": TRT_DOMAIN, "axis": quantization.axis, "block_size": quantization.block}
        if values is None:
            values, scale = edit.fresh(f"{stem}_quantized"), edit.fresh(f"{stem}_block_scales")
            typed = {"output_dtype": _element(quantization.format)}
            edit.node(MX_DYNAMIC, [tensor], [values, scale], name=f"{stem}_{QUANTIZE}", **shared, **typed)
        result = edit.fresh(f"{stem}_dequantized")
        typed = {"output_dtype": int(onnx.helper.np_dtype_to_tensor_dtype(kind))}
        edit.node(MX_DEQUANTIZE, [values, scale], [result], name=f"{stem}_{DEQUANTIZE}", **shared, **typed)
        return result

    def _store(self, tensor: str, quantization: Quantization, kind: np.dtype[Any]) -> _Constants:
        """Store the constants that describe the quantization of a tensor, and its values if they are stored."""
        edit, format_, scale = self._edit, quantization.format, quantization.scale
        level = ""
        if quantization.global_scale is not None:
            level = edit.constant(f"{tensor}_global_scale", np.asarray(quantization.global_scale, kind))
        values = self._values(tensor, quantization) if quantization.stored else None
        if scale is None:
            return _Constants(scale="", level=level)
        if format_ == MXFP8:
            exponents = scale.astype(get_storage_type(DType.FLOAT8_E8M0)).view(np.uint8)
            return _Constants(scale=edit.constant(f"{tensor}_scale", exponents), values=values)
        if format_.scale_dtype is not None:
            stored = edit.constant(f"{tensor}_scale", scale.astype(get_storage_type(format_.scale_dtype)))
            return _Constants(scale=stored, values=values, level=level)
        stored = edit.constant(f"{tensor}_scale", scale.astype(kind))
        if quantization.block is not None:
            return _Constants(scale=stored, values=values)
        zeros = np.full(scale.shape, quantization.zero_point, get_storage_type(format_.dtype))
        return _Constants(
            scale=stored, zero_point=edit.constant(f"{tensor}_zero_point", zeros), values=values
        )

    def _values(self, tensor: str, quantization: Quantization) -> str:
        value, scale = self._model.view.constant(tensor), quantization.scale
        if value is None or scale is None:
            raise InputFileError(
                f"the placement stores {tensor!r} as {quantization.format}, but the tensor is not constant",
                fix=f"run {Command('place')} on this model",
                where=str(self._model.path),
            )
        scales = effective(scale, quantization.global_scale)
        stored = quantization.codes
        if stored is None:
            stored = encode(value, scales, quantization.format, quantization.axis, quantization.block)
        name = (
            tensor
            if self._replaceable(tensor, quantization)
            else self._edit.fresh(f"{tensor}_{quantization.format}")
        )
        self._edit.put(name, stored)
        if self._spills and is_worth(self._edit.constants[name]):
            self._edit.constants[name] = spill_tensor(self._edit.constants[name])
        return name

    def _replaceable(self, tensor: str, quantization: Quantization) -> bool:
        """Return True if all consumers of a constant read it in this quantization: no float form stays."""
        if tensor in self._edit.pinned:
            return False
        readers = [
            self._assignment.get(Slot(node=use.node.name, index=use.index))
            for use in self._model.view.uses(tensor)
        ]
        return all(reader is not None and reader.key == quantization.key for reader in readers)


def computed_blocks(
    edit: Edit, tensor: str, stem: str, level: str, axis: int | None, block: int | None
) -> str:
    """Quantize a tensor to NVFP4 with block scales computed at run time; return the dequantized tensor.

    Args:
        edit: the graph; it imports TensorRT's operators then.
        tensor: the floats.
        stem: begins the names of the nodes and of what they make.
        level: the constant that holds the scale of all block scales.
        axis: along which the blocks go.
        block: values in each.
    """
    edit.imports[TRT_DOMAIN] = 1
    values, stored = edit.fresh(f"{stem}_quantized"), edit.fresh(f"{stem}_block_scales")
    edit.node(
        FP4_DYNAMIC,
        [tensor, level],
        [values, stored],
        name=f"{stem}_{QUANTIZE}",
        domain=TRT_DOMAIN,
        axis=axis,
        block_size=block,
        scale_type=int(onnx.TensorProto.FLOAT8E4M3FN),
    )
    scale, result = edit.fresh(f"{stem}_scales"), edit.fresh(f"{stem}_dequantized")
    edit.node(DEQUANTIZE, [stored, level], [scale], name=f"{stem}_scales_{DEQUANTIZE}")
    edit.node(DEQUANTIZE, [values, scale], [result], name=f"{stem}_{DEQUANTIZE}", axis=axis, block_size=block)
    return result


def is_stored_exactly(value: NDArray[Any], quantization: Quantization, stored: NDArray[Any]) -> bool:
    """Return True if `lower` would store `value` exactly as `stored`."""
    assert quantization.scale is not None
    scales = effective(quantization.scale, quantization.global_scale)
    again = encode(value, scales, quantization.format, quantization.axis, quantization.block)
    return again.tobytes() == np.ascontiguousarray(stored).tobytes()


def _element(format_: QuantFormat) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(get_storage_type(format_.dtype)))
