"""A Q/DQ model whose quantization can be switched on and off at run time, node by node.

    x -> Q -> DQ -> Conv          becomes          x -> Q -> DQ --.
                                                   x ------------- Where(switch) -> Conv

Every node that reads dequantized values gets a switch, a Boolean input of the model. With all switches off the model
computes what the float model does; any subset can be tried without making, or opening, another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from qdqtool.graph.edit import Edit
from qdqtool.graph.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Switchboard:
    """The model with its switches.

    Attributes:
        model: has one more Boolean input (a scalar) per switch; True quantizes.
        switches: name of the switch by name of the node, in graph order.
        stuck: nodes whose weights are stored as integers, so that only their activations can be switched.
    """

    model: Model
    switches: Mapping[str, str]
    stuck: tuple[str, ...]


def switchboard(model: Model) -> Switchboard:
    """The switchable form of a Q/DQ model; one without Q/DQ has no switches."""
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
    return Switchboard(model=edit.finish(), switches=switches, stuck=tuple(stuck))


def _switch(edit: Edit, node: str) -> str:
    name = edit.fresh(f"{node}_is_quantized")
    edit.inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []))
    return name
