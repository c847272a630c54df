"""`--cluster` without an address: the parser below knows only options that always take a word."""

from __future__ import annotations

import re
from collections.abc import Sequence

OPTION = "--cluster"
_ADDRESS = re.compile(r"local|[a-z][a-z0-9+.-]*://\S*|[^\s/\\]+:\d+")


def spelled_out(words: Sequence[str]) -> list[str]:
    """The same words, where a `--cluster` that no address follows is followed by "local".

    An address is `local`, `scheme://...` or `host:port`; anything else belongs to somebody else on the line.
    """
    result: list[str] = []
    for number, word in enumerate(words):
        result.append(word)
        following = words[number + 1] if number + 1 < len(words) else "-"
        if word == OPTION and "--" not in words[:number] and not _ADDRESS.fullmatch(following):
            result.append("local")
    return result
