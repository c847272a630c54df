"""Ranges in between those of candidates that few samples cannot tell apart.

Noise falls as a range grows until it clips little, and rises as steps grow, so that ranges in between are hardly noisier than the
mean of both sides, and often quieter than either. Each range is the geometric mean of the candidates', each weighted with the
probability that one which is as good as the quietest looks as noisy as it does (paired, sample by sample).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.pipeline.trial import TriedTable

TOLD_APART: Final = 0.05
"""Probability below which a candidate is noisier than the quietest, and has no weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanPart:
    """A candidate's part in the mean.

    Attributes:
        name: calibrator, and margin if any.
        weight: all of them add up to 1.
    """

    name: str
    weight: float


def chance(shares: Sequence[float], quietest: Sequence[float]) -> float:
    """Probability that one which is as good as the quietest looks at least this much noisier or quieter."""
    differences = np.subtract(shares, quietest)
    if not differences.any():
        return 1.0
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    found = math.erfc(abs(float(differences.mean())) / error / math.sqrt(2)) if error else 0.0
    return found if math.isfinite(found) else 0.0


def is_quieter(after: TriedTable, before: TriedTable) -> bool:
    """Whether it is quieter on both halves of the samples, and from sample to sample by more decibels than chance makes of it.

    Where few samples hold most of the noise, any change of the weights gains or loses decibels of the sum.
    """
    both = zip(after.halves, before.halves, strict=True)
    return all(one < two for one, two in both) and chance(after.levels, before.levels) < TOLD_APART


def weighted(shares: Mapping[str, tuple[float, ...]]) -> tuple[MeanPart, ...]:
    """The candidates that cannot be told from the quietest, the heaviest first; `shares` of each sample's noise by name."""
    quietest = min(shares.values(), key=sum)
    chances = {name: chance(one, quietest) for name, one in shares.items()}
    alike = {name: found for name, found in chances.items() if found >= TOLD_APART}
    whole = sum(alike.values())
    order = sorted(alike, key=lambda name: -alike[name])
    return tuple(MeanPart(name=name, weight=alike[name] / whole) for name in order)


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
