"""All message patterns, arranged so that each message is compared with only a few of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.pattern import (
    HEX16,
    Fields,
    Light,
    LogSection,
    MessagePattern,
    PatternSet,
    RegexPattern,
)
from qdqtool.plugins import Registry

# --- patterns by their first bytes -----------------------------------------------------------------------------------

PATTERNS = Registry(package="qdqtool.buildlog.patterns")
KEY, SHORT_KEY = 8, 6
"""Bytes of a message that select the patterns to try; the shorter key is used if the longer one selects none."""

Handler = Callable[..., None]
SLOW, UNSURE = -2, -1
"""Buckets of messages without a key: the first is empty, the second holds the most common patterns."""


class Grammar:
    """Patterns by their first bytes and by a fixed part inside them; sections by their heading.

    Attributes:
        keys: first `KEY` bytes of patterns -> place in `buckets`.
        short_keys: first `SHORT_KEY` bytes of patterns with shorter heads -> place in `buckets`.
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
        # Tests all shapes at once, because most messages have none of them.
        self._any_shape = re.compile(
            "|".join(f"(?:{_without_names(shape.form)})" for shape in self._shapes) or "(?!)"
        )
        self._starts = {pattern.head[:2] for pattern in self._short}
        rows = [row for section in self.sections.values() for row in section.rows]
        self.columns = {message.name: message.fields for message in reversed([*patterns, *rows])}
        self._naming = {
            s.name: tuple(at for at, field in enumerate(s.fields) if field in _NAMES) for s in patterns
        }
        self.light = [s for s in patterns if isinstance(s, MessagePattern) and s.light != "no"]

    def read(self, body: str) -> tuple[str, Fields] | None:
        """Return the name of the pattern of a message and its fields; None if no pattern fits."""
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
        """Read a message whose first and last bytes select no pattern."""
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
        """Return the tensors, layers and nodes that a log message names."""
        return tuple(str(fields[at]) for at in self._naming.get(name, ()) if at < len(fields))

    def is_foreign(self, body: str) -> bool:
        """Return True if a line without a pattern looks like a line of another program."""
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
"""Bytes at the end of a message that select the patterns to try if its first bytes select none."""
_ENDINGS = {"],": ("node-inputs", "node-outputs")}
"""Ends of messages that begin with a name -> their most likely patterns."""

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
"""The most frequent patterns, tried before others that could fit as well."""


_NAMES = frozenset({"tensor", "layer", "node", "region", "what"})
"""Fields with names of things; numbers in these names are not changing details."""


def _without_names(form: str) -> str:
    """Make the named groups of a regular expression unnamed, so that expressions can be combined."""
    return re.sub(r"\(\?P<\w+>", "(?:", form)


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    """Return the grammar of all registered and all plain message patterns, arranged once."""
    return Grammar([*map(PATTERNS.load, PATTERNS.usable()), PatternSet(patterns=messages())])


# --- messages without a collector ------------------------------------------------------------------------------------
# Messages that no collector handles: the lines of `messages.txt`, which explains how to write them.

_PATTERN = re.compile(r"(?P<name>[a-z0-9-]+)(?: \((?P<light>all|rest|noted)\))?(?P<kind>[:~]) (?P<form>\S.*)")
_TOPIC = re.compile(r"\[(?P<topic>[a-z]+)\] (?P<about>\S.*)")
_LIGHT: dict[str | None, Light] = {None: "no", "all": "all", "rest": "rest", "noted": "noted"}


@lru_cache(maxsize=1)
def messages() -> tuple[MessagePattern | RegexPattern, ...]:
    """Return the message patterns of the resource, in its order, loaded once."""
    return parse_patterns((files("qdqtool.buildlog") / "messages.txt").read_text("utf-8"))


def parse_patterns(text: str) -> tuple[MessagePattern | RegexPattern, ...]:
    """Parse message patterns from a text in the format of the resource.

    Raises:
        ValueError: a line does not have this form, or an example is before any pattern.
    """
    patterns: list[MessagePattern | RegexPattern] = []
    head, examples = "", list[str]()
    for line in (line.rstrip() for line in text.splitlines()):
        if line.startswith("    ") and head:
            examples.append(line.strip())
            continue
        if head:
            patterns.append(_pattern(head, tuple(examples)))
            head, examples = "", []
        if not line or line.startswith("#") or _TOPIC.fullmatch(line):
            continue
        head = line
    return (*patterns, _pattern(head, tuple(examples))) if head else tuple(patterns)


def _pattern(head: str, examples: tuple[str, ...]) -> MessagePattern | RegexPattern:
    stated = _PATTERN.fullmatch(head)
    if stated is None:
        raise ValueError(f"neither a topic, a message pattern nor an example: {head!r}")
    name, form = stated["name"], stated["form"]
    if stated["kind"] == "~":
        return RegexPattern(name=name, form=form, examples=examples)
    return MessagePattern(name=name, form=form, examples=examples, light=_LIGHT[stated["light"]])


# --- grammar arrays --------------------------------------------------------------------------------------------------
# The grammar as arrays: finds the patterns for the first and last bytes of many messages at once.
#
# Eight bytes of a message are one word; a shorter piece is a masked word.


Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int16]
Flags = npt.NDArray[np.bool_]

_BARE = ("layer", "layer-record")
"""Patterns with lines without a prefix, because they are parts of a message of many lines."""
TUNED = frozenset({"tactic", "tactic-named", "myelin-row"})
"""Patterns that report one timed kernel each."""


