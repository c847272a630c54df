"""Reads a Q/DQ model as a float graph and an assignment, and reports Q/DQ that does not fit this form.

Nodes that cannot be read as the quantization of a slot stay in the graph, so that `lower` of the result computes the
same function as the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.grids import get_storage_type
from qdqtool.core.placement import Slot
from qdqtool.core.tensors import MXFP8, NVFP4, DType, of_dtype
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.encode import decode, effective, is_number, is_zero
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.qdq.lower import (
    FLOAT_TYPES,
    MX_DEQUANTIZE,
    Quantization,
    QuantizedGraph,
    is_stored_exactly,
)
from qdqtool.graph.view import Model, Node, dtype_of
from qdqtool.trt.ops import FP4_DYNAMIC, MX_DYNAMIC, STANDARD_DOMAINS, TRT_DOMAIN, computes_integers


class _IrregularError(Exception):
    """Raised for a Q/DQ pair that cannot become a node input's quantization; caught in this module."""


def lift(model: Model) -> tuple[QuantizedGraph, tuple[str, ...]]:
    """Return the float graph of a Q/DQ model with its assignment, and the nodes that stay quantized, in graph order.

    Quantization stays in the graph unless it is symmetric, belongs to one node input, and has constant parameters.
    `lower` of the result computes the same as the model.
    """
    reader = _Reader(model)
    for node in model.view.nodes:
        if node.op in _DEQUANTIZERS and node.domain in {*STANDARD_DOMAINS, TRT_DOMAIN}:
            reader.read(node)
        else:
            reader.look(node)
    return reader.finish()


_DEQUANTIZERS: Final = frozenset({DEQUANTIZE, MX_DEQUANTIZE})


