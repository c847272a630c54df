"""Removes passwords from everything that is printed, logged, raised or written; `redact_text` does this."""

from __future__ import annotations

import re

_HIDDEN = "***"
_TELLING = 3
"""Fewest characters of a piece of a password that is removed; shorter pieces occur in every message."""
_IN_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s'\"]*@", re.IGNORECASE)
"""`scheme://user:password@`; a password may hold colons, slashes and at signs, so the last at sign ends it."""
_IN_SETTING = re.compile(r"((?:pass(?:word|wd|phrase)?|pwd)\s*=\s*)[^\s&;,'\"]+", re.IGNORECASE)
"""`password=...` in the query of an address or in a connection string; `PGPASSWORD=...` too."""


def redact_text(text: str) -> str:
    """Return the text with the passwords of addresses and connection strings replaced by `***`."""
    if "://" not in text and "=" not in text:
        return text
    return _IN_SETTING.sub(rf"\g<1>{_HIDDEN}", _IN_ADDRESS.sub(rf"\g<1>:{_HIDDEN}@", text))


def without_password(text: str, address: str) -> str:
    """Return the text without the password of an address, also if a driver has split the password at an at sign."""
    match = _IN_ADDRESS.search(address)
    hidden = address[match.end(1) : match.end()] if match else ""
    for piece in sorted(re.split(r"[:@/?#%]", hidden), key=len, reverse=True):
        if len(piece) >= _TELLING:
            text = text.replace(piece, _HIDDEN)
    return text
