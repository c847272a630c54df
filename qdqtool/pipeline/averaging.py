"""Ranges in between those of candidates that few samples cannot tell apart.

Noise falls as a range grows until it clips little, and rises as steps grow, so that ranges in between are hardly noisier than the
mean of both sides, and often quieter than either. Each range is the geometric mean of the candidates', each weighted with the
probability that one which is as good as the quietest looks as noisy as it does (`core.evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.evidence import better, tied
from qdqtool.pipeline.trial import TriedTable


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanPart:
    """A candidate's part in the mean.

    Attributes:
        name: calibrator, and margin if any.
        weight: all of them add up to 1.
    """

    name: str
    weight: float


def is_quieter(after: TriedTable, before: TriedTable, gain_db: float = 0.0, candidates: int = 1) -> bool:
    """Whether the outputs gain more than `gain_db` on all samples together, and significantly from sample to sample.

    A few samples may hold most of the noise, and any change of the weights gains or loses decibels of their sum. So samples
    are compared in decibels, where each weighs the same. `candidates` is how many changes were compared with `before`.
    """
    gains = after.noise < before.noise and after.decibel - before.decibel > gain_db
    return gains and better(after.levels, before.levels, candidates=candidates)


def weighted(shares: Mapping[str, tuple[float, ...]]) -> tuple[MeanPart, ...]:
    """The candidates that are statistically tied with the quietest, the heaviest first; `shares` of each sample's noise by name."""
    chances = tied(shares)
    whole = sum(chances.values())
    order = sorted(chances, key=lambda name: -chances[name])
    return tuple(MeanPart(name=name, weight=chances[name] / whole) for name in order)


def mean_table(tables: Mapping[str, CalibrationTable], parts: Sequence[MeanPart]) -> CalibrationTable:
    """The table of means, without shifts; a range says of whose, and the heaviest is its calibrator."""
    rows = [tables[one.name].by_tensor() for one in parts]
    weights = [one.weight for one in parts]
    told = "mean of " + ", ".join(f"{one.name} ({100 * one.weight:.0f} %)" for one in parts)

    def mean(entry: TensorRange) -> TensorRange:
        values = np.array([row[entry.tensor].amax for row in rows])
        if (values == values[0]).all():
            return entry
        amax = np.exp(np.average(np.log(values), axis=0, weights=weights))
        note = "; ".join(word for word in (entry.note, told) if word)
        return replace(entry, amax=tuple(float(one) for one in amax), note=note)

    heaviest = tables[parts[0].name]
    return replace(heaviest, ranges=tuple(mean(entry) for entry in heaviest.ranges), shifts=())
