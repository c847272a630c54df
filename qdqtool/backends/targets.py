"""GPU architectures in one spelling."""

from __future__ import annotations

import re

_SPELLING = re.compile(r"(?:sm)?[_-]?(\d+)\.?(\d)", re.ASCII | re.IGNORECASE)


def target_of(word: str) -> str:
    """A GPU architecture in one spelling: "86", "8.6", "SM_86" and "sm86" are all "sm86"; other words stay."""
    spelled = _SPELLING.fullmatch(word.strip())
    return f"sm{spelled[1]}{spelled[2]}" if spelled else word.strip().lower()
