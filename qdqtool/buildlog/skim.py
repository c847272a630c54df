"""Skimming: a block of a log is looked over as an array of bytes, so that Python meets only the lines that matter.

Two thirds of a verbose log are a few light sentences (each kernel timed, each tensor registered). They are
recognised by the first bytes behind a well-known prefix, counted, and never become strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.grammar import ENDING, KEY, SHORT_KEY, SLOW, UNSURE, Grammar
from qdqtool.buildlog.sentence import HEX16, Sentence

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


_BARE = ("layer", "layer-record")
"""Sentences whose lines have no prefix, being parts of a message of many lines."""
_STAMPED = 26
"""Bytes of the shortest prefix with a time stamp."""
_PAD = b"\n" * 64
_SPACE, _NEWLINE, _OPEN, _CLOSE = b" \n[]"
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789,")] = True
_LOUD = np.zeros(256, np.bool_)
_LOUD[list(b"WEFX")] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Skimmed:
    """The lines of a block that want reading, as parallel lists; everything else has been counted.

    Attributes:
        lines: how many lines the block has.
        blank: where the lines begin that are empty, or hold nothing but a well-known prefix.
        number: index of the line in the block.
        code: the bucket that its first or last bytes choose; `UNSURE` where they choose none, `SLOW` for a line
            whose prefix is not one of the well-known.
        start, body, end: where the line, its message and its end are.
        candidates: how many kernels (rows of tuning) were counted since the log began, up to each of these lines.
        announced: how many noted sentences the block has before each of these lines.
        quiet: where the lines with a well-known prefix begin, light ones among them.
        stamped: where those of them begin that have a time stamp.
        noted: where the messages of noted sentences begin.
        bytes: of the lines that want reading.
        longest: bytes of the longest of them.
    """

    lines: int
    blank: Ints
    number: list[int]
    code: list[int]
    start: list[int]
    body: list[int]
    end: list[int]
    candidates: list[int]
    announced: list[int]
    quiet: Ints
    stamped: Ints
    noted: list[int]
    bytes: int
    longest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Light:
    light: Flags
    tuned: Flags
    noted: Flags


class Skimmer:
    """Looks over the blocks of one log in order."""

    def __init__(self, grammar: Grammar) -> None:
        self._heads = _Keys(grammar.keys, KEY)
        self._short_heads = _Keys(grammar.short_keys, SHORT_KEY)
        self._endings = _Keys(grammar.endings, ENDING)
        self._bare = np.array(
            [any(s.name in _BARE for s in bucket) for bucket in grammar.buckets] + [False] * 2, np.bool_
        )
        self._common = _parts([_common_head(bucket) for bucket in grammar.buckets] + [""] * 2, 1)
        self._ranks = _ranks(grammar)
        self._by_tail = [
            (_key(sentence.tail[-KEY:]), _key(sentence.tail[-2 * KEY : -KEY]))
            for sentence in grammar.light
            if sentence.tail and not sentence.head
        ]
        self._by_id = [_key(sentence.before_id[-KEY:]) for sentence in grammar.light if sentence.before_id]
        self._counted = 0
        self._in_run = False

    def __call__(self, block: bytes) -> Skimmed:
        """Skim a block; it ends with a newline."""
        data = np.frombuffer(block + _PAD, np.uint8)
        words: Keys = np.ndarray((len(data) - KEY + 1,), "<u8", buffer=data.data, strides=(1,))
        ends = np.flatnonzero(data[: len(block)] == _NEWLINE)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        body = _bodies(data, words, starts, ends)
        ends = ends - (data[ends - 1] == _SPACE)
        known = body >= 0
        at = np.where(known, np.minimum(body, ends), starts)
        at += data[at] == _SPACE
        codes = self._codes(words, at, ends, known)
        found = self._lighten(data, words, codes, at, ends)
        blank = ends <= at
        counts = np.cumsum(found.tuned) + self._counted
        self._counted = int(counts[-1])
        wanted = np.flatnonzero(~(found.light | blank))
        lengths = ends[wanted] - starts[wanted]
        noted = np.flatnonzero(found.noted)
        return Skimmed(
            lines=len(ends),
            blank=starts[blank],
            number=wanted.tolist(),
            code=codes[wanted].tolist(),
            start=starts[wanted].tolist(),
            body=at[wanted].tolist(),
            end=ends[wanted].tolist(),
            candidates=counts[wanted].tolist(),
            announced=np.searchsorted(noted, wanted).tolist(),
            quiet=starts[known],
            stamped=starts[known & (body - starts >= _STAMPED)],
            noted=at[noted].tolist(),
            bytes=int(lengths.sum()),
            longest=int(lengths.max(initial=0)),
        )

    def _codes(self, words: Keys, at: Ints, ends: Ints, known: Flags) -> Codes:
        """The bucket each line's first bytes choose, or its last."""
        code = self._heads.find(words[at])
        code[(words[at + KEY] & self._common.masks[code]) != self._common.keys[code]] = UNSURE
        rest = np.flatnonzero(code == UNSURE)
        code[rest] = self._short_heads.find(words[at[rest]])
        rest = rest[code[rest] == UNSURE]
        code[rest] = self._endings.find(words[np.maximum(ends[rest] - ENDING, 0)])
        return np.where(known | self._bare[code], code, SLOW).astype(np.int16)

    def _lighten(self, data: Bytes, words: Keys, codes: Codes, at: Ints, ends: Ints) -> _Light:
        """Which lines are light, which of these are rows of tuning, and which are noted."""
        light, tuned, noted, spared = (np.zeros(len(at), np.bool_) for _ in range(4))
        coded = np.flatnonzero(codes >= 0)
        for rank in self._ranks:
            where = coded[rank.any[codes[coded]]]
            for step, part in enumerate(rank.parts, 1):
                code = codes[where]
                where = where[(words[at[where] + step * KEY] & part.masks[code]) == part.keys[code]]
            where = where[_follows(words, at[where] + rank.head[codes[where]], rank.after_id, codes[where])]
            where = where[~rank.tuned[codes[where]] | _DIGITS[data[ends[where] - 1]]]
            code = codes[where]
            light[where] = True
            noted[where] = rank.noted[code]
            tuned[where] = rank.tuned[code]
            spared[where] = rank.rest[code]
        spared = self._first_of_each(spared)
        light &= ~spared
        tuned &= ~spared
        rest = np.flatnonzero((codes == UNSURE) & (ends - at > HEX16 + KEY))
        ending = ends[rest]
        for last, before in self._by_tail:
            light[rest] |= (words[ending - KEY] == last) & (words[ending - 2 * KEY] == before)
        for before in self._by_id:
            light[rest] |= (words[ending - HEX16 - KEY] == before) & (words[ending - HEX16] & _TWO == _0X)
        return _Light(light=light, tuned=tuned, noted=noted)

    def _first_of_each(self, hits: Flags) -> Flags:
        """The first of each run of hits; a run may have begun in the block before."""
        before = np.empty_like(hits)
        before[0] = self._in_run
        before[1:] = hits[:-1]
        self._in_run = bool(hits[-1])
        return hits & ~before


