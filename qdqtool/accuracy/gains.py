"""What a change brings at the outputs, with what the samples leave open of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qdqtool.accuracy.intervals import ratio_interval
from qdqtool.core.sensitivity import Cure


def gained(what: str, settings: tuple[str, ...], before: Sequence[float], after: Sequence[float]) -> Cure:
    """The cure whose model has the noises `after` on the samples on which the model without it has `before`."""
    old, new = math.fsum(before), math.fsum(after)
    if not new or not old:
        return Cure(
            what=what,
            settings=settings,
            gain_db=0.0 if new == old else None,
            gain_low=None,
            gain_high=None,
            samples=len(after),
        )
    ends = ratio_interval(np.array(before, np.float64), np.array(after, np.float64))
    return Cure(
        what=what,
        settings=settings,
        gain_db=10 * math.log10(old / new),
        gain_low=None if ends is None else ends.low,
        gain_high=None if ends is None else ends.high,
        samples=len(after),
    )
