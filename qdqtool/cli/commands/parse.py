"""Read any log of a TensorRT builder: what the optimizer did to every Q/DQ pair, and everything else it tells.

    qdqtool parse build.log
    trtexec --onnx=a.onnx --int8 --verbose 2>&1 | qdqtool parse - --tee build.log

Logs of trtexec, the Python and C++ loggers, Polygraphy, TensorRT for RTX and programs around them, TensorRT 5 to 11,
compressed or not, with several runs in one file. Reading from a pipe shows the phase and the layer being tuned while
the build runs, and exits with 4 when the build failed, or broke off before it said how it ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import typer

from qdqtool.errors import BuildError

if TYPE_CHECKING:
    from rich.live import Live

    from qdqtool.buildlog import Progress, TextSource, Watch
    from qdqtool.core.buildlog import BuildLog, LogRun, RunDigest

_Run = TypeVar("_Run")
_MANY = 8
"""Runs of a file that are shown in full; of more, each gets a line."""


def parse(
    log: Annotated[str, typer.Argument(help="A log, also .xz, .gz or .bz2; - reads standard input.")],
    unread: Annotated[
        bool, typer.Option("--unread", help="List the lines that were not understood, by frequency.")
    ] = False,
    events: Annotated[Path | None, typer.Option(help="Write each optimizer event as a line of JSON.")] = None,
    tables: Annotated[Path | None, typer.Option(help="Folder to write all tables to, as CSV.")] = None,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write the tables as Parquet (extra `parquet`).")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the build's timeline for Perfetto or chrome://tracing.")
    ] = None,
    tee: Annotated[Path | None, typer.Option(help="Keep a copy of what was read.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that the log tells as JSON.")] = False,
) -> int:
    """Read any log of a TensorRT builder: what became of every Q/DQ pair, tactics, memory, times, failures."""
    piped = log == "-"
    exports = _Exports(events=events, tables=tables, parquet=parquet, trace=trace)
    with ExitStack() as stack:
        copy = stack.enter_context(_copy(tee)) if tee else None
        display = stack.enter_context(_Display(wanted=piped))
        if exports.wanted:
            failed = _exported(_opened(log, copy), display, exports, as_json=as_json)
        elif as_json:
            failed = _as_json(_opened(log, copy), display)
        else:
            failed = _told(display.aside(_digests(log, copy, display.watch)), unread=unread)
    return BuildError.exit_code if piped and failed else 0


def _failed(run: LogRun | RunDigest) -> bool:
    """Whether a build failed; a program that prints its verdict and did not has crashed."""
    return run.status == "failed" or bool(run.argv and run.status in ("built", "cut"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Exports:
    """Files to write besides the answer."""

    events: Path | None
    tables: Path | None
    parquet: bool
    trace: Path | None

    @property
    def wanted(self) -> bool:
        """Whether there is any."""
        return bool(self.events or self.tables or self.trace)


def _opened(log: str, copy: BinaryIO | None) -> TextSource:
    from qdqtool.buildlog import TextSource

    return TextSource(sys.stdin.buffer if log == "-" else Path(log), copy)


def _digests(log: str, copy: BinaryIO | None, watch: Watch | None) -> Iterable[RunDigest]:
    from qdqtool.buildlog import digests
    from qdqtool.buildlog.parts import digests_of

    if log == "-" or copy is not None:
        return digests(_opened(log, copy), watch)
    return digests_of(Path(log))


def _told(digests: Iterable[RunDigest], *, unread: bool) -> bool:
    """Print each run as soon as it is read; whether the last one failed."""
    from qdqtool.cli.log_words import Wordings, brief_words, digest_words

    wordings = Wordings()
    failed = False
    for digest in digests:
        failed = _failed(digest)
        if unread:
            wordings.add(digest.unread_lines)
        else:
            sys.stdout.write(digest_words(digest) if digest.number <= _MANY else brief_words(digest))
    if unread:
        sys.stdout.write(wordings.words())
    return failed


def _as_json(source: TextSource, display: _Display) -> bool:
    """Print the artefact, one run in memory at a time; whether the last run failed."""
    from qdqtool.buildlog import runs
    from qdqtool.buildlog.spill import write_json

    failed = [False]

    def noted() -> Iterator[LogRun]:
        for run in display.aside(runs(source, display.watch)):
            failed[0] = _failed(run)
            yield run

    write_json(source, noted(), sys.stdout)
    return failed[0]


def _exported(source: TextSource, display: _Display, exports: _Exports, *, as_json: bool) -> bool:
    """Write the files that are wanted, and print the digest or the artefact."""
    from qdqtool.buildlog import open_runs
    from qdqtool.core.buildlog import BuildLog
    from qdqtool.core.kinds import LOG

    pairs = [(run.digest(), run.value()) for run in display.aside(open_runs(source, display.watch))]
    log = BuildLog(runs=tuple(value for _, value in pairs), notes=tuple(source.notes))
    _write(log, exports)
    if as_json:
        sys.stdout.write(LOG.dump(log))
        return _failed(log.runs[-1])
    return _told((digest for digest, _ in pairs), unread=False)


def _write(log: BuildLog, exports: _Exports) -> None:
    from qdqtool.buildlog.tables import write_tables
    from qdqtool.buildlog.timeline import trace_of
    from qdqtool.io.files import write_text
    from qdqtool.pipeline.events import write_events

    if exports.events:
        write_events(log, exports.events)
    if exports.tables:
        write_tables(log, exports.tables, parquet=exports.parquet)
    if exports.trace:
        write_text(exports.trace, trace_of(log))


@contextmanager
def _copy(path: Path) -> Iterator[BinaryIO]:
    from qdqtool.io.files import replacing

    with replacing(path) as draft, draft.open("wb") as stream:
        yield stream


class _Display:
    """A line on the terminal that says what the builder does now; nothing where there is no terminal."""

    def __init__(self, *, wanted: bool) -> None:
        self._doing = "waiting for the log"
        self._line: Live | None = _live_line(self._words) if wanted else None

    def __enter__(self) -> _Display:
        self._start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    @property
    def watch(self) -> Watch | None:
        """What a reader calls after each block."""
        return self._update if self._line is not None else None

    def aside(self, runs: Iterable[_Run]) -> Iterator[_Run]:
        """The same runs; while each is used, and after the last, the line is gone."""
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

    def _update(self, progress: Progress) -> None:
        from qdqtool.cli.log_words import progress_words

        self._doing = progress_words(progress)


def _live_line(words: Callable[[], str]) -> Live | None:
    """A line on standard error that shows these words; None where that is no terminal."""
    from rich.live import Live

    from qdqtool.cli.screen import stderr

    console = stderr()
    if not console.is_terminal:
        return None
    # The answer goes to standard output as it is, never through the display.
    return Live(
        get_renderable=words,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


PLUGIN = parse
