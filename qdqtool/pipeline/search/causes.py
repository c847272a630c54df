"""Says why the noisiest nodes are noisy, and proposes changes that give the network's outputs less noise.

A cause is measured at the node's own output, on float inputs (`graph.instrumented.noise_parts`). A cure is a change of the
recipe that was tried: the whole quantized network was run with it, on the same samples as without it.

    clipped, too coarse, outlier channel   other calibrators for the tensors that the node reads
    outlier channel                        equalization of the network
    weights                                rounding by gptq; scales per channel where there is one for all
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.accuracy.intervals import gained
from qdqtool.accuracy.pairing import feeds_for
from qdqtool.calibration.collect import collect
from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.moments import SAMPLES
from qdqtool.calibration.rounding import GPTQ, WeightRounding, round_weights
from qdqtool.calibration.table import Constants, constants, groups, make_table, make_tables
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import AUTO, InsertOptions, Recipe
from qdqtool.core.sensitivity import CauseKind, Cure, NoiseCause, Sensitivity
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.instrumented.noise_parts import (
    CLIPPING,
    ROUNDING,
    WEIGHTS,
    InputParts,
    LayerParts,
    noise_parts,
)
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.changes import with_changes
from qdqtool.pipeline.ranges.calibrators import competing
from qdqtool.pipeline.ranges.equalization import equalization
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.reference import Budget, OutputReference, Reference
from qdqtool.pipeline.ranges.samples import choosing, others
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLES: Final = 16
"""Samples that causes and cures are measured on, from all over those of the study."""
_OUTLIER: Final = 8.0
"""A channel that reaches so many times as far as the median one leaves the others less than 4 of 7 bits."""
_SHARE: Final = 0.3
"""Part of a node's noise that its weights make, from which other weights are tried."""
_SAME: Final = 0.02
"""Ranges that differ by less are one candidate."""

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The parts that a Q/DQ model was made of, as far as they are known.

    Attributes:
        prepared: the float model, prepared.
        placement: what is quantized.
        table: ranges, shifts and changed weights.
        histograms: what the calibration samples showed; None if they are gone.
        recipe: what it was made with.
    """

    prepared: Model
    placement: Placement
    table: CalibrationTable
    histograms: Histograms | None
    recipe: Recipe


def explained(
    found: Sensitivity,
    model: Model,
    plain: Model | None,
    origin: Origin | None,
    samples: SampleSource,
    on_step: OnStep,
) -> Sensitivity:
    """The study with causes of the nodes that were run exactly, and with cures that were measured.

    Args:
        found: the study.
        model: the Q/DQ model.
        plain: the float model that was quantized, None if only the Q/DQ model is there.
        origin: what the Q/DQ model was made of; without it, keeping nodes float is the only cure that can be tried.
        samples: those of the study.
        on_step: told how many trials are done, and of how many at most.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    names = [row.node for row in found.nodes if row.exact and row.members == (row.node,)]
    taken = choosing(samples, _SAMPLES)
    causes = diagnosed(model, plain, names, taken)
    tried = _Cures(origin, samples, on_step) if origin is not None else None
    rows = []
    for row in found.nodes:
        cause = causes.get(row.node)
        more = tried.of_node(cause) if tried is not None and cause is not None else ()
        rows.append(replace(row, cause=cause, cures=_best_first((*row.cures, *more))))
    everywhere = tried.of_network(causes.values()) if tried is not None else ()
    return replace(found, nodes=tuple(rows), cures=_best_first((*found.cures, *everywhere)))


def _best_first(cures: Collection[Cure]) -> tuple[Cure, ...]:
    return tuple(sorted(cures, key=lambda cure: (not cure.helps, -cure.level)))


