"""Cuts a model into pieces that run one after another, because an operator is unsupported or memory is too small.

Nodes that depend on no such operator are in the first piece. The types of tensors between the pieces are known when they
are computed, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import copy_fields, reads
from qdqtool.graph.view import Model, Node, node_of
from qdqtool.trt.ops import belongs_to_plugin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OperatorName = tuple[str, str]
"""Operator domain and type."""


@dataclass(frozen=True, kw_only=True)
class CutStage:
    """A part of a cut model for the runtime, and the unsupported operators that read its outputs.

    Attributes:
        nodes: for the runtime, in order.
        foreign: operators that read the outputs of this stage or of earlier ones.
        inputs: tensors of earlier stages, and of the model, that the nodes read.
        outputs: tensors of the nodes that a later reader, an operator or the model's outputs need.
    """

    nodes: tuple[onnx.NodeProto, ...]
    foreign: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def foreign_operators(proto: onnx.ModelProto) -> frozenset[OperatorName]:
    """Return the operators of a model's main graph that belong to plug-ins and that no function of the model defines."""
    defined = {(entry.domain, entry.name) for entry in proto.functions}
    used = {(node.domain, node.op_type) for node in proto.graph.node if belongs_to_plugin(node.domain)}
    return frozenset(used - defined)


def stages(proto: onnx.ModelProto, operators: AbstractSet[OperatorName]) -> tuple[CutStage, ...]:
    """Cut a model with sorted nodes at these operators into stages; one stage if the model has none of the operators."""
    level: dict[str, int] = {}
    nodes: dict[int, list[onnx.NodeProto]] = {0: []}
    foreign: dict[int, list[Node]] = {}
    for position, node in enumerate(proto.graph.node):
        own = max((level.get(name, 0) for name in reads(node)), default=0)
        is_cut = (node.domain, node.op_type) in operators
        if is_cut:
            foreign.setdefault(own, []).append(node_of(node, position))
        else:
            nodes.setdefault(own, []).append(node)
        level |= dict.fromkeys(filter(None, node.output), own + is_cut)
    return _split_stages(proto, nodes, foreign)


def stages_within(proto: onnx.ModelProto, room: int) -> tuple[CutStage, ...]:
    """Cut a model with sorted nodes into stages. A stage has at most `room` bytes of FP32 weights, or it is a single node."""
    sizes = {tensor.name: wide_bytes(tensor) for tensor in proto.graph.initializer}
    nodes: dict[int, list[onnx.NodeProto]] = {0: []}
    number, taken, tensors = 0, 0, set[str]()
    for node in proto.graph.node:
        fresh = sum(sizes.get(name, 0) for name in set(reads(node)) - tensors)
        if nodes[number] and taken + fresh > room:
            number, taken, tensors = number + 1, 0, set()
            fresh = sum(sizes.get(name, 0) for name in set(reads(node)))
        taken += fresh
        tensors.update(reads(node))
        nodes.setdefault(number, []).append(node)
    return _split_stages(proto, nodes, {})


def wide_bytes(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes of a tensor as FP32. A runtime makes FP32 values of constants that it dequantizes."""
    return 4 * int(prod(tensor.dims))


def _split_stages(
    proto: onnx.ModelProto,
    nodes: Mapping[int, list[onnx.NodeProto]],
    foreign: Mapping[int, list[Node]],
) -> tuple[CutStage, ...]:
    """Return the stages: their nodes, their unsupported operators, and the tensors that stages pass on."""
    returned = {value.name for value in proto.graph.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    parts = []
    for number in range(max((*nodes, *foreign)) + 1):
        mine, cuts = nodes.get(number, []), foreign.get(number, [])
        computed = {name for node in mine for name in node.output if name}
        later = {
            name
            for above in range(number + 1, max(nodes) + 1)
            for node in nodes.get(above, [])
            for name in reads(node)
        }
        foreign_inputs = {name for above in foreign.values() for node in above for name in node.inputs}
        read = {name for node in mine for name in reads(node)} - computed - constants - {""}
        parts.append(
            CutStage(
                nodes=tuple(mine),
                foreign=tuple(cuts),
                inputs=tuple(sorted(read)),
                outputs=tuple(sorted(computed & (later | foreign_inputs | returned))),
            )
        )
    return tuple(parts)


def piece(proto: onnx.ModelProto, stage: CutStage, values: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Return the nodes of a stage as a model. The values in `values` give the types of its inputs.

    Weights in files stay there.
    """
    model = onnx.ModelProto()
    copy_fields(proto, model, skip={"graph"})
    model.graph.name = "piece"
    model.graph.node.extend(stage.nodes)
    read = {name for node in stage.nodes for name in reads(node)}
    model.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in read)
    for name in stage.inputs:
        entry = model.graph.input.add(name=name)
        entry.type.tensor_type.elem_type = _element(values[name].dtype)
    for name in stage.outputs:
        model.graph.output.add(name=name)
    return model


def reachable(
    parts: tuple[CutStage, ...], inputs: AbstractSet[str], computed: AbstractSet[OperatorName]
) -> frozenset[str]:
    """Return the tensors that can be computed from `inputs` if only the plug-in operators in `computed` are supported."""
    computable_names = set(inputs)
    for part in parts:
        for node in part.nodes:
            if all(name in computable_names or not name for name in reads(node)):
                computable_names |= {name for name in node.output if name}
        for cut in part.foreign:
            if (cut.domain, cut.op) in computed and all(
                name in computable_names or not name for name in cut.inputs
            ):
                computable_names |= {name for name in cut.outputs if name}
    return frozenset(computable_names)


def computable(model: Model, computed: AbstractSet[OperatorName]) -> Model:
    """Return the part of a model that needs no plug-in operators other than `computed`; the model itself if it needs none.

    The outputs are those of the model that can be computed, then the inputs of the operators that cannot.
    """
    proto = model.proto
    lacking = foreign_operators(proto) - computed
    if not lacking:
        return model
    inputs = {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    available = reachable(stages(proto, lacking), inputs, frozenset())
    edit = Edit(model)
    entering = dict.fromkeys(
        name
        for node in edit.nodes
        if (node.domain, node.op_type) in lacking
        for name in node.input
        if name in available and name not in inputs
    )
    edit.remove([node for node in edit.nodes if not all(name in available for name in node.output if name)])
    edit.outputs = [value for value in edit.outputs if value.name in available]
    declared = {value.name: value for value in proto.graph.value_info}
    kept = {value.name for value in edit.outputs}
    edit.outputs += [declared[name] for name in entering if name in declared and name not in kept]
    words = " and ".join(sorted(f"{domain}::{op}" for domain, op in lacking))
    edit.notes.append(
        f"not measured: all tensors that depend on {words}, which onnxruntime lacks; pass a library that has it with --custom-ops"
    )
    edit.prune()
    return edit.finish()


def _element(dtype: np.dtype[Any]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
