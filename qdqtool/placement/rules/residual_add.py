"""Residual Add: quantize the shortcut, never the branch that comes from the convolution.

    before                               after
    x ─┬─ Conv ─ Conv ─ Add ─ Relu       x ─┬─ QDQ ─ Conv ─ ... ─ Conv ─ Add ─ Relu
       └────────────────┘                   └─ QDQ ───────────────────────┘   (same tensor, same scale)

The Conv, the Add and the activation fuse into one kernel that reads the shortcut as INT8, so the producer of x
writes one INT8 tensor and no float copy. That only pays where x is quantized for another consumer anyway: a shortcut
that nobody else wants in INT8 (LayerNormalization or an activation comes first) stays float.

Where both branches come from convolutions of the same input (a downsampling block), RTX reads both results in one
kernel, and rounding one of them saves nothing; classic TensorRT fuses the Add into one of the two, so there the
branch with fewer layers (the second one where they are equal) is quantized.

Evidence: RTX 1.7.1, placement cases res_ok, res_missing (a float copy is written), res_both (double rounding);
MobileNetV2 blocks 7.73 MB against 8.43 MB without; transformer residuals 0.95 MB against 0.92 MB without;
downsampling blocks 2.86 MB whichever branch is quantized. Classic: placement guide of 8.x, NVIDIA/TensorRT issues
1144 and 3205.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.placement.demand import wanted_slots
from qdqtool.trt.ops import PRODUCTS, upstream


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:  # noqa: N802 -- the plug
    """The shortcut input of every Add of two activations."""
    wanted = wanted_slots(view)
    for node in view.nodes:
        if node.op != "Add" or len(node.inputs) != 2 or any(map(view.is_constant, node.inputs)):
            continue
        index = _shared(view, node, wanted)
        shared = index is not None
        reason = "the shortcut is quantized for another layer already, so INT8 here saves a float copy"
        if index is None and not options.builder.is_rtx:
            index = _second_conv(view, node)
            reason = "the Add fuses into one convolution and reads the result of the other as INT8"
        if index is not None:
            yield Opinion(
                slot=Slot(node=node.name, index=index),
                rule="residual_add",
                stance=Stance.REQUEST,
                reason=reason,
                spec=QuantSpec(),
                only_if_shared=shared,
            )


def _shared(view: GraphView, node: Node, wanted: frozenset[Slot]) -> int | None:
    """The input that other layers read as INT8; of two such inputs the one made first."""
    found = [
        (_position(view, tensor), index)
        for index, tensor in enumerate(node.inputs)
        if any(
            Slot(node=use.node.name, index=use.index) in wanted
            for before in upstream(view, tensor)
            for use in view.uses(before)
        )
    ]
    return min(found)[1] if found else None


def _second_conv(view: GraphView, node: Node) -> int | None:
    """The branch with fewer layers, where both come straight from a product."""
    if not all(_is_product(view, tensor) for tensor in node.inputs):
        return None
    return min((1, 0), key=lambda index: _depth(view, node.inputs[index]))


def _is_product(view: GraphView, tensor: str) -> bool:
    producer = view.producer(tensor)
    return producer is not None and producer.op in PRODUCTS and len(view.uses(tensor)) == 1


def _position(view: GraphView, tensor: str) -> int:
    producer = view.producer(tensor)
    return -1 if producer is None else producer.position


def _depth(view: GraphView, tensor: str) -> int:
    """Layers back to the last fork, at most eight."""
    for depth in range(8):
        producer = view.producer(tensor)
        if producer is None or len(view.uses(tensor)) > 1:
            return depth
        tensor = producer.inputs[0]
    return 8