class Arrays:
    """The groups of message patterns as NumPy arrays, to match many lines at once.

    Attributes:
        heads, short_heads, endings: find a bucket by the first bytes of a message, or its last.
        common: the ninth to sixteenth byte that all heads of a bucket share.
        bare: whether lines of a bucket have no prefix.
        ranks: the light patterns that have a head.
        tails: the last eight bytes of each light pattern without one, and the eight before them.
        before_id: the eight bytes before the tactic id that ends a light pattern.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.heads = Keys(grammar.keys, KEY)
        self.short_heads = Keys(grammar.short_keys, SHORT_KEY)
        self.endings = Keys(grammar.endings, ENDING)
        # Codes below 0 mean no bucket; as an index they select the last elements.
        nowhere = -UNSURE + 1
        self.common = _parts([_common_head(bucket) for bucket in grammar.buckets] + [""] * nowhere, 1)
        self.bare = np.array(
            [any(s.name in _BARE for s in bucket) for bucket in grammar.buckets] + [False] * nowhere
        )
        self.ranks = _ranks(grammar)
        self.tails = [
            (word(pattern.tail[-KEY:]), word(pattern.tail[-2 * KEY : -KEY]))
            for pattern in grammar.light
            if pattern.tail and not pattern.head
        ]
        self.before_id = [word(pattern.before_id[-KEY:]) for pattern in grammar.light if pattern.before_id]


@lru_cache(maxsize=2)
def arrays_of(grammar: Grammar) -> Arrays:
    """Return the hash table of a grammar; it is computed once."""
    return Arrays(grammar)


class Keys:
    """Maps bytes of log messages to groups of patterns, for many messages in one step."""

    def __init__(self, places: Mapping[str, int], size: int) -> None:
        keys = sorted((word(key), place) for key, place in places.items())
        self._mask = mask(size)
        self._keys = np.array([key for key, _ in keys], np.uint64)
        self._places = np.array([place for _, place in keys], np.int16)

    def find(self, words: Words) -> Codes:
        """Return the pattern group of each eight-byte number; `UNSURE` for numbers that select no group."""
        words = words & self._mask
        at = np.minimum(np.searchsorted(self._keys, words), len(self._keys) - 1)
        return np.where(self._keys[at] == words, self._places[at], UNSURE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Eight bytes of the fixed beginning of each pattern, with masks for shorter ones."""

    keys: Words
    masks: Words


def _parts(heads: list[str], step: int) -> Parts:
    pieces = [head.encode()[step * KEY : (step + 1) * KEY] for head in heads]
    return Parts(
        keys=np.array([word(piece) for piece in pieces], np.uint64),
        masks=np.array([mask(len(piece)) for piece in pieces], np.uint64),
    )


def _common_head(bucket: list[MessagePattern]) -> str:
    """Return the text with which all patterns of a group begin."""
    common = bucket[0].head
    while not all(pattern.head.startswith(common) for pattern in bucket):
        common = common[:-1]
    return common


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """The n-th pattern of each group whose lines need no parsing.

    Attributes:
        any: whether the bucket has one.
        parts: the ninth to sixteenth, and the seventeenth to twenty-fourth byte of its head.
        head: bytes of its head.
        after_id: the eight bytes after the tactic id that follows the head; empty if the pattern has no tactic id there.
        tuned, noted, spared: whether it reports a timed kernel, is noted, is light but for the first of a run.
    """

    any: Flags
    parts: tuple[Parts, ...]
    head: Ints
    after_id: Parts
    tuned: Flags
    noted: Flags
    spared: Flags


def _ranks(grammar: Grammar) -> tuple[Rank, ...]:
    """Return the first pattern of every group that needs no parsing, then the second, and so on."""
    light = [[s for s in bucket if s.light != "no" and s.head] for bucket in grammar.buckets]
    return tuple(
        _rank([bucket[depth] if len(bucket) > depth else None for bucket in light])
        for depth in range(max(map(len, light)))
    )


def _rank(patterns: list[MessagePattern | None]) -> Rank:
    heads = [pattern.head if pattern else "" for pattern in patterns]
    return Rank(
        any=np.array([pattern is not None for pattern in patterns]),
        parts=(_parts(heads, 1), _parts(heads, 2)),
        head=np.array([len(head) for head in heads]),
        after_id=_parts([pattern.after_id if pattern else "" for pattern in patterns], 0),
        tuned=np.array([pattern is not None and pattern.name in TUNED for pattern in patterns]),
        noted=np.array([pattern is not None and pattern.light == "noted" for pattern in patterns]),
        spared=np.array([pattern is not None and pattern.light == "rest" for pattern in patterns]),
    )


def follows(words: Words, begin: Ints, suffix: Parts, code: Codes) -> Flags:
    """Return for each log line whether the text after its tactic id is the text that the pattern requires."""
    keys, masks = suffix.keys[code], suffix.masks[code]
    matched: Flags = masks == 0
    for size in _ID_SIZES:
        open_ = np.flatnonzero(~matched)
        if not len(open_):
            break
        matched[open_] = (words[begin[open_] + size] & masks[open_]) == keys[open_]
    return matched


def word(head: bytes | str) -> np.uint64:
    """Return up to eight bytes as a number in memory order, for comparison."""
    raw = head.encode() if isinstance(head, str) else head
    return np.uint64(int.from_bytes(raw[:KEY], "little"))


def mask(size: int) -> np.uint64:
    """Return the mask of the first `size` bytes of an eight-byte number."""
    return np.uint64((1 << 8 * size) - 1)


# Number of digits of a tactic, the usual 16 first.
_ID_SIZES = (HEX16, *range(1, HEX16), *range(HEX16 + 1, 25))
_TWO, _0X = mask(2), word(b"0x")
