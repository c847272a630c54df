"""Conv, MatMul and Gemm as plain matrices: the weights of a layer as rows, and the values that they multiply.

    Conv      rows: output channels of each group; columns: input channels of the group x kernel
    MatMul    rows: output columns; columns: the summed axis
    Gemm      the same, transposed or not

ConvTranspose, products of two activations and of weights with more than two dimensions have no such form here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.trt.ops import QDQ, STANDARD_DOMAINS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node


def has_weights(view: GraphView, product: Node) -> bool:
    """Return True if the second operand of a product is one constant, directly or through Q/DQ."""
    tensor = product.inputs[1]
    while (maker := view.producer(tensor)) is not None and maker.op in QDQ:
        tensor = maker.inputs[0]
    return view.is_constant(tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputReading:
    """The way in which a layer reads its input. Layers with equal readings share second moments of a tensor.

    Attributes:
        tensor: the input.
        groups: of channels.
        kernel, strides, dilations: of a convolution; () for matrices.
        pads: begin and end of each dimension in ONNX order; () for matrices.
        auto_pad: ONNX attribute; "" for matrices.
        axis: the summed axis of a matrix, from the end or not; the channel axis of a convolution.
    """

    tensor: str
    groups: int = 1
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: str = ""
    axis: int = -1

    def rows(self, value: NDArray[Any], most: int) -> NDArray[np.float32]:
        """Return the values that the weights multiply as (groups, rows, columns), with at most `most` rows.

        Args:
            value: the tensor's value for one or more samples.
            most: rows that are enough.
        """
        if not self.kernel:
            flat = np.moveaxis(value, self.axis, -1).reshape(-1, value.shape[self.axis])
            return np.ascontiguousarray(flat[_pick_positions(len(flat), most)], np.float32)[None]
        return self._patches(np.asarray(value, np.float32), most)

    def _patches(self, value: NDArray[np.float32], most: int) -> NDArray[np.float32]:
        rank = len(self.kernel)
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        padded = np.pad(value, [(0, 0), (0, 0), *self.borders(value.shape[2:])])
        axes = tuple(range(2, 2 + rank))
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
        every = (slice(None), slice(None))
        windows = windows[(*every, *(slice(None, None, step) for step in self.strides))]
        windows = windows[
            (*([slice(None)] * (2 + rank)), *(slice(None, None, step) for step in self.dilations))
        ]
        # batch and positions come first; only some of them are copied
        spread = np.moveaxis(windows, 1, 1 + rank)
        places = spread.shape[: 1 + rank]
        chosen = np.unravel_index(_pick_positions(prod(places), most), places)
        taken = spread[chosen]
        channels = value.shape[1] // self.groups
        grouped = taken.reshape(len(taken), self.groups, channels * prod(self.kernel))
        return np.ascontiguousarray(np.swapaxes(grouped, 0, 1))

    def borders(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding of a convolution for images of these sizes, before and after each dimension."""
        rank = len(sizes)
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        if self.auto_pad in {"", "NOTSET"}:
            return list(zip(self.pads[:rank], self.pads[rank:], strict=True))
        if self.auto_pad == "VALID":
            return [(0, 0)] * rank
        borders = []
        for size, width, step in zip(sizes, reach, self.strides, strict=True):
            whole = max(0, (-(-size // step) - 1) * step + width - size)
            less, more = whole // 2, whole - whole // 2
            borders.append((less, more) if self.auto_pad == "SAME_UPPER" else (more, less))
        return borders


@dataclass(frozen=True, kw_only=True)
class WeightedLayer:
    """A layer with constant weights.

    Attributes:
        node: its name.
        weight: name of the constant.
        shape: of the constant.
        reading: how its input is read.
        turned: whether the summed axis of a matrix comes first in the constant.
    """

    node: str
    weight: str
    shape: tuple[int, ...]
    reading: InputReading
    turned: bool = False

    @cached_property
    def columns(self) -> int:
        """Number of inputs that each output sums."""
        return self.shape[0] if self.turned else prod(self.shape[1:])

    @property
    def input_axis(self) -> int:
        """Axis of the input channels in the constant; for convolutions, the input channels of one group."""
        return 0 if self.turned else 1

    @property
    def output_axis(self) -> int:
        """Axis of the output channels in the constant."""
        return 1 if self.turned else 0

    def matrix(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a constant of this layer's shape as (groups, rows, columns)."""
        if self.turned:
            return value.T[None]
        groups = self.reading.groups
        return value.reshape(groups, self.shape[0] // groups, self.columns)

    def constant(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return a matrix (groups, rows, columns) in the shape of the layer's constant; reverses `matrix`."""
        return np.ascontiguousarray(matrix[0].T if self.turned else matrix.reshape(self.shape))


def product_of(view: GraphView, node: Node) -> WeightedLayer | None:
    """Return the node as a product of its input with a constant; None if it does not have this form."""
    if node.domain not in STANDARD_DOMAINS or len(node.inputs) < 2:
        return None
    tensor, weight = node.inputs[:2]
    shape = view.constant_shape(weight)
    if shape is None or view.is_constant(tensor) or not shape or 0 in shape:
        return None
    if node.op == "Conv" and len(shape) > 2:
        return WeightedLayer(node=node.name, weight=weight, shape=shape, reading=_convolution(node, shape))
    if node.op == "MatMul" and len(shape) == 2:
        return WeightedLayer(
            node=node.name, weight=weight, shape=shape, reading=InputReading(tensor=tensor), turned=True
        )
    if node.op == "Gemm" and len(shape) == 2:
        axis = 0 if node.attribute("transA", 0) else 1
        turned = not node.attribute("transB", 0)
        return WeightedLayer(
            node=node.name,
            weight=weight,
            shape=shape,
            reading=InputReading(tensor=tensor, axis=axis - 2),
            turned=turned,
        )
    return None


def products(view: GraphView) -> tuple[WeightedLayer, ...]:
    """Return all layers that are a product of their input with a constant, in graph order."""
    layers = (product_of(view, node) for node in view.nodes)
    return tuple(product for product in layers if product is not None)


def _convolution(node: Node, shape: tuple[int, ...]) -> InputReading:
    rank = len(shape) - 2
    return InputReading(
        tensor=node.inputs[0],
        groups=node.integer("group", 1),
        kernel=shape[2:],
        strides=tuple(node.attribute("strides", (1,) * rank)),
        dilations=tuple(node.attribute("dilations", (1,) * rank)),
        pads=tuple(node.attribute("pads", (0,) * 2 * rank)),
        auto_pad=node.attribute("auto_pad", "NOTSET"),
        axis=1,
    )


def _pick_positions(count: int, most: int) -> NDArray[np.intp]:
    """Draw `most` of `count` positions at random, but reproducibly: regular steps could follow image rows."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, most, replace=False))
