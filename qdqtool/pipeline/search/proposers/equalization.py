"""Equalized channels, if one channel of a node's input or weights is much larger than the other channels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from qdqtool.core.recipe import AUTO
from qdqtool.core.sensitivity import CauseKind, NoiseCause
from qdqtool.pipeline.ranges.equalization import equalization
from qdqtool.pipeline.search.experiment import NetworkEdit
from qdqtool.pipeline.search.proposal import OUTLIER, Proposal, Proposer, TunedNetwork

_WAYS = ("cross-layer", "smooth", "rotate", "depthwise")


def propose(network: TunedNetwork, causes: Collection[NoiseCause]) -> Iterator[Proposal]:
    """Yield the equalizations of channels if the channels are uneven and none is equalized yet."""
    origin = network.origin
    is_uneven = any(
        cause.kind is CauseKind.OUTLIER or (cause.weight_reach or 0) >= OUTLIER for cause in causes
    )
    is_free = origin.table.equalized is None and origin.recipe.weights.equalize in {"none", AUTO}
    for way in _WAYS if is_uneven and is_free else ():
        weights = origin.recipe.weights.model_copy(update={"equalize": way})
        recipe = origin.recipe.model_copy(update={"weights": weights})
        changes = equalization(network.plain, origin.placement, recipe, network.samples)
        if changes:
            yield Proposal(
                edit=NetworkEdit(what=f"{way} equalization", settings=(f"weights.equalize={way}",)),
                measure=partial(network.with_channels, changes),
                is_recalibrated=True,
            )


PLUGIN = Proposer(for_network=propose)
