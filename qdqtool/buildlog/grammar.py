"""All message patterns, arranged so that a message meets only the few that can fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from importlib.resources import files

from qdqtool.buildlog.pattern import Fields, Light, LogSection, MessagePattern, PatternSet, RegexPattern
from qdqtool.plugins import Registry

# --- patterns by their first bytes -----------------------------------------------------------------------------------

PATTERNS = Registry(package="qdqtool.buildlog.patterns")
KEY, SHORT_KEY = 8, 6
"""Bytes of a message that choose the patterns to try; the shorter key is asked where the longer one finds none."""

Handler = Callable[..., None]
SLOW, UNSURE = -2, -1
"""Buckets of messages that choose none: the one holds nothing, the other the most common patterns."""


class Grammar:
    """Patterns by their first bytes, by a fixed part inside, and sections by their heading.

    Attributes:
        keys: first `KEY` bytes of patterns -> place in `buckets`.
        short_keys: the same with `SHORT_KEY` bytes, for patterns with shorter heads.
        endings: last bytes of messages -> place in `buckets`, for patterns that begin with a name.
        buckets: patterns that begin (or end) with the same bytes, longest head first.
        light: patterns that may be counted without taking them apart.
        sections: heading -> section.
        columns: name of a pattern, or of a row of a section -> names of its fields.
        foreign: shapes of lines that are not the builder's.
    """

    def __init__(self, pattern_sets: Sequence[PatternSet]) -> None:
        patterns = [pattern for pattern_set in pattern_sets for pattern in pattern_set.patterns]
        self.sections: dict[str, LogSection] = {
            s.opens: s for pattern_set in pattern_sets for s in pattern_set.sections
        }
        self.foreign: tuple[RegexPattern, ...] = tuple(
            shape for pattern_set in pattern_sets for shape in pattern_set.foreign
        )
        self.keys: dict[str, int] = {}
        self.short_keys: dict[str, int] = {}
        self.endings: dict[str, int] = {}
        self.buckets: list[list[MessagePattern]] = []
        self._short: list[MessagePattern] = []
        self._inner: list[tuple[str, MessagePattern]] = []
        self._shapes: list[RegexPattern] = []
        for pattern in patterns:
            self._place(pattern)
        for bucket in self.buckets:
            bucket.sort(key=lambda pattern: (pattern.name not in _COMMON, -len(pattern.head)))
        self._short.sort(key=lambda pattern: -len(pattern.head))
        self._inner.sort(
            key=lambda pair: _COMMON.index(pair[1].name) if pair[1].name in _COMMON else len(_COMMON)
        )
        # One look at all shapes at once: most messages have none of them.
        self._any_shape = re.compile(
            "|".join(f"(?:{_without_names(shape.form)})" for shape in self._shapes) or "(?!)"
        )
        self._starts = {pattern.head[:2] for pattern in self._short}
        rows = [row for section in self.sections.values() for row in section.rows]
        self.columns = {one.name: one.fields for one in reversed([*patterns, *rows])}
        self._naming = {
            s.name: tuple(at for at, field in enumerate(s.fields) if field in _NAMES) for s in patterns
        }
        self.light = [s for s in patterns if isinstance(s, MessagePattern) and s.light != "no"]

    def read(self, body: str) -> tuple[str, Fields] | None:
        """What a message says: the name of its pattern and its fields; None when no pattern fits."""
        for keys, key in (
            (self.keys, body[:KEY]),
            (self.short_keys, body[:SHORT_KEY]),
            (self.endings, body[-ENDING:]),
        ):
            place = keys.get(key)
            for pattern in self.buckets[place] if place is not None else ():
                fields = pattern.read(body)
                if fields is not None:
                    return pattern.name, fields
        return self._read_rare(body)

    def _read_rare(self, body: str) -> tuple[str, Fields] | None:
        """As `read`, for a message whose first and last bytes choose no pattern."""
        for anchor, pattern in self._inner:
            if anchor in body:
                fields = pattern.read(body)
                if fields is not None:
                    return pattern.name, fields
        if body[:2] in self._starts or body[:1] in self._starts:
            for pattern in self._short:
                if body.startswith(pattern.head):
                    fields = pattern.read(body)
                    if fields is not None:
                        return pattern.name, fields
        if self._any_shape.fullmatch(body) is None:
            return None
        for shape in self._shapes:
            fields = shape.read(body)
            if fields is not None:
                return shape.name, fields
        return None

    def named(self, name: str, fields: Fields) -> tuple[str, ...]:
        """The tensors, layers and nodes that a message is about."""
        return tuple(str(fields[at]) for at in self._naming.get(name, ()) if at < len(fields))

    def is_foreign(self, body: str) -> bool:
        """Whether a line that no pattern fits has the shape of another program's."""
        return self._any_foreign.fullmatch(body) is not None

    @cached_property
    def _any_foreign(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{_without_names(shape.form)})" for shape in self.foreign) or "(?!)")

    def _place(self, pattern: MessagePattern | RegexPattern) -> None:
        if isinstance(pattern, RegexPattern):
            self._shapes.append(pattern)
            return
        head = pattern.head
        if not head:
            self._inner.append((pattern.anchor, pattern))
            for ending, names in _ENDINGS.items():
                if pattern.name in names:
                    self._add(self.endings, ending, pattern)
        elif len(head) < SHORT_KEY or not head[:KEY].isascii():
            self._short.append(pattern)
        elif len(head) < KEY:
            self._add(self.short_keys, head[:SHORT_KEY], pattern)
        else:
            self._add(self.keys, head[:KEY], pattern)

    def _add(self, keys: dict[str, int], key: str, pattern: MessagePattern) -> None:
        if key not in keys:
            keys[key] = len(self.buckets)
            self.buckets.append([])
        self.buckets[keys[key]].append(pattern)


ENDING = 2
"""Bytes at the end of a message that choose the patterns to try, where its first do not."""
_ENDINGS = {"],": ("node-inputs", "node-outputs")}
"""How messages end that begin with a name -> what they are most likely."""

_COMMON = (
    "node-inputs",
    "node-outputs",
    "timed",
    "kernel-set",
    "no-tactics",
    "fused",
    "quantize-into",
    "layer-registered",
    "attempt",
)
"""Patterns that logs are full of: they are tried before others that could fit as well."""


_NAMES = frozenset({"tensor", "layer", "node", "region", "what"})
"""Fields that hold names of things; numbers in them are no changing details."""


def _without_names(form: str) -> str:
    """The same expression without named groups, so that it can stand beside others."""
    return re.sub(r"\(\?P<\w+>", "(?:", form)


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    """The grammar of all registered and all plain message patterns, arranged once."""
    return Grammar([*map(PATTERNS.load, PATTERNS.usable()), PatternSet(patterns=messages())])


# --- messages without a collector ------------------------------------------------------------------------------------
# Messages that no collector handles: lines of `messages.txt`, which says how they are written.

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
