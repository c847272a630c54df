"""The order of lines: what is exported from a collector of logs often begins with the newest.

    2024-05-01T10:00:07Z [V] [TRT] Engine generation completed in 2.5 seconds.
    2024-05-01T10:00:06Z [V] [TRT] ...

Such a log is read from its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qdqtool.errors import InputFileError

HELD = 1 << 28
"""Bytes that are turned around; more do not fit into memory."""
_PEEKED = 1 << 20
"""Bytes at whose times is looked."""
_ENOUGH = 3
"""Times that are older than those of the line before, without one that is newer."""
_TURNED = 1 << 16
"""Bytes that are cut into lines at once."""
_SEARCHED = 2000
"""Characters of a line in which times are looked for."""
_COLUMNS = re.compile(rb"\"?[@_A-Za-z][\w@. ()/-]*\"?(?:[,;\t]\"?[@_A-Za-z][\w@. ()/-]*\"?)*\r?")
"""Names of columns; they stay where they are."""
_TIMELESS = 50
"""Lines without any time, after which none is expected."""
_TIME = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    rb"|(\d\d)/(\d\d)/(\d{4})-(\d\d:\d\d:\d\d)|(?<!\d)(1\d{9}(?:\d{9}|\d{3}|\.\d{1,9}))(?!\d)"
)


class Order:
    """Whether a log begins with its newest line.

    Attributes:
        newest_first: known when its lines are read.
    """

    def __init__(self) -> None:
        self.newest_first = False
        self._before: dict[int, bytes] = {}
        self._lines = self._falling = 0

    def oldest_first(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same lines, the oldest first.

        Raises:
            InputFileError: the newest comes first, and the text is larger than 256 MiB.
        """
        seen: list[bytes] = []
        size, rest = 0, b""
        for piece in pieces:
            seen.append(piece)
            size += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            if self._is_told(lines) or size >= _PEEKED:
                break
        self.newest_first = self._falling >= _ENOUGH
        if not self.newest_first:
            yield from seen  # as they were read: what a reader keeps is bounded from piece to piece
            yield from pieces
            return
        held = bytearray(b"".join(seen))
        for piece in pieces:
            held += piece
            if len(held) > HELD:
                raise InputFileError(
                    f"begins with its newest line, and holds more than {HELD >> 20} MiB",
                    fix="turn it around before: tac LOG | qdqtool parse -",
                    where="the log",
                )
        yield from _turned(held)

    def _is_told(self, lines: list[bytes]) -> bool:
        """Whether the lines up to these tell their order; `_falling` is how often a time is older than before."""
        for line in lines:
            now = _times(line)
            for form, time in now.items():
                earlier = self._before.get(form, time)
                if time > earlier:
                    self._falling = 0
                    return True
                self._falling += time < earlier
            self._before |= now
            self._lines += 1
            if self._falling >= _ENOUGH or (self._lines > _TIMELESS and not self._before):
                return True
        return False


def _turned(text: bytearray) -> Iterator[bytes]:
    """The lines of a text from its end, names of columns first; cut a piece at a time, because each byte may be a line."""
    end = len(text) - text.endswith(b"\n")
    first = text.find(b"\n", 0, end) + 1
    begin = first if first and _COLUMNS.fullmatch(text[: first - 1]) else 0
    yield bytes(text[:begin])
    while end >= begin:
        at = max(text.rfind(b"\n", begin, max(begin, end - _TURNED)), begin - 1) + 1
        yield b"\n".join(reversed(bytes(text[at:end]).split(b"\n"))) + b"\n"
        end = at - 1


def _times(line: bytes) -> dict[int, bytes]:
    """The first time of each spelling in a line, so that later ones are larger."""
    found: dict[int, bytes] = {}
    for one in _TIME.finditer(line[:_SEARCHED]):
        year, month, day, clock, month2, day2, year2, clock2, since_1970 = one.groups()
        if since_1970:
            found.setdefault(len(since_1970), since_1970)
        elif year:
            found.setdefault(0, year + month + day + clock)
        else:
            found.setdefault(1, year2 + month2 + day2 + clock2)
    return found
