"""Other calibrators for the tensor that a node reads, unless the weights of the node make most of the noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from glob import escape
from typing import Final

from qdqtool.calibration.table import groups
from qdqtool.core.sensitivity import CauseKind, NoiseCause
from qdqtool.pipeline.search.experiment import NetworkEdit
from qdqtool.pipeline.search.proposal import Proposal, Proposer, TunedNetwork

_SAME: Final = 0.02
"""Ranges that differ by less are one candidate."""


def propose(network: TunedNetwork, cause: NoiseCause) -> Iterator[Proposal]:
    """Yield the ranges of each calibrator for the noisy tensor and all tensors that share its range."""
    shared = groups(network.origin.placement)
    group = next((members for members in shared if cause.tensor in members), ())
    if cause.kind is CauseKind.WEIGHTS or not group:
        return
    ranges = network.table.by_tensor()
    peaks = [ranges[group[0]].amax[0]]
    for method, table in network.tables.items():
        candidate = table.by_tensor()
        amax = candidate[group[0]].amax[0]
        if any(abs(amax - earlier) <= _SAME * earlier for earlier in peaks):
            continue
        peaks.append(amax)
        mixed = [candidate.get(name, ranges[name]) if name in group else ranges[name] for name in ranges]
        overrides = {escape(group[0]): method, **network.origin.recipe.calibrate.overrides}
        edit = NetworkEdit(
            what=f"{method} for {group[0]}", settings=(f"calibrate.overrides={json.dumps(overrides)}",)
        )
        yield Proposal(edit=edit, measure=partial(network.with_ranges, mixed))


PLUGIN = Proposer(for_node=propose)
