"""A model that measures how much noise each layer adds, separately for clipping, rounded inputs and rounded weights.

    y                                   the float network, from which every layer reads
    y' = layer with its inputs clipped to their ranges, but not rounded      |y' - y|^2    clipping
    y''= layer with its inputs quantized                                     |y'' - y'|^2  rounding of inputs
    y* = layer with its weights quantized                                    |y* - y|^2    weights

The model also returns three values per channel of every quantized input: the largest magnitude, the mean and the mean
square. They show whether a step is small compared with the differences in the channel. All of it is reduced in the
graph: a run hands on a few numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from qdqtool.core.placement import QdqPair, SlotKind
from qdqtool.core.tensors import DType, of_dtype
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE, find
from qdqtool.graph.qdq.lower import FLOAT_TYPES
from qdqtool.graph.view import Model
from qdqtool.trt.ops import CONVOLUTIONS, PRODUCTS, weight_axis

# --- originals -------------------------------------------------------------------------------------------------------
# Constants of the float model, for graphs that contain a Q/DQ model and its float form.
#
# The constants of a Q/DQ model may differ from those of the float model: weights stored in few bits, or not rounded to
# the nearest value.


class Originals:
    """Finds the float constant for an input of a Q/DQ model's node in the float model, and adds it to the Q/DQ model."""

    def __init__(self, edit: Edit, model: Model) -> None:
        self._edit = edit
        self._nodes = {node.name: node for node in model.proto.graph.node}
        self._constants = {tensor.name: tensor for tensor in model.proto.graph.initializer}
        self._names: dict[str, str] = {}

    def constant(self, node: onnx.NodeProto, index: int) -> str | None:
        """Return the name of the float constant for a node's input; None if this input is not constant in the float model."""
        original = self._nodes.get(node.name)
        name = original.input[index] if original is not None and index < len(original.input) else ""
        if name not in self._constants:
            return None
        if name not in self._names:
            self._names[name] = self._add_part(name)
        return self._names[name]

    def _add_part(self, name: str) -> str:
        original, here = self._constants[name], self._edit.constants.get(name)
        if here is not None and here == original:
            return name
        copy = onnx.TensorProto()
        copy.CopyFrom(original)
        copy.name = self._edit.fresh(f"{name}_float")
        self._edit.constants[copy.name] = copy
        return copy.name


# --- noise parts -----------------------------------------------------------------------------------------------------


_AXES_ARE_INPUTS: Final = 18
"""First opset whose ReduceMean and ReduceMax take their axes as an input."""
CLIPPING, ROUNDING, WEIGHTS = "clipping", "rounding", "weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputParts:
    """One quantized run-time input of a layer, and the model outputs that describe it.

    Attributes:
        tensor: its name.
        step: quantization step.
        low, high: the range that its format reaches.
        energy: output with the sum of its squares.
        cut: output with the energy of what clipping takes away.
        reach: output with the largest magnitude of each channel; "" if the channels are not known.
        mean, square: outputs with the mean of each channel, and of its squares.
    """

    tensor: str
    step: float
    low: float
    high: float
    energy: str
    cut: str
    reach: str = ""
    mean: str = ""
    square: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParts:
    """Model outputs that describe the noise of one layer.

    Attributes:
        energies: output with the energy of each part of its noise, by part; a part that it cannot have is left out.
        inputs: its quantized run-time inputs.
        scales: quantization steps of its weights; several if they are per channel.
        weight: name of the constant that it reads; "" if none is quantized.
        axis: axis of the output channels in this constant; None if there is none.
    """

    energies: Mapping[str, str]
    inputs: tuple[InputParts, ...]
    scales: tuple[float, ...] = ()
    weight: str = ""
    axis: int | None = None


