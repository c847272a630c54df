"""Where the reading is inside a block, and what can be asked of the lines that were skimmed there."""

from __future__ import annotations

import re

import numpy as np

from qdqtool.buildlog.arrays import Ints
from qdqtool.buildlog.skim import Skimmed

_STAMP = re.compile(r"\[(\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\]")
_LINE = 1 << 16
"""Characters of a noted message that are given out."""


class Place:
    """A block being read, and the line that is being heard.

    Attributes:
        text: the block, one character per byte.
        index: which of the block's wanted lines is being heard.
        candidates: kernels timed since the log began that were heard one by one.
    """

    def __init__(self) -> None:
        self.text = ""
        self.index = 0
        self.candidates = 0
        self._skimmed: Skimmed | None = None
        self._run_at = 0
        self._counted = 0
        self._noted = ""

    def enter(self, text: str, skimmed: Skimmed | None) -> None:
        """Go on to the next block, or (without `skimmed`) to a line read by hand."""
        if self._skimmed is not None:
            self._counted = self._skimmed.counted
        self.text, self._skimmed, self._run_at, self.index = text, skimmed, 0, 0

    def leave(self) -> None:
        """Stand behind the last line of the block."""
        if self._skimmed is not None:
            self._noted = self.noted() or self._noted
            self.index = len(self._skimmed.start)

    @property
    def at(self) -> int:
        """Where the line begins that is being heard."""
        if self._skimmed is None:
            return 0
        starts = self._skimmed.start
        return starts[self.index] if self.index < len(starts) else len(self.text)

    def begin_run(self) -> int:
        """A run begins at this line; how many empty lines of the block belong to it."""
        self._run_at = self.at
        return self._after(self._skimmed.blank) if self._skimmed is not None else 0

    def stamp(self) -> str:
        """The time stamp of this line, or ""."""
        found = _STAMP.match(self.text, self.at)
        return found.group(1) if found else ""

    def last_stamp(self) -> str:
        """The time stamp of the last line of the short way before this one, in this block, or ""."""
        before = self._before(self._skimmed.stamped) if self._skimmed is not None else None
        found = _STAMP.match(self.text, before) if before is not None else None
        return found.group(1) if found else ""

    def prefixed_line(self) -> str | None:
        """The beginning of the first line with a prefix in this block and run, if it comes before this line."""
        if self._skimmed is None:
            return None
        quiet = self._skimmed.quiet
        first = int(np.searchsorted(quiet, self._run_at))
        if first == len(quiet) or int(quiet[first]) >= self.at:
            return None
        return self.text[int(quiet[first]) : int(quiet[first]) + 64]

    def timed(self) -> int:
        """How many kernels the log has timed so far."""
        skimmed = self._skimmed
        if skimmed is None:
            return self._counted + self.candidates
        inside = self.index < len(skimmed.candidates)
        return (skimmed.candidates[self.index] if inside else skimmed.counted) + self.candidates

    def note(self, message: str) -> None:
        """A noted message was heard by hand."""
        self._noted = message

    def noted(self) -> str:
        """The last noted message before this line, or ""."""
        skimmed = self._skimmed
        if skimmed is None:
            return self._noted
        count = skimmed.announced[self.index] if self.index < len(skimmed.announced) else len(skimmed.noted)
        if not count:
            return self._noted
        begin = skimmed.noted[count - 1]
        end = self.text.find("\n", begin, begin + _LINE)
        return self.text[begin : end if end >= 0 else begin + _LINE]

    def _before(self, places: Ints) -> int | None:
        found = int(np.searchsorted(places, self.at)) - 1
        return int(places[found]) if found >= 0 else None

    def _after(self, places: Ints) -> int:
        return len(places) - int(np.searchsorted(places, self.at))
