"""Read any log of a TensorRT builder: what the optimizer did to every Q/DQ pair, and everything else it tells.

    qdqtool parse build.log
    trtexec --onnx=a.onnx --int8 --verbose 2>&1 | qdqtool parse - --tee build.log

Logs of trtexec, the Python and C++ loggers, Polygraphy, TensorRT for RTX and programs around them, TensorRT 5 to 11,
compressed or not, with several runs in one file. Reading from a pipe shows the phase and the layer being tuned while
the build runs, and exits with 4 when the build failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

if TYPE_CHECKING:
    from qdqtool.buildlog import LogSource, Progress, Watch
    from qdqtool.core.buildlog import BuildLog, LogRun, RunDigest

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
        watch = stack.enter_context(_live()) if piped else None
        if exports.wanted:
            status = _exported(_opened(log, copy), watch, exports, as_json=as_json)
        elif as_json:
            status = _as_json(_opened(log, copy), watch)
        else:
            status = _told(_digests(log, copy, watch), unread=unread)
    return 4 if piped and status == "failed" else 0


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


def _opened(log: str, copy: BinaryIO | None) -> LogSource:
    from qdqtool.buildlog import LogSource

    return LogSource(sys.stdin.buffer if log == "-" else Path(log), copy)


def _digests(log: str, copy: BinaryIO | None, watch: Watch | None) -> Iterable[RunDigest]:
    from qdqtool.buildlog import digests
    from qdqtool.buildlog.parts import digests_of

    if log == "-" or copy is not None:
        return digests(_opened(log, copy), watch)
    return digests_of(Path(log))


def _told(digests: Iterable[RunDigest], *, unread: bool) -> str:
    """Print each run as soon as it is read; the status of the last one."""
    from qdqtool.cli.log_words import Wordings, brief_words, digest_words

    wordings = Wordings()
    status = ""
    for digest in digests:
        status = digest.status
        if unread:
            wordings.add(digest.unread_lines)
        else:
            sys.stdout.write(digest_words(digest) if digest.number <= _MANY else brief_words(digest))
    if unread:
        sys.stdout.write(wordings.words())
    return status


def _as_json(source: LogSource, watch: Watch | None) -> str:
    """Print the artefact, one run in memory at a time; the status of the last run."""
    from qdqtool.buildlog import runs
    from qdqtool.buildlog.spill import write_json

    last = [""]

    def noted() -> Iterator[LogRun]:
        for run in runs(source, watch):
            last[0] = run.status
            yield run

    write_json(source, noted(), sys.stdout)
    return last[0]


def _exported(source: LogSource, watch: Watch | None, exports: _Exports, *, as_json: bool) -> str:
    """Write the files that are wanted, and print the digest or the artefact."""
    from qdqtool.buildlog import open_runs
    from qdqtool.core.buildlog import BuildLog
    from qdqtool.core.kinds import LOG

    pairs = [(run.digest(), run.value()) for run in open_runs(source, watch)]
    log = BuildLog(runs=tuple(value for _, value in pairs), notes=tuple(source.notes))
    _write(log, exports)
    if as_json:
        sys.stdout.write(LOG.dump(log))
        return log.runs[-1].status
    return _told((digest for digest, _ in pairs), unread=False)


def _write(log: BuildLog, exports: _Exports) -> None:
    from qdqtool.buildlog.tables import write_tables
    from qdqtool.buildlog.timeline import trace_of
    from qdqtool.core.files import write_text
    from qdqtool.workflows.events import write_events

    if exports.events:
        write_events(log, exports.events)
    if exports.tables:
        write_tables(log, exports.tables, parquet=exports.parquet)
    if exports.trace:
        write_text(exports.trace, trace_of(log))


@contextmanager
def _copy(path: Path) -> Iterator[BinaryIO]:
    from qdqtool.core.files import replacing

    with replacing(path) as draft, draft.open("wb") as stream:
        yield stream


@contextmanager
def _live() -> Iterator[Watch | None]:
    """A line on the terminal that says what the builder does now; nothing where there is no terminal."""
    from qdqtool.cli.log_words import progress_words
    from qdqtool.cli.screen import stderr

    console = stderr()
    if not console.is_terminal:
        yield None
        return
    with console.status("waiting for the log") as line:

        def watch(progress: Progress) -> None:
            line.update(progress_words(progress))

        yield watch


PLUGIN = parse
