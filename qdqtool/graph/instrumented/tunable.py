"""A Q/DQ model with activation ranges and biases as inputs, so that one session can try many tables.

    x -> Q(scale) -> DQ(scale) -> Conv(bias)       becomes       x -> Q(s) -> DQ(s) -> Conv(bias + b)

with the model inputs `s` and `b`. Weights stay constants: they are folded and packed once, when the model is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qdqtool.core.calibration import CalibrationTable
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import array, is_deferred, is_worth, refer
from qdqtool.graph.onnx_io.save import store_weights
from qdqtool.graph.onnx_io.walk import is_heavy
from qdqtool.graph.qdq.changes import BIAS
from qdqtool.graph.qdq.encode import decode
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import Model

# --- folded ----------------------------------------------------------------------------------------------------------
# Replaces the weights of a Q/DQ model by their quantized values, and removes their Q/DQ pairs.
#
# onnxruntime would also do this when it opens the model, node by node, each with new memory. For BERT-base this took 2
# of the 2.5 seconds of opening.


_DATA: Final = "folded.data"
_SCALES: Final = (np.float32, np.float16, ml_dtypes.bfloat16)
_LOWEST, _HIGHEST = np.float32(-128), np.float32(127)
"""Saturation bounds of INT8 in ONNX; our scales never use -128."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PairedWeight:
    """A constant with a Q/DQ pair after it.

    Attributes:
        result: the tensor that the pair writes.
        constant: the weight before it.
        scale: a single number, or one number per channel along `axis`.
    """

    result: str
    constant: onnx.TensorProto
    scale: NDArray[np.float32]
    axis: int | None

    @property
    def values(self) -> NDArray[np.float32]:
        """Values after the Q/DQ pair, computed in place with the arithmetic of onnxruntime."""
        values = array(self.constant).astype(np.float32)
        scale = self.scale
        if self.axis is not None:
            scale = scale.reshape([-1 if dim == self.axis else 1 for dim in range(values.ndim)])
        values /= scale
        np.rint(values, out=values)
        np.clip(values, _LOWEST, _HIGHEST, out=values)
        values += np.float32(0)  # no negative zeros, which integers do not have
        values *= scale
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredWeight:
    """A constant of a low-bit type with a DequantizeLinear after it.

    Attributes:
        result: the tensor that the DequantizeLinear writes.
        constant: the stored weight.
        scale: a single number, one number per channel along `axis`, or one per block of `block` elements along `axis`.
    """

    result: str
    constant: onnx.TensorProto
    scale: NDArray[Any]
    axis: int | None
    block: int | None

    @property
    def values(self) -> NDArray[Any]:
        """Values after the DequantizeLinear, computed as onnxruntime does, in the type of the scale."""
        return decode(array(self.constant), self.scale, self.axis, self.block, self.scale.dtype)


def with_folded_weights(model: Model, folder: Path) -> Model:
    """Return the model with INT8 weight pairs on FP32 and large stored weights folded to exact constants.

    The values are in a file in `folder`, which no other process may read, and which must last as long as the model. Pairs of
    other formats, and zero points, stay.
    """
    edit = Edit(model)
    folded: dict[str, _PairedWeight | _StoredWeight] = {}
    nodes = set()
    for weight, back in _weights(edit):
        folded[weight.result] = weight
        nodes.add(back.name)
    edit.remove(node for node in edit.nodes if node.name in nodes)
    edit.constants |= {result: weight.constant for result, weight in folded.items()}
    edit.prune()
    # if all heavy weights are in one folder, they are read from there
    moved = [
        name
        for name, tensor in edit.constants.items()
        if (is_worth(tensor) if name in folded else is_deferred(tensor))
    ]
    tensors = (_tensor(folded[name]) if name in folded else edit.constants[name] for name in moved)
    edit.constants |= {name: _tensor(folded[name]) for name in folded.keys() - set(moved)}
    stubs = store_weights(tensors, folder / _DATA)
    with (folder / _DATA).open("rb") as stream:
        for stub in stubs:
            place = {entry.key: entry.value for entry in stub.external_data}
            refer(stub, folder / _DATA, stream, int(place["offset"]), int(place["length"]))
            edit.constants[stub.name] = stub
    return edit.finish(shapes=False)


def folded_weights(model: Model) -> Iterator[onnx.TensorProto]:
    """Yield the results of INT8 Q/DQ pairs (zero point 0) on FP32 weights, and the values of large stored weights.

    The values are bit by bit as onnxruntime computes them.
    """
    edit = Edit(model)
    for weight, _ in _weights(edit):
        yield _tensor(weight)


def _weights(edit: Edit) -> Iterator[tuple[_PairedWeight | _StoredWeight, onnx.NodeProto]]:
    """Yield each weight that can be folded, with its DequantizeLinear."""
    yield from _pairs(edit)
    yield from _stored(edit)


def _stored(edit: Edit) -> Iterator[tuple[_StoredWeight, onnx.NodeProto]]:
    """Yield each large stored weight with its DequantizeLinear; none with zero points, other forms, or computed scales."""
    for back in edit.nodes:
        constant = edit.constants.get(back.input[0]) if back.op_type == DEQUANTIZE else None
        if constant is None or not is_heavy(constant):
            continue
        scale = edit.value(back.input[1])
        zero = edit.value(back.input[2]) if len(back.input) > 2 and back.input[2] else None
        own = {field.name: helper.get_attribute_value(field) for field in back.attribute}
        axis, block = int(own.pop("axis", 1)) % len(constant.dims), own.pop("block_size", 0) or None
        if own or scale is None or scale.dtype not in _SCALES:
            continue
        if (len(back.input) > 2 and zero is None) or (zero is not None and zero.any()):
            continue
        if block and constant.dims[axis] % block:
            continue
        along = axis if scale.size > 1 or block else None
        yield (
            _StoredWeight(result=back.output[0], constant=constant, scale=scale, axis=along, block=block),
            back,
        )


