"""Quantizers that other tools write as custom operators, and the Q/DQ nodes that compute the same results.

    qonnx.custom_op.general.Quant (x, scale, 0, 8 bits)       QuantizeLinear ─ DequantizeLinear, INT8
    qonnx.custom_op.general.Quant (weight, scales, 0, 4)      DequantizeLinear of the integers, stored as INT8
    com.amd.quark.ExtendedQuantizeLinear (INT8)               QuantizeLinear

No builder of TensorRT imports the operators on the left. Quantizers without an exact form are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.grids import get_storage_type
from qdqtool.core.tensors import INT4, DType
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.encode import is_number, is_zero
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import DEQUANTIZE, QUANTIZE, TRT_DOMAIN, is_other_quantizer

if TYPE_CHECKING:
    import onnx


_BREVITAS: Final = "export again as Q/DQ: brevitas.export.export_onnx_qcdq(model, args)"
_QUARK: Final = (
    "quantize again with the Q/DQ operators of ONNX: in Quark, INT8 or UINT8 instead of an extended type"
)
_TOOLS: Final = {
    "qonnx.custom_op.general": ("QONNX", _BREVITAS),
    "finn.custom_op.general": ("QONNX", _BREVITAS),
    "onnx.brevitas": ("QONNX", _BREVITAS),
    "com.amd.quark": ("AMD Quark", _QUARK),
    "com.vai.quantize": ("AMD Vitis AI", _QUARK),
    "org.openvinotoolkit": ("OpenVINO", "export again as Q/DQ: in NNCF, quantize the ONNX model itself"),
}
"""Operator domain -> the tool, and the export to start from."""
_ANY: Final = "export again with QuantizeLinear and DequantizeLinear, in PyTorch with torch.fake_quantize_per_tensor_affine"
_EXTENDED: Final = {"ExtendedQuantizeLinear": QUANTIZE, "ExtendedDequantizeLinear": DEQUANTIZE}
_READ: Final = frozenset({np.dtype(kind) for kind in (np.int8, np.uint8, np.int32)})
_QUANT: Final = "Quant"
_FEWEST_BITS, _MOST_BITS = 2, 8  # signed integers that INT8 holds


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherQuantizer:
    """A quantizer operator of another tool.

    Attributes:
        node: the node.
        tool: the tool that writes it, "" if only the name says that it quantizes.
        way: from which export to start instead.
        exact: whether Q/DQ nodes compute the same, so that `convert` writes them.
    """

    node: Node
    tool: str
    way: str
    exact: bool


def other_quantizers(view: GraphView) -> tuple[OtherQuantizer, ...]:
    """Return all quantizers of other tools, in graph order."""
    quantizers = []
    for node in view.nodes:
        if is_other_quantizer(node.op, node.domain):
            tool, way = _TOOLS.get(node.domain, ("", _ANY))
            quantizers.append(OtherQuantizer(node=node, tool=tool, way=way, exact=_is_exact(view, node)))
    return tuple(quantizers)


def _is_exact(view: GraphView, node: Node) -> bool:
    if node.op in _EXTENDED:
        zero = view.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        return zero is not None and zero.dtype in _READ
    return node.op == _QUANT and _quant(view, node) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredQuant:
    """A Quant node as Q/DQ: its scale, the axis of a scale per channel, and the integers of a constant."""

    scale: NDArray[Any]
    axis: int | None
    stored: NDArray[np.int8] | None


def _quant(view: GraphView, node: Node) -> _StoredQuant | None:
    """Return the Q/DQ for a QONNX Quant node; None if INT8 does not compute the same result."""
    values = [view.constant(name) for name in node.inputs[1:]]
    plain = (
        node.attribute("signed", 1) == 1 and str(node.attribute("rounding_mode", "ROUND")).upper() == "ROUND"
    )
    if len(values) != len(("scale", "zero point", "bits")) or not plain:
        return None
    scale, zero, bits = values
    if (
        scale is None
        or zero is None
        or bits is None
        or not is_zero(zero)
        or not is_number(bits)
        or bits.size != 1
    ):
        return None
    count = float(np.asarray(bits, np.float32).reshape(()))
    if not (count.is_integer() and _FEWEST_BITS <= count <= _MOST_BITS and is_number(scale) and scale.size):
        return None
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    source = view.constant(node.inputs[0])
    shape = view.info(node.inputs[0]).shape
    axis = _axis(scale, shape)
    if axis is not None and axis < 0:
        return None
    flat = scale.reshape(-1) if axis is not None else scale.reshape(-1)[0].reshape(())
    narrow = node.attribute("narrow", 0) != 0
    if source is None:
        return None if narrow or count != _MOST_BITS else _StoredQuant(scale=flat, axis=axis, stored=None)
    high = 2 ** (int(count) - 1) - 1
    low = -high - (not narrow)
    steps = np.clip(np.rint(source.astype(np.float64) / scale), low, high)
    return (
        _StoredQuant(scale=flat, axis=axis, stored=steps.astype(np.int8))
        if np.isfinite(steps).all()
        else None
    )


def _axis(scale: NDArray[Any], shape: tuple[int | str, ...] | None) -> int | None:
    """Return the axis of a broadcast scale: None for a single scale; -1 for several axes or an unknown one."""
    if scale.size == 1:
        return None
    long = [at for at, size in enumerate(scale.shape) if size != 1]
    fits = shape is not None and len(scale.shape) == len(shape) and len(long) == 1
    return long[0] if fits else -1


def convert(
    edit: Edit, view: GraphView, quantizers: tuple[OtherQuantizer, ...]
) -> tuple[OtherQuantizer, ...]:
    """Write the quantizers that have an exact form as Q/DQ, and return them."""
    nodes = {node.name: node for node in edit.nodes}
    done = tuple(quantizer for quantizer in quantizers if quantizer.exact)
    for quantizer in done:
        node = nodes[quantizer.node.name]
        if quantizer.node.op in _EXTENDED:
            node.op_type, node.domain = _EXTENDED[quantizer.node.op], ""
            kept = [attribute for attribute in node.attribute if attribute.name == "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        else:
            form = _quant(view, quantizer.node)
            if form is not None:
                _write(edit, node, form)
    return done


def _write(edit: Edit, node: onnx.NodeProto, form: _StoredQuant) -> None:
    stem, along = node.input[0], {} if form.axis is None else {"axis": form.axis}
    parameters = [
        edit.constant(f"{stem}_scale", form.scale.astype(np.float32)),
        edit.constant(f"{stem}_zero_point", np.zeros(form.scale.shape, np.int8)),
    ]
    if form.stored is None:
        values = edit.fresh(f"{stem}_quantized")
        edit.node(QUANTIZE, [stem, *parameters], [values], name=f"{node.name}_{QUANTIZE}", **along)
    else:
        values = edit.constant(f"{stem}_int8", form.stored)
    edit.node(DEQUANTIZE, [values, *parameters], [node.output[0]], name=f"{node.name}_{DEQUANTIZE}", **along)
    edit.remove([node])


# --- standard ---------------------------------------------------------------------------------------------------------
# Replaces TensorRT's own variants of QuantizeLinear and DequantizeLinear by the equivalent operators of ONNX.
#
#     trt.TRT_FP8QuantizeLinear(x, s)            QuantizeLinear(x, s, 0 as FP8)
#     trt.TRT_FP8DequantizeLinear(q, s)          DequantizeLinear(q, s)
#     trt.TRT_INT4DequantizeLinear(w, s)         DequantizeLinear(w, s), attributes kept
#
# nvidia-modelopt writes them for opsets that lack a type. TensorRT for RTX 1.7.1 builds the same kernels from both.


_SPELLINGS: Final = {
    QUANTIZE: (QUANTIZE, None),
    DEQUANTIZE: (DEQUANTIZE, None),
    "TRT_FP8QuantizeLinear": (QUANTIZE, DType.FLOAT8),
    "TRT_FP8DequantizeLinear": (DEQUANTIZE, None),
    "TRT_INT4QuantizeLinear": (QUANTIZE, DType.INT4),
    "TRT_INT4DequantizeLinear": (DEQUANTIZE, None),
}
"""Operator of the domain "trt" -> equivalent ONNX operator, and the type that its name states."""


def is_spelled_apart(op: str, domain: str) -> bool:
    """Return True if an operator is a TensorRT variant of QuantizeLinear or DequantizeLinear."""
    return domain == TRT_DOMAIN and op in _SPELLINGS


def standardise(edit: Edit) -> Iterator[tuple[str, str]]:
    """Rewrite every TensorRT variant of Q/DQ in place; yield the node name and the old operator type."""
    for node in edit.nodes:
        if not is_spelled_apart(node.op_type, node.domain):
            continue
        op, dtype = _SPELLINGS[node.op_type]
        old = node.op_type
        node.op_type, node.domain = op, ""
        if dtype is not None and len(node.input) == 2:
            scale = edit.value(node.input[1])
            zeros = np.zeros(() if scale is None else scale.shape, get_storage_type(dtype))
            node.input.append(edit.constant(f"{node.name}_zero_point", zeros))
        yield node.name, old


def standard(model: Model) -> Model:
    """Return the model with ONNX's Q/DQ instead of TensorRT variants; the model itself if it has none."""
    if not any(is_spelled_apart(node.op, node.domain) for node in model.view.nodes):
        return model
    proto, _ = raise_opset(model.proto, INT4.opset, model.path)
    edit = Edit(replace(model, proto=proto))
    for _ in standardise(edit):
        pass
    return edit.finish(retyped=True)
