"""A Q/DQ model with activation ranges and biases as inputs, so that one session can try many tables.

    x -> Q(scale) -> DQ(scale) -> Conv(bias)       becomes       x -> Q(s) -> DQ(s) -> Conv(bias + b)

with the model inputs `s` and `b`. Weights stay constants: they are folded and packed once, when the model is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from qdqtool.core.calibration import CalibrationTable
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import BIAS
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunable:
    """The model with its additional inputs.

    Attributes:
        model: has one more input per quantized activation, a scalar scale, and one per bias that can move.
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
        found: dict[str, NDArray[Any]] = {}
        for tensor, name in self.scales.items():
            found[name] = np.asarray(ranges[tensor].scales[0], self.types[name])
        for node, name in self.shifts.items():
            found[name] = np.asarray(moved.get(node, (0.0,) * self.channels[node]), self.types[name])
        return found


def tunable(model: Model, nodes: Collection[str] = (), tensors: Collection[str] | None = None) -> Tunable:
    """Return the tunable form of a Q/DQ model; the biases of `nodes` become tunable, and must be constant.

    Only pairs on `tensors` are tuned, without them all: an emulation of blocks rounds its scales by separate pairs.
    Weights, and activations whose scales are made per block at run time, stay as they are.
    """
    edit = Edit(model)
    scales: dict[str, str] = {}
    types: dict[str, np.dtype[Any]] = {}
    made: dict[str, str] = {}
    readers = edit.consumers()
    for node in [node for node in edit.nodes if node.op_type == QUANTIZE]:
        source, step = node.input[0], edit.value(node.input[1])
        if source in edit.constants or step is None or step.size != 1:
            continue
        if tensors is not None and source not in tensors:
            continue
        if source not in made:
            made[source] = edit.fresh(f"{source}_tuned_scale")
            types[made[source]] = step.dtype
            scales[source] = made[source]
            _add_input(edit, made[source], step.dtype, [])
        node.input[1] = made[source]
        for back, _ in readers.get(node.output[0], []):
            if back.op_type == DEQUANTIZE:
                back.input[1] = made[source]
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
