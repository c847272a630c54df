"""Other weights, if weights make much of a node's noise: rounded by `gptq`, or with one scale per channel."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from qdqtool.calibration.moments import SAMPLES
from qdqtool.calibration.rounding import GPTQ, WeightRounding, round_weights
from qdqtool.calibration.table import constants
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.sensitivity import NoiseCause
from qdqtool.pipeline.ranges.samples import fitting_samples
from qdqtool.pipeline.search.experiment import NetworkEdit
from qdqtool.pipeline.search.proposal import Proposal, Proposer, TunedNetwork
from qdqtool.placement.decide import decide

_SHARE: Final = 0.3
"""Share of a node's noise that its weights must make before other weights are tried."""


def propose(network: TunedNetwork, causes: Collection[NoiseCause]) -> Iterator[Proposal]:
    """Yield weights rounded by `gptq`, then scales per channel, if weights cause much of the noise."""
    if any(cause.weights >= _SHARE for cause in causes):
        yield from _propose_rounding(network)
        yield from _per_channel(network)


def _propose_rounding(network: TunedNetwork) -> Iterator[Proposal]:
    plain, table = network.plain, network.table
    if table.weights and table.weights.rounded:
        return
    fitting = fitting_samples(plain.view, network.samples, SAMPLES)
    rounding = WeightRounding(method=GPTQ)
    rounded = round_weights(plain, network.origin.placement, table, rounding, InsertOptions(), fitting)
    if rounded.weights:
        edit = NetworkEdit(what="weights rounded by gptq", settings=("weights.rounding=gptq",))
        yield Proposal(edit=edit, measure=partial(network.with_table, rounded))


def _per_channel(network: TunedNetwork) -> Iterator[Proposal]:
    recipe = network.origin.recipe
    if recipe.place.per_channel:
        return
    finer = recipe.model_copy(update={"place": recipe.place.model_copy(update={"per_channel": True})})
    placement = decide(network.plain.view, finer.placing)
    weights = constants(placement, network.plain.view, recipe.weight_ranges).weights
    own = {entry.tensor: entry for entry in weights}
    ranges = tuple(own.get(entry.tensor, entry) for entry in network.table.ranges)
    if {entry.tensor for entry in placement.quantized} <= {entry.tensor for entry in ranges}:
        table = replace(network.table, ranges=ranges, weights=None)
        edit = NetworkEdit(what="weight scales per channel", settings=("place.per_channel=true",))
        yield Proposal(edit=edit, measure=partial(network.with_table, table, placement))


PLUGIN = Proposer(for_network=propose)
