"""All errors that users can see, one class per exit code.

    QdqError
    ├── ThresholdExceeded  1   a finding at or above --fail-on, or accuracy worse than its threshold
    ├── UsageError         2   the recipe or the arguments are wrong
    ├── MissingPackage     3   a package or a device is missing
    ├── BuildError         4   the builder refused, crashed or ran out of time
    ├── InputFileError     5   a file cannot be read, or its content does not fit
    │   └── SystemFault    5   the machine does not let a file be written: a full disk, a limit, a permission
    ├── Bug               70   qdqtool itself is wrong
    ├── Interrupted      130   the user pressed Ctrl-C
    ├── HungUp           129   the terminal was closed (SIGHUP)
    └── Terminated       143   the system asked the process to end (SIGTERM)

Each error has the problem, its place and the fix. The command line prints all three and exits with the code.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import ClassVar

from qdqtool.redact import redact_text


class QdqError(Exception):
    """An error for users: the problem, its place and a fix."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, *, fix: str, where: str | None = None) -> None:
        super().__init__(redact_text(what))
        self.what = redact_text(what)
        self.fix = redact_text(fix)
        self.where = None if where is None else redact_text(where)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} ({self.fix})"

    def add(self, what: str) -> None:
        """Append a sentence to the message of this error."""
        self.what = f"{self.what}; {redact_text(what)}"
        self.args = (self.what,)

    def say(self, rewrite: Callable[[str], str]) -> None:
        """Replace parameter names in message, fix and place by the names that the caller's interface uses."""
        self.what, self.fix = rewrite(self.what), rewrite(self.fix)
        self.where = self.where and rewrite(self.where)
        self.args = (self.what,)

    def __reduce__(self) -> tuple[object, ...]:
        """Make the error picklable between processes, which call the class with `args` only."""
        return _rebuild, (type(self), self.what, self.fix, self.where)


class ThresholdExceeded(QdqError):  # noqa: N818 -- a verdict, not a malfunction
    """The result is worse than the threshold that the user set."""

    exit_code = 1


class UsageError(QdqError):
    """The arguments or the recipe are invalid."""

    exit_code = 2


class MissingPackage(QdqError):  # noqa: N818 -- names the thing that is missing
    """A package, program or device that this step needs is missing."""

    exit_code = 3


class BuildError(QdqError):
    """The engine builder refused the model, crashed or ran out of time."""

    exit_code = 4


class InputFileError(QdqError):
    """A file cannot be read, or its content does not fit the model."""

    exit_code = 5


class SystemFault(InputFileError):  # noqa: N818 -- what happened
    """The system refused to write a file or to start a process; the input was not checked."""


class Bug(QdqError):  # noqa: N818 -- the user's word for it
    """A fault of qdqtool: please report it."""

    exit_code = 70


class Interrupted(QdqError):  # noqa: N818 -- what the user did
    """The user stopped the work; finished steps are kept."""

    exit_code = 130


class Terminated(QdqError):  # noqa: N818 -- what the system did
    """A batch scheduler, a container or `timeout` ended the work with SIGTERM; finished steps are kept."""

    exit_code = 143


class HungUp(QdqError):  # noqa: N818 -- what happened
    """The terminal was closed, or the connection to it was lost (SIGHUP); finished steps are kept."""

    exit_code = 129


_BY_ERRNO: dict[str, tuple[str, str]] = {
    "ENOSPC": ("no space is left on the disk", "free some space, then run the same command again"),
    "EDQUOT": ("the disk quota is used up", "free some space, then run the same command again"),
    "EROFS": ("the file system is read-only", "choose a folder that can be written"),
    "EMFILE": ("too many files are open in this process", "raise the limit with `ulimit -n 1024`"),
    "ENFILE": ("too many files are open on this machine", "close other programs, then run the command again"),
    "EIO": ("the device reports an input/output error", "check the disk or the network share"),
    "EACCES": ("permission denied", "check the permissions of the path"),
    "EPERM": ("operation not permitted", "check the permissions of the path"),
    "ENAMETOOLONG": ("the file name is too long", "choose a shorter path"),
    "EFBIG": ("the file is larger than the file system or `ulimit -f` allows", "raise the limit"),
    "ENOMEM": ("no memory is left", "close other programs, or use a machine with more memory"),
    "EAGAIN": ("the system cannot start another process", "raise `ulimit -u`, or close other programs"),
    "EINTR": ("a signal interrupted the system", "run the same command again"),
    "EBUSY": ("another program holds the file", "close it, then run the same command again"),
    "ESTALE": ("the network share lost the file", "mount the share again, then run the command again"),
    "ETIMEDOUT": (
        "the device or network share does not answer",
        "check the share, then run the command again",
    ),
}
"""Errors that disks, permissions and limits cause. None of them is a fault of the program. Windows lacks some."""


def of_system(error: OSError) -> SystemFault | None:
    """Return the fault to show for an OSError that the system causes (`_BY_ERRNO`); None for the rest."""
    message_and_fix = _BY_ERRNO.get(errno.errorcode.get(error.errno or 0, ""))
    if message_and_fix is None:
        return None
    where = error.filename if isinstance(error.filename, str) else None
    return SystemFault(message_and_fix[0], fix=message_and_fix[1], where=where)


_NO_MEMORY = (
    "out of memory: the machine, or the limit of this process, has none left",
    "raise the limit (ulimit -v, or the container's limit), close other programs, or use a machine with more memory",
)
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|Failed to serialize proto|[Cc]annot allocate memory|Unable to allocate|can't start new thread|out of memory"
)
"""Messages of libraries that lacked memory or a thread, in errors of all classes: protobuf, onnxruntime,
numpy, pyarrow, the interpreter.
"""
_ENDED_CHILDREN = frozenset({"BrokenProcessPool", "BrokenExecutor", "BrokenThreadPool"})
"""Names of the errors that a pool raises if its process was killed."""


def of_machine(error: BaseException) -> SystemFault | None:
    """Return the error to show if `error`, or an exception that caused it, is a fault of the system; else None.

    Such faults are lack of memory, a killed child process, a closed pipe to a child, and the faults of `of_system`.
    """
    fault = _of_one(error)
    if fault is not None or error.__cause__ is None:
        return fault
    return of_machine(error.__cause__)


def _of_one(error: BaseException) -> SystemFault | None:
    if isinstance(error, MemoryError) or (
        isinstance(error, Exception) and not isinstance(error, QdqError) and _OUT_OF_MEMORY.search(str(error))
    ):
        return SystemFault(_NO_MEMORY[0], fix=_NO_MEMORY[1])
    if isinstance(error, BrokenPipeError | ConnectionResetError) or type(error).__name__ in _ENDED_CHILDREN:
        return SystemFault(
            "a worker process ended or was killed, perhaps for lack of memory",
            fix="run the same command again when more memory is free; finished steps are kept",
        )
    return of_system(error) if isinstance(error, OSError) else None


def _rebuild(kind: type[QdqError], what: str, fix: str, where: str | None) -> QdqError:
    return kind(what, fix=fix, where=where)
