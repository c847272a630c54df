"""The process of a command: signals, the encoding of standard streams, and arguments hidden from `ps`.

Imports only the smallest modules of the standard library. So a signal during the import of all other modules,
including `qdqtool.platform` with its sockets and processes, is handled as later signals are.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from qdqtool.errors import HungUp, Interrupted, QdqError, Terminated
from qdqtool.redact import redact_text

_RESUMES = "run the same command again to continue; finished steps are kept"
_received: list[int] = []
_answered: list[int] = []
"""Signals that end a command in words."""


def open_streams() -> None:
    """Open the null device for standard streams that the caller has closed (`>&-`, some service managers).

    Without this, the next opened file gets the number of the stream, and output of other libraries is written into
    it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def watch_signals() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C: every `finally` runs, so drafts and child processes are removed.

    A signal that the caller ignores, as a shell does for jobs in the background and `nohup` for SIGHUP, stays ignored.
    """
    _answer(signal.SIGINT)
    _answer(signal.SIGTERM)
    from qdqtool.platform import signal_number

    hang_up = signal_number("SIGHUP")
    if hang_up is not None:
        _answer(hang_up)


def _answer(number: int) -> None:
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, _stop)
        _answered.append(number)


@contextmanager
def temporary_folder() -> Iterator[None]:
    """Give all temporary files of this process one folder. It is removed at the end, even if a signal ends the command.

    A signal during the creation or removal of a temporary folder would leave that folder behind.
    """
    import shutil
    import tempfile

    try:
        tempfile.tempdir = tempfile.mkdtemp(prefix="qdqtool-")
    except OSError:  # a command that needs temporary files reports it
        yield
        return
    try:
        yield
    finally:
        for number in _answered:
            signal.signal(number, signal.SIG_IGN)
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)


def find_stop_signal() -> QdqError | None:
    """Return the error to show if a signal has asked this process to stop; None without a signal.

    This is called after any exception, because C extensions turn a KeyboardInterrupt during their import into an
    ImportError.
    """
    if not _received:
        return None
    if _received[0] == signal.SIGTERM:
        return Terminated("stopped by SIGTERM", fix=_RESUMES)
    if _received[0] == signal.SIGINT:
        return report_interruption()
    return HungUp(
        "the terminal was closed (SIGHUP)", fix=f"{_RESUMES}; `nohup` or `tmux` keeps the command running"
    )


def report_interruption() -> QdqError:
    """Return the error to show after Ctrl-C."""
    return Interrupted("stopped by Ctrl-C", fix=_RESUMES)


class Stopped(KeyboardInterrupt):
    """Raised when SIGTERM or SIGHUP arrives.

    The interpreter ends itself by SIGINT after any plain KeyboardInterrupt that passed through its own `exec` (dataclasses
    use it), handled or not; it compares the class exactly, so a subclass keeps the documented exit code.
    """


def _stop(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    raise Stopped


def write_any_text() -> None:
    r"""Write any character to standard output and error: those that the encoding lacks become \uXXXX.

    JSON stays valid. A pipe on Windows has the encoding cp1252, and the name of a tensor may contain any character.
    """
    codecs.register_error("qdqtool-escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="qdqtool-escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


class AnswerUnread(BrokenPipeError):  # noqa: N818 -- what happened
    """Raised when the program that reads standard output has closed it."""


def is_unread() -> bool:
    """Return True if the reader of standard output is gone, or if the system cannot say."""
    import select

    if not hasattr(select, "poll"):
        return True
    watch = select.poll()
    try:
        watch.register(sys.stdout.fileno(), 0)  # errors are always shown
        return bool(watch.poll(0))
    except (OSError, ValueError):
        return True


def hide_arguments() -> None:
    """Remove passwords from the argument list that other users of the machine can read."""
    from qdqtool.platform import overwrite_arguments

    shown = [redact_text(word) for word in sys.orig_argv]
    if shown != sys.orig_argv:
        overwrite_arguments(shown)
