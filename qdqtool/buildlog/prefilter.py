"""The prefilter: a block of a log is looked over as an array of bytes, so that Python meets only the lines that matter.

Two thirds of a verbose log are a few light patterns (each kernel timed, each tensor registered). They are
recognised by the first bytes behind a well-known prefix, counted, and never become strings. The prefilter skips lines
and finds where messages begin; it reads none, so that with and without it a log gives the same digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.grammar import ENDING, KEY, SLOW, UNSURE, Grammar
from qdqtool.buildlog.grammar_arrays import Codes, Flags, Ints, Words, arrays_of, follows, mask, word
from qdqtool.buildlog.pattern import HEX16

Bytes = npt.NDArray[np.uint8]

_STAMPED = 26
"""Bytes of the shortest prefix with a time stamp."""
# What is looked at behind the end of a block, as wide as the widest word.
_PAD = b"\n" * 64
_SPACE, _NEWLINE, _OPEN, _CLOSE = b" \n[]"
# One entry a byte value, so that a test of many bytes is one look-up.
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789,")] = True
_QUIET = np.zeros(256, np.bool_)
_QUIET[list(b"VI")] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FilteredBlock:
    """The lines of a block that want reading, as parallel lists; everything else has been counted.

    Attributes:
        lines: how many lines the block has.
        blank: where the lines begin that are empty, or hold nothing but a well-known prefix.
        blank_number: index in the block of each of these.
        number: index of the line in the block.
        known: whether it has a well-known, quiet prefix; `body` is then where its message begins.
        start, body, end: where the line, its message and its end are.
        skipped: how many light lines the block has before each of these lines.
        candidates: how many kernels (rows of tuning) were counted since the log began, up to each of these lines.
        counted: how many up to the end of the block.
        announced: how many noted patterns the block has before each of these lines.
        quiet: where the lines with a well-known prefix begin, light ones among them.
        stamped: where those of them begin that have a time stamp.
        noted: where the messages of noted patterns begin.
        noted_number: index in the block of their lines.
        noted_counted: how many kernels were counted up to each of them.
        bytes: of the lines that want reading.
        longest: bytes of the longest of them.
    """

    lines: int
    blank: Ints
    blank_number: Ints
    number: list[int]
    known: list[bool]
    skipped: list[int]
    start: list[int]
    body: list[int]
    end: list[int]
    candidates: list[int]
    counted: int
    announced: list[int]
    quiet: Ints
    stamped: Ints
    noted: list[int]
    noted_number: list[int]
    noted_counted: list[int]
    bytes: int
    longest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Light:
    light: Flags
    tuned: Flags
    noted: Flags


Prefilter = Callable[[bytes], FilteredBlock]
"""Looks over a block, which ends with a newline."""


class BlockPrefilter:
    """Looks over the blocks of one log in order.

    Args:
        grammar: knows which patterns are light.
        skip: whether light lines are skipped; without, every line wants reading.
    """

    def __init__(self, grammar: Grammar, *, skip: bool = True) -> None:
        self._arrays = arrays_of(grammar)
        self._skip = skip
        self._counted = 0
        self._in_run = False

    def __call__(self, block: bytes) -> FilteredBlock:
        """Filter a block; it ends with a newline."""
        data = np.frombuffer(block + _PAD, np.uint8)
        words: Words = np.ndarray((len(data) - KEY + 1,), "<u8", buffer=data.data, strides=(1,))
        ends = np.flatnonzero(data[: len(block)] == _NEWLINE)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        body = _bodies(data, words, starts, ends)
        ends = ends - (data[ends - 1] == _SPACE)
        known = body >= 0
        at = np.where(known, np.minimum(body, ends), starts)
        at += data[at] == _SPACE
        if self._skip:
            found = self._lighten(data, words, self._codes(words, at, ends, known), at, ends)
        else:
            nothing = np.zeros(len(at), np.bool_)
            found = _Light(light=nothing, tuned=nothing, noted=nothing)
        blank = ends <= at
        counts = np.cumsum(found.tuned) + self._counted
        self._counted = int(counts[-1])
        wanted = np.flatnonzero(~(found.light | blank))
        lengths = ends[wanted] - starts[wanted]
        noted = np.flatnonzero(found.noted)
        return FilteredBlock(
            lines=len(ends),
            blank=starts[blank],
            blank_number=np.flatnonzero(blank),
            number=wanted.tolist(),
            known=known[wanted].tolist(),
            skipped=np.cumsum(found.light)[wanted].tolist(),
            start=starts[wanted].tolist(),
            body=at[wanted].tolist(),
            end=ends[wanted].tolist(),
            candidates=counts[wanted].tolist(),
            counted=self._counted,
            announced=np.searchsorted(noted, wanted).tolist(),
            quiet=starts[known],
            stamped=starts[known & (body - starts >= _STAMPED)],
            noted=at[noted].tolist(),
            noted_number=noted.tolist(),
            noted_counted=counts[noted].tolist(),
            bytes=int(lengths.sum()),
            longest=int(lengths.max(initial=0)),
        )

    def _codes(self, words: Words, at: Ints, ends: Ints, known: Flags) -> Codes:
        """The bucket each line's first bytes choose, or its last."""
        code = self._arrays.heads.find(words[at])
        code[(words[at + KEY] & self._arrays.common.masks[code]) != self._arrays.common.keys[code]] = UNSURE
        rest = np.flatnonzero(code == UNSURE)
        code[rest] = self._arrays.short_heads.find(words[at[rest]])
        rest = rest[code[rest] == UNSURE]
        code[rest] = self._arrays.endings.find(words[np.maximum(ends[rest] - ENDING, 0)])
        return np.where(known | self._arrays.bare[code], code, SLOW).astype(np.int16)

    def _lighten(self, data: Bytes, words: Words, codes: Codes, at: Ints, ends: Ints) -> _Light:
        """Which lines are light, which of these are rows of tuning, and which are noted."""
        light, tuned, noted, spared = (np.zeros(len(at), np.bool_) for _ in range(4))
        coded = np.flatnonzero(codes >= 0)
        for rank in self._arrays.ranks:
            where = coded[rank.any[codes[coded]]]
            for step, part in enumerate(rank.parts, 1):
                code = codes[where]
                where = where[(words[at[where] + step * KEY] & part.masks[code]) == part.keys[code]]
            where = where[follows(words, at[where] + rank.head[codes[where]], rank.after_id, codes[where])]
            where = where[~rank.tuned[codes[where]] | _DIGITS[data[ends[where] - 1]]]
            code = codes[where]
            light[where] = True
            noted[where] = rank.noted[code]
            tuned[where] = rank.tuned[code]
            spared[where] = rank.rest[code]
        light &= ~self._first_of_each(spared)
        # The first of a run is handled one by one, and counted there.
        tuned &= light
        rest = np.flatnonzero((codes == UNSURE) & (ends - at > HEX16 + KEY))
        ending = ends[rest]
        for last, before in self._arrays.tails:
            light[rest] |= (words[ending - KEY] == last) & (words[ending - 2 * KEY] == before)
        for before in self._arrays.before_id:
            light[rest] |= (words[ending - HEX16 - KEY] == before) & (words[ending - HEX16] & _TWO == _0X)
        return _Light(light=light, tuned=tuned, noted=noted)

    def _first_of_each(self, hits: Flags) -> Flags:
        """The first of each run of hits; a run may have begun in the block before."""
        before = np.empty_like(hits)
        before[0] = self._in_run
        before[1:] = hits[:-1]
        self._in_run = bool(hits[-1])
        return hits & ~before


