"""Compute nodes: nodes that multiply by weights and are worth computing in INT8."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from qdqtool.core.advice import setting
from qdqtool.core.claims import Claim
from qdqtool.core.placement import Bond, Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.tensors import QUANTIZED_FROM
from qdqtool.graph.beside_attention import is_split
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    FUSES_BEHIND_PRODUCT,
    PRODUCTS,
    carried_outputs,
    quantization_commutes,
    weight_axis,
)


def is_fused(view: GraphView, reader: Node) -> bool:
    """Return whether the consumer of a compute node runs in the same kernel: an activation, or the Add of a constant bias."""
    bias = reader.op == "Add" and any(view.is_constant(tensor) for tensor in reader.inputs)
    return reader.op in FUSES_BEHIND_PRODUCT or bias


def compute_nodes(view: GraphView, *ops: str) -> Iterator[Node]:
    """Yield the nodes that multiply their first two inputs, of all types or of the given ones."""
    wanted = frozenset(ops) or PRODUCTS
    for node in view.nodes:
        if node.op in wanted and node.domain in {"", "ai.onnx"} and len(node.inputs) >= 2:
            yield node


def factors(node: Node) -> tuple[Slot, Slot]:
    """Return the two slots that are multiplied."""
    return Slot(node=node.name, index=0), Slot(node=node.name, index=1)


def veto(node: Node, reason: str, fix: str, claim: Claim | None = None) -> Iterator[Opinion]:
    """Yield vetoes that keep both factors of `node` float; `claim` is the part of the reason that a build can contradict."""
    for slot in factors(node):
        yield Opinion(slot=slot, stance=Stance.VETO, reason=reason, fix=fix, claim=claim)


def both_or_neither(
    node: Node, specs: Mapping[str, QuantSpec], *, reason: str, alone: str
) -> Iterator[Opinion | Bond]:
    """Yield requests to quantize both factors of `node`.

    `specs` gives the form of constants by tensor name; others get one scale.

    `reason` says what both give, `alone` what one of them does.
    """
    for slot in factors(node):
        yield Opinion(
            slot=slot,
            stance=Stance.REQUEST,
            reason=reason,
            spec=specs.get(node.inputs[slot.index], QuantSpec()),
        )
    yield Bond(slots=factors(node), reason=alone)


def skipping(rule: str, options: PlacementOptions) -> str:
    """Return the setting that skips `rule` in addition to the skipped rules."""
    return setting("place.skip_rules", (*options.skip_rules, rule))


def weight_specs(view: GraphView, options: PlacementOptions) -> dict[str, QuantSpec]:
    """Return how each constant factor is quantized, by tensor name: INT8 per output channel if possible.

    One scale must do for the whole tensor when the recipe says so, when the constant is a vector, or when it is the
    weight of two nodes that have their output channels on different axes. A weight that TensorRT for RTX cuts into
    three (queries, keys, values) stands after Q, for it cuts floats, or has one scale where weights alone are quantized.
    """
    axes: dict[str, set[int | None]] = defaultdict(set)
    split: set[str] = set()
    for node in compute_nodes(view):
        for slot in factors(node):
            tensor = node.inputs[slot.index]
            if view.is_constant(tensor):
                axes[tensor].add(
                    weight_axis(node, slot.index, len(view.constant_shape(tensor) or ()), options.builder)
                    if options.per_channel
                    else None
                )
                if options.builder.is_rtx and is_split(view, node):
                    split.add(tensor)
    specs = {
        tensor: QuantSpec(axis=found.pop() if len(found) == 1 else None) for tensor, found in axes.items()
    }
    for tensor in split:
        if options.activations == "float":
            specs[tensor] = QuantSpec()
        elif specs[tensor].axis is not None:
            specs[tensor] = replace(specs[tensor], stored=False)
    return specs


OTHER_TYPE = "nothing to do by a command; in the model: export it in FP32 or FP16"


def of_other_types(view: GraphView, node: Node) -> Iterator[str]:
    """Yield why a compute node stays float in every format: a factor has a type that cannot be quantized."""
    for tensor in node.inputs[:2]:
        dtype = view.info(tensor).dtype
        if dtype not in QUANTIZED_FROM:
            yield f"its input {tensor} is {dtype}, and only values in FP32 and FP16 are quantized"


# --- demand ----------------------------------------------------------------------------------------------------------
# Slots that lead to a layer that wants INT8, by the graph alone.


def wanted_slots(view: GraphView) -> frozenset[Slot]:
    """Return the slots of compute nodes, and of the commuting nodes and Concats before them."""
    wanted: set[Slot] = set()
    for node in reversed(view.nodes):
        if node.op in PRODUCTS:
            wanted.update(Slot(node=node.name, index=index) for index in (0, 1))
        elif any(_leads_on(view, output, wanted) for output in _carried(view, node)):
            count = len(node.inputs) if node.op == "Concat" else 1
            wanted.update(Slot(node=node.name, index=index) for index in range(count))
    return frozenset(wanted)


def _carried(view: GraphView, node: Node) -> tuple[str, ...]:
    if node.op == "Concat":
        return node.outputs
    return carried_outputs(node) if quantization_commutes(view, node) else ()


def _leads_on(view: GraphView, tensor: str, wanted: set[Slot]) -> bool:
    return any(Slot(node=use.node.name, index=use.index) in wanted for use in view.uses(tensor))


# --- small -----------------------------------------------------------------------------------------------------------
# Convolutions so small that TensorRT for RTX fuses them with their neighbours; used by rules and prediction.


MOST_FOLDED = 4
"""Most channels of a convolution that TensorRT for RTX fuses with its neighbours; see `is_folded`."""


def setting_for(view: GraphView, node: Node, skipped: str) -> str:
    """Return the setting that quantizes a small compute node, or "nothing to do" if it has no kernel of its own.

    A free batch counts as one sample here.
    """
    if node.op == "Conv" and _channels(view, node) <= MOST_FOLDED:
        return (
            f"nothing to do: with {MOST_FOLDED} channels or fewer it is computed together with its neighbours"
        )
    return skipped


def is_folded(view: GraphView, node: Node) -> bool:
    """Return whether a Conv has one position and so few channels that TensorRT for RTX fuses it with its neighbours.

    That is one generated kernel in float, whatever is quantized. By builds of RTX 1.7.1 (SM86, 89 and 120; 1 to 8 channels; 16, 32
    and 96 outputs): up to 4 channels, and for one sample only: of two or more samples it is an INT8 kernel of its own. A free
    batch counts as 1, for which engines are built unless a range is given; see `has_free_batch`.
    """
    if node.op != "Conv" or _channels(view, node) > MOST_FOLDED:
        return False
    shape = view.info(node.inputs[0]).shape or ()
    return (
        len(shape) > 1 and (shape[0] == 1 or isinstance(shape[0], str)) and all(dim == 1 for dim in shape[2:])
    )


def has_free_batch(view: GraphView, node: Node) -> bool:
    """Return whether the first dimension of the node's input is free.

    A Conv that `is_folded` is an INT8 kernel of its own in an engine for more than one sample: of 1, 4 and 5 channels, by 24 builds of
    RTX 1.7.1 (SM86, 89) for 1 to 64 samples, it was one wherever the range allowed two, and else from 5 channels on.
    """
    shape = view.info(node.inputs[0]).shape or ()
    return bool(shape) and isinstance(shape[0], str)


def _channels(view: GraphView, node: Node) -> float:
    shape = view.info(node.inputs[1]).shape or ()
    return shape[1] if len(shape) > 1 and isinstance(shape[1], int) else inf
