"""Moves Transpose nodes to where they cancel or where kernels absorb them, with onnxruntime's TransposeOptimizer.

    x ─ Transpose ─ Slice ─ MatMul  >  x ─ Slice ─ Transpose ─ MatMul

TensorRT uses a separate kernel for a Transpose with several consumers. After a Slice, the Transpose is part of the
kernel that reads it. A Transpose before elementwise nodes cancels with its inverse after them.

onnxruntime runs this pass alone, in the child process, on the graph without its heavy weights. Only nodes and small
constants of the result are used, because the result imports eight more domains and lacks metadata. onnxruntime also
replaces an operator without a CPU kernel (HardSwish) by the operators of its definition; such a result is discarded.
Nodes keep their names, and so do tensors that keep their values. A tensor whose values are in another order gets a
new name.

Evidence: RTX 1.7.1 for SM86, INT8, kernels before and after. Fewer kernels: XCiT 309 and 261, RWKV 92 and 56, CoaT
182 and 172, RetNet 49 and 47, SSD 35 and 33, GLPN 105 and 104. More kernels: Hiera 90 and 92, FocalNet in FP16 79 and
93. The kernels of 15 other networks do not change. Among the networks with fewer kernels, only RWKV has fewer
Transposes afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.walk import bodies, restore, skeleton
from qdqtool.graph.view import Model
from qdqtool.trt.ops import STANDARD_DOMAINS

_log = logging.getLogger(__name__)
_MOVES: Final = frozenset({"Transpose", "Squeeze", "Unsqueeze", "Gather"})
"""Operators that the pass adds: Transposes, and what gives a constant the new order."""


def move_transposes(model: Model) -> Model:
    """Return the model with its Transposes moved; the model itself if nothing moves, or if onnxruntime changes anything else."""
    nodes = model.proto.graph.node
    if all(node.op_type != "Transpose" for node in nodes):
        return model
    if any(node.domain not in STANDARD_DOMAINS or any(bodies(node)) for node in nodes):
        return model
    light, heavy = skeleton(model.proto)
    try:
        answer = onnx.ModelProto.FromString(run_pass("transposes", light)).graph
    except (PassRefused, PassExceeded) as error:
        _log.info("Transposes stay where they are: onnxruntime %s", error)
        return model
    before = {(node.name, node.op_type): node for node in nodes}
    after = {(node.name, node.op_type) for node in answer.node}
    gone, added = before.keys() - after, after - before.keys()
    if any(op != "Transpose" for _, op in gone) or any(op not in _MOVES for _, op in added):
        _log.info("Transposes stay where they are: onnxruntime would also change other nodes")
        return model
    if _sum_up(nodes) == _sum_up(answer.node):
        return model
    for node in answer.node:
        original = before.get((node.name, node.op_type))
        if original is not None:
            node.doc_string = original.doc_string
            node.ClearField("metadata_props")
            node.metadata_props.extend(original.metadata_props)
    graph = light.graph
    del graph.node[:], graph.initializer[:]
    graph.node.extend(answer.node)
    graph.initializer.extend(answer.initializer)
    note = "Transposes moved to where they cancel, or where kernels absorb them"
    return Edit(Model(proto=restore(light, heavy), path=model.path, notes=(*model.notes, note))).finish()


def _sum_up(nodes: Iterable[onnx.NodeProto]) -> set[tuple[str, ...]]:
    """Return each node's name, inputs and outputs."""
    return {(node.name, *node.input, "", *node.output) for node in nodes}
