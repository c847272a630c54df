"""Opening a log: files, streams and pipes, compressed or not, in any encoding, as blocks of clean lines.

A block is UTF-8 bytes that end with a newline, never much longer than `LINE_LIMIT`. What had to be done to the bytes
is kept as notes.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from qdqtool.errors import InputFileError

Source = str | Path | BinaryIO | TextIO

BLOCK = 1 << 20
"""Bytes read at once."""
LINE_LIMIT = 4 << 20
"""Bytes of a line that are kept; the rest of a longer line is dropped and noted."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]|)")
_PACKED = ((b"\xfd7zXZ\x00", "xz"), (b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"))
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class LogSource:
    """The blocks of one log, read once.

    Args:
        source: a path or a stream.
        copy_to: gets every byte as it was read.
        begin, end: which bytes of a file to read.

    Attributes:
        notes: what had to be done to its bytes, each thing once.
        taken: bytes read so far, before unpacking.
    """

    def __init__(
        self, source: Source, copy_to: BinaryIO | None = None, *, begin: int = 0, end: int | None = None
    ) -> None:
        self.notes: list[str] = []
        self.taken = 0
        self._source = source
        self._copy = copy_to
        self._begin = begin
        self._end = end

    def blocks(self) -> Iterator[bytes]:
        """Clean blocks in order.

        Raises:
            InputFileError: the file cannot be opened or read.
        """
        where = str(self._source) if isinstance(self._source, (str, Path)) else "the log"
        try:
            yield from self._lines(self._utf8(self._unpacked()))
        except OSError as error:
            raise InputFileError(
                f"cannot be read: {error.strerror or error}",
                fix="check the path and its permissions",
                where=where,
            ) from error

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _raw(self) -> Iterator[bytes]:
        source = self._source
        if isinstance(source, (str, Path)):
            with Path(source).open("rb", buffering=0) as stream:
                stream.seek(self._begin)
                yield from self._pieces(stream)
        else:
            yield from self._pieces(source)

    def _pieces(self, stream: BinaryIO | TextIO | io.RawIOBase) -> Iterator[bytes]:
        # read1 hands out what a pipe holds now; read would wait for a full block.
        read = getattr(stream, "read1", None) or stream.read
        left = None if self._end is None else self._end - self._begin
        while left is None or self.taken < left:
            piece = read(BLOCK if left is None else min(BLOCK, left - self.taken))
            if not piece:
                return
            data = piece.encode("utf-8", "replace") if isinstance(piece, str) else bytes(piece)
            self.taken += len(data)
            if self._copy is not None:
                self._copy.write(data)
            yield data

    def _unpacked(self) -> Iterator[bytes]:
        raw = self._raw()
        first = next(raw, b"")
        for magic, name in _PACKED:
            if first.startswith(magic):
                self._note(name)
                yield from self._unpack(name, _Joined(first, raw))
                return
        if first:
            yield first
        yield from raw

    def _unpack(self, name: str, packed: _Joined) -> Iterator[bytes]:
        with _unpacker(name, io.BufferedReader(packed, BLOCK)) as stream:
            while True:
                try:
                    piece = stream.read(BLOCK)
                except (EOFError, lzma.LZMAError, zlib.error, OSError, ValueError) as error:
                    self._note(f"packed data damaged: {error}")
                    return
                if not piece:
                    return
                yield piece

    def _utf8(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        first = next(raw, b"")
        while 0 < len(first) < 4:
            more = next(raw, b"")
            if not more:
                break
            first += more
        encoding, skip = _encoding(first)
        first = first[skip:]
        if encoding == "utf-8":
            yield first
            yield from raw
            return
        self._note(encoding)
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        yield decoder.decode(first).encode("utf-8", "replace")
        for piece in raw:
            yield decoder.decode(piece).encode("utf-8", "replace")
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")

    def _lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Cut at line ends; clean; keep at most `LINE_LIMIT` bytes of a line."""
        waiting: list[bytes] = []
        held = 0
        for piece in pieces:
            cut = piece.rfind(b"\n") + 1
            if not cut:
                cut = piece.rfind(b"\r") + 1 if held > BLOCK else 0
            if not cut:
                if held < LINE_LIMIT:
                    waiting.append(piece)
                    held += len(piece)
                else:
                    self._note("lines longer than 4 MiB were cut")
                continue
            waiting.append(piece[:cut])
            yield self._clean(b"".join(waiting))
            waiting = [piece[cut:]]
            held = len(piece) - cut
        rest = b"".join(waiting)
        if rest:
            yield self._clean(rest + b"\n")

    def _clean(self, block: bytes) -> bytes:
        if b"\0" in block:
            self._note("NUL bytes")
            block = block.replace(b"\0", b"")
        if b"\x1b" in block:
            self._note("terminal escapes")
            block = _ESCAPES.sub(b"", block)
        if b"\r" in block:
            self._note("carriage returns")
            block = block.replace(b"\r\n", b"\n")
        return block if block.endswith(b"\n") else block + b"\n"


class _Joined(io.RawIOBase):
    """Pieces of bytes as a stream that decompressors can read."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._held = first
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        view = memoryview(target)  # type: ignore[arg-type]
        if not self._held:
            self._held = next(self._rest, b"")
        count = min(len(view), len(self._held))
        view[:count] = self._held[:count]
        self._held = self._held[count:]
        return count


def is_plain(first: bytes) -> bool:
    """Whether a file that begins so is uncompressed UTF-8, so that it can be read from its middle."""
    return not first.startswith(tuple(magic for magic, _ in _PACKED)) and _encoding(first)[0] == "utf-8"


def _unpacker(name: str, packed: io.BufferedReader) -> lzma.LZMAFile | gzip.GzipFile | bz2.BZ2File:
    if name == "xz":
        return lzma.LZMAFile(packed)
    if name == "gzip":
        return gzip.GzipFile(fileobj=packed)
    return bz2.BZ2File(packed)


def _encoding(first: bytes) -> tuple[str, int]:
    """The encoding and the length of its mark; without a mark, NULs in every other byte tell UTF-16."""
    for mark, name in _MARKS:
        if first.startswith(mark):
            return name, len(mark)
    sample = first[:4096]
    half = len(sample) // 2
    if half > 8:
        if sample[1::2].count(0) > 0.7 * half > sample[0::2].count(0) * 10:
            return "utf-16-le", 0
        if sample[0::2].count(0) > 0.7 * half > sample[1::2].count(0) * 10:
            return "utf-16-be", 0
    return "utf-8", 0
