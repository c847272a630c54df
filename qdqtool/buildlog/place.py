"""Where the reading is inside a block, and what can be asked of the lines that were skipped there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from qdqtool.buildlog.grammar_arrays import Ints
from qdqtool.buildlog.prefilter import FilteredBlock

_STAMP = re.compile(r"\[(\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]")
_UNSEEN = (-1, "")
_LINE = 1 << 16
"""Characters of a noted message that are given out."""

Tuned = tuple[str, int, int]
"""What was announced, the line that announced it, and how many kernels were timed for it."""


class Place:
    """A block being read, and the line that is being handled.

    Attributes:
        text: the block, one character per byte.
        index: which of the block's wanted lines is being handled.
        number: which of all its lines that is.
    """

    def __init__(self) -> None:
        self.text = ""
        self.index = 0
        self.number = 0
        self._numbers: Sequence[int] = ()
        self._seen, self._seen_before = _UNSEEN, _UNSEEN
        self._filtered: FilteredBlock | None = None
        self._run_at = 0
        self._announced = ("", 0)
        self._at_note = 0
        self._settled = 0
        self._tuned: dict[tuple[str, int], int] = {}

    def enter(self, text: str, filtered: FilteredBlock, numbers: Sequence[int]) -> None:
        """Go on to the next block."""
        self.text, self._filtered, self._numbers = text, filtered, numbers
        self._run_at = self.index = self.number = self._at_note = 0
        self._seen, self._seen_before = _UNSEEN, _UNSEEN

    def leave(self) -> None:
        """Stand behind the last line of the block."""
        if self._filtered is not None:
            self.index, self.number = len(self._filtered.start), self._filtered.lines
            self._settle()

    @property
    def at(self) -> int:
        """Where the line begins that is being handled."""
        if self._filtered is None:
            return 0
        starts = self._filtered.start
        return starts[self.index] if self.index < len(starts) else len(self.text)

    def begin_run(self) -> None:
        """A run begins at this line."""
        self._run_at = self.at

    # Time stamps and prefixes

    def saw_stamp(self, stamp: str) -> None:
        """This line, whose prefix is none of the prefilter's, has a time stamp."""
        if self._seen[0] != self.at:
            self._seen_before = self._seen
        self._seen = (self.at, stamp)

    def stamp(self) -> str:
        """The time stamp of this line, or ""."""
        if self._seen[0] == self.at:
            return self._seen[1]
        found = _STAMP.match(self.text, self.at)
        return found.group(1) if found else ""

    def last_stamp(self) -> str:
        """The time stamp of the last line before this one, in this block and run, or ""."""
        before = self._before(self._filtered.stamped) if self._filtered is not None else None
        at, stamp = self._seen if self._seen[0] < self.at else self._seen_before
        if before is None or before < at:
            return stamp if self._run_at <= at else ""
        found = _STAMP.match(self.text, before) if before >= self._run_at else None
        return found.group(1) if found else ""

    def prefixed_line(self) -> str | None:
        """The beginning of the first line with a prefix in this block and run, if it comes before this line."""
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

    def announce(self, what: str, line: int) -> None:
        """The kernels that are timed from this line on are those of `what`."""
        self._settle()
        self._announced = (what, line)

    def timed(self) -> None:
        """A kernel was timed at this line."""
        self._settle()
        self._tuned[self._announced] = self._tuned.get(self._announced, 0) + 1

    def announced(self) -> str:
        """The last announcement before this line, or ""."""
        self._settle()
        return self._announced[0]

    def tuned(self) -> list[Tuned]:
        """What was announced and timed up to this line since somebody asked."""
        self._settle()
        tuned, self._tuned = self._tuned, {}
        return [(what, line, count) for (what, line), count in tuned.items()]

    def _settle(self) -> None:
        """Give the kernels that were skipped up to this line to whom they were announced for."""
        filtered = self._filtered
        if filtered is None:
            return
        inside = self.index < len(filtered.start)
        notes = filtered.announced[self.index] if inside else len(filtered.noted)
        for note in range(self._at_note, notes):
            self._give(filtered.noted_counted[note])
            self._announced = (self._noted(filtered, note), self._numbers[filtered.noted_number[note]])
        self._at_note = notes
        self._give(filtered.candidates[self.index] if inside else filtered.counted)

    def _give(self, counted: int) -> None:
        if counted > self._settled:
            before = self._tuned.get(self._announced, 0)
            self._tuned[self._announced] = before + counted - self._settled
            self._settled = counted

    def _noted(self, filtered: FilteredBlock, note: int) -> str:
        begin = filtered.noted[note]
        end = self.text.find("\n", begin, begin + _LINE)
        return self.text[begin : end if end >= 0 else begin + _LINE].rstrip()

    def _before(self, places: Ints) -> int | None:
        found = int(np.searchsorted(places, self.at)) - 1
        return int(places[found]) if found >= 0 else None
