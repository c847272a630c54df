"""Kernels of TensorRT for RTX that stand beside a product and name no other node.

    Conv │ output                               its result is scaled and put in the order of an output
    w ─ Q ─ DQ │ Conv (float)                   its weights are made float, in every inference
    Transpose ─ Q ─ DQ │ MatMul │ split         an odd number of rows: padded in front of it, and cut behind it
    Q ─ DQ │ Conv of sounds, depthwise           four channels at a time: padded in front of it

What reads the result of a convolution does the first, and cuts it where one kernel reads it.

Evidence: RTX 1.7.1: 70 of the Q/DQ graphs of this project's tests, whose engines have a kernel more than their nodes tell, and 48
products of INT8 of 4 to 13 rows in either order, with one reader and two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.prediction import PredictedLayer
from qdqtool.graph.products import has_weights
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import Node
from qdqtool.prediction.epilogues import Epilogues, swaps_last
from qdqtool.trt.ops import CONVOLUTIONS, MATRIX_PRODUCTS

_PLANE = 2
"""Axes of a picture in front of its places: samples and channels."""
_LINE, _TOGETHER = 3, 4
"""Axes of the weights of a convolution along one axis, and how many INT8 values are read together."""


def beside(
    flow: Flow, precision: Mapping[str, DType], before: Collection[str], merged: Sequence[Sequence[str]]
) -> Iterator[PredictedLayer]:
    """The kernels beside all products, as layers that hold nothing but the product.

    Args:
        flow: the model.
        precision: what each product computes in.
        before: matrix products whose stored weights are made float by another kernel.
        merged: the nodes of all kernels, several products in those that do them at once.
    """
    epilogues = Epilogues(flow, precision)
    together = {name: names for names in merged for name in names}
    for node in flow.products():
        found = []
        folded = epilogues.is_folded(node)
        if node.name in before or (not folded and _weights_are_made_float(flow, node, precision)):
            found.append("weights")
        if _is_padded_line(flow, node, precision):
            found.append("padded")
        if not folded and _ends_the_network(flow, node, epilogues):
            found.append("result")
        if _has_turned_odd_rows(flow, node, precision):
            products = [name for name in together[node.name] if flow.view.by_name[name].op in MATRIX_PRODUCTS]
            if products[0] == node.name:
                found.append("padded")
                found += ["cut"] * (len(products) > 1)
        for what in found:
            yield layer_beside(node.name, what)


def layer_beside(product: str, what: str) -> PredictedLayer:
    """A kernel that does something for a product and names it alone."""
    return PredictedLayer(name=f"{product} ({what})", nodes=(product,), beside=what)


def _weights_are_made_float(flow: Flow, node: Node, precision: Mapping[str, DType]) -> bool:
    """Whether a convolution of floats has weights in few bits."""
    if node.op not in CONVOLUTIONS or precision[node.name].is_quantized:
        return False
    pair = flow.origin(node, 1)
    return pair is not None and pair.kind is SlotKind.WEIGHT


def _is_padded_line(flow: Flow, node: Node, precision: Mapping[str, DType]) -> bool:
    """Whether a convolution of INT8 along one axis has groups of fewer channels than it reads: its input is padded apart."""
    if node.op != "Conv" or precision[node.name] is not DType.INT8 or node.integer("group", 1) == 1:
        return False
    shape = flow.view.info(node.inputs[1]).shape or ()
    return len(shape) == _LINE and isinstance(shape[1], int) and shape[1] % _TOGETHER != 0


def _ends_the_network(flow: Flow, node: Node, epilogues: Epilogues) -> bool:
    """Whether the result of a convolution, its own activation included, leaves the network in another order or scale."""
    if node.op not in CONVOLUTIONS:
        return False
    view = flow.view
    last = (node, *epilogues.of(node))[-1]
    tensor = last.outputs[0]
    if view.uses(tensor) or not view.is_output(tensor):
        return False
    shape = view.info(tensor).shape or ()
    places, channels = shape[_PLANE:], shape[1:_PLANE]
    ordered = all(size == 1 for size in places) or channels == (1,)
    return epilogues.is_scaled_apart(node) or not ordered


def _has_turned_odd_rows(flow: Flow, node: Node, precision: Mapping[str, DType]) -> bool:
    """Whether a matrix product of INT8 and weights reads an odd number of rows as columns."""
    if (
        node.op not in MATRIX_PRODUCTS
        or precision[node.name] is not DType.INT8
        or not has_weights(flow.view, node)
    ):
        return False
    pair = flow.origin(node, 0)
    maker = None if pair is None else flow.view.producer(pair.tensor)
    if maker is None or maker.op != "Transpose" or not swaps_last(maker):
        return False
    shape = flow.view.info(maker.outputs[0]).shape or ()
    rows = shape[-_PLANE] if len(shape) >= _PLANE else 0
    return isinstance(rows, int) and rows > 1 and rows % 2 == 1
