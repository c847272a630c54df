"""The prefilter: scans a block of a log as an array of bytes, so that Python handles only relevant lines.

Two thirds of a verbose log are a few light patterns (each kernel timed, each tensor registered). They are recognised
by the first bytes after a well-known prefix, and counted as bytes. The prefilter skips lines and finds the start of
messages. It reads no message, so a log gives an equal digest with and without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtool.buildlog.grammar import (
    ENDING,
    KEY,
    SLOW,
    UNSURE,
    Codes,
    Flags,
    Grammar,
    Ints,
    Words,
    arrays_of,
    follows,
    mask,
    word,
)
from qdqtool.buildlog.pattern import HEX16
from qdqtool.io.text import TextSource

# --- blocks ----------------------------------------------------------------------------------------------------------
# Lines of a log with their numbers. Carriage returns may cut a line into pieces.


@dataclass(frozen=True, slots=True)
class LogBlock:
    """A block of complete, clean lines of a log.

    Attributes:
        data: the lines, each ending with a newline.
        numbers: the number of each line in the file, from 1; parts of one original line have one number.
    """

    data: bytes
    numbers: Sequence[int]


def blocks_of(
    source: TextSource,
    first_line: int = 1,
    through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None,
) -> Iterator[LogBlock]:
    """Yield the lines of a source in blocks, numbered from `first_line`; `through` converts the text first.

    A line in which carriage returns overwrite each other (progress bars) becomes one line per text that the terminal
    showed, all with its number.
    """
    line = first_line
    for data in source.blocks(through):
        first, line = line, line + data.count(b"\n")
        yield LogBlock(data, range(first, line)) if b"\r" not in data else _in_pieces(data, first)


def _in_pieces(data: bytes, first: int) -> LogBlock:
    pieces: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(data.split(b"\n")[:-1], first):
        # An empty piece overwrote nothing, so it is dropped.
        shown = [piece for piece in line.split(b"\r") if piece.strip()] or [b""]
        pieces += shown
        numbers += [number] * len(shown)
    return LogBlock(b"\n".join(pieces) + b"\n", numbers)


# --- prefilter -------------------------------------------------------------------------------------------------------


Bytes = npt.NDArray[np.uint8]

_STAMPED = 26
"""Bytes of the shortest prefix with a time stamp."""
# Bytes after the end of a block that are read, as many as the widest word.
_PAD = b"\n" * 64
_SPACE, _NEWLINE, _OPEN, _CLOSE = b" \n[]"
# One entry for each byte value, so that one look-up tests many bytes.
_DIGITS = np.zeros(256, np.bool_)
_DIGITS[list(b"0123456789,")] = True
_QUIET = np.zeros(256, np.bool_)
_QUIET[list(b"VI")] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FilteredBlock:
    """The lines of a block of a log that the reader must read, as parallel lists; all other lines are only counted.

    Attributes:
        lines: how many lines the block has.
        blank: offsets of lines that are empty or hold only a well-known prefix.
        blank_number: index in the block of each blank line.
        number: index of the line in the block.
        prefixed: whether the line has a well-known, quiet prefix; its message then begins at `body`.
        start, body, end: offsets of the line, of its message and of its end.
        skipped: how many light lines the block has before each of these lines.
        candidates: how many kernels (rows of tuning) were counted since the log began, up to each of these lines.
        counted: how many kernels were counted up to the end of the block.
        announced: how many noted patterns the block has before each of these lines.
        quiet: offsets of all lines with a well-known prefix, light ones included.
        stamped: offsets of the quiet lines that have a time stamp.
        noted: offsets of the messages of noted patterns.
        noted_number: index in the block of the lines of noted patterns.
        noted_counted: how many kernels were counted up to each noted line.
        bytes: bytes of the lines that must be read.
        longest: bytes of the longest of them.
    """

    lines: int
    blank: Ints
    blank_number: Ints
    number: list[int]
    prefixed: list[bool]
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
"""Function that scans a block, which ends with a newline."""


class BlockPrefilter:
    """Finds, in the blocks of one log, the lines that the reader must parse.

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
        """Return the lines of a block that the reader must parse. The block must end with a newline."""
        data = np.frombuffer(block + _PAD, np.uint8)
        words: Words = np.ndarray((len(data) - KEY + 1,), "<u8", buffer=data.data, strides=(1,))
        ends = np.flatnonzero(data[: len(block)] == _NEWLINE)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        body = _bodies(data, words, starts, ends)
        ends = ends - (data[ends - 1] == _SPACE)
        prefixed = body >= 0
        at = np.where(prefixed, np.minimum(body, ends), starts)
        at += data[at] == _SPACE
        if self._skip:
            light = self._lighten(data, words, self._codes(words, at, ends, prefixed), at, ends)
        else:
            nothing = np.zeros(len(at), np.bool_)
            light = _Light(light=nothing, tuned=nothing, noted=nothing)
        blank = ends <= at
        counts = np.cumsum(light.tuned) + self._counted
        self._counted = int(counts[-1])
        kept = np.flatnonzero(~(light.light | blank))
        lengths = ends[kept] - starts[kept]
        noted = np.flatnonzero(light.noted)
        return FilteredBlock(
            lines=len(ends),
            blank=starts[blank],
            blank_number=np.flatnonzero(blank),
            number=kept.tolist(),
            prefixed=prefixed[kept].tolist(),
            skipped=np.cumsum(light.light)[kept].tolist(),
            start=starts[kept].tolist(),
            body=at[kept].tolist(),
            end=ends[kept].tolist(),
            candidates=counts[kept].tolist(),
            counted=self._counted,
            announced=np.searchsorted(noted, kept).tolist(),
            quiet=starts[prefixed],
            stamped=starts[prefixed & (body - starts >= _STAMPED)],
            noted=at[noted].tolist(),
            noted_number=noted.tolist(),
            noted_counted=counts[noted].tolist(),
            bytes=int(lengths.sum()),
            longest=int(lengths.max(initial=0)),
        )

    def _codes(self, words: Words, at: Ints, ends: Ints, prefixed: Flags) -> Codes:
        """Return for each line the group of patterns that its first or last bytes select."""
        code = self._arrays.heads.find(words[at])
        code[(words[at + KEY] & self._arrays.common.masks[code]) != self._arrays.common.keys[code]] = UNSURE
        open_ = np.flatnonzero(code == UNSURE)
        code[open_] = self._arrays.short_heads.find(words[at[open_]])
        open_ = open_[code[open_] == UNSURE]
        code[open_] = self._arrays.endings.find(words[np.maximum(ends[open_] - ENDING, 0)])
        return np.where(prefixed | self._arrays.bare[code], code, SLOW).astype(np.int16)

    def _lighten(self, data: Bytes, words: Words, codes: Codes, at: Ints, ends: Ints) -> _Light:
        """Find the lines that need no parsing, and among them those that report timed kernels."""
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
            spared[where] = rank.spared[code]
        light &= ~self._first_of_each(spared)
        # The first lines of a run are handled singly, and counted there.
        tuned &= light
        unsure = np.flatnonzero((codes == UNSURE) & (ends - at > HEX16 + KEY))
        ending = ends[unsure]
        for last, before in self._arrays.tails:
            light[unsure] |= (words[ending - KEY] == last) & (words[ending - 2 * KEY] == before)
        for before in self._arrays.before_id:
            light[unsure] |= (words[ending - HEX16 - KEY] == before) & (words[ending - HEX16] & _TWO == _0X)
        return _Light(light=light, tuned=tuned, noted=noted)

    def _first_of_each(self, hits: Flags) -> Flags:
        """Return the first marked line of each sequence of marked lines, which may cross blocks."""
        before = np.empty_like(hits)
        before[0] = self._in_run
        before[1:] = hits[:-1]
        self._in_run = bool(hits[-1])
        return hits & ~before


