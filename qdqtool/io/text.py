"""Conversion of bytes to clean text: files, streams and pipes, compressed or not, in any encoding.

Builder logs and layer dumps come from PowerShell (UTF-16), Windows (CR LF), docker (terminal escapes), CI artefacts
(zip) and cut downloads (half an xz file). All readers of such text use `TextSource`, which reads in pieces, so that a
reader needs little memory for a file of any size. Notes record all conversions of the bytes.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from qdqtool.errors import InputFileError, MissingPackage, of_system
from qdqtool.io.files import held_bytes, open_stream, unreadable

Source = str | Path | BinaryIO | TextIO

BLOCK = 1 << 20
"""Number of bytes per read."""
LINE_LIMIT = 4 << 20
"""Longest line in bytes; the rest of a longer line is dropped, with a note."""

LARGEST = 1 << 28
"""Largest text in characters that is kept in memory; a larger text is refused if it cannot be read in pieces."""
_UNPACKED = 1 << 30
"""Bytes that any packed text may unpack to. A build log that repeats all night packs to a ten-thousandth of its size."""
_TIMES = 1000
"""Largest ratio of unpacked to packed bytes above `_UNPACKED`: logs reach tens, bombs millions."""
# Largest length of a control sequence; longer matches are text.
_LONGEST_ESCAPE = 256

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~]|)")
_PACKED = (
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
# Length of the signature of xz, the longest of the five.
_LONGEST_MAGIC = 6
_OPENING: dict[str, Callable[[Any], Any]] = {
    "xz": lzma.LZMAFile,
    "gzip": lambda packed: gzip.GzipFile(fileobj=packed),
    "bzip2": bz2.BZ2File,
}
_DAMAGE: tuple[type[Exception], ...] = (
    EOFError,
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)
"""Exceptions of decompressors for damaged, cut or encrypted data; `zstandard` has its own class."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_TELLING = 64
"""Number of bytes from which an encoding without a byte-order mark is detected."""


def no_text(where: str) -> InputFileError:
    """Return the error for a text without characters, for all readers of logs."""
    return InputFileError(
        "the file is empty: the program that should have written it printed nothing, or its output went to another place",
        fix="run the program again with both outputs in the file (COMMAND > build.log 2>&1), with --verbose for trtexec, and check that it ends without an error",
        where=where,
    )


