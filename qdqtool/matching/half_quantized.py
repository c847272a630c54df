"""Compute nodes that have Q/DQ on one input only, and Q/DQ pairs for the other input if its range was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite

from qdqtool.core.dtypes import DType
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.slots import requantize
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.operands import Factor, Product, State, products
from qdqtool.trt.ops import MATRIX_PRODUCTS, holds_dequantize_back, quantization_commutes

_WIDE = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of quantized constants that can become INT8. INT4 constants are meant for float activations, FP8
constants for FP8 ones.
"""


def half_quantized(flow: Flow, target: Target, *, alone: bool = False) -> Iterator[tuple[Product, Factor]]:
    """Yield compute nodes with one quantized factor, each with its float factor, in graph order.

    A matrix product dequantizes stored weights in its kernel, which is what weight-only recipes ask for; beside products
    in INT8 its activation may have been forgotten. A convolution with INT8 weights is meant to be INT8. With `alone`
    every matrix product with INT8 weights counts, as after dynamic quantization was taken off.
    """
    found = tuple(products(flow, target))
    others = any(product.arithmetic == INT8.name for product in found)
    for product in found:
        bare = [factor for factor in product.factors if not factor.quantized]
        stored = product.weights_alone
        if len(bare) != 1 or _reads_unequal_branches(flow, product.node, bare[0].index):
            continue  # the rule concat tells it
        if stored is None or _is_half(product, stored, target, others=others or alone):
            yield product, bare[0]


def scales_of_branches(flow: Flow, concat: Node) -> int:
    """Count the different scales of the branches of a Concat; 0 if a branch is float."""
    pairs = [flow.origins.get(tensor) for tensor in concat.inputs]
    return 0 if None in pairs else len({pair.scale for pair in pairs if pair is not None})


def _reads_unequal_branches(flow: Flow, node: Node, index: int) -> bool:
    maker = flow.view.producer(node.inputs[index])
    return maker is not None and maker.op == "Concat" and scales_of_branches(flow, maker) > 1


def _is_half(product: Product, stored: Factor, target: Target, *, others: bool) -> bool:
    convolves = product.node.op not in MATRIX_PRODUCTS
    if stored.format != INT8.name or stored.state is State.BLOCKS:
        return (
            convolves and not target.is_rtx
        )  # for TensorRT for RTX the rules weights_apart and blocks tell it
    return others or convolves


def asks_int8(product: Product) -> bool:
    """Return whether the quantized factor is INT8."""
    return product.asked.startswith(INT8.name)


def _half_int8(model: Model) -> Iterator[tuple[Node, int]]:
    """Yield the float factors of compute nodes whose other factor is INT8, as node and input number."""
    for product, bare in half_quantized(Flow(model), Target(), alone=True):
        if asks_int8(product):
            yield product.node, bare.index


def is_quantized(view: GraphView, tensor: str) -> bool:
    """Return whether a Q/DQ pair produces the tensor, directly or through operators that can carry integers."""
    maker = view.producer(tensor)
    while maker is not None and quantization_commutes(view, maker) and not holds_dequantize_back(view, maker):
        maker = view.producer(maker.inputs[0])
    if maker is not None and maker.op == "Concat":
        return all(is_quantized(view, name) for name in maker.inputs)
    if maker is None or maker.op != DEQUANTIZE:
        return False
    return not view.is_constant(maker.inputs[0]) or view.info(maker.inputs[0]).dtype in _WIDE


def tensors_without_range(model: Model) -> tuple[str, ...]:
    """Return the run-time tensors that need a range: float inputs of compute nodes whose other input is quantized."""
    names = {node.inputs[index] for node, index in _half_int8(model)}
    return tuple(sorted(name for name in names if not model.view.is_constant(name)))


def quantize_activations(model: Model, amax: Mapping[str, float]) -> tuple[Model, tuple[Change, ...]]:
    """Insert a pair with scale amax / 127 before each float input beside an INT8 factor, if its tensor has a range.

    Ranges that are not positive numbers are passed over.
    """
    edits, told = [], []
    for node, index in _half_int8(model):
        tensor = node.inputs[index]
        range_ = amax.get(tensor, 0.0)
        if not isfinite(range_) or range_ <= 0:
            continue
        edit = SlotEdit(slot=Slot(node=node.name, index=index), scales=(range_ / INT8.qmax,))
        edits.append(edit)
        told.append(
            Change(
                rule="half_quantized",
                subject=tensor,
                what=f"quantized for {node.op} {node.name!r} with the measured range {range_:.4g}",
                reason="a quantized weight with a float activation runs in float",
                edits=(edit,),
            )
        )
    return (requantize(model, edits) if edits else model), tuple(told)