NOTED = "timing"
"""Pattern that names the layer of the kernels that are timed next."""


def _bodies(data: Bytes, words: Words, starts: Ints, ends: Ints) -> Ints:
    """Return where the message of each line begins after a well-known prefix; -1 for other lines."""
    body = np.full(len(starts), -1, np.int64)
    stamped = (data[starts] == _OPEN) & (ends - starts >= 32)
    # [MM/DD/YYYY-HH:MM:SS] [V] [TRT] msg
    library = stamped & (words[starts + 24] == word(b"] [TRT] ")) & _QUIET[data[starts + 23]]
    body[library] = starts[library] + 32
    slower = np.flatnonzero(~library)
    if len(slower):
        body[slower] = _other_bodies(data, words, starts[slower], ends[slower])
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


# --- place -----------------------------------------------------------------------------------------------------------
# The reading position inside a block, and facts about the lines that were skipped there.


_STAMP = re.compile(r"\[(\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]")
_UNSEEN = (-1, "")
_LINE = 1 << 16
"""Most characters of a noted message that are returned."""

Tuned = tuple[str, int, int]
"""An announcement, its line, and the number of kernels timed for it."""


_COSTS = "Computing costs for"
"""Words before the formats of a layer that are tried."""
_TRIED = re.compile(r"Autotuning format combination: (.+?) ?(?:\*{5,}|$)", re.MULTILINE)
_LAYOUT = re.compile(r"\([^()]*\)")
_NESTED = 8
"""Most parentheses inside each other: a line of a stranger may have thousands."""
_WHERE = re.compile(r" where .*?(?= -> |$)")
_VALUE = re.compile(r"\(VALUE ([^\s()]+)\)")