def diagnosed(
    model: Model, plain: Model | None, nodes: Collection[str], samples: Sequence[Sample]
) -> dict[str, NoiseCause]:
    """Why these nodes of a Q/DQ model are noisy; nodes without noise have no cause.

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
            known = sums.get(name, np.zeros_like(wide))
            sums[name] = np.maximum(known, wide) if name in reaches else known + wide
    view = (plain or model).view
    found = {}
    for name, layer in layers.items():
        weight = view.constant(layer.weight) if layer.weight and len(layer.scales) == 1 else None
        cause = _cause(layer, sums, len(samples), None if weight is None else _channel_reach(weight))
        if cause is not None:
            found[name] = cause
    return found


def _cause(
    layer: LayerParts, sums: Mapping[str, NDArray[Any]], count: int, weight_reach: float | None
) -> NoiseCause | None:
    parts = {part: float(sums[name]) for part, name in layer.energies.items()}
    total = sum(parts.values())
    if not total:
        return None
    shares = {part: energy / total for part, energy in parts.items()}
    most = max(shares, key=lambda part: shares[part])
    worst = max(layer.inputs, key=lambda one: _lost(one, sums), default=None)
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
        ROUNDING: CauseKind.OUTLIER if reach is not None and reach >= _OUTLIER else CauseKind.COARSE,
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


def _lost(one: InputParts, sums: Mapping[str, NDArray[Any]]) -> float:
    """About what quantization takes from an input, relative to its energy, up to a factor that all inputs share."""
    return _ratio(sums[one.cut], sums[one.energy]) + _ratio(np.float64(one.step**2), sums[one.energy])


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _channel_reach(weight: NDArray[Any]) -> float | None:
    """The largest magnitude of the widest output channel, in those of the median one."""
    rows = np.abs(weight.reshape(weight.shape[0], -1)).max(axis=1)
    usual = float(np.median(rows))
    return float(rows.max()) / usual if usual else None


class _Cures:
    """Tries changes of one network; what it does now is measured once."""

    def __init__(self, origin: Origin, samples: SampleSource, on_step: OnStep) -> None:
        self._origin = origin
        self._samples = samples
        self._on_step = on_step
        self._tried = 0
        changes = origin.table.weights or WeightChanges()
        kept = replace(changes, rounded={})
        # Equalized channels are part of the float model here, as they are where tables are chosen.
        self._plain = with_changes(origin.prepared, kept) if kept else origin.prepared
        self._table = replace(origin.table, weights=WeightChanges(rounded=changes.rounded))
        self._budget = Budget()
        self._reference = OutputReference(
            self._plain,
            samples,
            self._budget,
            bias=bool(origin.table.shifts),
            count=_SAMPLES,
        )
        self._trial = TrialSession(self._plain, origin.placement, self._table, self._reference, self._budget)
        self._judges = self._trial.at_once()
        self._now = self._trial.candidate("", self._table, self._judges)
        self._groups = groups(origin.placement)
        self._known: dict[tuple[str, ...], Cure | None] = {}

    def of_node(self, cause: NoiseCause) -> tuple[Cure, ...]:
        """The best other calibrator for what a node reads, where its weights are not what makes the noise."""
        if cause.kind is CauseKind.WEIGHTS or not cause.tensor:
            return ()
        group = next((one for one in self._groups if cause.tensor in one), None)
        if group is None:
            return ()
        if group not in self._known:
            self._known[group] = max(self._recalibrated(group), key=lambda cure: cure.level, default=None)
        best = self._known[group]
        return () if best is None else (best,)

    def _recalibrated(self, group: tuple[str, ...]) -> Iterator[Cure]:
        ranges = self._table.by_tensor()
        seen = [ranges[group[0]].amax[0]]
        for method, table in self._others.items():
            other = table.by_tensor()
            wanted = other[group[0]].amax[0]
            if any(abs(wanted - amax) <= _SAME * amax for amax in seen):
                continue
            seen.append(wanted)
            mixed = tuple(other.get(name, ranges[name]) if name in group else ranges[name] for name in ranges)
            overrides = {group[0]: method, **self._origin.recipe.calibrate.overrides}
            yield self._cure(
                f"{method} for {group[0]}",
                (f"calibrate.overrides={json.dumps(overrides)}",),
                self._trial.candidate("", replace(self._table, ranges=mixed), self._judges),
            )

    @property
    def _others(self) -> Mapping[str, CalibrationTable]:
        """The table of every calibrator; none if the histograms are gone."""
        histograms = self._origin.histograms
        if histograms is None:
            return {}
        binned = all(found.has_bins for found in histograms.tensors.values())
        methods = competing() if binned else ("max",)
        options = [self._origin.recipe.calibrate.model_copy(update={"method": name}) for name in methods]
        known = Constants(weights=(), bounds=self._constants.bounds)
        made = make_tables(histograms, self._origin.placement, known, options)
        return dict(zip(methods, made, strict=True))

    @property
    def _constants(self) -> Constants:
        return constants(self._origin.placement, self._plain.view, self._origin.recipe.weight_ranges)

    def of_network(self, causes: Collection[NoiseCause]) -> tuple[Cure, ...]:
        """Try changes of the whole network that a cause asks for."""
        kinds = {cause.kind for cause in causes}
        found: list[Cure] = []
        if any(cause.weights >= _SHARE for cause in causes):
            found += self._rounded()
            found += self._per_channel()
        if CauseKind.OUTLIER in kinds or any((cause.weight_reach or 0) >= _OUTLIER for cause in causes):
            found += self._equalized()
        return tuple(found)

    def _rounded(self) -> Iterator[Cure]:
        if self._table.weights and self._table.weights.rounded:
            return
        taken = others(self._plain.view, self._samples, SAMPLES)
        table = round_weights(
            self._plain,
            self._origin.placement,
            self._table,
            WeightRounding(method=GPTQ),
            InsertOptions(),
            taken,
        )
        if table.weights:
            yield self._whole("weights rounded by gptq", "weights.rounding=gptq", self._plain, table)

    def _per_channel(self) -> Iterator[Cure]:
        recipe = self._origin.recipe
        if recipe.place.per_channel:
            return
        finer = recipe.model_copy(update={"place": recipe.place.model_copy(update={"per_channel": True})})
        placement = decide(self._plain.view, finer.placing)
        weights = constants(placement, self._plain.view, recipe.weight_ranges).weights
        own = {entry.tensor: entry for entry in weights}
        ranges = tuple(own.get(entry.tensor, entry) for entry in self._table.ranges)
        missing = {entry.tensor for entry in placement.quantized} - {entry.tensor for entry in ranges}
        if not missing:
            table = replace(self._table, ranges=ranges, weights=None)
            yield self._whole(
                "weight scales per channel", "place.per_channel=true", self._plain, table, placement
            )

    def _equalized(self) -> Iterator[Cure]:
        """Each way, calibrated on the samples that judge, as is what they are compared with."""
        recipe = self._origin.recipe
        if self._origin.table.equalized is not None or recipe.weights.equalize not in {"none", AUTO}:
            return
        before: TriedTable | None = None
        for way in ("cross-layer", "smooth", "depthwise"):
            wanted = recipe.model_copy(
                update={"weights": recipe.weights.model_copy(update={"equalize": way})}
            )
            changes = equalization(self._plain, self._origin.placement, wanted, self._samples)
            if not changes:
                continue
            before = before or self._calibrated(self._plain, self._reference)
            changed = with_changes(self._plain, changes)
            after = self._calibrated(changed, self._reference.of(changed))
            yield self._cure(f"{way} equalization", (f"weights.equalize={way}",), after, before)

    def _calibrated(self, model: Model, reference: Reference) -> TriedTable:
        placement, recipe = self._origin.placement, self._origin.recipe
        table = make_table(
            collect(model, placement, reference.source), placement, model.view, recipe.calibrate
        )
        trial = TrialSession(model, placement, table, reference, Budget())
        return trial.candidate("", table, trial.at_once())

    def _whole(
        self,
        what: str,
        setting: str,
        model: Model,
        table: CalibrationTable,
        placement: Placement | None = None,
    ) -> Cure:
        trial = TrialSession(model, placement or self._origin.placement, table, self._reference, self._budget)
        return self._cure(what, (setting,), trial.candidate("", table, self._judges))

    def _cure(
        self, what: str, settings: tuple[str, ...], after: TriedTable, before: TriedTable | None = None
    ) -> Cure:
        self._tried += 1
        self._on_step(self._tried, self._tried)
        return gained(what, settings, (before or self._now).shares, after.shares)
