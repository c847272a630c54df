"""A Q/DQ model whose quantization can be switched on and off at run time, node by node.

    x -> Q -> DQ -> Conv          becomes          x -> Q -> DQ --.
                                                   x ------------- Where(switch) -> Conv

Every node that reads dequantized values gets a switch, a Boolean input of the model. With all switches off the model
computes what the float model does; any subset can be tried without making, or opening, another model. A bias that was
corrected for the quantization of its node is switched with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from qdqtool.core.calibration import NodeShift
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import BIAS
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchableModel:
    """The model with its switches.

    Attributes:
        model: has one more Boolean input (a scalar) per switch; True quantizes.
        switches: name of the switch by name of the node, in graph order.
        stuck: nodes whose weights are stored as integers, so that only their activations can be switched.
    """

    model: Model
    switches: Mapping[str, str]
    stuck: tuple[str, ...]


def switchable(model: Model, shifts: Iterable[NodeShift] = ()) -> SwitchableModel:
    """The switchable form of a Q/DQ model; one without Q/DQ has no switches.

    `shifts` are the bias corrections that the model holds.

    Raises:
        InputFileError: a shift is of another model.
    """
    edit = Edit(model)
    makers = edit.producers()
    switches: dict[str, str] = {}
    stuck: dict[str, None] = {}
    for node in [node for node in edit.nodes if node.op_type not in {QUANTIZE, DEQUANTIZE}]:
        for index, name in enumerate(node.input):
            back = makers.get(name)
            if back is None or back.op_type != DEQUANTIZE:
                continue
            forth = makers.get(back.input[0])
            if forth is None or forth.op_type != QUANTIZE:
                stuck[node.name] = None
                continue
            switch = switches.get(node.name) or _switch(edit, node.name)
            switches[node.name] = switch
            chosen = edit.fresh(f"{name}_switched")
            edit.node("Where", [switch, name, forth.input[0]], [chosen], name=f"{name}_switch")
            node.input[index] = chosen
    nodes = {node.name: node for node in edit.nodes}
    for entry in shifts:
        if entry.node in switches:
            _switch_bias(edit, nodes[entry.node], switches[entry.node], entry)
    return SwitchableModel(model=edit.finish(), switches=switches, stuck=tuple(stuck))


def _switch_bias(edit: Edit, node: onnx.NodeProto, switch: str, entry: NodeShift) -> None:
    corrected = edit.value(node.input[BIAS]) if len(node.input) > BIAS else None
    if corrected is None or corrected.size != len(entry.shift):
        raise InputFileError(
            f"the bias of {entry.node!r} does not have {len(entry.shift)} corrected values",
            fix="keep the calibration table beside the model that was made with it",
        )
    shift = np.asarray(entry.shift, np.float32)
    plain = edit.constant(
        f"{node.name}_plain_bias", (corrected.astype(np.float32) - shift).astype(corrected.dtype)
    )
    chosen = edit.fresh(f"{node.name}_switched_bias")
    edit.node("Where", [switch, node.input[BIAS], plain], [chosen], name=f"{node.name}_bias_switch")
    node.input[BIAS] = chosen


def _switch(edit: Edit, node: str) -> str:
    name = edit.fresh(f"{node}_is_quantized")
    edit.inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []))
    return name
