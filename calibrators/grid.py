"""The magnitudes that a number format can store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """The magnitudes of a symmetric format, in units of the format: 0, 1 ... 127 for INT8; 0, 0.5, 1, 1.5, 2, 3, 4, 6 for FP4.

    Attributes:
        magnitudes: (levels,) float64, ascending from 0; a range's amax becomes the last one.
    """

    magnitudes: NDArray[np.float64]

    @property
    def top(self) -> float:
        """The largest magnitude: scale = amax / top."""
        return float(self.magnitudes[-1])

    @property
    def is_even(self) -> bool:
        """True if neighbours differ by 1, as for integers."""
        return bool((np.diff(self.magnitudes) == 1).all())


def grid_of(magnitudes: Sequence[float] | NDArray[np.float64]) -> Grid:
    """Return the grid of these magnitudes, given in any order. Signs and duplicates are ignored."""
    return Grid(magnitudes=np.unique(np.abs(np.asarray(magnitudes, np.float64))))
