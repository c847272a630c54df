"""Bytes to text, whatever wrote them: packed files, PowerShell's UTF-16, Windows line ends, NUL bytes, broken UTF-8.

Files come in pieces, so that a reader that forgets what it has read needs little memory for a file of any size.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from qdqtool.errors import InputFileError
from qdqtool.io.files import unreadable

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


_Packed = lzma.LZMAFile | gzip.GzipFile | bz2.BZ2File
_PACKED: tuple[tuple[bytes, Callable[[Path], _Packed]], ...] = (
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x1f\x8b", gzip.GzipFile),
    (b"BZh", bz2.BZ2File),
)
PIECE = 1 << 20
"""Bytes read at once."""
LARGEST = 1 << 28
"""Characters that are held at once; a larger text is refused where it cannot be read piece by piece."""


def read_file(path: Path) -> str:
    """The text of a file with Unix line ends and without NUL; undecodable bytes become U+FFFD.

    Raises:
        InputFileError: it cannot be read, or its text is larger than 256 MiB.
    """
    held: list[str] = []
    size = 0
    for piece in pieces(path):
        held.append(piece)
        size += len(piece)
        if size > LARGEST:
            raise too_large(path)
    return "".join(held)


def pieces(path: Path) -> Iterator[str]:
    """The same text piece by piece; xz, gzip and bzip2 files are unpacked, as far as they are whole.

    Raises:
        InputFileError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
        unpack = next((opening for magic, opening in _PACKED if head.startswith(magic)), None)
        if unpack is None:
            with path.open("rb") as plain:
                yield from _texts(iter(lambda: plain.read(PIECE), b""))
        else:
            with unpack(path) as packed:
                yield from _texts(_whole(packed))
    except OSError as error:
        raise unreadable(path, error) from error


def decode(content: bytes) -> str:
    """Text with Unix line ends and without NUL; undecodable bytes become U+FFFD."""
    return "".join(_texts([content]))


def too_large(path: Path) -> InputFileError:
    """What to say of a text that would fill the memory."""
    return InputFileError(
        f"holds more than {LARGEST >> 20} MiB of text that cannot be read piece by piece",
        fix="cut out the layer information and pass that",
        where=str(path),
    )


def _whole(stream: _Packed) -> Iterator[bytes]:
    """What can be unpacked, up to the end or to the first damage: readers count what is cut as unread."""
    while True:
        try:
            piece = stream.read1(PIECE)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile):
            return
        if not piece:
            return
        yield piece


def _texts(blocks: Iterable[bytes]) -> Iterator[str]:
    decoder: codecs.IncrementalDecoder | None = None
    left = ""
    for block in blocks:
        if decoder is None:
            name = next((name for mark, name in _BOMS if block.startswith(mark)), "utf-8")
            decoder = codecs.getincrementaldecoder(name)("replace")
        text = left + decoder.decode(block)
        # A line end may be cut in two.
        left = "\r" if text.endswith("\r") else ""
        yield _clean(text.removesuffix("\r"))
    if decoder is not None:
        yield _clean(left + decoder.decode(b"", final=True))


def _clean(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\0", "")
