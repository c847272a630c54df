"""Calibration and evaluation samples were prepared differently.

Compares the ranges and spreads of every float input, and for images with three channels also their order. Ranges for
0..255 are useless for values of -1..1; in the opposite case everything is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import dist

from qdqtool.core.findings import Severity
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, InputStatistics

_FACTOR = 2.5
"""Ratio of standard deviations that natural sets of the same kind almost never reach."""
_ERRORS = 3.0
"""Standard errors by which the first and the last colour channel must differ, with opposite signs in the two sets."""

_EXPLAINED = 0.5
"""Largest distance between the means of two sets after reversal of the channels, as a share of the distance before."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield one doubt for every input that differs."""
    if evidence.evaluation is None or not evidence.meaningful:
        return
    others = {each.name: each for each in evidence.evaluation.inputs}
    for mine in evidence.calibration.inputs:
        other = others.get(mine.name)
        reason = None if other is None else _difference(mine, other)
        if reason is not None:
            yield Doubt(subject=mine.name, reason=reason, fix="prepare both in the same way, as in training")


def _difference(mine: InputStatistics, other: InputStatistics) -> str | None:
    spread, wide = _spread(mine), _spread(other)
    words = f"calibration {_words(mine)}, evaluation {_words(other)}"
    small, large = sorted((spread, wide))
    if large > 0 and small * _FACTOR < large:
        return f"calibration and evaluation samples have different sizes: {words}"
    distance = abs(_mean(mine) - _mean(other))
    if distance > large > 0:
        return f"calibration and evaluation samples have different values: {words}"
    if _is_reversed(mine, other):
        return (
            "the channels of calibration and evaluation samples seem to have opposite order (RGB and BGR): their means are "
            f"{_listed(mine)} and {_listed(other)}"
        )
    return None


def _is_reversed(mine: InputStatistics, other: InputStatistics) -> bool:
    """Return True if the first colour channel is clearly stronger in one set, and the last one in the other set.

    Sets that are sorted by class can differ like this too (the sky behind aeroplanes is blue); so the swapped order
    must explain most of the difference.
    """
    if min(abs(mine.tilt), abs(other.tilt)) <= _ERRORS or mine.tilt * other.tilt >= 0:
        return False
    return dist(mine.means, other.means[::-1]) < _EXPLAINED * dist(mine.means, other.means)


def _spread(each: InputStatistics) -> float:
    return sum(each.deviations) / len(each.deviations)


def _mean(each: InputStatistics) -> float:
    return sum(each.means) / len(each.means)


def _words(each: InputStatistics) -> str:
    return f"{each.low:.3g}..{each.high:.3g} (standard deviation {_spread(each):.3g})"


def _listed(each: InputStatistics) -> str:
    return ", ".join(f"{mean:.3g}" for mean in each.means)


PLUGIN = DataCheck(code="DAT103", severity=Severity.ERROR, find=find)
