"""Facts about a model that the guards of a build need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtool.core.dtypes import DType
from qdqtool.trt.ops import QDQ


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Facts about a model that matter to a builder.

    Attributes:
        quantized: whether it has QuantizeLinear or DequantizeLinear nodes.
        half: whether it has FP16 or BF16 tensors, weights or inputs.
        dynamic: inputs with a dimension that is not a number.
    """

    quantized: bool
    half: bool
    dynamic: tuple[str, ...]


def facts_of(model: Path) -> ModelFacts:
    """Read these facts from a model file.

    Raises:
        InputFileError: it cannot be read.
    """
    from qdqtool.graph.onnx_io.read import read
    from qdqtool.graph.view import GraphView

    view = GraphView(read(model))
    ops = {node.op for node in view.nodes}
    tensors = {name for node in view.nodes for name in node.inputs if name}
    types = {view.info(name).dtype for name in tensors}
    return ModelFacts(
        quantized=bool(ops & QDQ),
        half=bool(types & {DType.FLOAT16, DType.BFLOAT16}),
        dynamic=tuple(info.name for info in view.inputs if not info.is_static),
    )
