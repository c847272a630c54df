"""Takes out nodes that change nothing: Identity, inference Dropout, and Cast to the type that is there already."""

from __future__ import annotations

import onnx

from qdqtool.core.dtypes import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.view import GraphView, dtype_of


def bypass(edit: Edit, view: GraphView) -> int:
    """Connect the readers of each idle node to its input; returns how many nodes went.

    A node that makes a pinned tensor stays unless the maker of its input can write that tensor itself.
    `view` shows the model that `edit` was opened on.
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
        wanted = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
        there = view.info(node.input[0]).dtype
        return there is not DType.UNKNOWN and there is dtype_of(wanted)
    if node.op_type == "Dropout":
        mask_used = any(view.uses(name) or view.is_output(name) for name in node.output[1:] if name)
        training = edit.value(node.input[2]) if len(node.input) > 2 and node.input[2] else False
        return not mask_used and training is not None and not bool(training)
    return False
