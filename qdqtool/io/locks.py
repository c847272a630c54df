"""Locks on folders, on file systems that have locks and on those that have none."""

from __future__ import annotations

import errno
import logging

from filelock import FileLock

log = logging.getLogger(__name__)
_NONE = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
"""What network file systems without a lock service answer; some FUSE file systems too."""


def acquire(lock: FileLock) -> None:
    """Take a lock; where the file system has none, go on with a warning.

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
        log.warning("%s: this file system has no locks; let only one process work there", lock.lock_file)


def release(lock: FileLock) -> None:
    """Give a lock back; where the file system does not take it, the end of this process does."""
    try:
        lock.release()
    except OSError as error:
        log.warning("%s: cannot be given back: %s", lock.lock_file, error.strerror or error)
