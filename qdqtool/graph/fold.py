"""Computes whatever depends on constants only, one node at a time, within a bound on memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.walk import bodies
from qdqtool.graph.weight import byte_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_GROWTH = 4 << 20
"""Bytes by which a folded value may exceed what it was computed from."""
_KEPT = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "Dropout",
    }
)


def fold_constants(model: Model) -> Model:
    """The same model with every node computed whose inputs are constants, and Shape of a static tensor too.

    Kept as they are: Q/DQ nodes, random operators, control flow, anything outside the default domain, values whose
    size is unknown beforehand or that grow by more than 4 MiB, and arithmetic that divides by zero.
    """
    total = 0
    while True:
        edit = Edit(model)
        count = _sweep(edit, model)
        if not count:
            break
        total += count
        edit.prune()
        model = edit.finish()
    if not total:
        return model
    edit = Edit(model)
    edit.notes.append(f"{total} nodes that depend on constants only were computed")
    return edit.finish()


def _sweep(edit: Edit, model: Model) -> int:
    """One pass in graph order; returns how many nodes became constants."""
    gone = []
    pinned = {value.name for value in edit.outputs}
    for node in edit.nodes:
        if node.domain not in {"", "ai.onnx"} or node.op_type in _KEPT or any(True for _ in bodies(node)):
            continue
        if any(name in pinned for name in node.output):
            continue
        values = _known_shape(node, model) or _computed(node, edit, model)
        if values is None:
            continue
        for name, value in values.items():
            edit.put(name, value)
        gone.append(node)
    edit.remove(gone)
    return len(gone)


def _known_shape(node: onnx.NodeProto, model: Model) -> dict[str, NDArray[Any]] | None:
    """The value of Shape or Size when every dimension is a number."""
    if node.op_type not in {"Shape", "Size"} or not node.input:
        return None
    info = model.view.info(node.input[0])
    if info.shape is None or not info.is_static:
        return None
    if node.op_type == "Size":
        return {node.output[0]: np.asarray(info.elements, np.int64)}
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    part = info.shape[bounds.get("start", 0) : bounds.get("end", len(info.shape))]
    return {node.output[0]: np.asarray(part, np.int64)}


def _computed(node: onnx.NodeProto, edit: Edit, model: Model) -> dict[str, NDArray[Any]] | None:
    """The outputs of a node whose inputs are all constant; None where they are not, or cannot be computed."""
    names = [name for name in node.input if name]
    if not all(name in edit.constants for name in names) or not _affordable(node, edit, model):
        return None
    opset = onnx.helper.make_opsetid("", edit.opset)
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [
            onnx.helper.make_tensor_value_info(name, edit.constants[name].data_type, None)
            for name in sorted(set(names))
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    wanted = [name for name in node.output if name]
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[opset]))
            made = evaluator.run(wanted, {name: edit.value(name) for name in names})
    except (
        ArithmeticError,
        RuntimeError,
        NotImplementedError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
    ) as error:
        _log.info("left %s %r as it is: %s", node.op_type, node.name, error)
        return None
    return {name: np.asarray(value) for name, value in zip(wanted, made, strict=True)}


def _affordable(node: onnx.NodeProto, edit: Edit, model: Model) -> bool:
    """Whether the outputs have a known size that is not much more than the inputs'."""
    allowed = _GROWTH + sum(byte_size(edit.constants[name]) or 0 for name in node.input if name)
    for name in filter(None, node.output):
        info = model.view.info(name)
        if info.elements is None or info.dtype.bits is None:
            return False
        allowed -= info.elements * info.dtype.bits // 8
    return allowed >= 0
