"""Computes whatever depends on constants only, one node at a time, within a bound on memory."""

from __future__ import annotations

import onnx

from qdqtool.core.wording import counted
from qdqtool.graph.canonical.compute import computable, compute
from qdqtool.graph.canonical.confirm import Computed, unconfirmed
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.weight import byte_size
from qdqtool.graph.preparation.branches import decisive, known_shape

_GROWTH = 4 << 20
"""Bytes by which a folded value may exceed what it was computed from."""


def fold_constants(model: Model) -> Model:
    """The same model with every node computed whose inputs are constants, and Shape of a static tensor too.

    Kept as they are: what an If decides on (onnxruntime would put the branch in the place of the If before it knows
    the types behind it, and refuse some models that it runs otherwise), Q/DQ nodes, random operators, control flow, anything outside the default domain, values whose
    size is unknown beforehand or that grow by more than 4 MiB, arithmetic that divides by zero, and what onnxruntime
    computes differently.
    """
    total = 0
    kept: frozenset[str] = frozenset()
    while True:
        edit = Edit(model)
        made = _sweep(edit, model, kept)
        initializers = {tensor.name: tensor for tensor in model.proto.graph.initializer}
        refused = unconfirmed(made, initializers.get, edit.opset)
        if refused:
            kept |= refused
            continue
        if not made:
            break
        total += len(made)
        edit.prune()
        model = edit.finish()
    if not total:
        return model
    note = counted(
        total,
        "node that depends on constants only was computed",
        "nodes that depend on constants only were computed",
    )
    return Model(proto=model.proto, path=model.path, notes=(*model.notes, note))


def _sweep(edit: Edit, model: Model, kept: frozenset[str]) -> list[Computed]:
    """One pass in graph order, which leaves the makers of `kept`; returns the nodes that became constants."""
    made: list[Computed] = []
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
            made.append((node, values))
    edit.remove(node for node, _ in made)
    return made


def _affordable(node: onnx.NodeProto, edit: Edit, model: Model) -> bool:
    """Whether the outputs have a known size that is not much more than the inputs'."""
    allowed = _GROWTH + sum(byte_size(edit.constants[name]) or 0 for name in node.input if name)
    for name in filter(None, node.output):
        info = model.view.info(name)
        if info.elements is None or info.dtype.bits is None:
            return False
        allowed -= info.elements * info.dtype.bits // 8
    return allowed >= 0