def _tensor(weight: _PairedWeight | _StoredWeight) -> onnx.TensorProto:
    return numpy_helper.from_array(weight.values, weight.result)


def _pairs(edit: Edit) -> Iterator[tuple[_PairedWeight, onnx.NodeProto]]:
    """Yield each INT8 Q/DQ pair on an FP32 weight, with its DequantizeLinear."""
    makers = edit.producers()
    for back in edit.nodes:
        pair = makers.get(back.input[0]) if back.op_type == DEQUANTIZE else None
        if pair is None or pair.op_type != QUANTIZE or _rest(pair) != _rest(back):
            continue
        constant = edit.constants.get(pair.input[0])
        scale = edit.value(pair.input[1])
        if constant is None or constant.data_type != onnx.TensorProto.FLOAT or scale is None:
            continue
        if _is_plain(edit, pair) and scale.dtype == np.float32 and scale.ndim <= 1:
            axis = _axis(pair, len(constant.dims)) if scale.ndim else None
            yield _PairedWeight(result=back.output[0], constant=constant, scale=scale, axis=axis), back


def _rest(node: onnx.NodeProto) -> tuple[Any, ...]:
    """Return scale, zero point and attributes of a Q or DQ, which are equal for both nodes of a pair."""
    return (
        *node.input[1:],
        *sorted((field.name, str(helper.get_attribute_value(field))) for field in node.attribute),
    )


def _is_plain(edit: Edit, pair: onnx.NodeProto) -> bool:
    """Return True if a QuantizeLinear quantizes to INT8 around 0, without blocks."""
    zero = edit.value(pair.input[2]) if len(pair.input) > 2 and pair.input[2] else None
    names = {field.name for field in pair.attribute}
    return zero is not None and zero.dtype == np.int8 and not zero.any() and names <= {"axis"}


def _axis(pair: onnx.NodeProto, rank: int) -> int:
    axis = next(
        (int(helper.get_attribute_value(field)) for field in pair.attribute if field.name == "axis"), 1
    )
    return axis % rank


# --- tunable ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunable:
    """A model whose scales and bias shifts are additional inputs, so that one session can try many of them.

    Attributes:
        model: has an additional input for each quantized activation, a scalar scale, and for each bias that can move.
        scales: name of the scale input by tensor, in graph order.
        shifts: name of the input that is added to the bias, by node, in graph order.
        types: element type of each additional input.
        channels: length of each bias.
    """

    model: Model
    scales: Mapping[str, str]
    shifts: Mapping[str, str]
    types: Mapping[str, np.dtype[Any]]
    channels: Mapping[str, int]

    def feeds(self, table: CalibrationTable) -> dict[str, NDArray[Any]]:
        """Return the values of the additional inputs for the ranges and shifts of a table."""
        ranges = table.by_tensor()
        moved = {entry.node: entry.shift for entry in table.shifts}
        feeds: dict[str, NDArray[Any]] = {}
        for tensor, name in self.scales.items():
            feeds[name] = np.asarray(ranges[tensor].scales[0], self.types[name])
        for node, name in self.shifts.items():
            feeds[name] = np.asarray(moved.get(node, (0.0,) * self.channels[node]), self.types[name])
        return feeds


def tunable(model: Model, nodes: Collection[str] = (), tensors: Collection[str] | None = None) -> Tunable:
    """Return the tunable form of a Q/DQ model; the biases of `nodes` become tunable, and must be constant.

    Only pairs on `tensors` are tuned, without them all: an emulation of blocks rounds its scales by separate pairs.
    Weights, and activations whose scales are made per block at run time, stay as they are.
    """
    edit = Edit(model)
    scales: dict[str, str] = {}
    types: dict[str, np.dtype[Any]] = {}
    step_inputs: dict[str, str] = {}
    readers = edit.consumers()
    for node in [node for node in edit.nodes if node.op_type == QUANTIZE]:
        source, step = node.input[0], edit.value(node.input[1])
        if source in edit.constants or step is None or step.size != 1:
            continue
        if tensors is not None and source not in tensors:
            continue
        if source not in step_inputs:
            step_inputs[source] = edit.fresh(f"{source}_tuned_scale")
            types[step_inputs[source]] = step.dtype
            scales[source] = step_inputs[source]
            _add_input(edit, step_inputs[source], step.dtype, [])
        node.input[1] = step_inputs[source]
        for back, _ in readers.get(node.output[0], []):
            if back.op_type == DEQUANTIZE:
                back.input[1] = step_inputs[source]
    shifts: dict[str, str] = {}
    channels: dict[str, int] = {}
    for node in [node for node in edit.nodes if node.name in nodes]:
        bias = edit.value(node.input[BIAS]) if len(node.input) > BIAS and node.input[BIAS] else None
        if bias is None or bias.ndim != 1:
            continue
        shifts[node.name] = name = edit.fresh(f"{node.name}_tuned_shift")
        types[name], channels[node.name] = bias.dtype, bias.size
        _add_input(edit, name, bias.dtype, [bias.size])
        moved = edit.fresh(f"{node.name}_tuned_bias")
        edit.node("Add", [node.input[BIAS], name], [moved], name=moved)
        node.input[BIAS] = moved
    return Tunable(
        model=edit.finish(shapes=False), scales=scales, shifts=shifts, types=types, channels=channels
    )


def _add_input(edit: Edit, name: str, dtype: np.dtype[Any], shape: list[int]) -> None:
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    edit.inputs.append(helper.make_tensor_value_info(name, kind, shape))
