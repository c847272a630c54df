"""Skimming: a block of a log is looked over as an array of bytes, so that Python meets only the lines that matter.

Two thirds of a verbose log are a few light sentences (each kernel timed, each tensor registered). They are
recognised by the first bytes behind a well-known prefix, counted, and never become strings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.grammar import KEY, Grammar

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int16]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

SLOW = -2
"""Code of a line whose prefix is not one of the well-known: take it apart by hand."""
UNSURE = -1
"""Code of a line with a well-known prefix whose first bytes choose no sentence."""

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
        code: index of a bucket of the grammar, or `UNSURE`, or `SLOW`.
        start, body, end: where the line, its message and its end are.
        candidates: how many kernels (rows of tuning) were counted since the log began, up to each of these lines.
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
    candidates: Ints
    quiet: Ints
    stamped: Ints
    noted: Ints
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
        keys = sorted((_key(key), place) for key, place in grammar.keys.items())
        self._keys = np.array([key for key, _ in keys], np.uint64)
        self._places = np.array([place for _, place in keys], np.int16)
        self._by_head = [
            (grammar.keys[sentence.head[:KEY]], sentence, _rest_of_head(sentence.head))
            for sentence in grammar.light
            if sentence.head
        ]
        self._by_tail = [
            (_key(sentence.tail[-KEY:]), _key(sentence.tail[-2 * KEY : -KEY]))
            for sentence in grammar.light
            if not sentence.head
        ]
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
        codes = self._codes(words[at], known)
        found = self._lighten(data, words, codes, at, ends)
        blank = ends <= at
        counts = np.cumsum(found.tuned) + self._counted
        self._counted = int(counts[-1])
        wanted = np.flatnonzero(~(found.light | blank))
        lengths = ends[wanted] - starts[wanted]
        return Skimmed(
            lines=len(ends),
            blank=starts[blank],
            number=wanted.tolist(),
            code=codes[wanted].tolist(),
            start=starts[wanted].tolist(),
            body=at[wanted].tolist(),
            end=ends[wanted].tolist(),
            candidates=counts[wanted],
            quiet=starts[known],
            stamped=starts[known & (body - starts >= _STAMPED)],
            noted=at[found.noted],
            bytes=int(lengths.sum()),
            longest=int(lengths.max(initial=0)),
        )

    def _codes(self, keys: Keys, known: Flags) -> Codes:
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        code = np.where(self._keys[place] == keys, self._places[place], UNSURE)
        return np.where(known, code, SLOW).astype(np.int16)

    def _lighten(self, data: Bytes, words: Keys, codes: Codes, at: Ints, ends: Ints) -> _Light:
        """Which lines are light, which of these are rows of tuning, and which are noted."""
        light, tuned, noted = (np.zeros(len(at), np.bool_) for _ in range(3))
        present = np.bincount(codes[codes >= 0], minlength=len(self._keys))
        for code, sentence, rest in self._by_head:
            if not present[code] and sentence.light != "rest":
                continue
            hits = codes == code
            for step, (key, mask) in enumerate(rest, 1):
                where = np.flatnonzero(hits)
                hits[where] = (words[at[where] + step * KEY] & mask) == key
            if sentence.name in TUNED:
                hits &= _DIGITS[data[ends - 1]]
                if sentence.light == "rest":
                    hits = self._not_first(hits)
                tuned |= hits
            elif sentence.light == "noted":
                noted |= hits
            light |= hits
        for last, before in self._by_tail:
            where = np.flatnonzero((codes == UNSURE) & (ends - at > 2 * KEY))
            ending = ends[where]
            light[where] |= (words[ending - KEY] == last) & (words[ending - 2 * KEY] == before)
        return _Light(light=light, tuned=tuned, noted=noted)

    def _not_first(self, hits: Flags) -> Flags:
        """Without the first of each run of hits; a run may have begun in the block before."""
        before = np.empty_like(hits)
        before[0] = self._in_run
        before[1:] = hits[:-1]
        self._in_run = bool(hits[-1])
        return hits & before


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


def _key(head: bytes | str) -> np.uint64:
    raw = head.encode() if isinstance(head, str) else head
    return np.uint64(int.from_bytes(raw[:KEY], "little"))


def _rest_of_head(head: str) -> tuple[tuple[np.uint64, np.uint64], ...]:
    """The ninth to twenty-fourth byte of a head as words, with masks where it is shorter."""
    raw = head.encode()[KEY : 3 * KEY]
    pieces = [raw[at : at + KEY] for at in range(0, len(raw), KEY)]
    return tuple((_key(piece), np.uint64((1 << 8 * len(piece)) - 1)) for piece in pieces)
