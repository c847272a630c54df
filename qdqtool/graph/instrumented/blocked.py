"""Puts Q/DQ nodes and bias shifts into a model after onnxruntime has optimized it.

onnxruntime computes convolutions in blocks of channels (NCHWc) and fuses activations and sums into them. Q/DQ nodes
and computed biases prevent both. Each convolution between Q/DQ then needs two reorderings and a pass for its
activation. In a network of small layers, this takes longer than all convolutions. Q/DQ work element by element and
need no order of elements. So

    x - Q - DQ - Conv - + shift - Clip       is optimized as       x - Tanh - Conv - Clip   =>   x - Tanh - ConvClip (NCHWc)

Tanh (or Sigmoid) stands for each pair, because the optimizer keeps this operator in its blocked layout. After the
optimization, the pairs and the shifts replace these stand-ins in the saved model. The optimized model returns each of
these tensors, so their names are known.

Source: the operators of the domain com.microsoft.nchwc in a model that onnxruntime saved after optimizing it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qdqtool.graph.canonical.order import sort
from qdqtool.graph.edit import Edit
from qdqtool.graph.instrumented.corrected import Tail
from qdqtool.graph.qdq.changes import BIAS
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.io.files import write_bytes
from qdqtool.trt.ops import CONV_ACTIVATIONS

DOMAIN: Final = "com.microsoft.nchwc"


BLOCKED_STAND_INS = ("Tanh", "Sigmoid")
"""Operators that onnxruntime computes element by element on blocks, and never removes."""


BLOCKED_EPILOGUES = CONV_ACTIVATIONS | {"HardSigmoid", "LeakyRelu"}
"""Activations that onnxruntime fuses into the preceding convolution, after its bias."""


_CONVOLUTIONS: Final = {"Conv", "FusedConv"}
_BLOCKED_NAME: Final = "_nchwc"
"""Suffix that onnxruntime adds to the name of a convolution's output to name the blocked one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIns:
    """A model with placeholders for Q/DQ, to be optimized, and the nodes to insert afterwards.

    Attributes:
        model: the model with one stand-in per quantized tensor; it also returns these tensors.
        op: operator type of the stand-ins.
        pairs: the Q and the DQ node by name of the stand-in.
        sources: the tensors that the model also returns.
        zero_points: the constants that the pairs read.
        shifts: for each convolution its possible names, the number of its channels, and the name of its shift.
        tail: nodes that compute these shifts; None if the model computes them.
    """

    model: Model
    op: str
    pairs: Mapping[str, tuple[onnx.NodeProto, onnx.NodeProto]]
    sources: frozenset[str]
    zero_points: tuple[onnx.TensorProto, ...]
    shifts: tuple[tuple[tuple[str, ...], int, str], ...]
    tail: Tail | None = None


def with_stand_ins(
    model: Model,
    scales: Collection[str],
    shifts: Mapping[str, str],
    view: GraphView,
    tail: Tail | None = None,
) -> StandIns | None:
    """Return the model with placeholders for Q/DQ pairs with a scale in `scales`; None if impossible.

    None also if there are no bias shifts.

    `shifts` maps each convolution to the tensor that is added to its bias. `view` has the shapes of the weights.
    `tail` is the part that is added after the model.
    """
    edit = Edit(model)
    used = {node.op_type for node in edit.nodes}
    stand_in = next((op for op in BLOCKED_STAND_INS if op not in used), None)
    if stand_in is None or not shifts or not _all_single(edit, scales):
        return None
    readers = edit.consumers()
    pairs: dict[str, tuple[onnx.NodeProto, onnx.NodeProto]] = {}
    pair_outputs: dict[tuple[str, ...], str] = {}
    zero_points: dict[str, onnx.TensorProto] = {}
    gone: list[onnx.NodeProto] = []
    for quantize in [node for node in edit.nodes if node.op_type == QUANTIZE and node.input[1] in scales]:
        backs = [node for node, _ in readers.get(quantize.output[0], [])]
        if not all(node.op_type == DEQUANTIZE for node in backs) or quantize.output[0] in edit.pinned:
            return None
        for back in backs:
            place = (*quantize.input, *back.input[1:], *map(str, (*quantize.attribute, *back.attribute)))
            if place in pair_outputs:
                edit.redirect(back.output[0], pair_outputs[place])
            else:
                pair_outputs[place] = back.output[0]
                name = edit.fresh(f"{quantize.name}_stand_in")
                edit.node(stand_in, [quantize.input[0]], [back.output[0]], name=name)
                pairs[name] = (quantize, back)
                zero_points |= {
                    zero: edit.constants[zero]
                    for zero in (*quantize.input[2:], *back.input[2:])
                    if zero in edit.constants
                }
            gone.append(back)
        gone.append(quantize)
    edit.remove(gone)
    producers = edit.producers()
    returned = {value.name for value in edit.outputs}
    sources = {quantize.input[0] for quantize, _ in pairs.values()} & producers.keys() - returned
    edit.outputs += [onnx.ValueInfoProto(name=name) for name in sorted(sources)]
    readers = edit.consumers()
    return StandIns(
        model=edit.finish(retyped=True, shapes=False),
        op=stand_in,
        pairs=pairs,
        sources=frozenset(sources),
        zero_points=tuple(zero_points.values()),
        shifts=tuple(
            _find_shifted_names(readers, view.by_name[node], shift, view) for node, shift in shifts.items()
        ),
        tail=tail,
    )