NOTED = "timing"
"""The pattern that names the layer whose kernels are timed next."""


def _bodies(data: Bytes, words: Words, starts: Ints, ends: Ints) -> Ints:
    """Where the message behind a well-known, quiet prefix begins; -1 for every other line."""
    body = np.full(len(starts), -1, np.int64)
    stamped = (data[starts] == _OPEN) & (ends - starts >= 32)
    # [MM/DD/YYYY-HH:MM:SS] [V] [TRT] msg
    library = stamped & (words[starts + 24] == word(b"] [TRT] ")) & _QUIET[data[starts + 23]]
    body[library] = starts[library] + 32
    rest = np.flatnonzero(~library)
    if len(rest):
        body[rest] = _other_bodies(data, words, starts[rest], ends[rest])
    return body


def _other_bodies(data: Bytes, words: Words, starts: Ints, ends: Ints) -> Ints:
    body = np.full(len(starts), -1, np.int64)
    opened = data[starts] == _OPEN
    length = ends - starts
    # [MM/DD/YYYY-HH:MM:SS] [TRT] [V] msg
    python = opened & (length >= 32) & (words[starts + 20] == word(b"] [TRT] "))
    python &= (data[starts + 28] == _OPEN) & (data[starts + 30] == _CLOSE) & _QUIET[data[starts + 29]]
    body[python] = starts[python] + 32
    # [MM/DD/YYYY-HH:MM:SS] [I] msg
    own = opened & ~python & (length >= 25) & (data[starts + 20] == _CLOSE) & (data[starts + 22] == _OPEN)
    own &= (data[starts + 24] == _CLOSE) & _QUIET[data[starts + 23]] & (data[starts + 26] != _OPEN)
    body[own] = starts[own] + 26
    # [V] msg and [V] [TRT] msg
    short = opened & (length >= 3) & (data[starts + 2] == _CLOSE) & _QUIET[data[starts + 1]]
    short &= (data[starts + 3] == _SPACE) | (length == 3)
    body[short] = starts[short] + 4
    double = short & (words[starts + 2] == word(b"] [TRT] "))
    body[double] = starts[double] + 10
    body[short & ~double & (data[starts + 4] == _OPEN) & (data[starts + 6] == _CLOSE)] = -1
    return body


_TWO, _0X = mask(2), word(b"0x")
