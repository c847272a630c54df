"""Computes the outputs of one node from constant inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.onnx_io.walk import bodies
from qdqtool.trt.ops import QDQ, RANDOM

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_FOLDED = RANDOM | QDQ | {"Dropout", "DynamicQuantizeLinear"}
"""Operators whose result on constants must not be computed ahead of time."""


_log = logging.getLogger(__name__)


def computable(node: onnx.NodeProto) -> bool:
    """Return True if the outputs depend on the inputs alone: no randomness, no control flow, no custom operator.

    Q/DQ nodes do too, but must be there for TensorRT to see.
    """
    foreign = node.domain not in {"", "ai.onnx"}
    return not foreign and node.op_type not in NOT_FOLDED and not any(True for _ in bodies(node))


def compute(
    node: onnx.NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs by name. None if onnx's reference cannot compute or store them, or divides by zero."""
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    wanted = [name for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in wanted],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            made = ReferenceEvaluator(model).run(wanted, dict(inputs))
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        _log.info("left %s %r unchanged: %s", node.op_type, node.name, error)
        return None
    return {name: np.asarray(value) for name, value in zip(wanted, made, strict=True)}