class _Reader:
    def __init__(self, model: Model) -> None:
        self._view = model.view
        self._edit = Edit(model)
        self._nodes = {node.name: node for node in self._edit.nodes}
        self._found: dict[Slot, Quantization] = {}
        self._left: list[str] = []
        self._floats: dict[tuple[Any, ...], str] = {}

    def read(self, node: Node) -> None:
        """Move the quantization of one DequantizeLinear from the graph to its consumers."""
        uses = self._view.uses(node.outputs[0])
        if uses and all(use.index == 1 and use.node.op in {QUANTIZE, DEQUANTIZE} for use in uses):
            return  # a scale with two levels belongs to its readers
        try:
            source, quantization = self._quantization(node)
        except _IrregularError:
            self._left.append(node.name)
            return
        if self._view.is_output(node.outputs[0]):
            self._left.append(node.name)
        slots = []
        for use in uses:
            if use.index >= len(use.node.inputs) or use.node.op == QUANTIZE:
                self._left.append(use.node.name)
            else:
                slots.append(Slot(node=use.node.name, index=use.index))
                self._nodes[use.node.name].input[use.index] = source
        shared = min(slots, key=self._order) if len(slots) > 1 else None
        for slot in slots:
            self._found[slot] = replace(quantization, pair=shared)

    def look(self, node: Node) -> None:
        """Record a quantizing node that stays in the graph and is not a DequantizeLinear of ONNX."""
        if node.op == QUANTIZE and node.domain in STANDARD_DOMAINS:
            stays = not any(use.node.op in _DEQUANTIZERS for use in self._view.uses(node.outputs[0]))
        else:
            stays = node.op in {QUANTIZE, DEQUANTIZE} or computes_integers(node.op)
            stays = stays or bool({QUANTIZE, DEQUANTIZE}.intersection(self._view.body_ops(node)))
        if stays:
            self._left.append(node.name)

    def finish(self) -> tuple[QuantizedGraph, tuple[str, ...]]:
        """Return the quantized graph, and the nodes that stay quantized."""
        self._edit.prune()
        assignment = {slot: self._found[slot] for slot in sorted(self._found, key=self._order)}
        return QuantizedGraph(model=self._edit.finish(), assignment=assignment), tuple(self._left)

    def _order(self, slot: Slot) -> tuple[int, int]:
        return self._view.by_name[slot.node].position, slot.index

    def _quantization(self, node: Node) -> tuple[str, Quantization]:
        """Return the float tensor that replaces the output of a DequantizeLinear, and its quantization."""
        view, values = self._view, node.inputs[0]
        if node.op == MX_DEQUANTIZE:
            return self._read_microscaled(node)
        before = view.producer(values)
        if before is not None and before.op == FP4_DYNAMIC and before.domain == TRT_DOMAIN:
            return self._read_computed_scales(node, before)
        quantize = (
            before
            if before is not None and before.op == QUANTIZE and before.domain in STANDARD_DOMAINS
            else None
        )
        if quantize is None and not view.is_constant(values):
            raise _IrregularError
        dtype = self._stored_type(node, quantize)
        if dtype is DType.INT32:
            raise _IrregularError
        if quantize is not None:
            self._match(quantize, node)
        if not self._is_symmetric(node):
            raise _IrregularError
        scale, level, scale_dtype = self._scale(node)
        format_ = of_dtype(dtype, scale_dtype)
        if format_ is None:
            raise _IrregularError
        source = values if quantize is None else quantize.inputs[0]
        shape = view.info(source).shape
        if scale.shape == (1,) and not self._is_per_channel(node, shape):
            scale = scale.reshape(())
        axis, block = self._division(node, scale, shape)
        quantization = Quantization(
            format=format_, scale=scale, axis=axis, block=block, global_scale=level, stored=quantize is None
        )
        if quantize is None:
            source = self._float_constant(node, quantization, view.info(node.outputs[0]).dtype)
        elif view.info(node.outputs[0]).dtype is not view.info(source).dtype:
            raise _IrregularError
        return source, quantization

    def _stored_type(self, node: Node, quantize: Node | None) -> DType:
        if quantize is None:
            return self._view.info(node.inputs[0]).dtype
        if len(quantize.inputs) > 2 and quantize.inputs[2]:
            return self._view.info(quantize.inputs[2]).dtype
        return dtype_of(quantize.integer("output_dtype", 0) or onnx.TensorProto.UINT8)

    def _match(self, quantize: Node, node: Node) -> None:
        """Check that Q and DQ of a pair have equal parameters."""
        if not quantize.attribute("saturate", 1):
            raise _IrregularError
        for left, right in zip(_pad_names(quantize), _pad_names(node), strict=True):
            if left != right and not self._same(left, right):
                raise _IrregularError
        if any(
            quantize.attribute(name, default) != node.attribute(name, default)
            for name, default in _ATTRIBUTES
        ):
            raise _IrregularError

    def _same(self, left_name: str, right_name: str) -> bool:
        first, second = (self._view.constant(name) if name else None for name in (left_name, right_name))
        if left_name and right_name:
            return first is not None and second is not None and np.array_equal(first, second)
        left = first if left_name else second
        return left is not None and is_zero(left)

    def _is_symmetric(self, node: Node) -> bool:
        if len(node.inputs) < 3 or not node.inputs[2]:
            return True
        zero = self._view.constant(node.inputs[2])
        return zero is not None and is_zero(zero)

    def _scale(self, node: Node) -> tuple[NDArray[np.float32], float | None, DType | None]:
        """Return the scale of a Q/DQ pair; for two levels also the global scale and the type of the block scales."""
        view = self._view
        value, level, dtype = view.constant(node.inputs[1]), None, None
        inner = view.producer(node.inputs[1])
        if value is None and inner is not None and inner.op == DEQUANTIZE and len(inner.inputs) == 2:
            value = view.constant(inner.inputs[0])
            level, dtype = self._level(inner.inputs[1]), view.info(inner.inputs[0]).dtype
        if value is None:
            raise _IrregularError
        return _positive(value), level, dtype

    def _level(self, tensor: str) -> float:
        """Return the global scale of block scales; it must be a single constant."""
        value = self._view.constant(tensor)
        if value is None:
            raise _IrregularError
        if value.ndim:
            raise _IrregularError
        return float(_positive(value))

    def _is_per_channel(self, node: Node, shape: tuple[int | str, ...] | None) -> bool:
        """Return True if a scale of shape [1] is the scale of the only channel of a constant."""
        if not self._view.is_constant(node.inputs[0]) and not self._reads_constant(node):
            return False
        axis = node.integer("axis", 1)
        return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1

    def _reads_constant(self, node: Node) -> bool:
        before = self._view.producer(node.inputs[0])
        return before is not None and self._view.is_constant(before.inputs[0])

    def _division(
        self, node: Node, scale: NDArray[np.float32], shape: tuple[int | str, ...] | None
    ) -> tuple[int | None, int | None]:
        """Return the axis and the block size of a scale, from its shape."""
        if scale.ndim == 0:
            return None, None
        axis = node.integer("axis", 1)
        rank = scale.ndim if shape is None else len(shape)
        axis = axis + rank if axis < 0 else axis
        if not 0 <= axis < rank:
            raise _IrregularError
        if scale.ndim == 1 and rank != 1:
            if shape is not None and isinstance(shape[axis], int) and shape[axis] != len(scale):
                raise _IrregularError
            return axis, None
        length = shape[axis] if shape is not None else None
        if scale.ndim != rank or not isinstance(length, int) or length % scale.shape[axis]:
            raise _IrregularError
        block = length // scale.shape[axis]
        lengths = [
            (have, want)
            for dim, (have, want) in enumerate(zip(scale.shape, shape or (), strict=True))
            if dim != axis
        ]
        if any(have != want for have, want in lengths) or node.integer("block_size", 0) != block:
            raise _IrregularError
        return axis, block

    def _float_constant(self, node: Node, quantization: Quantization, kind: DType) -> str:
        """Return the float constant of the stored values of a DequantizeLinear; creates it once."""
        values = node.inputs[0]
        key = (values, quantization.key)
        if key in self._floats:
            return self._floats[key]
        stored = self._view.constant(values)
        assert stored is not None
        assert quantization.scale is not None
        float_type = FLOAT_TYPES.get(kind)
        if float_type is None:
            raise _IrregularError
        scales = effective(quantization.scale, quantization.global_scale)
        value = decode(stored, scales, quantization.axis, quantization.block, float_type)
        if not is_stored_exactly(value, quantization, stored):
            raise _IrregularError
        name = values if self._vanishes(node) else self._edit.fresh(f"{values}_float")
        self._edit.put(name, value)
        self._floats[key] = name
        return name

    def _vanishes(self, node: Node) -> bool:
        """Return True if only equal DequantizeLinears read the stored values, and `lift` removes them all."""
        if node.inputs[0] in self._edit.pinned:
            return False
        return all(
            use.index == 0
            and (use.node.op, use.node.inputs, use.node.attributes) == (node.op, node.inputs, node.attributes)
            and self._leaves(use.node)
            for use in self._view.uses(node.inputs[0])
        )

    def _leaves(self, node: Node) -> bool:
        """Return True if only nodes read the result: no Q, no body of control flow, and no model output."""
        result = node.outputs[0]
        return not self._view.is_output(result) and all(
            use.index < len(use.node.inputs) and use.node.op != QUANTIZE for use in self._view.uses(result)
        )

    def _read_computed_scales(self, node: Node, quantize: Node) -> tuple[str, Quantization]:
        """Read NVFP4 quantization with block scales that are computed at run time."""
        view = self._view
        scales = view.producer(node.inputs[1])
        if len(quantize.inputs) < 2:
            raise _IrregularError
        level = self._level(quantize.inputs[1])
        fits = (
            scales is not None
            and scales.op == DEQUANTIZE
            and scales.inputs == (quantize.outputs[1], quantize.inputs[1])
        )
        if not fits:
            raise _IrregularError
        source = quantize.inputs[0]
        axis = _count_axis(quantize.integer("axis", -1), view.info(source).shape)
        block = quantize.integer("block_size", 16)
        quantization = Quantization(format=NVFP4, scale=None, axis=axis, block=block, global_scale=level)
        return source, quantization

    def _read_microscaled(self, node: Node) -> tuple[str, Quantization]:
        view, values = self._view, node.inputs[0]
        before = view.producer(values)
        block = node.integer("block_size", 32)
        if before is not None and before.op == MX_DYNAMIC:
            source = before.inputs[0]
            axis = _count_axis(before.integer("axis", -1), view.info(source).shape)
            return source, Quantization(format=MXFP8, scale=None, axis=axis, block=block)
        exponents = view.constant(node.inputs[1])
        if exponents is None or not view.is_constant(values):
            raise _IrregularError
        if exponents.dtype not in (np.uint8, get_storage_type(DType.FLOAT8_E8M0)):
            raise _IrregularError
        shape = view.constant_shape(values) or ()
        axis = _count_axis(node.integer("axis", -1), shape)
        counts = tuple(size // max(block, 1) if at == axis else size for at, size in enumerate(shape))
        if exponents.shape != counts or counts[axis] * block != shape[axis]:
            raise _IrregularError
        scale = exponents.view(get_storage_type(DType.FLOAT8_E8M0)).astype(np.float32)
        quantization = Quantization(format=MXFP8, scale=scale, axis=axis, block=block, stored=True)
        kind = dtype_of(node.integer("output_dtype", onnx.TensorProto.FLOAT))
        return self._float_constant(node, quantization, kind), quantization


def _positive(value: NDArray[Any]) -> NDArray[np.float32]:
    """Return the scales of a Q/DQ pair as positive numbers.

    Raises:
        _IrregularError: one is not a positive finite number, or there is none.
    """
    scale = (
        value.astype(np.float32) if is_number(value) and value.dtype != np.bool_ else np.zeros(0, np.float32)
    )
    if not (scale.size and np.isfinite(scale).all() and (scale > 0).all()):
        raise _IrregularError
    return scale


_ATTRIBUTES: Final = (("axis", 1), ("block_size", 0))
"""Attributes that must agree, with ONNX's default values."""


def _pad_names(node: Node) -> tuple[str, str]:
    """Return the names of a node's scale and zero point; "" for a missing zero point."""
    return node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""


def _count_axis(axis: int, shape: tuple[int | str, ...] | None) -> int:
    """Return the axis as a number that counts from the first axis.

    Raises:
        _IrregularError: the rank is not known, or there is no such axis.
    """
    if shape is None or not -len(shape) <= axis < len(shape):
        raise _IrregularError
    return axis % len(shape)
