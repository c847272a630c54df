"""Fixes in words, joined so that all of them can be followed at once."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LIST_SETTING = re.compile(r"set (?P<key>[a-z_]+\.[a-z_]+)=\[(?P<values>[^\]]*)\](?P<rest>.*)", re.DOTALL)


def joined(fixes: Iterable[str]) -> str:
    """The fixes in one text, each once; settings of one list become one setting, because the last one would win.

    >>> joined(["set place.skip_rules=[gemv] to quantize it", "set place.skip_rules=[narrow] to quantize it"])
    'set place.skip_rules=[gemv, narrow] to quantize it'
    """
    lists: dict[str, list[str]] = {}
    rests: dict[str, list[str]] = {}
    texts: list[str] = []
    for fix in dict.fromkeys(fixes):
        match = _LIST_SETTING.fullmatch(fix)
        if match is None:
            texts.append(fix)
            continue
        key = match["key"]
        if key not in lists:
            texts.append(key)
        values = [value.strip() for value in match["values"].split(",") if value.strip()]
        lists[key] = [*lists.get(key, []), *values]
        rests[key] = [*rests.get(key, []), match["rest"]]
    return "; ".join(
        f"set {text}=[{', '.join(dict.fromkeys(lists[text]))}]{' and'.join(dict.fromkeys(rests[text]))}"
        if text in lists
        else text
        for text in texts
    )
