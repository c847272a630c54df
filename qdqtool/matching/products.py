"""Compute nodes: nodes that multiply by weights and are worth computing in INT8."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from qdqtool.core.advice import setting
from qdqtool.core.claims import Claim
from qdqtool.core.dtypes import QUANTIZED_FROM
from qdqtool.core.placement import Bond, Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.beside_attention import is_split
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    FUSES_BEHIND_PRODUCT,
    PRODUCTS,
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
