"""Finds why the noisiest nodes are noisy, and measures changes that may reduce the noise of the network's outputs.

A cause is measured at the node's own output, on float inputs (`graph.instrumented.noise_parts`). A cure is a change
that a file in `proposers` proposes for a cause. The whole quantized network is run with the cure, on the samples that
it ran without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.side_by_side import feeds_for
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.sensitivity import CauseKind, Cure, NoiseCause, Sensitivity
from qdqtool.graph.instrumented.noise_parts import (
    CLIPPING,
    ROUNDING,
    WEIGHTS,
    InputParts,
    LayerParts,
    noise_parts,
)
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.samples import choosing
from qdqtool.pipeline.search.experiment import NetworkEdit
from qdqtool.pipeline.search.proposal import (
    OUTLIER,
    PROPOSERS,
    SAMPLES,
    Origin,
    Proposal,
    Proposer,
    TunedNetwork,
)
from qdqtool.runtime.runner import open_model

OnStep = Callable[[int, int], None]


def add_causes(
    study: Sensitivity,
    model: Model,
    plain: Model | None,
    origin: Origin | None,
    samples: SampleSource,
    on_step: OnStep,
) -> Sensitivity:
    """Add causes to the nodes of a sensitivity study that were measured exactly, and changes whose gain was measured.

    Args:
        study: the study.
        model: the Q/DQ model.
        plain: the float model that was quantized, None if only the Q/DQ model is there.
        origin: the parts from which the Q/DQ model was made; without them, only keeping nodes float can be tried as a cure.
        samples: the samples of the study.
        on_step: called with the number of finished trials, given twice, because their total is not known before the end.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    names = [row.node for row in study.nodes if row.exact and row.members == (row.node,)]
    taken = choosing(samples, SAMPLES)
    causes = diagnose_nodes(model, plain, names, taken)
    tried = _CureSearch(origin, samples, on_step) if origin is not None else None
    rows = []
    for row in study.nodes:
        cause = causes.get(row.node)
        more = tried.of_node(cause) if tried is not None and cause is not None else ()
        rows.append(replace(row, cause=cause, cures=_best_first((*row.cures, *more))))
    everywhere = tried.of_network(causes.values()) if tried is not None else ()
    return replace(study, nodes=tuple(rows), cures=_best_first((*study.cures, *everywhere)))


def _best_first(cures: Collection[Cure]) -> tuple[Cure, ...]:
    return tuple(sorted(cures, key=lambda cure: (not cure.helps, -cure.level)))


