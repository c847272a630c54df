"""The result of a calibrator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The magnitude that becomes the largest number of a format.

    Attributes:
        amax: finite, never negative, never above the largest magnitude seen; 0 when nothing but zeros was seen.
        method: the calibrator that chose it.
    """

    amax: float
    method: str
