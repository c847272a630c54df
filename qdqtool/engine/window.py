"""JSON that is read piece by piece and forgotten behind the reader, so that a file of any size needs little memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

DAMAGED = object()
"""Stands for a stretch that is no JSON."""
_CUT = object()
_WORD = 12
"""Characters that an escape or a literal may need to be told."""
LARGEST_VALUE = 1 << 24
"""Characters of one value; a longer one counts as damage."""
_MOST_DAMAGE = 1000
"""Damaged stretches after which the rest of a list is given up."""
_REACH = 8192
"""Characters that a pattern may span."""
_GAP = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)


class Window:
    """The part of a text around the reader.

    Attributes:
        text: what is held.
        at: where the reader is in it.
        ended: whether nothing follows.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self.text = ""
        self.at = 0
        self.ended = False

    def find(self, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> re.Match[str] | None:
        """The next match of `pattern`, of at most 8192 characters; the reader goes behind it, or to the end.

        Where `words` are given every match holds one of them; looking for words first is much faster.
        """
        while (found := self._match(pattern, words)) is None:
            self.at = max(self.at, len(self.text) - _REACH)
            if not self._more():
                self.at = len(self.text)
                return None
        self.at = found.end()
        return found

    def values(self, following: re.Pattern[str]) -> Iterator[Any]:
        """The values of the JSON list that the reader is in; `DAMAGED` for each stretch that is no JSON.

        Behind damage reading goes on where `following` matches. The end of a list that is cut counts as damage.
        """
        for _ in range(_MOST_DAMAGE):
            while self._skip() and self.text[self.at] != "]":
                value = self._value()
                if value is DAMAGED:
                    break
                yield value
            else:
                if self.at < len(self.text):
                    self.at += 1
                    return
            yield DAMAGED
            self.at += 1
            found = self.find(following)
            if found is None:
                return
            self.at = found.start()

    def _match(self, pattern: re.Pattern[str], words: tuple[str, ...]) -> re.Match[str] | None:
        if words and all(self.text.find(word, self.at) < 0 for word in words):
            return None
        return pattern.search(self.text, self.at)

    def _skip(self) -> bool:
        """Go behind spaces and commas; whether there is something left."""
        while True:
            gap = _GAP.match(self.text, self.at)
            self.at = gap.end() if gap else self.at
            if self.at < len(self.text):
                return True
            if not self._more():
                return False

    def _value(self) -> Any:
        while (value := self._decoded()) is _CUT:
            if len(self.text) - self.at > LARGEST_VALUE or not self._more():
                return DAMAGED
        return value

    def _decoded(self) -> Any:
        """The value that begins here, `DAMAGED`, or `_CUT` where more text may complete it."""
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos > len(self.text) - _WORD
            return _CUT if cut else DAMAGED
        except (ValueError, RecursionError):
            return DAMAGED
        return value

    def _more(self) -> bool:
        """Take in at least as much as is held and forget what lies behind the reader; whether there was more."""
        held = [self.text[self.at :]]
        wanted = len(held[0])
        taken = 0
        while not self.ended and taken <= wanted:
            piece = next(self._pieces, None)
            self.ended = piece is None
            held.append(piece or "")
            taken += len(piece or "")
        self.text = "".join(held)
        self.at = 0
        return taken > 0
