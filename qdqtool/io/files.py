"""Writing files so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qdqtool.errors import InputFileError
from qdqtool.platform import umask

_DRAFT = ".draft-"
_STEM = 200
"""Bytes of a file's name that its draft bears; file systems take 255."""
FORGOTTEN_S = 3600.0
"""Age of drafts that no process holds any more."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes `path` when the block ends without an error.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{_short(path.name)}{_DRAFT}", dir=path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        _sync(draft)
        draft.chmod(0o666 & ~umask())
        draft.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the content on the disk before the name: after a power cut the name may else stand for an empty file."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def _short(name: str) -> str:
    """The beginning of a name, so that the draft of a name of 255 bytes has a name that is no longer."""
    return os.fsencode(name)[:_STEM].decode("utf-8", "ignore")


def sweep(folder: Path) -> None:
    """Remove the drafts that processes left in `folder` when they were killed, more than an hour ago."""
    for left in folder.glob(f".*{_DRAFT}*"):
        with suppress(OSError):  # somebody else has removed it, or it is not ours to remove
            if time.time() - left.stat().st_mtime > FORGOTTEN_S:
                left.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` at `path`, all or nothing."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Put `content` at `path` as UTF-8, all or nothing."""
    write_bytes(path, content.encode("utf-8"))


def digest_file(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, read in pieces.

    Raises:
        InputFileError: the file cannot be read.
    """
    sha = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for chunk in iter(_reader(stream.read), b""):
                sha.update(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    return sha.hexdigest()


def unreadable(path: Path, error: OSError) -> InputFileError:
    """The error for a file that the operating system does not give us."""
    return InputFileError(
        f"cannot be read: {error.strerror or error}",
        fix="check the path and its permissions",
        where=str(path),
    )


def _reader(read: Callable[[int], bytes]) -> Callable[[], bytes]:
    return lambda: read(1 << 20)


def unwritable(path: Path, error: OSError | str) -> InputFileError:
    """The error for a file or a folder that the operating system does not let us write."""
    why = error if isinstance(error, str) else error.strerror or str(error)
    return InputFileError(
        f"cannot be written: {why}",
        fix="check the folder's permissions and the free space; nothing was changed",
        where=str(path),
    )
