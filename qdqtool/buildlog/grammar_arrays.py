"""The grammar as arrays: which patterns the first and last bytes of many messages choose, asked all at once.

Eight bytes of a message are one word; a shorter piece is a word under a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.grammar import ENDING, KEY, SHORT_KEY, UNSURE, Grammar
from qdqtool.buildlog.pattern import HEX16, MessagePattern

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int16]
Flags = npt.NDArray[np.bool_]

_BARE = ("layer", "layer-record")
"""Patterns whose lines have no prefix, being parts of a message of many lines."""
TUNED = frozenset({"tactic", "tactic-named", "myelin-row"})
"""Patterns that report one timed kernel each."""


class Arrays:
    """A grammar's buckets as arrays.

    Attributes:
        heads, short_heads, endings: find a bucket by the first bytes of a message, or its last.
        common: the ninth to sixteenth byte that all heads of a bucket share.
        bare: whether lines of a bucket have no prefix.
        ranks: the light patterns that have a head.
        tails: the last eight bytes of each light pattern without one, and the eight before them.
        before_id: the eight bytes in front of the tactic id that ends a light pattern.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.heads = Keys(grammar.keys, KEY)
        self.short_heads = Keys(grammar.short_keys, SHORT_KEY)
        self.endings = Keys(grammar.endings, ENDING)
        # Codes below 0 stand for no bucket: they find the last elements.
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
    """The arrays of a grammar, made once."""
    return Arrays(grammar)


class Keys:
    """Bytes of a message -> bucket, for many messages at once."""

    def __init__(self, places: Mapping[str, int], size: int) -> None:
        keys = sorted((word(key), place) for key, place in places.items())
        self._mask = mask(size)
        self._keys = np.array([key for key, _ in keys], np.uint64)
        self._places = np.array([place for _, place in keys], np.int16)

    def find(self, words: Words) -> Codes:
        """The bucket of each word, or `UNSURE`."""
        words = words & self._mask
        at = np.minimum(np.searchsorted(self._keys, words), len(self._keys) - 1)
        return np.where(self._keys[at] == words, self._places[at], UNSURE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Eight bytes of the head of each bucket, with masks where it is shorter."""

    keys: Words
    masks: Words


def _parts(heads: list[str], step: int) -> Parts:
    pieces = [head.encode()[step * KEY : (step + 1) * KEY] for head in heads]
    return Parts(
        keys=np.array([word(piece) for piece in pieces], np.uint64),
        masks=np.array([mask(len(piece)) for piece in pieces], np.uint64),
    )


def _common_head(bucket: list[MessagePattern]) -> str:
    """What all patterns of a bucket begin with."""
    common = bucket[0].head
    while not all(pattern.head.startswith(common) for pattern in bucket):
        common = common[:-1]
    return common


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One light pattern of each bucket that has so many, by bucket.

    Attributes:
        any: whether the bucket has one.
        parts: the ninth to sixteenth, and the seventeenth to twenty-fourth byte of its head.
        head: bytes of its head.
        after_id: the eight bytes that follow a tactic id behind its head; nothing if there is no such id.
        tuned, noted, rest: whether it reports a timed kernel, is noted, is light but for the first of a run.
    """

    any: Flags
    parts: tuple[Parts, ...]
    head: Ints
    after_id: Parts
    tuned: Flags
    noted: Flags
    rest: Flags


def _ranks(grammar: Grammar) -> tuple[Rank, ...]:
    """The first light pattern of every bucket, then the second, and so on."""
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
        rest=np.array([pattern is not None and pattern.light == "rest" for pattern in patterns]),
    )


def follows(words: Words, begin: Ints, wanted: Parts, code: Codes) -> Flags:
    """Whether the wanted bytes stand behind a tactic id of any length, or nothing is wanted."""
    keys, masks = wanted.keys[code], wanted.masks[code]
    found: Flags = masks == 0
    for size in _ID_SIZES:
        rest = np.flatnonzero(~found)
        if not len(rest):
            break
        found[rest] = (words[begin[rest] + size] & masks[rest]) == keys[rest]
    return found


def word(head: bytes | str) -> np.uint64:
    """Up to eight bytes as they lie in memory."""
    raw = head.encode() if isinstance(head, str) else head
    return np.uint64(int.from_bytes(raw[:KEY], "little"))


def mask(size: int) -> np.uint64:
    """The first bytes of a word."""
    return np.uint64((1 << 8 * size) - 1)


# Digits of a tactic's number, the usual 16 first.
_ID_SIZES = (HEX16, *range(1, HEX16), *range(HEX16 + 1, 25))
_TWO, _0X = mask(2), word(b"0x")
