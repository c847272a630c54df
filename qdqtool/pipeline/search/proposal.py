"""Shared parts of proposers: the network that they change, and changes that can be measured.

A proposer is a file in `proposers`. It looks at the causes of noise, and yields changes that may help. The search
measures each cure once (`causes`), on the samples that ran without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from qdqtool.calibration.collect import collect
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.table import Constants, constants, make_table
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import SampleSource
from qdqtool.core.recipe import Recipe
from qdqtool.core.sensitivity import NoiseCause
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.qdq.changes import with_changes
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.calibrators import single_tables
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.reference import Budget, OutputReference, Reference
from qdqtool.pipeline.search.experiment import NetworkEdit, OutputNoise
from qdqtool.plugins import Registry

PROPOSERS: Final = Registry(package="qdqtool.pipeline.search.proposers")
SAMPLES: Final = 16
"""Samples for measurements of causes and changes, evenly spaced in those of the study."""
OUTLIER: Final = 8.0
"""Ratio of a channel's largest magnitude to that of the median channel from which the others keep less than 4 of 7 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The parts from which a Q/DQ model was made, such as placement and ranges.

    Attributes:
        prepared: the float model, prepared.
        placement: the placement.
        table: ranges, shifts and changed weights.
        histograms: histograms of the calibration samples; None if they no longer exist.
        recipe: the recipe that made it.
    """

    prepared: Model
    placement: Placement
    table: CalibrationTable
    histograms: Histograms | None
    recipe: Recipe


class TunedNetwork:
    """A quantized network whose output noise can be measured with other ranges, weights or channels.

    Attributes:
        origin: the parts from which it was made.
        samples: the samples of the study.
        plain: the float model; equalized channels are part of it.
        table: its ranges, without these changes.
    """

    def __init__(self, origin: Origin, samples: SampleSource) -> None:
        self.origin, self.samples = origin, samples
        changes = origin.table.weights or WeightChanges()
        kept = replace(changes, rounded={})
        self.plain = with_changes(origin.prepared, kept) if kept else origin.prepared
        self.table = replace(origin.table, weights=WeightChanges(rounded=changes.rounded))
        self._budget = Budget()
        bias = bool(origin.table.shifts)
        self._reference = OutputReference(self.plain, samples, self._budget, bias=bias, count=SAMPLES)
        self._trial = TrialSession(self.plain, origin.placement, self.table, self._reference, self._budget)
        self._judges = self._trial.at_once()
        self.now: OutputNoise = self._trial.candidate("", self.table, self._judges)

    def with_ranges(self, ranges: Iterable[TensorRange]) -> OutputNoise:
        """Measure the output noise with other ranges."""
        return self._trial.candidate("", replace(self.table, ranges=tuple(ranges)), self._judges)

    def with_table(self, table: CalibrationTable, placement: Placement | None = None) -> OutputNoise:
        """Measure the output noise with other weights, and another placement if one is given."""
        placement = placement or self.origin.placement
        trial = TrialSession(self.plain, placement, table, self._reference, self._budget)
        return trial.candidate("", table, self._judges)

    def with_channels(self, changes: WeightChanges) -> OutputNoise:
        """Measure the output noise with scaled channels, calibrated on the samples of the measurement."""
        changed = with_changes(self.plain, changes)
        return self._calibrate_model(changed, self._reference.of(changed))

    @cached_property
    def tables(self) -> Mapping[str, CalibrationTable]:
        """Calibration tables of the calibrators that `auto` compares; empty if there are no histograms."""
        origin = self.origin
        if origin.histograms is None:
            return {}
        binned = all(histogram.has_bins for histogram in origin.histograms.tensors.values())
        bounds = constants(origin.placement, self.plain.view, origin.recipe.weight_ranges).bounds
        fixed = Constants(weights=(), bounds=bounds)
        collected = (origin.histograms, fixed)
        return single_tables(
            origin.placement, collected, origin.recipe.calibrate, methods=() if binned else ("max",)
        )

    @cached_property
    def recalibrated(self) -> OutputNoise:
        """Output noise of the unchanged network after a new calibration: the baseline for scaled channels."""
        return self._calibrate_model(self.plain, self._reference)

    def _calibrate_model(self, model: Model, reference: Reference) -> OutputNoise:
        placement = self.origin.placement
        options = CollectOptions(on_nan=self.origin.recipe.samples.nan)
        histograms = collect(model, placement, reference.source, options=options)
        table = make_table(histograms, placement, model.view, self.origin.recipe.calibrate)
        trial = TrialSession(model, placement, table, reference, Budget())
        return trial.candidate("", table, trial.at_once())


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A change of a noisy network that can be measured.

    Attributes:
        edit: the change.
        measure: returns the noise with the change.
        is_recalibrated: whether the change takes another calibration, so that it is compared with `TunedNetwork.recalibrated`.
    """

    edit: NetworkEdit
    measure: Callable[[], OutputNoise]
    is_recalibrated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposer:
    """A plug-in that proposes one kind of change for noisy networks.

    Attributes:
        for_node: changes for a node whose noise has this cause; the best one is reported. None if there are none.
        for_network: changes of the whole network, from the causes of its noisiest nodes. None if there are none.
    """

    for_node: Callable[[TunedNetwork, NoiseCause], Iterator[Proposal]] | None = None
    for_network: Callable[[TunedNetwork, Collection[NoiseCause]], Iterator[Proposal]] | None = None
