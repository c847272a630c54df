"""Reads back the constants that `zero_points` wrote: Q/DQ with zero points, and the Relu that saturation replaced.

The metadata of the model name the Q nodes and their zero points. Entries that do not fit their nodes are ignored.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx

from qdqtool.core.quant_format import INT8
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.integer_form import attribute
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import QUANTIZE
from qdqtool.graph.qdq.zero_points import RECORD, ConstantWriter, ShiftedPair
from qdqtool.graph.sensitive import ADDING_TWO


def with_zero_points(model: Model) -> Model:
    """Return the model with zero points instead of the constants written for them; the model itself if it records none."""
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
            # a Sub is undone: the input holds a negative constant less
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
    made = edit.finish()
    kept = [entry for entry in made.proto.metadata_props if entry.key != RECORD]
    del made.proto.metadata_props[:]
    made.proto.metadata_props.extend(kept)
    return made


def _record(model: Model) -> dict[str, list[float | None]]:
    """Return the recorded zero points and bounds by the name of a Q; skips invalid entries."""
    text = next((entry.value for entry in model.proto.metadata_props if entry.key == RECORD), "")
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in found.items() if _fits(entry)} if isinstance(found, dict) else {}


def _fits(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) not in {1, 3}:
        return False
    code, *bounds = entry
    is_code = isinstance(code, int) and INT8.qmin <= code <= INT8.qmax
    return is_code and all(
        bound is None or (isinstance(bound, (int, float)) and math.isfinite(bound)) for bound in bounds
    )


def _without_zeros(edit: Edit) -> None:
    """Remove each Add and Sub of a constant that has become zero."""
    for node in tuple(edit.nodes):
        value = edit.value(node.input[1]) if node.op_type in ADDING_TWO else None
        if value is None or value.size != 1 or value.any() or node.output[0] in edit.pinned:
            continue
        edit.remove([node])
        edit.redirect(node.output[0], node.input[0])


def _without_border(edit: Edit, quantize: onnx.NodeProto) -> None:
    """Move zero padding before Q back into the convolution that reads it."""
    pad = edit.maker(quantize.input[0])
    backs = edit.readers(quantize.output[0])
    if pad is None or pad.op_type != "Pad" or len(pad.input) != 3 or len(backs) != 1:
        return
    readers = edit.readers(backs[0][0].output[0])
    pads, value = edit.value(pad.input[1]), edit.value(pad.input[2])
    if len(readers) != 1 or readers[0][0].op_type != "Conv" or readers[0][1] != 0:
        return
    conv = readers[0][0]
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
    """Insert the Relu or Clip that saturation replaced before Q again, once for all consumers of the tensor."""
    name = quantize.input[0]
    maker = edit.maker(name)
    if maker is None or maker.op_type in {"Relu", "Clip"} or name in edit.pinned:
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
