"""The float form of a Q/DQ model, for all nodes or for the inputs of single nodes; restores zero points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.placement import SlotKind
from qdqtool.core.tensors import INT8, DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.integer_form import attribute
from qdqtool.graph.qdq.encode import decode, effective, is_number
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE, find
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.zero_points import RECORD, ConstantWriter, ShiftedPair, with_constants
from qdqtool.graph.sensitive import ADDING_TWO
from qdqtool.graph.view import GraphView, Model, Node, dtype_of
from qdqtool.trt.ops import AVERAGE_POOLS, CLAMPS, FP4_DYNAMIC, GATES, QDQ, carried_inputs


def float_graph(model: Model) -> Model:
    """Return the model without Q/DQ, regular or irregular.

    Asymmetric pairs and integer biases are removed too. Computed integers have no float form and stay.
    """
    lifted = lift(with_zero_points(with_relus(model)))[0].model
    return unquantize(lifted, (node.name for node in lifted.view.nodes))


def unquantize(model: Model, names: Iterable[str]) -> Model:
    """Return the model with float inputs at the nodes with these names; Q/DQ without consumers is removed.

    A Q or DQ with one of these names becomes float for all of its consumers. If it makes a model output, the model
    returns the float tensor. Consumers read the float tensor before Q and DQ; stored constants before a DQ become
    float constants of equal value. Other readers of a pair keep it. A constant that was subtracted before Q is added
    back.
    """
    shifted = with_zero_points(model)
    if shifted is not model:
        return with_constants(unquantize(shifted, names))[0]
    edit = Edit(model)
    makers = edit.producers()
    chosen = set(names)
    for node in tuple(edit.nodes):
        for index, tensor in enumerate(node.input):
            dequantize = makers.get(tensor)
            if dequantize is None or dequantize.op_type != DEQUANTIZE:
                continue
            if chosen & {node.name, *_names(dequantize, makers)}:
                node.input[index] = float_source(edit, dequantize, makers) or tensor
    for value in edit.outputs:
        dequantize = makers.get(value.name)
        if dequantize is None or dequantize.op_type != DEQUANTIZE:
            continue
        if chosen.isdisjoint(_names(dequantize, makers)):
            continue
        source = float_source(edit, dequantize, makers)
        if source is not None:
            edit.remove([dequantize])
            edit.node("Identity", [source], [value.name], name=f"{dequantize.name}_Identity")
    edit.prune()
    return edit.finish()


def _names(dequantize: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> tuple[str, ...]:
    """Return the names of a DequantizeLinear and of the QuantizeLinear before it."""
    quantize = makers.get(dequantize.input[0])
    return (dequantize.name,) if quantize is None else (dequantize.name, quantize.name)


def float_source(edit: Edit, dequantize: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> str | None:
    """Return the float tensor for the output of a DequantizeLinear; None if there is none."""
    quantize = makers.get(dequantize.input[0])
    if quantize is not None:
        if quantize.op_type == QUANTIZE:
            return typed_source(edit, quantize, dequantize)
        return quantize.input[0] if quantize.op_type == FP4_DYNAMIC else None
    stored, scale = edit.value(dequantize.input[0]), _scale(edit, dequantize, makers)
    states_zero = len(dequantize.input) > 2 and dequantize.input[2]
    zero = edit.value(dequantize.input[2]) if states_zero else np.zeros((), np.float32)
    if stored is None or scale is None or zero is None:
        return None
    if not (scale.size and zero.size and all(map(is_number, (stored, scale, zero)))):
        return None
    axis = attribute(dequantize, "axis", 1)
    axis += stored.ndim if axis < 0 else 0
    block = attribute(dequantize, "block_size", 0) if scale.ndim > 1 else None
    if block is not None and not _fits_blocks(scale.shape, stored.shape, axis, block):
        return None
    if any(
        part.ndim == 1 and part.size > 1 and part.shape != stored.shape[axis : axis + 1]
        for part in (scale, zero)
    ):
        return None
    scalar = scale.size == 1 and scale.ndim < 2
    shape = [-1 if dim == axis else 1 for dim in range(stored.ndim)] if zero.size > 1 else ()
    if block is not None:
        places = np.arange(stored.shape[axis]) // block  # the last block may be shorter
        zero = np.take(zero, places, axis) if zero.shape == scale.shape else zero
        scale, block = np.take(scale, places, axis), 1
        shape = list(zero.shape)
    zero = zero.reshape(shape)
    if zero.ndim and (
        zero.ndim != stored.ndim
        or any(size not in {1, dim} for size, dim in zip(zero.shape, stored.shape, strict=True))
    ):
        return None
    shifted = stored.astype(np.float32) - zero.astype(np.float32)
    if scalar:
        scale = scale.reshape(())
    target = attribute(dequantize, "output_dtype", 0)
    kind = onnx.helper.tensor_dtype_to_np_dtype(target) if target else scale.dtype
    value = decode(shifted, scale, None if scalar else axis, block, kind)
    return edit.constant(f"{dequantize.input[0]}_float", value)


def typed_source(edit: Edit, quantize: onnx.NodeProto, dequantize: onnx.NodeProto) -> str:
    """Return the input of a QuantizeLinear, cast to the output type of the DequantizeLinear if the types differ."""
    zero, result_zero = (edit.constants.get(node.input[1]) for node in (quantize, dequantize))
    if zero is None or result_zero is None:
        return str(quantize.input[0])
    target = attribute(dequantize, "output_dtype", 0) or result_zero.data_type
    here = edit.dtype(quantize.input[0])
    if dtype_of(target) is (dtype_of(zero.data_type) if here is DType.UNKNOWN else here):
        return str(quantize.input[0])
    result = edit.fresh(f"{quantize.input[0]}_cast")
    edit.node("Cast", [quantize.input[0]], [result], name=f"{quantize.name}_Cast", to=target)
    return result


def _fits_blocks(scales: tuple[int, ...], shape: tuple[int, ...], axis: int, block: int) -> bool:
    """Return True if scales of this shape belong to blocks along one axis of a tensor."""
    return len(scales) == len(shape) and all(
        block > 0 and count == -(-size // block) if at == axis else count == size
        for at, (count, size) in enumerate(zip(scales, shape, strict=True))
    )


def _scale(edit: Edit, dequantize: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> NDArray[Any] | None:
    """Return the constant scale of a pair, with both levels combined; None if it is computed."""
    inner = makers.get(dequantize.input[1])
    if inner is None:
        return edit.value(dequantize.input[1])
    if inner.op_type != DEQUANTIZE or len(inner.input) != 2:
        return None
    low, level = (edit.value(name) for name in inner.input)
    if low is None or level is None or level.size != 1 or not (is_number(low) and is_number(level)):
        return None
    return effective(low, float(level.reshape(()))).astype(level.dtype)


# --- cut below -------------------------------------------------------------------------------------------------------
# Restores a Relu that a quantization range starting at zero had replaced.


NEVER_NEGATIVE = GATES | {"Abs", "Exp", "ReduceL2", "Relu", "Softmax", "Sqrt"}
_SIX = 6.0
"""Largest result of Relu6. Ranges of other functions end there by chance only."""
_LOWEST = {DType.UINT8: 0, DType.INT8: -128, DType.UINT16: 0, DType.INT16: -32768}


def with_relus(model: Model) -> Model:
    """Return the model with a Relu before each pair whose range starts at zero, if its input can be negative.

    If the range ends at 6, a Clip to 6 follows. The results do not change. Without these pairs, the Relu or Relu6 that
    a quantizer removed would be missing.
    """
    edit, cut = Edit(model), dict[str, str]()
    nodes = {node.name: node for node in edit.nodes}
    for pair in find(model):
        starts = {_LOWEST.get(pair.dtype)} == set(pair.zero_point) and min(pair.scale, default=0) > 0
        if starts and pair.quantize and pair.dequantize and pair.kind is SlotKind.ACTIVATION:
            source = cut_below(edit, model.view, pair.tensor, cut)
            end = max(pair.scale) * (2 ** (pair.dtype.bits or 8) - 1)
            if source != pair.tensor and edit.opset >= 11 and math.isclose(end, _SIX, rel_tol=1e-3):
                source = _cut_above(edit, source, nodes[pair.quantize])
            edit.connect(nodes[pair.quantize], 0, source)
    return edit.finish() if cut else model


def _cut_above(edit: Edit, tensor: str, quantize: onnx.NodeProto) -> str:
    scale, result = edit.value(quantize.input[1]), edit.fresh(f"{tensor}6")
    six = edit.constant(f"{tensor}_six", np.asarray(_SIX, np.float32 if scale is None else scale.dtype))
    edit.node("Clip", [tensor, "", six], [result], name=f"{tensor}_Clip")
    return result


def cut_below(edit: Edit, view: GraphView, tensor: str, cut: dict[str, str]) -> str:
    """Insert a Relu after `tensor` and return its output. `cut` maps each tensor to its one Relu.

    If `tensor` is never negative, return `tensor` itself.
    """
    if _never_negative(edit, view, tensor):
        return tensor
    if tensor not in cut:
        cut[tensor] = edit.fresh(f"{tensor}_relu")
        edit.node("Relu", [tensor], [cut[tensor]], name=f"{tensor}_Relu")
    return cut[tensor]


def _never_negative(edit: Edit, view: GraphView, tensor: str) -> bool:
    """Return True if `tensor` is never negative, because none of the sources of its values is ever negative."""
    waiting, visited = [tensor], {tensor}
    while waiting:
        node = view.producer(waiting.pop())
        if node is None:
            return False
        carried = (0,) if node.op in QDQ | AVERAGE_POOLS else carried_inputs(view, node)
        if not carried and not _is_positive(edit, node):
            return False
        fresh = {node.inputs[index] for index in carried} - visited
        visited |= fresh
        waiting += fresh
    return True


def _is_positive(edit: Edit, node: Node) -> bool:
    if node.op != "Clip":
        return node.op in NEVER_NEGATIVE
    bound = edit.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return bound is not None and float(bound) >= 0


# --- zero points read -------------------------------------------------------------------------------------------------
# Reads the constants back that `zero_points` wrote: Q/DQ with zero points, and the Relu that saturation replaced.
#
# The metadata of the model name the Q nodes and their zero points. Entries that do not fit their nodes are ignored.


def with_zero_points(model: Model) -> Model:
    """Return the model with zero points instead of the constants that replaced them; the model itself if it records none."""
    codes = _record(model)
    if not codes:
        return model
    edit = Edit(model)
    pairs: dict[str, ShiftedPair] = {}
    for node in edit.nodes:
        if node.op_type == QUANTIZE and node.name in codes and len(node.input) > 2:
            step, zero = edit.value(node.input[1]), edit.value(node.input[2])
            if step is None or zero is None or step.size != 1 or zero.dtype != np.int8 or zero.any():
                continue
            size, code = float(step.reshape(())), codes[node.name][0]
            assert code is not None
            # undo a Sub: its constant is negated
            constant = -float(np.asarray(-code * size, step.dtype))
            pairs[node.name] = ShiftedPair(
                tensor=node.input[0], constant=constant, step=size, zero=0, code=int(code)
            )
    ConstantWriter(edit, model.view, pairs).run()
    quantizers = [node for node in edit.nodes if node.name in pairs]
    _without_zeros(edit)
    for node in quantizers:
        _without_border(edit, node)
    for node in quantizers:
        bounds = codes[node.name][1:]
        if bounds:
            _clamp(edit, node, bounds[0], bounds[1])
    edit.prune()
    model_out = edit.finish()
    kept = [entry for entry in model_out.proto.metadata_props if entry.key != RECORD]
    del model_out.proto.metadata_props[:]
    model_out.proto.metadata_props.extend(kept)
    return model_out


def _record(model: Model) -> dict[str, list[float | None]]:
    """Return the recorded zero points and bounds by the name of a QuantizeLinear; skip invalid ones."""
    text = next((entry.value for entry in model.proto.metadata_props if entry.key == RECORD), "")
    try:
        record = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in record.items() if _fits(entry)} if isinstance(record, dict) else {}


def _fits(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) not in {1, 3}:
        return False
    code, *bounds = entry
    is_code = isinstance(code, int) and INT8.qmin <= code <= INT8.qmax
    return is_code and all(
        bound is None or (isinstance(bound, (int, float)) and math.isfinite(bound)) for bound in bounds
    )


def _without_zeros(edit: Edit) -> None:
    """Remove each Add or Sub whose constant has become zero."""
    for node in tuple(edit.nodes):
        value = edit.value(node.input[1]) if node.op_type in ADDING_TWO else None
        if value is None or value.size != 1 or value.any() or node.output[0] in edit.pinned:
            continue
        edit.remove([node])
        edit.redirect(node.output[0], node.input[0])


def _without_border(edit: Edit, quantize: onnx.NodeProto) -> None:
    """Move zero padding before Q into the convolution that reads it."""
    pad = edit.maker(quantize.input[0])
    backs = edit.readers(quantize.output[0])
    if pad is None or pad.op_type != "Pad" or len(pad.input) != 3 or len(backs) != 1:
        return
    if attribute(pad, "mode", b"constant") != b"constant":
        return
    readers = edit.readers(backs[0][0].output[0])
    pads, value = edit.value(pad.input[1]), edit.value(pad.input[2])
    if len(readers) != 1 or readers[0][0].op_type != "Conv" or readers[0][1] != 0:
        return
    conv = readers[0][0]
    if attribute(conv, "auto_pad", b"NOTSET").startswith(b"SAME"):
        return
    if pads is None or value is None or value.any() or any(attribute(conv, "pads", ())) or pads.size < 6:
        return
    half = pads.size // 2
    if pads[:2].any() or pads[half : half + 2].any() or (pads < 0).any():
        return
    kept = [field for field in conv.attribute if field.name not in {"pads", "auto_pad"}]
    del conv.attribute[:]
    conv.attribute.extend([*kept, onnx.helper.make_attribute("pads", [*pads[2:half], *pads[half + 2 :]])])
    edit.connect(quantize, 0, pad.input[0])
    if not edit.readers(pad.output[0]) and pad.output[0] not in edit.pinned:
        edit.remove([pad])
    edit.forget_shapes([quantize.output[0], backs[0][0].output[0]])


def _clamp(edit: Edit, quantize: onnx.NodeProto, low: float | None, high: float | None) -> None:
    """Insert the Relu or Clip that the saturation of a Q had replaced; once for all consumers of the tensor."""
    name = quantize.input[0]
    maker = edit.maker(name)
    if maker is None or maker.op_type in CLAMPS or name in edit.pinned:
        return
    if any(reader.op_type != QUANTIZE for reader, _ in edit.readers(name)):
        return
    step = edit.constants[quantize.input[1]]
    inner = edit.fresh(f"{name}_unclamped")
    edit.write(maker, list(maker.output).index(name), inner)
    if low == 0 and high is None:
        edit.node("Relu", [inner], [name], name=f"{name}_Relu")
        return
    kind = onnx.helper.tensor_dtype_to_np_dtype(step.data_type)
    limits = [
        "" if bound is None else edit.constant(f"{name}_bound", np.asarray(bound, kind))
        for bound in (low, high)
    ]
    edit.node("Clip", [inner, *limits], [name], name=f"{name}_Clip")
