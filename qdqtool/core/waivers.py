"""`--ignore CODE=reason`: findings that a user accepts, in the one grammar of `lint`, `audit`, `fix` and `audit.ignore`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CODE = re.compile(r"[A-Za-z]{3}\d{3}")


def waivers(entries: Iterable[str]) -> dict[str, str]:
    """Reasons by code or name: "" for an entry without a reason. Codes may be written in small letters."""
    found = {}
    for entry in entries:
        word, _, reason = (part.strip() for part in entry.partition("="))
        found[word.upper() if _CODE.fullmatch(word) else word] = reason
    return found
