"""Read any log of a TensorRT builder: how every Q/DQ pair ended, kernels, memory, times and failures.

    qdqtool parse build.log
    trtexec --onnx=a.onnx --int8 --verbose 2>&1 | qdqtool parse - --tee build.log

The input is a log of trtexec, the Python and C++ loggers, Polygraphy, TensorRT for RTX or a program around them,
TensorRT 5 to 11. It may be compressed, and may have several runs. When it reads from a pipe, it shows the phase and
the tuned layer while the build runs; it exits with 4 if the build failed, or if the log ends before the result.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeVar

import typer

from qdqtool.cli.screen import stderr
from qdqtool.errors import BuildError, UsageError

if TYPE_CHECKING:
    from rich.live import Live

    from qdqtool.buildlog import ReadingProgress, TextSource, Watch
    from qdqtool.core.buildlog import BuildLog, LogRun, RunDigest

_Run = TypeVar("_Run")
_AnyRun = TypeVar("_AnyRun", bound="LogRun | RunDigest")
MISREAD = 0.05
"""Share of a run's lines that may be unread before its figures are treated as unreliable."""
_MANY = 8
"""Number of runs in a file that are shown in full; each further run gets one line."""


def parse(
    log: Annotated[
        str, typer.Argument(help="Build log, also as .xz, .gz, .bz2, .zip or .zst; - reads standard input.")
    ],
    unread: Annotated[
        bool, typer.Option("--unread", help="List the lines that were not understood, by frequency.")
    ] = False,
    events: Annotated[
        Path | None, typer.Option(help="Write the optimizer's steps to this file, one line of JSON each.")
    ] = None,
    tables: Annotated[Path | None, typer.Option(help="Write all tables as CSV into this folder.")] = None,
    parquet: Annotated[
        bool,
        typer.Option("--parquet", help="Write the tables as Parquet instead (needs the extra `parquet`)."),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the build's timeline for Perfetto or chrome://tracing.")
    ] = None,
    tee: Annotated[
        Path | None, typer.Option(help="Write a copy of the log that was read to this file.")
    ] = None,
    fail_on: Annotated[
        Literal["unread"] | None,
        typer.Option(help="Exit with 1 when more than 5 % of a run's lines were not understood."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print full lists instead of their first entries.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(help="Calibration cache: shows which tensors without a scale it contains."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole content of the log as JSON.")
    ] = False,
) -> int:
    """Read any log of a TensorRT builder: how every Q/DQ pair ended, kernels, memory, times and failures."""
    if cache and (as_json or unread):
        raise UsageError(
            "--cache cannot be combined with --json or --unread", fix="remove one of the options"
        )
    piped = log == "-"
    words = _Words(every=every, unread=unread, cache=_tensors_of(cache) if cache else None)
    exports = _Exports(events=events, tables=tables, parquet=parquet, trace=trace)
    with ExitStack() as stack:
        copy = stack.enter_context(_copy(tee, log)) if tee else None
        display = stack.enter_context(_Display(is_shown=piped))
        summary = _LogSummary("standard input" if piped else log)
        if exports.is_asked:
            _export_files(_open_log(log, copy), display, exports, summary, None if as_json else words)
        elif as_json:
            _as_json(_open_log(log, copy), display, summary)
        else:
            words.print(summary.all(display.aside(_digests(log, copy, display.watch, words.kept))))
    if piped and summary.failed:
        return BuildError.exit_code
    return 1 if fail_on == "unread" and summary.misread else 0


class _LogSummary:
    """Summary of all runs of a log, for the exit code and the hints of `qdqtool parse`.

    Args:
        where: the log, for messages.

    Attributes:
        failed: whether the last run failed.
        misread: whether more than 5 % of the lines of any run were not understood.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.failed = False
        self.misread = False

    def all(self, runs: Iterable[_AnyRun]) -> Iterator[_AnyRun]:
        """Yield the runs of a log unchanged, and record if the last failed and if any was misread.

        Raises:
            InputFileError: no file has a line of a builder.
        """
        from qdqtool.buildlog import is_of_builder, not_of_builders

        waiting: list[_AnyRun] = []
        for run in runs:
            waiting.append(run)
            self.failed = _has_failed(run)
            if any(map(is_of_builder, waiting)):
                yield from self._note_runs(waiting)
                waiting.clear()
        if waiting:
            raise not_of_builders(
                waiting,
                self._where,
                "pass the log of a build; layer information and profiles: qdqtool engine show FILE",
            )

    def _note_runs(self, runs: list[_AnyRun]) -> Iterator[_AnyRun]:
        for run in runs:
            if run.unread_share > MISREAD:
                self.misread = True
                stderr().print(
                    f"run {run.number}: {run.unread_share:.0%} of its lines were not understood, so its figures may be incomplete; list them with --unread",
                    style="yellow",
                )
            yield run


def _has_failed(run: LogRun | RunDigest) -> bool:
    """Return True if a build in the log failed, or if a program ended without its usual result."""
    return run.status == "failed" or bool(run.argv and run.status in ("built", "cut"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Exports:
    """Files that `qdqtool parse` writes in addition to the printed output."""

    events: Path | None
    tables: Path | None
    parquet: bool
    trace: Path | None

    @property
    def is_asked(self) -> bool:
        """True if an option asks to write a file."""
        return bool(self.events or self.tables or self.trace)


def _open_log(log: str, copy: BinaryIO | None) -> TextSource:
    from qdqtool.buildlog import TextSource

    return TextSource(sys.stdin.buffer if log == "-" else Path(log), copy)


def _digests(log: str, copy: BinaryIO | None, watch: Watch | None, kept: int | None) -> Iterable[RunDigest]:
    from qdqtool.buildlog import digests
    from qdqtool.buildlog.split_reading import digests_of

    if kept is not None:
        return digests(_open_log(log, copy), watch, shown=kept)
    if log == "-" or copy is not None:
        return digests(_open_log(log, copy), watch)
    return digests_of(Path(log))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """Options for printing the summaries of runs.

    Attributes:
        every: whether lists are shown in full.
        unread: whether only the lines that were not understood are wanted.
        cache: tensors of a calibration cache; None if none was given.
    """

    every: bool
    unread: bool
    cache: frozenset[str] | None

    @property
    def kept(self) -> int | None:
        """Number of list entries to keep in the summary of a run; None for the default."""
        return sys.maxsize if self.every else None

    def print(self, digests: Iterable[RunDigest]) -> None:
        """Print the summary of each run as soon as the run is read."""
        from qdqtool.cli.log_words import SHOWN, Wordings, brief_words, digest_words
        from qdqtool.cli.screen import show_text

        wordings = Wordings()
        shown = sys.maxsize if self.every else SHOWN
        for digest in digests:
            if self.unread:
                wordings.add(digest.unread_lines)
            elif digest.number <= _MANY or self.every:
                show_text(digest_words(digest, shown=shown, cache=self.cache))
            else:
                sys.stdout.write(brief_words(digest))
        if self.unread:
            sys.stdout.write(wordings.words())


def _tensors_of(cache: Path) -> frozenset[str]:
    """Return the names of the tensors in a calibration cache."""
    from qdqtool.calibration.caches.files import read_cache

    return frozenset(read_cache(cache).by_tensor())


def _as_json(source: TextSource, display: _Display, summary: _LogSummary) -> None:
    """Print the log as JSON, with one run in memory at a time."""
    from qdqtool.buildlog import runs
    from qdqtool.buildlog.outputs import write_json

    write_json(source, summary.all(display.aside(runs(source, display.watch))), sys.stdout)


def _export_files(
    source: TextSource, display: _Display, exports: _Exports, summary: _LogSummary, words: _Words | None
) -> None:
    """Write the requested files of a log, and print its summary or its JSON."""
    from qdqtool.buildlog import open_runs
    from qdqtool.buildlog.log_run import SHOWN
    from qdqtool.core.buildlog import BuildLog
    from qdqtool.core.kinds import LOG

    kept = words.kept if words and words.kept is not None else SHOWN
    pairs = [(run.digest(kept), run.value()) for run in display.aside(open_runs(source, display.watch))]
    log = BuildLog(runs=tuple(summary.all(value for _, value in pairs)), notes=tuple(source.notes))
    _write(log, exports)
    if words is None:
        sys.stdout.write(LOG.dump(log))
    else:
        words.print(digest for digest, _ in pairs)


def _write(log: BuildLog, exports: _Exports) -> None:
    from qdqtool.buildlog.outputs import trace_of, write_events, write_tables
    from qdqtool.io.files import write_text

    if exports.events:
        write_events(log, exports.events)
    if exports.tables:
        write_tables(log, exports.tables, parquet=exports.parquet)
    if exports.trace:
        write_text(exports.trace, trace_of(log))


@contextmanager
def _copy(path: Path, log: str) -> Iterator[BinaryIO]:
    """Yield the stream for the copy of a log.

    The copy of a pipe may be the only record of a build: it is written under its name at once, and stays after an error.
    """
    from qdqtool.io.files import make_folder, replacing, unwritable

    if _is_file(log):  # it may be the input file, which must not be emptied before it is read
        with replacing(path) as draft, draft.open("wb") as stream:
            yield stream
        return
    try:
        make_folder(path.parent)
        copy = path.open("wb")
    except OSError as error:
        raise unwritable(path, error) from error
    with copy:
        yield copy


def _is_file(log: str) -> bool:
    """Return False if the log comes from a pipe or a terminal."""
    try:
        status = os.fstat(sys.stdin.fileno()) if log == "-" else Path(log).stat()
    except (OSError, ValueError):  # the reader of this file reports that it is missing
        return True
    return stat.S_ISREG(status.st_mode)


class _Display:
    """A status line on the terminal with the current step of the builder. Without a terminal, it does nothing."""

    def __init__(self, *, is_shown: bool) -> None:
        self._doing = "waiting for the log"
        self._line: Live | None = _live_line(self._words) if is_shown else None

    def __enter__(self) -> _Display:
        self._start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    @property
    def watch(self) -> Watch | None:
        """Function for a log reader to call after each block; None if there is no status line."""
        return self._update if self._line is not None else None

    def aside(self, runs: Iterable[_Run]) -> Iterator[_Run]:
        """Yield the runs unchanged. The status line is hidden while a run is used, and after the last run."""
        for run in runs:
            self._stop()
            yield run
            self._start()
        self._stop()

    def _start(self) -> None:
        if self._line is not None:
            self._line.start()

    def _stop(self) -> None:
        if self._line is not None:
            self._line.stop()

    def _words(self) -> str:
        return self._doing

    def _update(self, progress: ReadingProgress) -> None:
        from qdqtool.cli.log_words import progress_words

        self._doing = progress_words(progress)


def _live_line(words: Callable[[], str]) -> Live | None:
    """Return a status line on standard error that shows these words; None if standard error is not a terminal."""
    from rich.live import Live

    console = stderr()
    if not console.is_terminal:
        return None
    # The answer is written to standard output unchanged, without the display.
    return Live(
        get_renderable=words,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


PLUGIN = parse
