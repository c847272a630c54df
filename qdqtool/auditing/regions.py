"""Kernels that do not belong to a single node: kernels that TensorRT generates, and regions compiled as one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from qdqtool.core.engine import Certainty, Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.tensors import DType
from qdqtool.engine.roles import words
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.names import LayerMatch
from qdqtool.trt.ops import MATRIX_PRODUCTS, RECURRENT, STEP_GATES

_REGION = re.compile(r"\{ForeignNode\[(.+?)\.\.\.(.+?)\]\}")


def is_opaque(layer: EngineLayer) -> bool:
    """Return whether the layer is a region of kernels that are not listed."""
    return layer.kind == "Myelin" or layer.name.startswith("{ForeignNode[")


def region_around(view: GraphView, node: Node, layers: tuple[EngineLayer, ...]) -> EngineLayer | None:
    """Return the region with `node` between its first and last node in topological order; None if there is none.

    The name of a region gives its first and last node only, so this is an inference.
    """
    for layer in layers:
        match = _REGION.search(layer.name)
        ends = [_position(view, name) for name in match.groups()] if match else []
        positions = [position for position in ends if position is not None]
        if len(positions) == 2 and min(positions) <= node.position <= max(positions):
            return layer
    return None


def _position(view: GraphView, name: str) -> int | None:
    """Return the position of the first graph node in `name`: a node name, or names joined by ` + `."""
    nodes = (view.by_name.get(piece.strip()) for piece in (name, *name.split(" + ")))
    return next((node.position for node in nodes if node is not None), None)


# --- generated -------------------------------------------------------------------------------------------------------
# Products that TensorRT for RTX writes into generated kernels as a multiplication and a sum, or unrolls step by step.
#
#     x [1, 64] ─ Gemm [64, 10]     ->  __myl_ReshMulSumAdd (kgen), constants [64, 10] Float, Metadata: [ONNX Layer: Gemm]
#     x [8, 2] ─ Gemm [2, 128]      ->  __myl_MoveSlicSlicMulMulAddAdd (kgen), two constants [1, 128] Float, one per row
#     x ─ LSTM, 12 steps            ->  gemm [32, 192] Float, eleven __myl_...MulSum with [1, 48, 192] Float, no metadata
#
# Such a kernel is not a matrix kernel, but its type is known: a weight stored as Float is multiplied as Float. If the
# kernel names its node and reads and writes a single float type, it computes in this type.
#
# Recurrences are recognised by the sizes of their weights, in layers that name no other node.
#
# Evidence: layer dumps of RTX 1.7.1 of products with one row, of matrices of 1 to 5 rows by up to 32 others, and of GRU, LSTM and RNN of 12 to 200 steps, fixed and free.


Sizes = tuple[int, ...]
_MAY_MULTIPLY = frozenset({"Sum", "Etc"})
"""Words in the name of a generated kernel that sums products; long names are cut off and end in Etc."""


def add_generated_kernels(
    flow: Flow, node: Node, weights: tuple[int, ...], holders: LayerMatch, engine: Engine
) -> LayerMatch:
    """Return `holders` with the generated kernels that compute `node`, if it has no compute kernel yet.

    Only kernels whose arithmetic type is proved are added.
    `weights` are the inputs that are known when the engine is built.
    """
    if holders.compute:
        return holders
    if node.op in RECURRENT:
        steps = tuple(_steps(flow.view, node, engine))
        if steps:
            return replace(holders, compute=steps, certainty=Certainty.INFERRED)
    plain = flow.plain.by_name.get(node.name, node)
    shapes = {sizes_of(flow.plain.info(plain.inputs[index]).shape) for index in weights} - {()}
    generated = [layer for layer in holders.other if words(layer)]
    for layer in generated:
        held = next((c for c in layer.constants if c.dtype.is_float and sizes_of(c.shape) in shapes), None)
        if held is not None:
            return replace(
                holders, compute=(_set_arithmetic_type(layer, held.dtype),), certainty=Certainty.STATED
            )
    types = _float_types(generated)
    sums = [layer for layer in generated if _adds_products(node, layer)]
    if len(types) == 1 and sums:
        typed = tuple(_set_arithmetic_type(layer, *types) for layer in sums)
        return replace(holders, compute=typed, certainty=Certainty.STATED)
    return holders


def _adds_products(node: Node, layer: EngineLayer) -> bool:
    """Return True if the name of a generated kernel allows that the kernel computes a matrix product.

    The name contains Sum or is cut off (Etc). For two to four rows, a name with Mul and Add counts too.
    """
    operations = set(words(layer))
    one_by_one = node.op in MATRIX_PRODUCTS and "Mul" in operations and "Add" in operations
    return one_by_one or bool(_MAY_MULTIPLY & operations)


def sizes_of(shape: Sequence[Any] | None) -> Sizes:
    """Return the extents of a shape except 1, sorted. They do not change if the builder stores a weight transposed."""
    return tuple(sorted(size for size in shape or () if isinstance(size, int) and size != 1))


def _float_types(layers: Iterable[EngineLayer]) -> set[DType]:
    """Return the types that layers read if all are float types; else an empty set."""
    read = {tensor.dtype for layer in layers for tensor in (*layer.inputs, *layer.constants)}
    return read if all(dtype.is_float and not dtype.is_quantized for dtype in read) else set()


def _steps(view: GraphView, node: Node, engine: Engine) -> Iterator[EngineLayer]:
    """Yield the layers with a weight of a recurrent node, except layers known to compute only other nodes."""
    pieces = _pieces(view, node)
    for layer in engine.layers:
        names_others = layer.certainty is Certainty.STATED and node.name not in layer.onnx_nodes
        held = None if names_others else _tensor_of_sizes(layer, pieces)
        if held is not None and (layer.role is Role.COMPUTE or "Sum" in words(layer)):
            yield _set_arithmetic_type(layer, held.dtype)


def _pieces(view: GraphView, node: Node) -> frozenset[Sizes]:
    """Return the possible sizes of a recurrent node's weights in an engine: of one to all gates, of one or two directions."""
    sizes: set[Sizes] = set()
    for tensor in node.inputs[1:3]:
        shape = view.constant_shape(tensor) or ()
        if len(shape) == 3:
            gates = STEP_GATES[node.op]
            for count in range(1, gates + 1):
                piece = (shape[1] * count // gates, shape[2])
                sizes |= {sizes_of(piece), sizes_of((shape[0], *piece))}
    return frozenset(sizes)


def _tensor_of_sizes(layer: EngineLayer, pieces: frozenset[Sizes]) -> EngineTensor | None:
    return next(
        (
            constant
            for constant in layer.constants
            if constant.dtype.is_float
            and len(sizes_of(constant.shape)) > 1
            and sizes_of(constant.shape) in pieces
        ),
        None,
    )


def _set_arithmetic_type(layer: EngineLayer, dtype: DType) -> EngineLayer:
    """Return the layer with the inferred precision `dtype`; a compute layer keeps the precision it has."""
    if layer.role is Role.COMPUTE:
        return layer
    return replace(layer, precision=dtype, precision_certainty=Certainty.INFERRED)
