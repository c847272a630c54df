"""The model with Q and DQ nodes as a drawing.

# model
Every node that the network computes with. A Q/DQ pair is a mark on the tensor: its type and its scale.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtool.core.placement import QdqPair
from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import behind_pairs, find
from qdqtool.graph.view import GraphView, Node
from qdqtool.report.drawing import LARGEST
from qdqtool.report.section import Section
from qdqtool.trt.ops import QDQ

log = logging.getLogger(__name__)
_FILE = "model.qdq.onnx"
_PAGE = """
{% set view = run.model %}
<h2 id="model-{{ run.key }}">Model graph</h2>
{{ m.explorer(view, "Every box is a node of the ONNX model; a Q/DQ pair is drawn as the type and scale of its tensor. A convolution, matrix product or attention has the colour of the type in which the engine runs it, every other node that of its first input. Choose one to see its tensors, and the reason if it stayed float.", "node", "ONNX node, tensor, operator") }}
"""


def _collect(files: Mapping[str, Path]) -> list[dict[str, Any]] | None:
    if _FILE not in files:
        return None
    try:
        model = load(files[_FILE])
    except InputFileError as error:
        # a copied folder may lack the weights of the model; the other sections do not need them
        log.warning("the model is not drawn: %s", error)
        return None
    nodes = [node for node in model.view.nodes if node.op not in QDQ | {"Constant"}]
    if len(nodes) > LARGEST:
        return None
    pairs = {pair.dequantize: pair for pair in find(model)}
    return [_row(node, model.view, pairs) for node in nodes]


def _row(node: Node, view: GraphView, pairs: Mapping[str | None, QdqPair]) -> dict[str, Any]:
    inputs = [_tensor(name, view, pairs) for name in node.inputs if name]
    return {
        "name": node.name,
        "op": node.op,
        "inputs": [tensor for name, tensor in inputs if not view.is_constant(name)],
        "constants": [tensor for name, tensor in inputs if view.is_constant(name)],
        "outputs": [_tensor(name, view, {})[1] for name in node.outputs if name],
    }


def _tensor(name: str, view: GraphView, pairs: Mapping[str | None, QdqPair]) -> tuple[str, list[Any]]:
    """Return the name of the tensor before a Q/DQ pair, and its name, shape, type and scale as plain values."""
    source = behind_pairs(view, name)
    info = view.info(source)
    maker = view.producer(name)
    pair = pairs.get(maker.name) if maker is not None else None
    is_sized = info.shape is not None and all(isinstance(size, int) for size in info.shape)
    shape = list(info.shape or ()) if is_sized else None
    dtype = (info.dtype or DType.UNKNOWN) if pair is None else pair.dtype
    return source, [source, shape, dtype.value, "" if pair is None else _scale(pair)]


def _scale(pair: QdqPair) -> str:
    if not pair.scale:
        return "scale of run time"
    low, high = min(pair.scale), max(pair.scale)
    size = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return f"scale {size}" + (", zero point" if any(pair.zero_point) else "")


PLUGIN = {
    "model": Section(
        order=55,
        title="Model graph",
        shown=lambda report: report.sections.get("model"),
        page=_PAGE,
        reads=(_FILE,),
        collect=_collect,
    )
}
