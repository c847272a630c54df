"""Result of the checks of samples, labels and recipe."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.findings import Finding
from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DataReport(Displayable):
    """Findings about the data, and the figures that they are based on.

    Attributes:
        findings: the most severe first; codes DATnnn.
        calibration: how many calibration samples there are.
        evaluation: how many evaluation samples; None if the calibration samples were used.
        spread: relative difference of the ranges of two halves of the calibration samples, for the median tensor; None
            if there was nothing to split.
        spread_samples: how many samples were split for that.
    """

    findings: tuple[Finding, ...]
    calibration: int
    evaluation: int | None
    spread: float | None
    spread_samples: int
