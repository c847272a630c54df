"""Log reader: reads any log of a TensorRT builder and returns its facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qdqtool.buildlog.log_run import SHOWN, Run
from qdqtool.buildlog.reader import LogReader, ReadingProgress, Watch
from qdqtool.core.buildlog import BuildLog, LogRun, RunDigest
from qdqtool.errors import InputFileError
from qdqtool.io.text import Source, TextSource, no_text

__all__ = [
    "ReadingProgress",
    "Run",
    "Source",
    "TextSource",
    "Watch",
    "digests",
    "is_of_builder",
    "not_of_builders",
    "open_runs",
    "read",
    "runs",
]


def read(source: Source, watch: Watch | None = None) -> BuildLog:
    """Read a build log: all of its runs, with everything that they report.

    Args:
        source: a path, or a binary or text stream; compressed (xz, gzip, bzip2) and UTF-16 logs are recognised.
        watch: called after each block that was read, for a live display.

    Raises:
        InputFileError: the file cannot be opened or read. Its content never raises.
    """
    opened = TextSource(source)
    read_runs = tuple(runs(opened, watch))
    return BuildLog(runs=read_runs, notes=tuple(opened.notes))


def is_of_builder(run: LogRun | RunDigest) -> bool:
    """Return True if a run has a line of a builder, or a known error of a program around it."""
    has_cause = run.failure is not None and bool(run.failure.cause)
    is_answered = run.answer is not None and bool(run.answer.why_not)
    return has_cause or is_answered or run.lines > run.blank + run.foreign + run.unread


def not_of_builders(read_runs: Iterable[LogRun | RunDigest], where: str, fix: str) -> InputFileError:
    """Return the error for a file without any line of a builder; `fix` is for a file that is not empty."""
    if all(run.lines == run.blank for run in read_runs):
        return no_text(where)
    return InputFileError("the text is not a TensorRT build log: no line matches", fix=fix, where=where)


def runs(source: TextSource, watch: Watch | None = None) -> Iterator[LogRun]:
    """Yield the runs of a log in order, so that a log of any size needs the memory of one run.

    Raises:
        InputFileError: the file cannot be opened or read.
    """
    return (run.value() for run in LogReader(source, watch, whole=True).runs())


def open_runs(source: TextSource, watch: Watch | None = None) -> Iterator[Run]:
    """Yield the runs of a log unevaluated: call `digest`, `value` or both on each.

    Raises:
        InputFileError: the file cannot be opened or read.
    """
    return LogReader(source, watch, whole=True).runs()


def digests(source: TextSource, watch: Watch | None = None, *, shown: int = SHOWN) -> Iterator[RunDigest]:
    """Yield a short summary of each run, without its tables; several times faster than `runs`.

    Args:
        source: the log.
        watch: called after each block that was read.
        shown: how many entries of each long list.

    Raises:
        InputFileError: the file cannot be opened or read.
    """
    return (run.digest(shown) for run in LogReader(source, watch).runs())
