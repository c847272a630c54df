"""Bytes to text, whatever wrote them: PowerShell's UTF-16, Windows line ends, NUL bytes, broken UTF-8."""

from __future__ import annotations

import codecs
from pathlib import Path

from qdqtool.errors import InputFileError

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
LARGEST = 1 << 30
"""Bytes; a larger file is refused instead of filling the memory."""


def read_file(path: Path) -> str:
    """The text of a file with Unix line ends and without NUL; undecodable bytes become U+FFFD.

    Raises:
        InputFileError: it cannot be read or is larger than 1 GiB.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InputFileError(
                "is larger than 1 GiB", fix="cut out the layer information and pass that", where=str(path)
            )
        return decode(path.read_bytes())
    except OSError as error:
        raise InputFileError(
            f"cannot be read: {error.strerror}", fix="check the path and its permissions", where=str(path)
        ) from error


def decode(content: bytes) -> str:
    """Text with Unix line ends and without NUL; undecodable bytes become U+FFFD."""
    encoding = next((name for mark, name in _BOMS if content.startswith(mark)), "utf-8")
    text = content.decode(encoding, "replace")
    return text.replace("\r\n", "\n").replace("\0", "")
