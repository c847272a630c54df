"""Checks of times from files, which may hold any value."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float | None:
    """Return `value` as a finite, non-negative float, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None
