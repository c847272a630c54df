"""Passwords do not leave the process: what is printed, logged, raised or written passes through `redacted`."""

from __future__ import annotations

import re

_HIDDEN = "***"
_IN_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s'\"]*@", re.IGNORECASE)
"""`scheme://user:password@`; a password may hold colons, slashes and at signs, so the last at sign ends it."""
_IN_SETTING = re.compile(r"((?:pass(?:word|wd|phrase)?|pwd)\s*=\s*)[^\s&;,'\"]+", re.IGNORECASE)
"""`password=...` in the query of an address or in a connection string; `PGPASSWORD=...` too."""


def redacted(text: str) -> str:
    """The text with the passwords of addresses and connection strings replaced by `***`."""
    if "://" not in text and "=" not in text:
        return text
    return _IN_SETTING.sub(rf"\g<1>{_HIDDEN}", _IN_ADDRESS.sub(rf"\g<1>:{_HIDDEN}@", text))
