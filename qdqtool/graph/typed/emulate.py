"""Makes a BF16 model run where no BF16 kernels are: in FP32, with each result rounded to BF16."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from qdqtool.core.dtypes import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, serialize, weight_bytes
from qdqtool.graph.onnx_io.walk import bodies, reads, tensors
from qdqtool.graph.typed.narrow import widened
from qdqtool.graph.view import GraphView

_FLOAT, _BRAIN = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
_CHOICES = frozenset({"to", "dtype"})


def emulation(source: Path | bytes) -> bytes | None:
    """A model that computes the same without BF16 kernels; None where there is no BF16 in it, or it is too large.

    None also where a body of an If, Loop or Scan holds or meets BF16: it is left alone. Inputs and outputs in BF16 become FP32. Only sums inside a kernel differ: they are not rounded, as they are not
    on a GPU either.
    """
    model = opened(source)
    if model is None or weight_bytes(model) >= SINGLE_FILE_LIMIT // 2:
        return None
    view = model.view
    if not _has_brain(view) or any(_is_inside(node, view) for node in model.proto.graph.node):
        return None
    return serialize(_emulated(model))


def opened(source: Path | bytes) -> Model | None:
    """The model of a file or of its bytes; None where our reader refuses it, whatever a runtime makes of it."""
    try:
        if isinstance(source, Path):
            return load(source)
        return Model(proto=onnx.load_model_from_string(source), path=Path("model.onnx"))
    except (DecodeError, InputFileError):
        return None


def _has_brain(view: GraphView) -> bool:
    names = {name for node in view.nodes for name in (*node.inputs, *node.outputs) if name}
    return any(_is_brain(view, name) for name in names)


def _is_brain(view: GraphView, name: str) -> bool:
    return view.info(name).dtype is DType.BFLOAT16


def _is_inside(node: onnx.NodeProto, view: GraphView) -> bool:
    """Whether the bodies of a node hold BF16, or it goes in or out there."""
    inner = list(bodies(node))
    border = any(_is_brain(view, name) for name in (*reads(node), *filter(None, node.output)))
    return bool(inner) and (border or any(map(_holds_brain, inner)))


def _holds_brain(body: onnx.GraphProto) -> bool:
    values = (*body.input, *body.output, *body.value_info)
    return (
        any(value.type.tensor_type.elem_type == _BRAIN for value in values)
        or any(tensor.data_type == _BRAIN for tensor in tensors(body))
        or any(
            attribute.name in _CHOICES and attribute.i == _BRAIN
            for node in body.node
            for attribute in node.attribute
        )
        or any(_holds_brain(inner) for node in body.node for inner in bodies(node))
    )


def _emulated(model: Model) -> Model:
    edit, view = Edit(model), model.view
    for name, tensor in list(edit.constants.items()):
        if tensor.data_type == _BRAIN:
            edit.put(name, widened(tensor))
    for value in (*edit.inputs, *edit.outputs):
        if value.type.tensor_type.elem_type == _BRAIN:
            value.type.tensor_type.elem_type = _FLOAT
    for node in list(edit.nodes):
        for attribute in node.attribute:
            if attribute.name in _CHOICES and attribute.i == _BRAIN:
                attribute.i = _FLOAT
            if attribute.t.data_type == _BRAIN:
                attribute.t.CopyFrom(numpy_helper.from_array(widened(attribute.t)))
        for index, name in enumerate(node.output):
            if name and _is_brain(view, name):
                node.output[index] = edit.fresh(f"{name}_exact")
                rounded = edit.fresh(f"{name}_bf16")
                edit.node("Cast", [node.output[index]], [rounded], name=f"{name}_round", to=_BRAIN)
                edit.node("Cast", [rounded], [name], name=f"{name}_widen", to=_FLOAT)
    return edit.finish(retyped=True)