class _Keys:
    """Bytes of a message -> bucket, for many messages at once."""

    def __init__(self, places: Mapping[str, int], size: int) -> None:
        keys = sorted((_key(key), place) for key, place in places.items())
        self._mask = _mask(size)
        self._keys = np.array([key for key, _ in keys], np.uint64)
        self._places = np.array([place for _, place in keys], np.int16)

    def find(self, words: Keys) -> Codes:
        """The bucket of each word, or `UNSURE`."""
        words = words & self._mask
        at = np.minimum(np.searchsorted(self._keys, words), len(self._keys) - 1)
        return np.where(self._keys[at] == words, self._places[at], UNSURE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """Eight bytes of the head of each bucket, with masks where it is shorter."""

    keys: Keys
    masks: Keys


def _parts(heads: list[str], step: int) -> _Parts:
    pieces = [head.encode()[step * KEY : (step + 1) * KEY] for head in heads]
    return _Parts(
        keys=np.array([_key(piece) for piece in pieces], np.uint64),
        masks=np.array([_mask(len(piece)) for piece in pieces], np.uint64),
    )


def _common_head(bucket: list[Sentence]) -> str:
    """What all sentences of a bucket begin with."""
    common = bucket[0].head
    while not all(sentence.head.startswith(common) for sentence in bucket):
        common = common[:-1]
    return common


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rank:
    """One light sentence of each bucket that has so many, by bucket.

    Attributes:
        any: whether the bucket has one.
        parts: the ninth to sixteenth, and the seventeenth to twenty-fourth byte of its head.
        head: bytes of its head.
        after_id: the eight bytes that follow a tactic id behind its head; nothing where there is no such id.
        tuned, noted, rest: whether it reports a timed kernel, is noted, is light but for the first of a run.
    """

    any: Flags
    parts: tuple[_Parts, ...]
    head: Ints
    after_id: _Parts
    tuned: Flags
    noted: Flags
    rest: Flags


def _ranks(grammar: Grammar) -> tuple[_Rank, ...]:
    """The first light sentence of every bucket, then the second, and so on."""
    light = [[s for s in bucket if s.light != "no" and s.head] for bucket in grammar.buckets]
    return tuple(
        _rank([bucket[depth] if len(bucket) > depth else None for bucket in light])
        for depth in range(max(map(len, light)))
    )


def _rank(sentences: list[Sentence | None]) -> _Rank:
    heads = [sentence.head if sentence else "" for sentence in sentences]
    return _Rank(
        any=np.array([sentence is not None for sentence in sentences]),
        parts=(_parts(heads, 1), _parts(heads, 2)),
        head=np.array([len(head) for head in heads]),
        after_id=_parts([sentence.after_id if sentence else "" for sentence in sentences], 0),
        tuned=np.array([sentence is not None and sentence.name in TUNED for sentence in sentences]),
        noted=np.array([sentence is not None and sentence.light == "noted" for sentence in sentences]),
        rest=np.array([sentence is not None and sentence.light == "rest" for sentence in sentences]),
    )


TUNED = frozenset({"tactic", "tactic-named", "myelin-row"})
"""Sentences that report one timed kernel each."""
NOTED = "timing"
"""The sentence that names the layer whose kernels are timed next."""


def _bodies(data: Bytes, words: Keys, starts: Ints, ends: Ints) -> Ints:
    """Where the message behind a well-known, quiet prefix begins; -1 for every other line."""
    body = np.full(len(starts), -1, np.int64)
    stamped = (data[starts] == _OPEN) & (ends - starts >= 32)
    # [MM/DD/YYYY-HH:MM:SS] [V] [TRT] msg
    library = stamped & (words[starts + 24] == _key(b"] [TRT] ")) & ~_LOUD[data[starts + 23]]
    body[library] = starts[library] + 32
    rest = np.flatnonzero(~library)
    if len(rest):
        body[rest] = _other_bodies(data, words, starts[rest], ends[rest])
    return body


def _other_bodies(data: Bytes, words: Keys, starts: Ints, ends: Ints) -> Ints:
    body = np.full(len(starts), -1, np.int64)
    opened = data[starts] == _OPEN
    length = ends - starts
    # [MM/DD/YYYY-HH:MM:SS] [TRT] [V] msg
    python = opened & (length >= 32) & (words[starts + 20] == _key(b"] [TRT] "))
    python &= (data[starts + 28] == _OPEN) & (data[starts + 30] == _CLOSE) & ~_LOUD[data[starts + 29]]
    body[python] = starts[python] + 32
    # [MM/DD/YYYY-HH:MM:SS] [I] msg
    own = opened & ~python & (length >= 25) & (data[starts + 20] == _CLOSE) & (data[starts + 22] == _OPEN)
    own &= (data[starts + 24] == _CLOSE) & ~_LOUD[data[starts + 23]] & (data[starts + 26] != _OPEN)
    body[own] = starts[own] + 26
    # [V] msg and [V] [TRT] msg
    short = opened & (length >= 3) & (data[starts + 2] == _CLOSE) & ~_LOUD[data[starts + 1]]
    short &= (data[starts + 3] == _SPACE) | (length == 3)
    body[short] = starts[short] + 4
    double = short & (words[starts + 2] == _key(b"] [TRT] "))
    body[double] = starts[double] + 10
    body[short & ~double & (data[starts + 4] == _OPEN) & (data[starts + 6] == _CLOSE)] = -1
    return body


def _follows(words: Keys, begin: Ints, wanted: _Parts, code: Codes) -> Flags:
    """Whether the wanted bytes stand behind a tactic id of any length, or nothing is wanted."""
    keys, masks = wanted.keys[code], wanted.masks[code]
    found: Flags = masks == 0
    for size in _ID_SIZES:
        rest = np.flatnonzero(~found)
        if not len(rest):
            break
        found[rest] = (words[begin[rest] + size] & masks[rest]) == keys[rest]
    return found


def _key(head: bytes | str) -> np.uint64:
    raw = head.encode() if isinstance(head, str) else head
    return np.uint64(int.from_bytes(raw[:KEY], "little"))


def _mask(size: int) -> np.uint64:
    """The first bytes of a word."""
    return np.uint64((1 << 8 * size) - 1)


_ID_SIZES = (HEX16, *range(1, HEX16), *range(HEX16 + 1, 25))
_TWO, _0X = _mask(2), _key(b"0x")
