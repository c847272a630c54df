"""Messages that no collector handles: lines of `messages.txt`, which says how they are written."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from qdqtool.buildlog.pattern import Light, MessagePattern, RegexPattern

_PATTERN = re.compile(r"(?P<name>[a-z0-9-]+)(?: \((?P<light>all|rest|noted)\))?(?P<kind>[:~]) (?P<form>\S.*)")
_TOPIC = re.compile(r"\[(?P<topic>[a-z]+)\] (?P<about>\S.*)")
_LIGHT: dict[str | None, Light] = {None: "no", "all": "all", "rest": "rest", "noted": "noted"}


@lru_cache(maxsize=1)
def messages() -> tuple[MessagePattern | RegexPattern, ...]:
    """The message patterns of the resource, in its order, loaded once."""
    return parsed((files("qdqtool.buildlog") / "messages.txt").read_text("utf-8"))


def parsed(text: str) -> tuple[MessagePattern | RegexPattern, ...]:
    """The message patterns of a text in the form of the resource.

    Raises:
        ValueError: a line is none of that form, or an example stands before any pattern.
    """
    found: list[MessagePattern | RegexPattern] = []
    head, examples = "", list[str]()
    for line in (line.rstrip() for line in text.splitlines()):
        if line.startswith("    ") and head:
            examples.append(line.strip())
            continue
        if head:
            found.append(_pattern(head, tuple(examples)))
            head, examples = "", []
        if not line or line.startswith("#") or _TOPIC.fullmatch(line):
            continue
        head = line
    return (*found, _pattern(head, tuple(examples))) if head else tuple(found)


def _pattern(head: str, examples: tuple[str, ...]) -> MessagePattern | RegexPattern:
    stated = _PATTERN.fullmatch(head)
    if stated is None:
        raise ValueError(f"neither a topic, a message pattern nor an example: {head!r}")
    name, form = stated["name"], stated["form"]
    if stated["kind"] == "~":
        return RegexPattern(name=name, form=form, examples=examples)
    return MessagePattern(name=name, form=form, examples=examples, light=_LIGHT[stated["light"]])
