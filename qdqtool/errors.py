"""Every error a person can meet, one class per exit code.

    QdqError
    ├── LimitMissed        1   a finding at or above --fail-on, or a limit missed
    ├── UsageError         2   the recipe or the arguments are wrong
    ├── MissingPackage     3   a package or a device is missing
    ├── BuildError         4   the builder refused, crashed or ran out of time
    ├── InputFileError     5   a file cannot be read, or its content does not fit
    ├── Bug               70   qdqtool itself is wrong
    └── Interrupted      130   the user pressed Ctrl-C

Each carries what is wrong, where, and how to mend it; the command line prints the three and exits with the code.
"""

from __future__ import annotations

from typing import ClassVar


class QdqError(Exception):
    """Something is wrong at a named place, and this is how to mend it."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, *, fix: str, where: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} ({self.fix})"

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip between processes, which calls the class with `args` only."""
        return _rebuild, (type(self), self.what, self.fix, self.where)


class LimitMissed(QdqError):  # noqa: N818 -- a verdict, not a malfunction
    """The answer is there, and it is worse than the limit the user set."""

    exit_code = 1


class UsageError(QdqError):
    """The arguments or the recipe do not make sense."""

    exit_code = 2


class MissingPackage(QdqError):  # noqa: N818 -- names the thing that is missing
    """A package, program or device that this step needs is not here."""

    exit_code = 3


class BuildError(QdqError):
    """The engine builder refused the model, crashed or ran out of time."""

    exit_code = 4


class InputFileError(QdqError):
    """A file cannot be read, or its content does not fit the model."""

    exit_code = 5


class Bug(QdqError):  # noqa: N818 -- the user's word for it
    """Our own mistake: please report it."""

    exit_code = 70


class Interrupted(QdqError):  # noqa: N818 -- what the user did
    """The user stopped the work; finished steps are kept."""

    exit_code = 130


def _rebuild(kind: type[QdqError], what: str, fix: str, where: str | None) -> QdqError:
    return kind(what, fix=fix, where=where)
