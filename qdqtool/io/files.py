"""Files and folders: limited reading within a memory budget, atomic writing, digests, and no access outside a folder."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from filelock import FileLock, Timeout

from qdqtool.errors import InputFileError, SystemFault, UsageError
from qdqtool.platform import free_memory

# --- locks -----------------------------------------------------------------------------------------------------------
# Locks on folders, for file systems with and without locks.


log = logging.getLogger(__name__)
_NONE = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Error codes of network file systems without a lock service, and of some FUSE file systems."""


def acquire(lock: FileLock) -> None:
    """Acquire a file lock; if the file system has no locks, continue with a warning.

    Files are replaced in one step and checked by digest, so two processes in one folder waste work but lose no
    content.

    Raises:
        filelock.Timeout: another process holds it.
        OSError: the lock file cannot be written.
    """
    if not _acquire(lock):
        log.warning("%s: this file system has no locks; use the folder from one process only", lock.lock_file)


def _acquire(lock: FileLock) -> bool:
    """Acquire a file lock; return False if the file system has no locks."""
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return False
    return True


def release(lock: FileLock) -> None:
    """Release a file lock. If the file system refuses, the lock ends with this process."""
    try:
        lock.release()
    except OSError as error:
        log.warning("%s: cannot be given back: %s", lock.lock_file, error.strerror or error)


# --- folders ---------------------------------------------------------------------------------------------------------


_PREFIX, _LOCK = ".qdqtool-draft-", ".lock"
_FORGOTTEN_S = 3600.0
"""Age in seconds from which drafts are removed if the file system has no locks that show whether a process still uses them."""
_TRIES = 20
"""Attempts to create a draft; before it is locked, another process may remove it as a leftover."""


@contextmanager
def drafting(folder: Path, target: Path | None = None) -> Iterator[Path]:
    """Yield a new draft folder inside `folder`. It is removed at the end of the block, also after an error.

    Only a process that is killed leaves its drafts: the next writer in `folder` removes them.

    Raises:
        InputFileError: the folder cannot be written; the error names `target`, if one file is to be written.
    """
    try:
        make_folder(folder)
        sweep(folder)
        place, lock = _lock_folder(folder)
    except OSError as error:
        raise unwritable(target or folder, error) from error
    with place as name:
        try:
            yield Path(name)
        finally:
            release(lock)


def _lock_folder(folder: Path) -> tuple[tempfile.TemporaryDirectory[str], FileLock]:
    """Return a new draft folder and its lock; try again if another process removes it before it is locked."""
    for _ in range(_TRIES):
        place = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder, ignore_cleanup_errors=True)
        lock = FileLock(Path(place.name) / _LOCK)
        with suppress(FileNotFoundError):
            _acquire(lock)
            if Path(place.name).is_dir():
                return place, lock
            release(lock)
        place.cleanup()
    raise OSError(errno.EAGAIN, f"{_TRIES} folders were removed by other programs", str(folder))


def sweep(folder: Path) -> None:
    """Remove drafts in `folder` without a lock, because their processes were killed."""
    for left in folder.glob(f"{_PREFIX}*"):
        if left.is_symlink():  # a foreign link: the lock would be written to its target
            continue
        with suppress(OSError):  # another process has just removed it, or we may not remove it
            try:
                with FileLock(left / _LOCK, timeout=0):
                    shutil.rmtree(left, ignore_errors=True)
            except Timeout:
                continue  # another process writes there now
            except OSError:  # this file system has no locks
                if time.time() - left.stat().st_mtime > _FORGOTTEN_S:
                    shutil.rmtree(left, ignore_errors=True)


def publish(drafts: Path, folder: Path, names: Iterable[str]) -> None:
    """Move finished files from the drafts to their places. Each move replaces an older file in a single step.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        for name in names:
            (drafts / name).replace(folder / name)
    except OSError as error:
        raise unwritable(folder, error) from error


def withdraw(folder: Path, names: Iterable[str]) -> None:
    """Remove the files `names` of an earlier build from `folder`: a new log does not describe them."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


# --- holes -----------------------------------------------------------------------------------------------------------
# The bytes that a file really has: sparse files claim more.


_BLOCK = 512
"""Bytes per block in the result of stat(2), on every file system."""


class _Handled(Protocol):
    """An object that has a file handle."""

    def fileno(self) -> int:
        """Return the file handle."""


def held_bytes(stream: _Handled, ranges: Iterable[tuple[int, int]], enough: int) -> int:
    """Count the bytes that exist in ranges (begin, end) of an open file, without holes. Each byte counts once.

    Counting stops at `enough`. If the system reports no holes (Windows, some network shares), the file counts as
    complete.

    Raises:
        OSError: the file cannot be asked.
    """
    status = os.fstat(stream.fileno())
    is_full = not hasattr(os, "SEEK_DATA") or status.st_blocks * _BLOCK >= status.st_size
    total = 0
    for begin, end in _join_ranges(ranges):
        for first, last in ((begin, end),) if is_full else _data(stream.fileno(), begin, end):
            total += last - first
            if total >= enough:
                return total
    return total