def noise_parts(
    model: Model, nodes: Collection[str], plain_model: Model | None = None
) -> tuple[Model, dict[str, LayerParts]]:
    """Return a model that returns the noise parts of these nodes of a Q/DQ model, and the names of its outputs by node.

    Nodes whose first output is not a float tensor, or whose inputs are not quantized, are left out. `plain_model` is the
    float model, whose constants need not be those that the Q/DQ model quantizes.
    """
    parts = _Parts(model, plain_model or model)
    for node in [node for node in parts.edit.nodes if node.op_type not in {QUANTIZE, DEQUANTIZE}]:
        parts.visit(node, is_described=node.name in nodes)
    parts.edit.outputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in parts.outputs
    ]
    parts.edit.prune()
    return parts.edit.finish(shapes=False), parts.layers


class _Parts:
    """The model that measures the parts of noise, while it is built."""

    def __init__(self, model: Model, plain_model: Model) -> None:
        self.edit = Edit(model)
        self.layers: dict[str, LayerParts] = {}
        self.outputs: list[str] = []
        self._view = model.view
        self._originals = Originals(self.edit, plain_model)
        self._pairs = {(slot.node, slot.index): pair for pair in find(model) for slot in pair.slots}

    def visit(self, node: onnx.NodeProto, *, is_described: bool) -> None:
        """Make a node read floats. With `is_described`, first add the outputs that describe the noise of the node."""
        quantized = list(node.input)
        plain = [self._plain(node, index) for index in range(len(quantized))]
        changed = [index for index, name in enumerate(plain) if name != quantized[index]]
        node.input[:] = plain
        if changed and is_described and self._view.info(node.output[0]).dtype.is_float:
            self._describe(node, quantized, changed)

    def _plain(self, node: onnx.NodeProto, index: int) -> str:
        pair = self._pairs.get((node.name, index))
        if pair is None:
            return str(node.input[index])
        is_weight = node.op_type in PRODUCTS and index == 1 and pair.kind is SlotKind.WEIGHT
        original = self._originals.constant(node, index) if is_weight else None
        # Stored integers have no other float form than the result of their DequantizeLinear.
        if original is not None:
            return self._typed(original, self._view.info(node.input[index]).dtype)
        return pair.tensor if pair.quantize else str(node.input[index])

    def _typed(self, constant: str, dtype: DType) -> str:
        """Return a constant of the float model, which may be FP32, in the 16-bit type of the input that reads it."""
        element = onnx.helper.np_dtype_to_tensor_dtype(FLOAT_TYPES.get(dtype, np.dtype(np.float32)))
        if element in {onnx.TensorProto.FLOAT, self.edit.constants[constant].data_type}:
            return constant
        return self._node("Cast", [constant], f"{constant}_as_{dtype}", to=int(element))

    def _describe(self, node: onnx.NodeProto, quantized: Sequence[str], changed: Sequence[int]) -> None:
        dynamic = [index for index in changed if self._pairs[node.name, index].kind is SlotKind.ACTIVATION]
        fixed = [index for index in changed if index not in dynamic]
        energies: dict[str, str] = {}
        inputs = [
            (index, self._input(node, self._pairs[node.name, index]))
            for index in dynamic
            if len(self._pairs[node.name, index].scale) == 1
        ]
        if dynamic:
            clips = {index: clipped for index, (_, clipped) in inputs}
            clipped = self._copy(node, {index: clips.get(index, node.input[index]) for index in dynamic})
            rounded = self._copy(node, {index: quantized[index] for index in dynamic})
            energies[CLIPPING] = self._energy(clipped, node.output[0])
            energies[ROUNDING] = self._energy(rounded, clipped)
        if fixed:
            stored = self._copy(node, {index: quantized[index] for index in fixed})
            energies[WEIGHTS] = self._energy(stored, node.output[0])
        weights = [pair for index in fixed if len((pair := self._pairs[node.name, index]).scale)]
        self.layers[node.name] = LayerParts(
            energies=energies,
            inputs=tuple(described for _, (described, _) in inputs),
            scales=weights[0].scale if weights else (),
            weight=str(node.input[fixed[0]]) if fixed else "",
            axis=self._output_axis(node, fixed[0]) if fixed else None,
        )

    def _output_axis(self, node: onnx.NodeProto, index: int) -> int | None:
        rank = len(self._view.info(node.input[index]).shape or ())
        return weight_axis(self._view.by_name[node.name], index, rank)

    def _input(self, node: onnx.NodeProto, pair: QdqPair) -> tuple[InputParts, str]:
        """Return the outputs that describe an input, and the name of the clipped, unrounded input."""
        tensor, step, zero = pair.tensor, pair.scale[0], pair.zero_point[0] if pair.zero_point else 0
        low, high = ((end - zero) * step for end in _ends(pair.dtype))
        dtype = FLOAT_TYPES.get(self._view.info(tensor).dtype, np.dtype(np.float32))
        least, most = (
            self.edit.constant(f"{tensor}_{word}", np.array(end, dtype))
            for word, end in (("low", low), ("high", high))
        )
        floor = self._node("Max", [tensor, least], f"{tensor}_floored")
        clipped = self._node("Min", [floor, most], f"{tensor}_clipped")
        channels: dict[str, str] = {}
        rank = len(self._view.info(tensor).shape or ())
        if rank > 1:
            axis = 1 if node.op_type in CONVOLUTIONS or rank == 4 else rank - 1
            value = self._float(tensor)
            axes = [dim for dim in range(rank) if dim != axis]
            magnitude = self._node("Abs", [value], f"{tensor}_magnitude")
            square = self._node("Mul", [value, value], f"{tensor}_square")
            channels = {
                "reach": self._add_reduction("ReduceMax", magnitude, axes),
                "mean": self._add_reduction("ReduceMean", value, axes),
                "square": self._add_reduction("ReduceMean", square, axes),
            }
            self.outputs += channels.values()
        return InputParts(
            tensor=tensor,
            step=step,
            low=low,
            high=high,
            energy=self._energy(tensor),
            cut=self._energy(tensor, clipped),
            **channels,
        ), clipped

    def _copy(self, node: onnx.NodeProto, inputs: Mapping[int, str]) -> str:
        """Copy a node with other inputs, and return its output."""
        attributes: dict[str, Any] = {
            field.name: helper.get_attribute_value(field) for field in node.attribute
        }
        read = [inputs.get(index, name) for index, name in enumerate(node.input)]
        outputs = [self.edit.fresh(f"{name}_part") if name else "" for name in node.output]
        self.edit.node(
            node.op_type, read, outputs, name=f"{node.name}_part", domain=node.domain, **attributes
        )
        return outputs[0]

    def _energy(self, tensor: str, subtrahend: str = "") -> str:
        """Add a model output with the sum of squares of a tensor or of the difference of two tensors; return its name."""
        value = self._float(tensor)
        if subtrahend:
            value = self._node("Sub", [value, self._float(subtrahend)], f"{tensor}_moved")
        energy = self._node("ReduceSumSquare", [value], f"{tensor}_energy", keepdims=0)
        self.outputs.append(energy)
        return energy

    def _float(self, tensor: str) -> str:
        return self._node("Cast", [tensor], f"{tensor}_as_float", to=onnx.TensorProto.FLOAT)

    def _add_reduction(self, op: str, tensor: str, axes: Sequence[int]) -> str:
        if self.edit.opset >= _AXES_ARE_INPUTS:
            axes_name = self.edit.constant(f"{tensor}_axes", np.array(axes, np.int64))
            return self._node(op, [tensor, axes_name], f"{tensor}_{op}", keepdims=0)
        return self._node(op, [tensor], f"{tensor}_{op}", axes=list(axes), keepdims=0)

    def _node(self, op: str, inputs: Sequence[str], base: str, **attributes: Any) -> str:
        output = self.edit.fresh(base)
        self.edit.node(op, list(inputs), [output], name=output, **attributes)
        return output


def _ends(dtype: DType) -> tuple[float, float]:
    """Return the smallest and the largest value that a type can store."""
    if dtype is DType.UINT8:
        return 0.0, 255.0
    format_ = of_dtype(dtype)
    return (format_.qmin, format_.qmax) if format_ is not None else (-np.inf, np.inf)
