"""Removes work at run time: folds constants, takes decided branches, and removes nodes that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.graph.canonical.constants import Computed, computable, compute, constant_tensor, find_unconfirmed
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.deferred import byte_size
from qdqtool.graph.onnx_io.load import UNCHANGED, body_notes
from qdqtool.graph.onnx_io.walk import bodies, copy_message
from qdqtool.graph.view import GraphView, Model, dtype_of
from qdqtool.trt.ops import SHAPE_READERS

# --- constants -------------------------------------------------------------------------------------------------------
# Computes nodes that depend only on constants, one at a time, within a memory limit.

_GROWTH = 4 << 20
"""Most bytes by which a folded value may exceed its inputs."""


def fold_constants(model: Model) -> Model:
    """Fold nodes with constant inputs, and the Shape of static tensors, to constants; return the model.

    Not folded:

    - the condition of an If: onnxruntime would replace the If by its branch before it knows the types after it, and
      reject some models that it runs otherwise;
    - Q/DQ nodes, random operators, control flow, and operators outside the default domain;
    - values of unknown size, and values that are more than 4 MiB larger than their inputs;
    - arithmetic that divides by zero, and results that onnxruntime computes differently.
    """
    total = 0
    kept: frozenset[str] = frozenset()
    while True:
        edit = Edit(model)
        computed = _sweep(edit, model, kept)
        initializers = {tensor.name: tensor for tensor in model.proto.graph.initializer}
        refused = find_unconfirmed(computed, initializers.get, edit.opset)
        if refused:
            kept |= refused
            continue
        if not computed:
            break
        total += len(computed)
        edit.prune()
        model = edit.finish()
    if not total:
        return model
    note = count_noun(
        total,
        "node that depends on constants only was computed",
        "nodes that depend on constants only were computed",
    )
    return Model(proto=model.proto, path=model.path, notes=(*model.notes, note))


def _sweep(edit: Edit, model: Model, kept: frozenset[str]) -> list[Computed]:
    """Fold nodes once in graph order; return the nodes that became constants. Nodes that make tensors of `kept` stay."""
    computed: list[Computed] = []
    stay = {value.name for value in edit.outputs} | decisive(edit) | kept
    for node in edit.nodes:
        if not computable(node) or any(name in stay for name in node.output):
            continue
        values = known_shape(node, model.view)
        names = {name for name in node.input if name}
        if values is None and names <= edit.constants.keys() and _affordable(node, edit, model):
            inputs = {name: value for name in sorted(names) if (value := edit.value(name)) is not None}
            values = compute(node, inputs, edit.opset)
        for name, value in (values or {}).items():
            edit.put(name, value)
        if values is not None:
            computed.append((node, values))
    edit.remove(node for node, _ in computed)
    return computed


def _affordable(node: onnx.NodeProto, edit: Edit, model: Model) -> bool:
    """Return True if the outputs of a node have known sizes, and are not much larger than its inputs."""
    allowed = _GROWTH + sum(byte_size(edit.constants[name]) or 0 for name in node.input if name)
    for name in filter(None, node.output):
        info = model.view.info(name)
        if info.elements is None or info.dtype.bits is None:
            return False
        allowed -= info.elements * info.dtype.bits // 8
    return allowed >= 0


# --- decided branches ------------------------------------------------------------------------------------------------
# Replaces an If by its branch if constants and known shapes decide the condition.
#
#     Shape - Gather - Equal 1 - If (Squeeze | Identity) - ReduceMean        Squeeze - ReduceMean
#
# Exporters write such an If for a `squeeze` of a dimension of unknown length. TensorRT for RTX 1.7.1 fails with
# "graphScope.cpp ... tScope.getType() != ScopeType::kUNDEFINED" on such an If inside another If (Silero VAD has nine),
# and builds the model if these branches replace them.

_MOST_ELEMENTS = 1 << 10
"""Most elements of a value that a condition depends on; shape arithmetic has as many as a tensor has dimensions."""


def take_decided_branches(model: Model) -> Model:
    """Return the model in which nodes of the taken branch replace each If whose condition is known."""
    total = 0
    while any(node.op_type == "If" for node in model.proto.graph.node):
        edit = Edit(model)
        values = _known_values(edit, model.view)
        decided = [
            (node, taken)
            for node in edit.nodes
            if node.op_type == "If"
            and not node.domain
            and (taken := _find_taken_branch(node, values)) is not None
        ]
        if not decided:
            break
        for node, branch in decided:
            _inline(edit, node, branch)
        edit.remove(node for node, _ in decided)
        edit.prune()
        total += len(decided)
        model = edit.finish()
    if not total:
        return model
    note = count_noun(
        total,
        "If node whose condition is known was replaced by its active branch",
        "If nodes whose condition is known were replaced by their active branches",
    )
    # shapes of removed tensors would contradict it
    kept = [old for old in model.notes if UNCHANGED not in old]
    return Model(proto=model.proto, path=model.path, notes=(*kept, *body_notes(model.proto.graph), note))


def decisive(edit: Edit) -> set[str]:
    """Return all computed tensors on which the condition of an If depends."""
    makers = edit.producers()
    waiting = [node.input[0] for node in edit.nodes if node.op_type == "If"]
    tensors: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in tensors and name in makers:
            tensors.add(name)
            waiting.extend(makers[name].input)
    return tensors


def _known_values(edit: Edit, view: GraphView) -> dict[str, NDArray[Any]]:
    """Return the values on which conditions depend, if constants and known dimensions determine them; in graph order."""
    values: dict[str, NDArray[Any]] = {}
    needed, makers = decisive(edit), edit.producers()
    computed: list[Computed] = []
    small = (name for name, tensor in edit.constants.items() if int(np.prod(tensor.dims)) <= _MOST_ELEMENTS)
    values |= {name: value for name in small if (value := edit.value(name)) is not None}
    for node in edit.nodes:
        if not needed.intersection(node.output) or not computable(node):
            continue
        outputs = known_shape(node, view)
        if outputs is None and (part := _known_dimension(node, makers, view, values)) is not None:
            outputs = {node.output[0]: part}
        if outputs is None and all(name in values for name in node.input if name):
            sizes = [view.info(name).elements for name in node.output if name]
            if all(size is not None and size <= _MOST_ELEMENTS for size in sizes):
                outputs = compute(node, {name: values[name] for name in node.input if name}, edit.opset)
        if outputs is not None:
            computed.append((node, outputs))
            values |= outputs
    refused = find_unconfirmed(computed, edit.constants.get, edit.opset)
    return {name: value for name, value in values.items() if name not in refused}


def known_shape(node: onnx.NodeProto, view: GraphView) -> dict[str, NDArray[Any]] | None:
    """Return the value of a Shape or Size node if every dimension is a number; else None."""
    if node.op_type not in SHAPE_READERS:
        return None
    info = view.info(node.input[0])
    if info.shape is None or not info.is_static:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.asarray(info.elements, np.int64)}
    part = info.shape[_bounds(node)]
    return {node.output[0]: np.asarray(part, np.int64)}


def _bounds(node: onnx.NodeProto) -> slice:
    """Return which dimensions a Shape node returns, as a slice."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return slice(attributes.get("start"), attributes.get("end"))


