"""Kernels that bring the computed block scales of NVFP4 activations into the order in which a product reads them.

    TRT_FP4DynamicQuantize ─┬─ values ────────────────── MatMul
                            └─ scales ─ Move ─ Move ─────┘

The kernel that quantizes a tensor writes its scales in that order itself where the tensor is one matrix of whole tiles.
Else they are moved in kernels of their own: one for a single
matrix, two for every product that reads several. Constant scales are in order from the start.

Evidence: RTX 1.7.1 for SM120, 17 shapes of MatMul and Gemm, one product and two or three of one tensor. None: [128, 256],
[1, 128, 64], [256, 256], [128, 1024]. One (`ConcReshReshMove`): 1, 64 and 197 rows, 272 summed values. Two (`Move`): batches of 2 and
3 with any number of rows. 255 columns instead of 256 take one more, which pads the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import NVFP4
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.matching.silent_float import columns_of
from qdqtool.trt.ops import MATRIX_PRODUCTS

_TILE_ROWS, _TILE_BLOCKS = 128, 4
"""Rows, and blocks of each, whose scales stand together."""
_IN_BATCHES = 2
"""Kernels that order the scales of several matrices."""


def ordered_scales(flow: Flow, precision: Mapping[str, DType]) -> Iterator[str]:
    """The DQ that makes the block scales of an activation, once for every kernel that moves scales, or pads the weight."""
    moved: set[str] = set()
    for product in flow.products():
        scales = _scales(flow, product)
        if precision.get(product.name) is not DType.FLOAT4 or product.op not in MATRIX_PRODUCTS or not scales:
            continue
        tensor = _plain_input(flow, product)
        *batch, rows, summed = (size if isinstance(size, int) else 1 for size in _shape(flow, product))
        if prod(batch) > 1:
            yield from [scales] * _IN_BATCHES
        elif tensor not in moved and (rows % _TILE_ROWS or summed // NVFP4.blocks[0] % _TILE_BLOCKS):
            moved.add(tensor)
            yield scales
        if (columns_of(product, flow.view.info(product.inputs[1]).shape or ()) or 0) % 2:
            yield scales


def are_open(flow: Flow, product: Node) -> bool:
    """Whether free dimensions leave open how many kernels order the scales of a product."""
    return bool(_scales(flow, product)) and any(not isinstance(size, int) for size in _shape(flow, product))


def _scales(flow: Flow, product: Node) -> str:
    """The name of the DQ that makes the computed block scales of input 0; "" where it has none, or its shape is not known."""
    quantization = flow.lifted.assignment.get(Slot(node=product.name, index=0))
    computed = quantization is not None and quantization.format == NVFP4 and quantization.scale is None
    maker = flow.view.producer(product.inputs[0])
    if not computed or maker is None or len(maker.inputs) < 2 or len(_shape(flow, product)) < 2:
        return ""
    scales = flow.view.producer(maker.inputs[1])
    return "" if scales is None else scales.name


def _shape(flow: Flow, product: Node) -> tuple[int | str, ...]:
    """The shape of input 0, which the float graph knows where operators of TensorRT stand in front."""
    return flow.view.info(product.inputs[0]).shape or flow.plain.info(_plain_input(flow, product)).shape or ()


def _plain_input(flow: Flow, product: Node) -> str:
    """Input 0 in the float graph, which lacks what leads to no output."""
    return flow.plain.by_name.get(product.name, product).inputs[0]