def _join_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield sorted ranges that do not overlap and that cover the same bytes."""
    done = 0
    for begin, end in sorted(ranges):
        if end > max(begin, done):
            yield max(begin, done), end
            done = end


def _data(handle: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are not holes."""
    while begin < end:
        try:
            first = os.lseek(handle, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # only a hole follows `begin`
        if first >= end:
            return
        begin = min(os.lseek(handle, first, os.SEEK_HOLE), end)
        yield first, begin


# --- files -----------------------------------------------------------------------------------------------------------


WRITER_S = 10.0
"""Seconds to wait for a program that opens the pipe for writing."""


def path_of(value: object, name: str = "path", otherwise: str = "") -> Path:
    """Return the argument called `name` as a path; error messages also suggest `otherwise`, if it is given.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, (str, os.PathLike)):
        return Path(os.fspath(value))
    fix = f"pass {otherwise}, or a path" if otherwise else "pass a path"
    raise UsageError(f"the value cannot be of type {type(value).__name__}", fix=fix, where=name)


@contextmanager
def replacing(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`. If the block ends without an error, the file there replaces `path`.

    A file that is not `lasting` is only for this process: no call waits until it is on the disk. Only a process that
    is killed leaves a draft: the next writer in that folder removes it.

    Raises:
        InputFileError: the folder cannot be written.
    """
    if _is_special(path):
        # A process with the right to do so, such as root in a container, would replace /dev/stdout by a file for all
        # processes.
        raise unwritable(path, "it is a device or a pipe, which a file would replace")
    with drafting(path.parent, path) as drafts:
        draft = drafts / path.name
        try:
            yield draft
            if lasting:
                _sync(draft)
            draft.replace(path)
        except OSError as error:
            raise unwritable(path, error) from error


def _is_special(path: Path) -> bool:
    """Return True if `path`, with links followed, is neither a file nor a folder."""
    mode = _mode(path)
    return bool(mode) and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _mode(path: Path) -> int:
    """Return the file mode of `path`, with links followed; 0 if the path does not exist."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # the name may contain characters that file names cannot have
        return 0


def _sync(path: Path) -> None:
    """Flush the content to disk before the file gets its final name.

    After a power cut, the name could otherwise belong to an empty file.
    """
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write `content` to `path` atomically; see `replacing`."""
    with replacing(path, lasting=lasting) as draft:
        draft.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write `content` to `path` as UTF-8, atomically."""
    write_bytes(path, content.encode("utf-8"))


def open_stream(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a file, or a pipe that a program writes to, to read it once from the beginning.

    `<(zcat build.log.gz)` and /dev/stdin are such pipes. The null device is an empty file, and a terminal ends with Ctrl-D; other devices have no end.

    Raises:
        InputFileError: it is another device, or a pipe that no program opens for writing in `WRITER_S`.
        OSError: it cannot be opened.
    """
    mode = _mode(path)
    if stat.S_ISFIFO(mode):
        return _pipe(path)
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not _ends(path)):
        raise InputFileError(
            "the path is a device, not a file", fix="pass a file, or a pipe", where=str(path)
        )
    return path.open("rb", buffering=buffering)


def _ends(device: Path) -> bool:
    """Return True for devices that may be read: the null device and the user's terminal."""
    if device.samefile(os.devnull):
        return True
    return os.isatty(0) and os.path.samestat(device.stat(), os.fstat(0))


class _PipeEnd(io.FileIO):
    """The reading end of a pipe. It can wait for a slow writer: silence is not the end of the data."""

    ended = False

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self.ended = count == 0
        return count