def _known_dimension(
    node: onnx.NodeProto,
    makers: dict[str, onnx.NodeProto],
    view: GraphView,
    values: dict[str, NDArray[Any]],
) -> NDArray[Any] | None:
    """Return the dimension that a Gather picks from a partly unknown shape, if it is known; else None."""
    maker = makers.get(node.input[0]) if node.op_type == "Gather" else None
    index = values.get(node.input[1]) if maker is not None else None
    if maker is None or maker.op_type != "Shape" or index is None or index.size != 1:
        return None
    dims = (view.info(maker.input[0]).shape or ())[_bounds(maker)]
    place = int(index.reshape(-1)[0])
    dim = dims[place] if -len(dims) <= place < len(dims) else None
    return np.full(index.shape, dim, np.int64) if isinstance(dim, int) else None


def _find_taken_branch(node: onnx.NodeProto, values: dict[str, NDArray[Any]]) -> onnx.GraphProto | None:
    """Return the branch that an If takes; None if it is unknown."""
    condition = values.get(node.input[0])
    if condition is None or condition.size != 1:
        return None
    branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
    return next((entry.g for entry in node.attribute if entry.name == branch), None)


def _inline(edit: Edit, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    """Copy the nodes of a branch into the graph that contains the If.

    The outputs of the branch get the names of the If's outputs; all other tensors get unused names.
    """
    renamed: dict[str, str] = {}
    for tensor in branch.initializer:
        renamed[tensor.name] = edit.fresh(f"{node.name}/{tensor.name}")
        edit.constants[renamed[tensor.name]] = own = copy_message(tensor)
        own.name = renamed[tensor.name]
    for inner in branch.node:
        renamed |= {name: edit.fresh(f"{node.name}/{name}") for name in inner.output if name}
    for inner in branch.node:
        own = copy_message(inner)
        _rename(own, renamed)
        tensor = constant_tensor(own)
        if tensor is None:
            edit.add(own, name=f"{node.name}/{inner.name or inner.op_type}")
        else:
            edit.constants[tensor.name] = tensor
    for result, output in zip(branch.output, node.output, strict=True):
        if output:
            edit.node(
                "Identity", [renamed.get(result.name, result.name)], [output], name=f"{node.name}/{output}"
            )


def _rename(node: onnx.NodeProto, renamed: dict[str, str]) -> None:
    """Rename the tensors that a node reads and writes, also inside its bodies."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    node.output[:] = [renamed.get(name, name) for name in node.output]
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        outer = {name: new for name, new in renamed.items() if name not in own}
        for inner in body.node:
            _rename(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


# --- nodes that change nothing ---------------------------------------------------------------------------------------
# Removes nodes that change nothing: Identity, Dropout in inference, and Cast to the type that a tensor already has.


def bypass(edit: Edit, view: GraphView) -> int:
    """Remove nodes that change nothing, and connect their consumers to the inputs; return the number of removed nodes.

    A node that makes a pinned tensor stays, unless the node before it can write that tensor. `view` shows the model
    that `edit` was opened on.
    """
    pinned = edit.pinned
    source: dict[str, str] = {}
    stay, gone = [], []
    for node in edit.nodes:
        _reconnect(edit, node, source)
        if not _idle(node, edit, view):
            continue
        if node.output[0] in pinned:
            stay.append(node)
        else:
            source[node.output[0]] = node.input[0]
            gone.append(node)
    for node in stay:
        old, new = source.get(node.input[0], node.input[0]), node.output[0]
        maker = edit.maker(old)
        if maker is None or old in pinned or node in gone:
            continue
        edit.write(maker, list(maker.output).index(old), new)
        source[old] = new
        gone.append(node)
    edit.remove(gone)
    for node in edit.nodes:
        _reconnect(edit, node, source)
    return len(gone)


def _reconnect(edit: Edit, node: onnx.NodeProto, source: dict[str, str]) -> None:
    for index, name in enumerate(node.input):
        target = name
        while target in source:
            target = source[target]
        if target != name:
            edit.connect(node, index, target)


def _idle(node: onnx.NodeProto, edit: Edit, view: GraphView) -> bool:
    if node.domain not in {"", "ai.onnx"}:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        target = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
        there = view.info(node.input[0]).dtype
        return there is not DType.UNKNOWN and there is dtype_of(target)
    if node.op_type == "Dropout":
        mask_used = any(view.uses(name) or view.is_output(name) for name in node.output[1:] if name)
        training = edit.value(node.input[2]) if len(node.input) > 2 and node.input[2] else False
        return not mask_used and training is not None and not bool(training)
    return False
