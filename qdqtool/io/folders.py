"""Drafts in a separate folder: files are created there and moved out when they are complete."""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from qdqtool.io.files import FORGOTTEN_S, make_folder, unwritable

# --- locks -----------------------------------------------------------------------------------------------------------
# Locks on folders, on file systems that have locks and on those that have none.


log = logging.getLogger(__name__)
_NONE = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Error codes of network file systems without a lock service, and of some FUSE file systems."""


def acquire(lock: FileLock) -> None:
    """Acquire a lock; if the file system has no locks, continue with a warning.

    Files are replaced in one step and checked by digest, so two processes in one folder cost work and no content.

    Raises:
        filelock.Timeout: another process holds it.
        OSError: the lock file cannot be written.
    """
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _NONE:
            raise
        log.warning("%s: this file system has no locks; use the folder from one process only", lock.lock_file)


def release(lock: FileLock) -> None:
    """Release a lock; if the file system refuses, the lock ends with this process."""
    try:
        lock.release()
    except OSError as error:
        log.warning("%s: cannot be given back: %s", lock.lock_file, error.strerror or error)


# --- folders ---------------------------------------------------------------------------------------------------------


_PREFIX, _LOCK = ".build-", ".lock"
# Somebody who removes the folder each time is no accident any more.
_TRIES = 20


@contextmanager
def drafting(folder: Path) -> Iterator[Path]:
    """Yield a new folder inside `folder`; it is removed when the block ends, also after an error.

    Only a process that is killed leaves its drafts: the next build there removes them.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        make_folder(folder)
        _sweep(folder)
        place, lock = _locked(folder)
    except OSError as error:
        raise unwritable(folder, error) from error
    with place as name:
        try:
            yield Path(name)
        finally:
            release(lock)


def _locked(folder: Path) -> tuple[tempfile.TemporaryDirectory[str], FileLock]:
    """Return a new folder and its lock. Before it is locked, another process may remove it as a leftover.

    Raises:
        OSError: the folder cannot be written.
    """
    for _ in range(_TRIES):
        place = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder, ignore_cleanup_errors=True)
        lock = FileLock(Path(place.name) / _LOCK)
        with suppress(FileNotFoundError):
            acquire(lock)
            if Path(place.name).is_dir():
                return place, lock
            release(lock)
        place.cleanup()
    raise OSError(errno.EAGAIN, f"{_TRIES} folders were removed by other programs", str(folder))


def _sweep(folder: Path) -> None:
    """Remove drafts that no process has locked, because their processes were killed."""
    for left in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process has just removed it, or it is not ours to remove
            try:
                with FileLock(left / _LOCK, timeout=0):
                    shutil.rmtree(left, ignore_errors=True)
            except Timeout:
                continue  # somebody builds there now
            except OSError:  # there are no locks here
                if time.time() - left.stat().st_mtime > FORGOTTEN_S:
                    shutil.rmtree(left, ignore_errors=True)


def publish(drafts: Path, folder: Path, names: Iterable[str]) -> None:
    """Move finished files out of the drafts; each replaces an older file in a single step.

    Raises:
        InputFileError: the folder cannot be written.
    """
    try:
        for name in names:
            (drafts / name).replace(folder / name)
    except OSError as error:
        raise unwritable(folder, error) from error


def withdraw(folder: Path, names: Iterable[str]) -> None:
    """Remove files of an earlier build, which do not belong to the new log next to them."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
