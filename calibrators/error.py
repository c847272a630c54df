"""The one error of this package."""

from __future__ import annotations


class CalibrationDataError(ValueError):
    """The numbers handed in cannot give a range; the text names what and how many."""