def _all_single(edit: Edit, scales: Collection[str]) -> bool:
    """Return True if all scales are FP32.

    Around a stand-in for FP16 values, onnxruntime adds Casts and the scale no longer fits.
    """
    return all(
        value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        for value in edit.inputs
        if value.name in scales
    )


def _find_shifted_names(
    readers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]], node: Node, shift: str, view: GraphView
) -> tuple[tuple[str, ...], int, str]:
    """Return the possible output names of a convolution after fusion, its channel count and its bias shift.

    If the convolution is fused with a factor, or with another node that changes the meaning of its bias, none of
    these names exists.
    """
    output = node.outputs[0]
    fused = [reader.output[0] for reader, _ in readers.get(output, []) if reader.op_type in BLOCKED_EPILOGUES]
    shape = view.info(node.inputs[1]).shape
    return (output, *fused), int(shape[0]) if shape else 0, shift


def put_in(path: Path, stand_in: StandIns) -> bool:
    """Replace the stand-ins in the optimized model at `path` by Q/DQ pairs; insert shifts and their tail.

    If a stand-in or a shifted convolution is not found, change nothing and return False.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    channels = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    stand_ins = {node.name for node in graph.node} & stand_in.pairs.keys()
    convolutions = {_original(node): node for node in graph.node if node.op_type in _CONVOLUTIONS}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _pair(node, stand_in) if node.name in stand_ins else [node]
    for names, width, shift in stand_in.shifts:
        convolution = next((convolutions[name] for name in names if name in convolutions), None)
        if convolution is None or not 0 < width <= channels.get(convolution.input[1], 0):
            return False
        nodes += _with_shift(graph, convolution, channels[convolution.input[1]] - width, shift)
    if not _all_stand(graph, stand_in, stand_ins):
        return False
    added = stand_in.sources
    if stand_in.tail is not None:
        nodes += stand_in.tail.nodes
        graph.initializer.extend(stand_in.tail.constants)
        graph.input.extend(stand_in.tail.inputs)
        graph.output.extend(stand_in.tail.outputs)
        added |= stand_in.tail.sources
    kept = [value for value in graph.output if value.name not in added]
    del graph.output[:]
    graph.output.extend(kept)
    graph.initializer.extend(zero for zero in stand_in.zero_points if zero.name not in channels)
    inputs = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    del graph.node[:]
    graph.node.extend(sort(_alive(nodes, kept), inputs, path))
    write_bytes(path, model.SerializeToString(deterministic=True), lasting=False)
    return True


def _original(node: onnx.NodeProto) -> str:
    return node.name.removesuffix(_BLOCKED_NAME) if node.domain == DOMAIN else node.output[0]


def _all_stand(graph: onnx.GraphProto, stand_in: StandIns, stand_ins: Collection[str]) -> bool:
    """Return True if the optimizer kept the placeholder of each quantized tensor: it merged and fused none."""
    left = {stand_in.pairs[name][0].input[0] for name in stand_ins}
    return left == {quantize.input[0] for quantize, _ in stand_in.pairs.values()} and not any(
        field.name == "activation" and field.s.decode() == stand_in.op
        for node in graph.node
        for field in node.attribute
    )


def _pair(node: onnx.NodeProto, stand_in: StandIns) -> list[onnx.NodeProto]:
    nodes = [onnx.NodeProto(), onnx.NodeProto()]
    for copy, old in zip(nodes, stand_in.pairs[node.name], strict=True):
        copy.CopyFrom(old)
    between = f"{node.name}_quantized"
    nodes[0].input[0], nodes[0].output[0] = node.input[0], between
    nodes[1].input[0], nodes[1].output[0] = between, node.output[0]
    return nodes


def _with_shift(
    graph: onnx.GraphProto, node: onnx.NodeProto, filling: int, shift: str
) -> list[onnx.NodeProto]:
    """Add the shift to the bias of a convolution; return the new nodes. Filling channels get no shift."""
    added = []
    if filling:
        zeros = f"{shift}_filling"
        graph.initializer.append(numpy_helper.from_array(np.zeros(filling, np.float32), zeros))
        added.append(helper.make_node("Concat", [shift, zeros], [f"{shift}_filled"], axis=0))
        shift = f"{shift}_filled"
    while len(node.input) <= BIAS:
        node.input.append("")
    if node.input[BIAS]:
        added.append(helper.make_node("Add", [node.input[BIAS], shift], [f"{shift}_bias"]))
        shift = f"{shift}_bias"
    node.input[BIAS] = shift
    return added


def _alive(nodes: list[onnx.NodeProto], outputs: Collection[onnx.ValueInfoProto]) -> list[onnx.NodeProto]:
    """Return the nodes that a model output depends on."""
    makers = {name: node for node in nodes for name in node.output}
    waiting, alive = [value.name for value in outputs], dict[int, onnx.NodeProto]()
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and id(node) not in alive:
            alive[id(node)] = node
            waiting += node.input
    return list(alive.values())
