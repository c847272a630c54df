"""The only error class of this package."""

from __future__ import annotations


class CalibrationDataError(ValueError):
    """The given numbers cannot make a range. The message says which numbers, and how many."""
