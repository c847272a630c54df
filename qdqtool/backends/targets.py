"""Normalizes names of GPU architectures."""

from __future__ import annotations

import re

_SPELLING = re.compile(r"(?:sm)?[_-]?(\d+)\.?(\d)", re.ASCII | re.IGNORECASE)


def target_of(word: str) -> str:
    """Normalize a GPU architecture: "86", "8.6", "SM_86" and "sm86" become "sm86". Other words are only lower-cased."""
    spelled = _SPELLING.fullmatch(word.strip())
    return f"sm{spelled[1]}{spelled[2]}" if spelled else word.strip().lower()