class Place:
    """The reader's position in a log: a block, and the current line.

    Attributes:
        text: the block, one character per byte.
        index: index of the current line among the lines of the block that must be read.
        number: index of the current line among all lines of the block.
    """

    def __init__(self) -> None:
        self.text = ""
        self.index = 0
        self.number = 0
        self._numbers: Sequence[int] = ()
        self._last, self._last_before = _UNSEEN, _UNSEEN
        self._filtered: FilteredBlock | None = None
        self._run_at = 0
        self._announced = ("", 0)
        self._at_note = 0
        self._settled = 0
        self._tuned: dict[tuple[str, int], int] = {}

    def enter(self, text: str, filtered: FilteredBlock, numbers: Sequence[int]) -> None:
        """Begin the next block of the log."""
        self.text, self._filtered, self._numbers = text, filtered, numbers
        self._run_at = self.index = self.number = self._at_note = 0
        self._last, self._last_before = _UNSEEN, _UNSEEN

    def leave(self) -> None:
        """Move the position to the end of the block."""
        if self._filtered is not None:
            self.index, self.number = len(self._filtered.start), self._filtered.lines
            self._settle()

    @property
    def at(self) -> int:
        """Byte offset of the current line in its block."""
        if self._filtered is None:
            return 0
        starts = self._filtered.start
        return starts[self.index] if self.index < len(starts) else len(self.text)

    def begin_run(self) -> None:
        """Begin a builder run at the current line of the log."""
        self._run_at = self.at

    # Time stamps and prefixes

    def saw_stamp(self, stamp: str) -> None:
        """Record that the current line has a time stamp after a prefix that the prefilter does not know."""
        if self._last[0] != self.at:
            self._last_before = self._last
        self._last = (self.at, stamp)

    def stamp(self) -> str:
        """Return the time stamp of the current log line; "" if it has none."""
        if self._last[0] == self.at:
            return self._last[1]
        match = _STAMP.match(self.text, self.at)
        return match.group(1) if match else ""

    def last_stamp(self) -> str:
        """Return the last time stamp before the current line, in this block and run; "" if there is none."""
        before = self._before(self._filtered.stamped) if self._filtered is not None else None
        at, stamp = self._last if self._last[0] < self.at else self._last_before
        if before is None or before < at:
            return stamp if self._run_at <= at else ""
        match = _STAMP.match(self.text, before) if before >= self._run_at else None
        return match.group(1) if match else ""

    def prefixed_line(self) -> str | None:
        """Return the first 64 characters of the first line with a prefix before the current line.

        Only this block and run count. None if no such line has a prefix.
        """
        if self._filtered is None:
            return None
        quiet = self._filtered.quiet
        if not len(quiet):
            return None
        first = int(np.searchsorted(quiet, self._run_at))
        if first == len(quiet) or int(quiet[first]) >= self.at:
            return None
        return self.text[int(quiet[first]) : int(quiet[first]) + 64]

    # Timed kernels

    def announce(self, subject: str, line: int) -> None:
        """Record that the kernels timed from this line on belong to `subject`."""
        self._settle()
        self._announced = (subject, line)

    def timed(self) -> None:
        """Count a timed kernel at the current line."""
        self._settle()
        self._tuned[self._announced] = self._tuned.get(self._announced, 0) + 1

    def announced(self) -> str:
        """Return the log's words for the layer whose kernels are timed at the current line; "" if unknown."""
        self._settle()
        return self._announced[0]

    def types_tried(self) -> tuple[str, ...]:
        """Return the types that were tried for the layer before the current line, as far as this block shows them.

        The types are in the words of the log ("Int8 -> Float"), each once.
        """
        types: dict[str, None] = {}
        for formats in self._list_tried():
            words = formats
            for _ in range(_NESTED):
                words = _LAYOUT.sub("", words)
            types[_WHERE.sub("", words).strip()] = None
        return tuple(types)

    def values_in_shapes(self) -> tuple[str, ...]:
        """Return tensors whose values determine shapes of the layer before the current line."""
        return tuple(
            dict.fromkeys(name for formats in self._list_tried() for name in _VALUE.findall(formats))
        )

    def costed(self) -> str:
        """Return the layer whose autotuning began last before the current line, as far as this block shows it."""
        begin = self.text.rfind(_COSTS, 0, self.at)
        return self.text[begin + len(_COSTS) : self.text.find("\n", begin)].strip() if begin >= 0 else ""

    def _list_tried(self) -> list[str]:
        return _TRIED.findall(self.text, max(0, self.text.rfind(_COSTS, 0, self.at)), self.at)

    def tuned(self) -> list[Tuned]:
        """Return the announced layers since the last call, each with the number of its timed kernels."""
        self._settle()
        tuned, self._tuned = self._tuned, {}
        return [(subject, line, count) for (subject, line), count in tuned.items()]

    def _settle(self) -> None:
        """Assign timed kernels on skipped lines to the layers announced before them."""
        filtered = self._filtered
        if filtered is None:
            return
        inside = self.index < len(filtered.start)
        notes = filtered.announced[self.index] if inside else len(filtered.noted)
        for note in range(self._at_note, notes):
            self._give(filtered.noted_counted[note])
            self._announced = (self._add_note(filtered, note), self._numbers[filtered.noted_number[note]])
        self._at_note = notes
        self._give(filtered.candidates[self.index] if inside else filtered.counted)

    def _give(self, counted: int) -> None:
        if counted > self._settled:
            before = self._tuned.get(self._announced, 0)
            self._tuned[self._announced] = before + counted - self._settled
            self._settled = counted

    def _add_note(self, filtered: FilteredBlock, note: int) -> str:
        begin = filtered.noted[note]
        end = self.text.find("\n", begin, begin + _LINE)
        return self.text[begin : end if end >= 0 else begin + _LINE].rstrip()

    def _before(self, places: Ints) -> int | None:
        index = int(np.searchsorted(places, self.at)) - 1
        return int(places[index]) if index >= 0 else None