def diagnose_nodes(
    model: Model, plain: Model | None, nodes: Collection[str], samples: Sequence[Sample]
) -> dict[str, NoiseCause]:
    """Find why these nodes of a Q/DQ model are noisy. Nodes without noise get no cause.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    watched, layers = noise_parts(model, nodes, plain)
    if not layers:
        return {}
    runner = open_model(watched, description="parts of noise")
    sums: dict[str, NDArray[Any]] = {}
    reaches = {part.reach for layer in layers.values() for part in layer.inputs if part.reach}
    for sample in samples:
        for name, value in runner.run(feeds_for(runner, sample)).items():
            wide = value.astype(np.float64)
            so_far = sums.get(name, np.zeros_like(wide))
            sums[name] = np.maximum(so_far, wide) if name in reaches else so_far + wide
    view = (plain or model).view
    causes_of = {}
    for name, layer in layers.items():
        weight = view.constant(layer.weight) if layer.weight and len(layer.scales) == 1 else None
        cause = _cause(layer, sums, len(samples), _channel_reach(weight, layer.axis))
        if cause is not None:
            causes_of[name] = cause
    return causes_of


def _cause(
    layer: LayerParts, sums: Mapping[str, NDArray[Any]], count: int, weight_reach: float | None
) -> NoiseCause | None:
    parts = {part: float(sums[name]) for part, name in layer.energies.items()}
    total = sum(parts.values())
    if not total:
        return None
    shares = {part: energy / total for part, energy in parts.items()}
    most = max(shares, key=lambda part: shares[part])
    worst = max(layer.inputs, key=lambda part: _estimate_loss(part, sums), default=None)
    channel, reach, spread_ = None, None, None
    if worst is not None and worst.reach:
        magnitudes = np.atleast_1d(sums[worst.reach])
        usual = float(np.median(magnitudes))
        channel = int(magnitudes.argmax())
        reach = float(magnitudes[channel]) / usual if usual else None
        square, mean = (np.atleast_1d(sums[name]) / count for name in (worst.square, worst.mean))
        spread_ = float(np.median(np.sqrt(np.maximum(square - mean**2, 0.0))))
    kinds = {
        CLIPPING: CauseKind.CLIPPED,
        WEIGHTS: CauseKind.WEIGHTS,
        ROUNDING: CauseKind.OUTLIER if reach is not None and reach >= OUTLIER else CauseKind.COARSE,
    }
    return NoiseCause(
        kind=kinds[most],
        clipping=shares.get(CLIPPING, 0.0),
        rounding=shares.get(ROUNDING, 0.0),
        weights=shares.get(WEIGHTS, 0.0),
        tensor="" if worst is None else worst.tensor,
        clipped_energy=0.0 if worst is None else _ratio(sums[worst.cut], sums[worst.energy]),
        step=0.0 if worst is None else worst.step,
        spread=spread_,
        channel=channel,
        reach=reach,
        weight_reach=weight_reach,
        samples=count,
    )


def _estimate_loss(part: InputParts, sums: Mapping[str, NDArray[Any]]) -> float:
    """Estimate how much of an input's energy quantization removes, in an arbitrary unit."""
    return _ratio(sums[part.cut], sums[part.energy]) + _ratio(np.float64(part.step**2), sums[part.energy])


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _channel_reach(weight: NDArray[Any] | None, axis: int | None) -> float | None:
    """Return the ratio of the largest output channel of a weight to the median channel, by largest magnitude.

    None without a weight, or without an axis of output channels.
    """
    if weight is None or axis is None:
        return None
    rows = np.abs(np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)).max(axis=1)
    usual = float(np.median(rows))
    return float(rows.max()) / usual if usual else None


class _CureSearch:
    """Measures the changes that proposers suggest for one network. Equal edits are measured once."""

    def __init__(self, origin: Origin, samples: SampleSource, on_step: OnStep) -> None:
        self._network = TunedNetwork(origin, samples)
        self._on_step = on_step
        self._known: dict[NetworkEdit, Cure] = {}

    def of_node(self, cause: NoiseCause) -> tuple[Cure, ...]:
        """Return the best change of each proposer for a node."""
        cures_of_each = self._cures_of_each(
            lambda proposer: proposer.for_node and proposer.for_node(self._network, cause)
        )
        return tuple(max(cures, key=lambda cure: cure.level) for cures in cures_of_each)

    def of_network(self, causes: Collection[NoiseCause]) -> tuple[Cure, ...]:
        """Return all changes of the whole network that a cause suggests."""
        cures_of_each = self._cures_of_each(
            lambda proposer: proposer.for_network and proposer.for_network(self._network, causes)
        )
        return tuple(cure for cures in cures_of_each for cure in cures)

    def _cures_of_each(self, ask: Callable[[Proposer], Iterable[Proposal] | None]) -> Iterator[list[Cure]]:
        """Yield the changes from each proposer. If a third-party proposer fails, skip it with a warning."""
        for name in PROPOSERS.usable():
            cures: list[Cure] = []

            def try_proposer(proposer: Proposer, cures: list[Cure] = cures) -> None:
                cures += [self._measure_proposal(proposal) for proposal in ask(proposer) or ()]

            if PROPOSERS.owner(name) is None:
                try_proposer(PROPOSERS.load(name))
            elif not PROPOSERS.survives(name, try_proposer):
                continue
            if cures:
                yield cures

    def _measure_proposal(self, proposal: Proposal) -> Cure:
        if proposal.edit not in self._known:
            before = self._network.recalibrated if proposal.is_recalibrated else self._network.now
            self._known[proposal.edit] = proposal.edit.gain(before.shares, proposal.measure().shares)
            self._on_step(len(self._known), len(self._known))
        return self._known[proposal.edit]
