"""Lines of a log with their numbers, however carriage returns cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qdqtool.io.text import TextSource


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Clean lines of a log.

    Attributes:
        data: the lines, each ending with a newline.
        numbers: the number of each in the file, from 1; lines that were one carry the same.
    """

    data: bytes
    numbers: Sequence[int]


def blocks_of(
    source: TextSource,
    first_line: int = 1,
    through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None,
) -> Iterator[LogBlock]:
    """The blocks of a source, whose first line has this number; `through` makes its lines.

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
        # What was overwritten by nothing was never seen apart.
        shown = [piece for piece in line.split(b"\r") if piece.strip()] or [b""]
        pieces += shown
        numbers += [number] * len(shown)
    return LogBlock(b"\n".join(pieces) + b"\n", numbers)
