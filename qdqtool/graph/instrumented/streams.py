"""Bias correction inside one graph: the float and the quantized network side by side, corrected layer by layer.

    x ------- Conv ---------------------------- Relu ...         the float network
               |   mean of each channel, each sample
               +--> difference --> shift (C,)  = output
               |                      |
    x - Q/DQ - Conv' ---------------- + ------- Relu ...         the Q/DQ network, which goes on corrected

All samples are fed as one batch, so that a layer's shift is known before the next layer runs: one session and one run
do what would otherwise take a run per layer. The shift is shrunk by its uncertainty over the samples as
`pipeline.bias.believed` does it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from qdqtool.graph.edit import Edit
from qdqtool.graph.instrumented.originals import Originals
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.trt.ops import PRODUCTS, result_axis

_AXES_ARE_INPUTS: Final = 18
"""First opset in which ReduceMean reads its axes from an input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """The double network.

    Attributes:
        model: returns one shift per corrected node, shape (channels,).
        shifts: name of that output by node, in graph order.
    """

    model: Model
    shifts: Mapping[str, str]


def streams(
    model: Model, nodes: Collection[str], plain_model: Model, *, samples: int, doubt: float
) -> Streams | None:
    """The double network of a Q/DQ model for a batch of so many samples; None where bodies of control flow are in it.

    `plain_model` is the float model, whose constants need not be those that the Q/DQ model quantizes; `doubt` is how many squared standard errors a squared shift must exceed before any of it is believed.
    """
    edit = Edit(model)
    plain_nodes = [node for node in edit.nodes if node.op_type not in {QUANTIZE, DEQUANTIZE}]
    bodies = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
    if any(one.type in bodies for node in plain_nodes for one in node.attribute):
        return None
    ranks = {name: len(model.view.info(name).shape or ()) for node in plain_nodes for name in node.output}
    build = _Builder(edit, plain_model, samples, doubt)
    for node in plain_nodes:
        build.copy_as_float(node)
    shifts = {
        node.name: build.correct(node, ranks[node.output[0]])
        for node in plain_nodes
        if node.name in nodes and ranks[node.output[0]]
    }
    edit.outputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in shifts.values()
    ]
    edit.prune()
    return Streams(model=edit.finish(retyped=True), shifts=shifts)


def free_batch(model: Model) -> Model:
    """The model with a leading dimension of any size at inputs and outputs; what it computes then must be tried."""
    edit = Edit(model)
    for value in (*edit.inputs, *edit.outputs):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_param = "batch"
    return edit.finish(retyped=True)


class _Builder:
    """Adds nodes to an edit."""

    def __init__(self, edit: Edit, plain_model: Model, samples: int, doubt: float) -> None:
        self._edit = edit
        self._originals = Originals(edit, plain_model)
        self._samples = samples
        self._makers = edit.producers()
        self._float: dict[str, str] = {}
        self._one = edit.constant("stream_one", np.ones((), np.float32))
        self._zero = edit.constant("stream_zero", np.zeros((), np.float32))
        self._tiny = edit.constant("stream_tiny", np.array(np.finfo(np.float32).tiny))
        # Squared standard error of a mean: the sum of squares over n (n - 1).
        scale = doubt / (samples * (samples - 1))
        self._doubt = edit.constant("stream_doubt", np.array(scale, np.float32))

    def copy_as_float(self, node: onnx.NodeProto) -> None:
        """The same node in the network without Q/DQ; nodes must come in graph order."""
        outputs = [self._edit.fresh(f"{name}_float") if name else "" for name in node.output]
        inputs = [self._plain(name) for name in node.input]
        if node.op_type in PRODUCTS:
            inputs[1] = self._originals.constant(node, 1) or inputs[1]
        copy = self._edit.node(node.op_type, inputs, outputs, name=f"{node.name}_float")
        copy.domain = node.domain
        copy.attribute.extend(node.attribute)
        self._float.update((name, new) for name, new in zip(node.output, outputs, strict=True) if name)

    def correct(self, node: onnx.NodeProto, rank: int) -> str:
        """Let the quantized network go on with the node's output as the float network has it in the mean."""
        output, name = node.output[0], node.name
        raw = self._edit.fresh(f"{output}_raw")
        node.output[0] = raw
        axis = result_axis(node.op_type) % rank
        moved = self._new("Sub", [self._means(self._float[output], rank, axis), self._means(raw, rank, axis)])
        mean = self._reduce("ReduceMean", moved, [0])
        apart = self._new("Sub", [moved, mean])
        squares = self._reduce("ReduceSum", self._new("Mul", [apart, apart]), [0])
        power = self._new("Max", [self._new("Mul", [mean, mean]), self._tiny])
        doubted = self._new("Div", [self._new("Mul", [squares, self._doubt]), power])
        share = self._new("Max", [self._new("Sub", [self._one, doubted]), self._zero])
        shift = self._new("Mul", [mean, share], name=f"{name}_shift")
        spread = self._shape(f"{name}_spread", [-1 if dim == axis else 1 for dim in range(rank)])
        self._edit.node(
            "Add", [raw, self._new("Reshape", [shift, spread])], [output], name=f"{name}_corrected"
        )
        return shift

    def _means(self, tensor: str, rank: int, axis: int) -> str:
        """(samples, channels) means; a leading dimension that is a multiple of the batch is split by sample."""
        others = [dim for dim in range(1, rank) if dim != axis]
        flat = self._reduce("ReduceMean", tensor, others) if others else tensor
        split = self._shape(f"{tensor}_by_sample", [self._samples, -1, 0])
        # Rows of one sample lie together; a 0 takes the dimension of the input at that place, which has one less.
        rows = self._new("Unsqueeze", [flat, self._shape(f"{tensor}_rows", [1])])
        return self._reduce("ReduceMean", self._new("Reshape", [rows, split]), [1])

    def _plain(self, name: str) -> str:
        """The tensor of the float network that `name` stands for."""
        back = self._makers.get(name)
        if back is not None and back.op_type == DEQUANTIZE:
            forth = self._makers.get(back.input[0])
            if forth is not None and forth.op_type == QUANTIZE:
                return self._plain(forth.input[0])
        return self._float.get(name, name)

    def _reduce(self, op: str, tensor: str, axes: list[int]) -> str:
        if op == "ReduceSum" or self._edit.opset >= _AXES_ARE_INPUTS:
            return self._new(op, [tensor, self._shape(f"{tensor}_axes", axes)], keepdims=0)
        return self._new(op, [tensor], axes=axes, keepdims=0)

    def _shape(self, base: str, numbers: list[int]) -> str:
        return self._edit.constant(base, np.array(numbers, np.int64))

    def _new(self, op: str, inputs: list[str], *, name: str = "", **attributes: Any) -> str:
        output = self._edit.fresh(name or f"{inputs[0]}_{op}")
        self._edit.node(op, inputs, [output], name=output, **attributes)
        return output