def _pipe(path: Path) -> BinaryIO:
    """Return a pipe after a program has opened it for writing. The program may send nothing for a long time.

    Raises:
        InputFileError: none does in `WRITER_S`.
        OSError: it cannot be opened.
    """
    import select

    raw = _PipeEnd(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    stream = io.BufferedReader(raw)
    poller = select.poll()
    poller.register(raw, select.POLLIN)
    if not poller.poll(1000 * WRITER_S):
        stream.peek(1)  # keep the bytes that came since then
        if raw.ended:
            stream.close()
            raise InputFileError(
                f"the path is a pipe that no program opened for writing in {WRITER_S:g} s",
                fix="start the program that writes to the pipe first, or pass a file",
                where=str(path),
            )
    os.set_blocking(raw.fileno(), True)
    return stream


def native_path(path: Path) -> str:
    """Return the path as text for libraries that accept only UTF-8 paths: onnxruntime and the builders.

    Raises:
        InputFileError: its name holds other bytes.
    """
    text = str(path)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputFileError(
            "the path has a name that is not UTF-8: onnxruntime and TensorRT cannot open files there",
            fix="rename the file or the folder, or choose another one",
            where=text,
        ) from error
    return text


def require_file(path: Path) -> None:
    """Refuse a path that cannot be read twice or from the middle. If the file is missing, its reader reports this.

    Raises:
        InputFileError: it is a pipe, or a device that is not the null device.
    """
    mode = _mode(path)
    if stat.S_ISFIFO(mode) or stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not path.samefile(os.devnull)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise InputFileError(
            f"the path is {kind}, but must be read more than once",
            fix="write the content to a file, and pass that file",
            where=str(path),
        )


def read_at_most(path: Path, most: int) -> bytes | None:
    """Return the content of a file; None if it is larger than `most` bytes.

    The size that the system reports is not a limit: it is 0 for devices and pipes, and a file may grow during the
    read.

    Raises:
        InputFileError: as of `open_stream`.
        OSError: it cannot be read.
    """
    with open_stream(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            return None
        pieces = [stream.read(size)]
        once = getattr(stream, "read1", stream.read)
        held = len(pieces[0])
        while held <= most and (
            piece := once(1 << 20)
        ):  # one read at a time, because a terminal signals the end only once
            pieces.append(piece)
            held += len(piece)
    return b"".join(pieces) if held <= most else None


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits. The file is read in pieces.

    Raises:
        InputFileError: the file cannot be read.
    """
    sha = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            for chunk in iter(lambda: stream.read(1 << 20), b""):
                sha.update(chunk)
    except OSError as error:
        raise unreadable(path, error) from error
    return sha.hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    """Return one SHA-256 in hexadecimal digits of the content of several files, in this order."""
    return hashlib.sha256("".join(map(digest_file, paths)).encode()).hexdigest()


def unreadable(path: Path, error: OSError) -> InputFileError:
    """Return the error for a file that the operating system cannot read."""
    if path.is_dir():
        return InputFileError(
            "the path is a folder, not a file",
            fix="pass a file of this folder; a run folder has layers.json (its engine), build.log (its log) and model.qdq.onnx",
            where=str(path),
        )
    return InputFileError(
        f"the file cannot be read: {error.strerror or error}",
        fix="check the path and its permissions",
        where=str(path),
    )


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, but refuse to create a folder directly below the root: that is a typing error.

    Raises:
        SystemFault: the topmost folder of the path is not there.
        OSError: the folder cannot be made.
    """
    whole = folder.absolute()
    above = [whole, *whole.parents]
    if len(above) > 1 and not above[-2].exists():
        raise SystemFault(
            f"the folder {above[-2]} does not exist",
            fix=f"check the path, or create it first: mkdir {above[-2]}",
            where=str(folder),
        )
    folder.mkdir(parents=True, exist_ok=True)


def unwritable(path: Path, error: OSError | str) -> SystemFault:
    """Return the error for a file or folder that the operating system cannot write."""
    why = error if isinstance(error, str) else error.strerror or str(error)
    return SystemFault(
        f"the file cannot be written: {why}",
        fix="check the folder's permissions and the free space; nothing was changed",
        where=str(path),
    )


# --- memory -----------------------------------------------------------------------------------------------------------
# The memory budget for the content of input files.


VARIABLE: Final = "QDQTOOL_MAX_MEMORY"
"""Environment variable with the budget; child processes inherit it."""
# Powers of two, as in `ulimit` and Docker.
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def budget() -> int:
    """Return how many bytes the content of input files may use: the user's limit, else the free memory.

    Readers compare the declared sizes of a file with it before they allocate memory.

    Raises:
        UsageError: the environment variable holds no size.
    """
    size = os.environ.get(VARIABLE)
    return parse_size(size) if size else free_memory()


def is_stated() -> bool:
    """Return True if the user set the memory budget."""
    return bool(os.environ.get(VARIABLE))


def budget_words(size: int) -> str:
    """Return the name of the memory budget in a message, after "more than"."""
    return f"the {size:,} allowed" if is_stated() else f"the {size:,} of free memory"


@contextmanager
def allow_memory(size: str | None) -> Iterator[None]:
    """Set the memory budget for input files in this block, also for child processes; None changes nothing.

    Raises:
        UsageError: it is not a size.
    """
    before = os.environ.get(VARIABLE)
    if size is not None:
        parse_size(size)
        os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if size is not None and before is None:
            del os.environ[VARIABLE]
        elif before is not None:
            os.environ[VARIABLE] = before


def parse_size(text: str) -> int:
    """Parse a size such as "8GiB" or "500M" into bytes; "1e9" is invalid.

    Raises:
        UsageError: the text is not a size above zero.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0
    if size > 0:
        return size
    raise UsageError(
        f"{text!r} is not a memory size", fix="write a size such as 8GiB or 500MiB", where="--max-memory"
    )
