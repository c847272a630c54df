"""Emulates NVFP4 and MXFP8 models on runtimes without such kernels, with the same roundings in float operators.

Stored weights become the floats they stand for. A quantized activation is divided into blocks, scaled, rounded and put
together again:

    scale = max|block| / 6, rounded to E4M3 times the global scale      values rounded to E2M1      (NVFP4)
    scale = 2 ** ceil(log2(max|block| / 448))                           values rounded to E4M3      (MXFP8)

Products are summed in FP32. E2M1 has three step widths: 0.5 below 2, 1 below 4, 2 up to 6; rounding to the nearest
multiple, ties to even, is rounding to the nearest E2M1 number, ties to an even last bit. Sources: OCP Microscaling
Formats specification 1.0; NVIDIA's descriptions of NVFP4 and of rounding MXFP8 scales up, so that nothing is clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import ml_dtypes
import numpy as np
import onnx

from qdqtool.core.placement import Slot
from qdqtool.core.tensors import MXFP8, NVFP4, DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, serialize, weight_bytes
from qdqtool.graph.qdq.encode import effective
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE, Quantization, QuantizedGraph, lower
from qdqtool.graph.qdq.other_tools import standard
from qdqtool.graph.typed.emulate import open_model
from qdqtool.graph.view import Model
from qdqtool.trt.ops import FP4_DYNAMIC, MX_DYNAMIC

_EMULATED: Final = frozenset({NVFP4.name, MXFP8.name})
_ONLY_TENSORRT: Final = frozenset({FP4_DYNAMIC, MX_DYNAMIC, MX_DEQUANTIZE})
_TINY: Final = 2.0**-100
"""Smallest magnitude of a block, so that blocks of zeros do not divide by zero."""
_SLACK: Final = 1e-5
"""Tolerance for the logarithm of a power of two that is slightly above a whole number."""


def block_emulation(source: Model | Path | bytes) -> bytes | None:
    """Return an equivalent model that emulates blocks of FP4 and FP8, for runtimes without such kernels.

    TensorRT variants of Q/DQ become ONNX's, also in a model without such blocks. None if nothing had to change, if
    there are blocks beside Q/DQ that `lift` leaves in the graph, or if the model is too large.
    """
    model = source if isinstance(source, Model) else open_model(source)
    if model is None or weight_bytes(model) >= SINGLE_FILE_LIMIT // 4:
        return None
    emulated = _rewritten(model)
    return None if emulated is model else serialize(emulated)


def with_emulated_blocks(model: Model) -> Model:
    """Return a model in memory with emulated blocks, for later changes; the model itself if it has no such blocks."""
    view = model.view
    holds = any(
        node.op in _ONLY_TENSORRT
        or (node.op == DEQUANTIZE and view.info(node.inputs[0]).dtype is DType.FLOAT4)
        for node in view.nodes
    )
    return _rewritten(model) if holds else model


def _rewritten(network: Model) -> Model:
    model = standard(network)
    graph, left = lift(model)
    blocks = {slot: entry for slot, entry in graph.assignment.items() if entry.format.name in _EMULATED}
    if not blocks:
        return model
    if left:
        return network
    plain = {slot: entry for slot, entry in graph.assignment.items() if slot not in blocks}
    return _emulate_blocks(lower(QuantizedGraph(model=graph.model, assignment=plain)), blocks)


def _emulate_blocks(model: Model, blocks: dict[Slot, Quantization]) -> Model:
    edit = Edit(model)
    nodes = {node.name: node for node in edit.nodes}
    outputs: dict[tuple[str, Slot], str] = {}
    for slot, entry in blocks.items():
        node = nodes.get(slot.node)
        if node is None or entry.stored:
            continue  # it reaches no output and was removed, or the float constant already has the rounded values
        tensor = node.input[slot.index]
        key = (tensor, entry.pair or slot)
        if key not in outputs:
            kind = onnx.helper.tensor_dtype_to_np_dtype(_element(model, tensor))
            outputs[key] = _Blocks(edit, f"{tensor}_{slot.node}_{slot.index}_emulated", kind).write(
                tensor, entry
            )
        node.input[slot.index] = outputs[key]
    edit.prune()
    return edit.finish()


def _element(model: Model, tensor: str) -> int:
    names = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
    return names.get(str(model.view.info(tensor).dtype), onnx.TensorProto.FLOAT)


class _Blocks:
    """Writes the rounding of one activation to a block format; every name begins with `stem`."""

    def __init__(self, edit: Edit, stem: str, kind: np.dtype[np.generic]) -> None:
        self._edit = edit
        self._stem = stem
        self._kind = kind

    def write(self, tensor: str, entry: Quantization) -> str:
        """Return the tensor after the rounding to its block format."""
        assert entry.axis is not None
        assert entry.block is not None
        shape = self._node("Shape", [tensor])
        wide = self._node("Cast", [tensor], to=int(onnx.TensorProto.FLOAT))
        folded = self._node("Reshape", [wide, self._folded_shape(shape, entry)])
        scale = self._scale(folded, entry)
        steps = self._node("Div", [folded, scale])
        values = self._e2m1(steps) if entry.format == NVFP4 else self._e4m3(steps, 1.0)
        whole = self._node("Reshape", [self._node("Mul", [values, scale]), shape])
        element = int(onnx.helper.np_dtype_to_tensor_dtype(self._kind))
        return self._node("Cast", [whole], to=element)

    def _folded_shape(self, shape: str, entry: Quantization) -> str:
        """Return the shape [..., K / block, block, ...] of a tensor [..., K, ...] with axis K in blocks."""
        axis = entry.axis or 0
        index = np.asarray([axis], np.int64)
        before = self._node("Slice", [shape, self._int([0]), self._int([axis])])
        count = self._node(
            "Div",
            [
                self._node("Gather", [shape, self._edit.constant(f"{self._stem}_axis", index)]),
                self._int([entry.block or 1]),
            ],
        )
        after = self._node("Slice", [shape, self._int([axis + 1]), self._int([1 << 30])])
        return self._node("Concat", [before, count, self._int([entry.block or 1]), after], axis=0)

    def _scale(self, folded: str, entry: Quantization) -> str:
        axis, format_ = entry.axis or 0, entry.format
        if entry.scale is not None:
            steps = np.expand_dims(effective(entry.scale, entry.global_scale), axis + 1)
            return self._edit.constant(f"{self._stem}_scale", steps)
        amax = self._node("ReduceMax", [self._node("Abs", [folded]), self._int([axis + 1])], keepdims=1)
        exact = self._node("Div", [amax, self._float(format_.qmax)])
        if format_ == NVFP4:
            rounded = self._e4m3(exact, entry.global_scale or 1.0)
            return self._node("Max", [rounded, self._float((entry.global_scale or 1.0) * 2.0**-9)])
        log = self._node("Log", [self._node("Max", [exact, self._float(_TINY)])])
        power = self._node(
            "Ceil",
            [
                self._node(
                    "Sub", [self._node("Div", [log, self._float(float(np.log(2)))]), self._float(_SLACK)]
                )
            ],
        )
        return self._node("Pow", [self._float(2.0), power])

    def _e4m3(self, tensor: str, scale: float) -> str:
        zero = self._edit.constant(f"{self._stem}_zero", np.zeros((), ml_dtypes.float8_e4m3fn))
        step = self._float(scale)
        return self._node(
            "DequantizeLinear", [self._node("QuantizeLinear", [tensor, step, zero]), step, zero]
        )

    def _e2m1(self, steps: str) -> str:
        cut = self._node("Clip", [steps, self._float(NVFP4.qmin), self._float(NVFP4.qmax)])
        size = self._node("Abs", [cut])
        coarse = self._node(
            "Where", [self._node("Less", [size, self._float(4.0)]), self._float(1.0), self._float(2.0)]
        )
        width = self._node("Where", [self._node("Less", [size, self._float(2.0)]), self._float(0.5), coarse])
        return self._node("Mul", [self._node("Round", [self._node("Div", [cut, width])]), width])

    def _float(self, value: float) -> str:
        return self._edit.constant(f"{self._stem}_number", np.asarray(value, np.float32))

    def _int(self, values: list[int]) -> str:
        return self._edit.constant(f"{self._stem}_sizes", np.asarray(values, np.int64))

    def _node(self, op: str, inputs: list[str], **attributes: int) -> str:
        name = self._edit.fresh(f"{self._stem}_{op}")
        self._edit.node(op, inputs, [name], name=name, **attributes)
        return name