class TextSource:
    """The text of one file, stream or pipe, which can be read once.

    Args:
        source: a path or a stream.
        copy_to: gets every byte as it was read.
        begin, end: which bytes of a file to read.

    Attributes:
        notes: repairs of its bytes, each once.
        taken: bytes read so far, before unpacking.
    """

    def __init__(
        self, source: Source, copy_to: BinaryIO | None = None, *, begin: int = 0, end: int | None = None
    ) -> None:
        self.notes: list[str] = []
        self.taken = 0
        self._unpacked = 0
        self._source = source
        self._copy = copy_to
        self._begin = begin
        self._end = end

    def blocks(self, through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None) -> Iterator[bytes]:
        """Yield the text in clean UTF-8 blocks that end with a newline and are never much longer than `LINE_LIMIT`.

        Args:
            through: makes other lines of the UTF-8 text, before it is cut into lines.

        Raises:
            InputFileError: the source cannot be opened or read, or unpacks to a thousand times its size and a GiB.
            MissingPackage: it is packed with zstd, and no decompressor is installed.
        """
        with self._name_errors():
            text = self._utf8(self._unpack_blocks())
            yield from self._lines(through(text) if through else text)

    def pieces(self) -> Iterator[str]:
        """Yield the clean text in pieces that may end anywhere; long lines are not cut."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        left = b""
        with self._name_errors():
            for block in self._utf8(self._unpack_blocks()):
                held = left + block
                cut = _cut(held)
                left = held[cut:]
                yield decode(self._clean(held[:cut]))
            yield decode(self._clean(left), final=True)

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Add the name of the source to errors from the operating system."""
        try:
            yield
        except OSError as error:
            where = self._source if isinstance(self._source, (str, Path)) else "the log"
            raise unreadable(Path(where), error) from error

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _raw(self) -> Iterator[bytes]:
        source = self._source
        if isinstance(source, (str, Path)):
            with open_stream(Path(source), buffering=0) as stream:
                _refuse_sparse(stream, Path(source))
                if self._begin:
                    stream.seek(self._begin)
                yield from self._pieces(stream)
        else:
            yield from self._pieces(source)

    def _pieces(self, stream: BinaryIO | TextIO | io.RawIOBase) -> Iterator[bytes]:
        # read1 returns what a pipe holds now; read would wait for a full block.
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
                self._copy.flush()  # so a killed process loses nothing that it read
            yield data

    def _unpack_blocks(self) -> Iterator[bytes]:
        raw = self._raw()
        first = _at_least(_LONGEST_MAGIC, raw)
        name = _packing(first)
        if name is not None:
            self._note(name)
            packed = io.BufferedReader(_Joined(first, raw), BLOCK)
            with tempfile.TemporaryFile() if name == "zip" else packed as held:
                if name == "zip":
                    self._keep(packed, held)
                yield from self._unpack(name, held)
            return
        if first:
            yield first
        yield from raw

    def _keep(self, packed: BinaryIO, held: BinaryIO) -> None:
        """Copy an archive from a pipe to the disk, because its table of contents is at its end.

        Raises:
            SystemFault: the folder for temporary files takes no more.
        """
        try:
            held.writelines(iter(lambda: packed.read(BLOCK), b""))
            held.flush()
        except OSError as error:
            raise of_system(error) or error from error

    def _unpack(self, name: str, packed: BinaryIO) -> Iterator[bytes]:
        """Yield the unpacked data up to the end or the first damage."""
        damage = _DAMAGE
        try:
            if name == "zip":
                yield from self._join_members(packed)
            else:
                opening, broken = _decompressor(name)
                damage = (*_DAMAGE, broken)
                yield from self._read_unpacked(opening(packed))
        except damage as error:
            self._note(f"packed data damaged: {error}")

    def _join_members(self, packed: BinaryIO) -> Iterator[bytes]:
        """Yield the files of a zip archive as UTF-8, each on lines of its own. Each may have its own encoding."""
        last = b"\n"
        for stream in _members(packed):
            if last != b"\n":
                yield b"\n"
            for piece in self._utf8(self._read_unpacked(stream)):
                last = piece[-1:] or last
                yield piece

    def _read_unpacked(self, stream: Any) -> Iterator[bytes]:
        with stream:
            while piece := stream.read1(BLOCK):
                self._unpacked += len(piece)
                if self._unpacked > max(_UNPACKED, _TIMES * self.taken):
                    raise self._bomb()
                yield piece

    def _bomb(self) -> InputFileError:
        return InputFileError(
            f"the file unpacks to more than {_UNPACKED >> 20} MiB and {_TIMES} times its {self.taken} bytes",
            fix="unpack the file, and pass the unpacked file",
            where=str(self._source) if isinstance(self._source, (str, Path)) else "the log",
        )

    def _utf8(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        first = _at_least(_TELLING, raw)
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
        """Cut at line ends, clean the lines, and keep at most `LINE_LIMIT` bytes of each."""
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
            yield _end_line(self._clean(b"".join(waiting)))
            waiting = [piece[cut:]]
            held = len(piece) - cut
        tail = b"".join(waiting)
        if tail:
            yield _end_line(self._clean(tail + b"\n"))

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
        return block


class _Joined(io.RawIOBase):
    """A stream of byte pieces that decompressors can read."""

    def __init__(self, first: bytes, following: Iterator[bytes]) -> None:
        self._held = first
        self._rest = following

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
    """Return True if a file with these first bytes is uncompressed UTF-8: then it can be read from its middle."""
    return _packing(first) is None and _encoding(first)[0] == "utf-8"


def text_of(path: Path) -> str:
    """Return the text of a file with Unix line ends and without NUL; undecodable bytes become U+FFFD.

    Raises:
        InputFileError: it cannot be read, or its text is larger than 256 MiB.
    """
    held: list[str] = []
    size = 0
    for piece in TextSource(path).pieces():
        held.append(piece)
        size += len(piece)
        if size > LARGEST:
            raise too_large(path)
    return "".join(held)


def decode(content: bytes) -> str:
    """Return bytes as clean text, as `text_of` does for a file."""
    return "".join(TextSource(io.BytesIO(content)).pieces())


def too_large(path: Path) -> InputFileError:
    """Return the error for a text that would fill the memory."""
    return InputFileError(
        f"the file holds more than {LARGEST >> 20} MiB of text that cannot be read piece by piece",
        fix="copy only the layer information into a smaller file, and pass this file",
        where=str(path),
    )


def _packing(first: bytes) -> str | None:
    return next((name for magic, name in _PACKED if first.startswith(magic)), None)


def _at_least(count: int, raw: Iterator[bytes]) -> bytes:
    """Return at least the first `count` bytes of a stream, if there are so many. A pipe may deliver single bytes."""
    first = next(raw, b"")
    while 0 < len(first) < count:
        more = next(raw, b"")
        if not more:
            break
        first += more
    return first


def _end_line(block: bytes) -> bytes:
    return block if block.endswith(b"\n") else block + b"\n"


def _cut(held: bytes) -> int:
    """Return where a piece of text may end: not inside a line end or a terminal escape."""
    end = len(held) - held.endswith(b"\r")
    escape = held.rfind(b"\x1b", max(0, end - _LONGEST_ESCAPE), end)
    return end if escape < 0 else escape


def _members(kept: BinaryIO) -> Iterator[Any]:
    """Yield the files of a zip archive, one after the other, without the metadata that macOS adds to each."""
    with zipfile.ZipFile(kept) as archive:
        for member in archive.infolist():
            if not member.is_dir() and not member.filename.startswith("__MACOSX/"):
                yield archive.open(member)


def _decompressor(name: str) -> tuple[Callable[[Any], Any], type[Exception]]:
    """Return the function that opens a packed stream, and its exception for damage. Python has its own zstd from 3.14 on."""
    if name != "zstd":
        return _OPENING[name], lzma.LZMAError
    try:
        own = import_module("compression.zstd")
    except ImportError:
        pass
    else:
        return own.ZstdFile, own.ZstdError
    try:
        package = import_module("zstandard")
    except ImportError as error:
        raise MissingPackage("zstd files need zstandard", fix="pip install 'qdqtool[zstd]'") from error
    return package.ZstdDecompressor().stream_reader, package.ZstdError


def _encoding(first: bytes) -> tuple[str, int]:
    """Return the encoding of a text and the length of its byte-order mark."""
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


def _refuse_sparse(stream: BinaryIO, path: Path) -> None:
    """Refuse a sparse file with almost no bytes on the disk: like a compression bomb, it would fill the memory.

    Holes need no disk space.
    """
    size = os.fstat(stream.fileno()).st_size
    if size > _UNPACKED and size > _TIMES * held_bytes(stream, ((0, size),), size // _TIMES + 1):
        raise InputFileError(
            f"the file claims {size:,} bytes but contains less than a thousandth of them: it is sparse",
            fix="copy the complete file (`cp --sparse=never`)",
            where=str(path),
        )
